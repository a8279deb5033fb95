"""What came with this program is planned with and exported; what others measured is checked."""

import gzip
import json
import re
from dataclasses import replace
from functools import cache
from math import exp, log

import pytest
from cases import ROOT
from commands import run

from tuner.families.dense_gemm.problem import DensePart
from tuner.files import shipped_toml
from tuner.problems.points import Config, Point
from tuner.problems.registry import parse_problem
from tuner.problems.results import (
    Compiled,
    Entry,
    Incumbent,
    MeasureKind,
    RunKey,
    Status,
    Totals,
)
from tuner.store.result_files import read_results, write_results
from tuner.store.results import ResultStore
from tuner.store.shelf import SHIPPED

NAME = "NVIDIA_H200/sglang-0.5.16-triton-3.6.0.jsonl.gz"
KIMI = ("kimi-k2", "--tp", "8", "--engine", "sglang==0.5.16")
LAYER = "fused_moe:E=384,N=256,K=7168,top_k=8,dtype=fp8_w8a8,block_shape=128x128"
SMALL = "fused_moe:E=8,N=1792,K=4096,top_k=2,dtype=bfloat16"


@cache
def on_shelf(spec):
    (found,) = [one for one in read_results(SHIPPED / NAME) if one.key.problem.spec() == spec]
    return found


@pytest.fixture
def shelved(env):
    """The variables of commands that have the shelf of this program."""
    return {**env, "TUNER_SHELF": str(SHIPPED)}


def changed_shelf(env, tmp_path, **changes):
    """The variables of commands with a shelf of one result, in a changed environment."""
    one = on_shelf(LAYER)
    environment = replace(one.key.environment, **changes)
    result = replace(one, key=replace(one.key, environment=environment))
    (path,) = write_results(tmp_path / "changed", [result])
    if "triton" in changes:  # a file in the wrong place is not believed either
        path.rename(tmp_path / "changed" / NAME)
    return {**env, "TUNER_SHELF": str(tmp_path / "changed")}


def plan_of(env, *words, device="H200"):
    done = run("plan", *words, "--device", device, "--json", env=env, code=0)
    return {one["problem"]: one for one in json.loads(done.stdout)["problems"]}


def test_a_plan_says_what_the_shelf_has(shelved):
    found = plan_of(shelved, *KIMI)
    layer = found.pop(LAYER)
    assert (layer["file"], layer["from_shelf"], layer["gain_from"]) == ("shelf", True, "ok")
    assert layer["gain"] > 1.1
    assert {one["from_shelf"] for one in found.values()} == {False}
    done = run("plan", *KIMI, "--device", "H200", "--ep", "1", env=shelved, code=0)
    assert "measured (shelf)" in " ".join(done.stdout.split())
    assert "for 1 of them the shelf has files" in " ".join(done.stdout.split())
    assert "tuner export kimi-k2 --device H200 --tp 8" in done.stderr
    assert "--ep 1" in done.stderr


@pytest.mark.parametrize("release", ["0.5.16", "0.5.23"])
def test_a_plan_says_which_library_is_faster(env, release):
    words = ("deepseek-r1", "--tp", "8", "--engine", f"sglang=={release}")
    found = plan_of(env, *words, device="H100")
    by_kind = {name.partition(":")[0]: one for name, one in found.items()}
    assert by_kind["block_gemm"]["leave"].startswith("leave block_gemm to DeepGEMM: it was 1.18x")
    assert by_kind["extend_attention"]["leave"].startswith("leave extend_attention to FlashAtt")
    assert by_kind["fused_moe"]["leave"] is None
    gain = found["block_gemm:N=2112,K=7168,dtype=fp8_w8a8,block=128x128"]["gain"]
    assert gain == (0.562 if release == "0.5.16" else None)


@pytest.mark.parametrize("timed", [True, False], ids=["with a time", "without"])
def test_own_results_count_before_what_is_known_of_the_kind(env, timed):
    """A file of the store stays one, whether or not the library was measured beside it."""
    spec = "block_gemm:N=2112,K=7168,dtype=fp8_w8a8,block=128x128"
    point, config = Point(16, DensePart.DENSE), Config({"BLOCK_SIZE_M": 16})
    library = Incumbent(Config({}), Status.OK, 18.0 if timed else None, backend="deep_gemm")
    own = {"default": Incumbent(config, Status.OK, 9.0), "deep_gemm": library}
    entry = Entry(point, config, Status.OK, 9.0, Compiled(Status.OK), own, "", "deep_gemm")
    place = replace(on_shelf(SMALL).key.environment, device="NVIDIA_H100_80GB_HBM3")
    key = RunKey(parse_problem(spec), place, MeasureKind.GPU, "quick", 0, (point,), "")
    with ResultStore.open(env["TUNER_DATABASE_URL"]) as store:
        store.finish_run(store.begin_run(key), [entry], Totals())
    words = ("deepseek-r1", "--tp", "8", "--engine", "sglang==0.5.16")
    found = plan_of(env, *words, device="H100")[spec]
    if timed:
        told = (found["gain"], found["from_shelf"], found["leave"])
        assert told == (2.0, False, None)
    assert found["file"] == "stored"


def test_the_libraries_gains_are_those_that_were_measured():
    """Both files of raw results give the means of the table."""
    rows = shipped_toml("tuner.backends", "measured.toml")["raced"]
    table = {name: (gain, row["backend"]) for row in rows for name, gain in row["problems"].items()}
    raw = ROOT / "benchmarks/results/h100"
    for name in ("default-backends-deepseek-r1-rank.json", "default-backends-qwen3.json"):
        for one in json.loads((raw / name).read_text())["problems"]:
            if one["problem"] not in table:
                assert one["family"] == "fused_moe"
                continue
            gain, backend = table.pop(one["problem"])
            times = [point["us"] for point in one["points"] if backend in point["us"]]
            logs = [log(us[backend] / us["tuned"]) for us in times]
            assert gain == round(exp(sum(logs) / len(logs)), 3)
    assert not table


def test_an_export_with_an_empty_store_writes_the_shelf_s_files(shelved, tmp_path):
    out = tmp_path / "out"
    done = run("export", *KIMI, "--device", "H200", "--out", out, env=shelved, code=0)
    assert "from the shelf, measured on another machine with driver" in done.stdout
    folder = "NVIDIA_H200/sglang-0.5.16-triton-3.6.0"
    name = "E=384,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128]"
    for file in (f"{name}.json", f"{name}_down.json"):
        path = f"configs/triton_3_6_0/{file}"
        assert (out / path).read_bytes() == (ROOT / "configs_out" / folder / path).read_bytes()
        sidecar = json.loads((out / "provenance/triton_3_6_0" / file).read_text())
        assert {entry["from"] for entry in sidecar["entries"].values()} == {"the shelf"}
    named = (*KIMI, "--device", "H200", "--out", tmp_path / "again")
    run("export", *named, env=shelved, code=0)
    assert (tmp_path / "again" / path).read_bytes() == (out / path).read_bytes()


def test_what_is_not_asked_for_is_not_exported(shelved, tmp_path):
    """Else a problem of the shelf might ask for the file of a problem of the store."""
    words = ("export", "--device", "H200", "--engine", "sglang==0.5.16", "--out", tmp_path / "out")
    done = run(*words, env=shelved, code=1)
    assert "or name a model: the shelf has files for some" in done.stderr
    run("results", "import", written(tmp_path, small()), env=shelved, code=0)
    found = json.loads(run(*words, "--json", env=shelved, code=0).stdout)
    assert {one["problem"] for one in found["files"]} == {SMALL}


def test_a_layer_that_the_shelf_has_for_another_release_names_that_release(shelved, tmp_path):
    """And the command that tunes it is whole: it has all that was asked for."""
    words = ("deepseek-r1", "--tp", "8", "--device", "H200", "--engine", "sglang==0.5.16")
    family = ("--family", "fused_moe", "--no-fuse-shared")
    for of, every in (((), " --all"), (family, "")):
        said = run("export", *words, *of, "--out", tmp_path, env=shelved, code=1).stderr
        (tune,) = re.findall(r"run `tuner tune ([^`]+)` first", said)
        assert sorted(tune.split()) == sorted([*words, *of, *every.split()])
    assert "the shelf has winners for 1 of 1 problems with --engine sglang==0.5.23" in said


def test_a_bundle_takes_the_shelf_s_files_and_says_so(shelved, tmp_path):
    cluster = ROOT / "examples/cluster-h20-2x8-sglang.toml"
    words = ("bundle", "--device", "H100", "--cluster", cluster, "--out", tmp_path / "out")
    done = run(*words, env=shelved, code=0)
    assert "from the shelf, measured on another machine with driver" in done.stdout + done.stderr
    (tmp_path / "folder").mkdir()
    again = run(*words[:-1], tmp_path / "folder", env=shelved, code=0)
    (archive,) = (tmp_path / "folder").iterdir()
    assert again.stdout.startswith(f"{archive}  ")


@pytest.mark.parametrize("field", ["kernel_hash", "triton"])
def test_what_was_measured_with_other_kernels_is_not_served(env, tmp_path, field):
    other = changed_shelf(env, tmp_path, **{field: "3.5.1"})
    assert plan_of(other, *KIMI)[LAYER]["gain"] is None
    done = run("export", *KIMI, "--device", "H200", env=other, cwd=tmp_path, code=1)
    assert "the store has no winners" in done.stderr


def test_another_driver_is_a_note(env, tmp_path):
    other = changed_shelf(env, tmp_path, driver="570.1")
    done = run("export", *KIMI, "--device", "H200", env=other, cwd=tmp_path, code=0)
    assert "from the shelf, measured on another machine with driver 570.1: 1 problem" in done.stdout


def test_a_folder_that_is_none_is_refused(env, tmp_path):
    env = {**env, "TUNER_SHELF": str(tmp_path / "none")}
    done = run("plan", *KIMI, "--device", "H200", env=env, code=2)
    assert "is no folder" in done.stderr


# What others measured


def written(tmp_path, result):
    (path,) = write_results(tmp_path / "given", [result])
    return path


def small(sizes=(1,)):
    """A result with few kernels."""
    one = on_shelf(SMALL)
    return replace(one, entries=tuple(e for e in one.entries if e.point.batch_size in sizes))


def changed(result, **values):
    return replace(result, entries=(replace(result.entries[0], **values), *result.entries[1:]))


def test_results_of_another_machine_are_compiled_and_stored(env, tmp_path):
    path = written(tmp_path, small())
    done = run("results", "import", path, env=env, code=0)
    assert done.stdout == (
        f"{SMALL}: 2 entries stored: compiled here, and not measured, because no GPU that may be "
        "used here is an NVIDIA_H200\n"
    )
    again = run("results", "import", path, "--json", env=env, code=0)
    (row,) = json.loads(again.stdout)["results"]
    assert row["done"].startswith("left out: the store has measured entries of its own")
    out = tmp_path / "out"
    words = ("--device", "H200", "--engine", "sglang==0.5.16", "--out", out)
    run("results", "export", *words, env=env, code=0)
    (back,) = read_results(out / NAME)
    assert (back.entries, back.key) == (small().entries, small().key)


def believed_not(result):
    """By reason, results that must not be believed."""
    first = result.entries[0]
    default = first.incumbents["default"]
    other = replace(default, config=first.config)
    place = result.key.environment
    return {
        "bytes of shared memory": changed(
            result, compiled=replace(first.compiled, shared_bytes=first.compiled.shared_bytes + 8)
        ),
        "another default configuration": changed(result, incumbents={"default": other}),
        "not measured: predicted": changed(result, status=Status.PREDICTED),
        "has no time": changed(result, median_us=None),
        "not measured on a GPU": replace(
            result, key=replace(result.key, measure=MeasureKind.PREDICT)
        ),
        "no entry at a size that was tuned": replace(result, entries=()),
        "takes no config key 'FOO'": changed(result, config=first.config.replace(FOO=1)),
        "batch sizes are whole numbers": replace(
            changed(result, point=replace(first.point, batch_size=0)),
            key=replace(result.key, points=(replace(first.point, batch_size=0),)),
        ),
        "other kernels": replace(
            result, key=replace(result.key, environment=replace(place, kernel_hash="ab" * 32))
        ),
    }


def test_what_is_not_believed_is_not_stored(env, tmp_path, subtests):
    for number, (why, result) in enumerate(believed_not(small()).items()):
        with subtests.test(why):
            path = written(tmp_path / str(number), result)
            done = run("results", "import", path, env=env, code=2)
            assert why in done.stderr
            assert "nothing was stored" in done.stderr
    run("results", "export", "--device", "H200", env=env, cwd=tmp_path, code=2)


def test_a_configuration_that_does_not_fit_is_not_believed(env, tmp_path):
    result = small()
    large = {"BLOCK_SIZE_N": 256, "BLOCK_SIZE_K": 256, "num_warps": 8, "num_stages": 5}
    path = written(tmp_path, changed(result, config=Config({**result.entries[0].config, **large})))
    done = run("results", "import", path, env=env, code=2)
    assert "shared memory" in done.stderr


def test_files_that_hold_no_results_are_refused(env, tmp_path):
    path = tmp_path / "given.jsonl.gz"
    texts = {"cannot be read": b"no gzip", "line 1": gzip.compress(b"{}"), "line 2": None}
    texts |= {"it is empty": gzip.compress(b""), "it is too deep": gzip.compress(b"[" * 100_000)}
    good = (SHIPPED / NAME).read_bytes()
    texts["line 2"] = gzip.compress(gzip.decompress(good).splitlines(keepends=True)[0] + b"[]")
    for words, data in texts.items():
        path.write_bytes(data)
        done = run("results", "import", path, env=env, code=2)
        assert words in done.stderr


def test_nothing_measured_is_nothing_to_give(env, tmp_path):
    done = run("results", "export", "--device", "H200", env=env, cwd=tmp_path, code=2)
    assert "the store has nothing measured on NVIDIA_H200" in done.stderr
    assert not (tmp_path / "results_out").exists()
