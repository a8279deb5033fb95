"""The command line as users and checks rely on it: real stores, real compiles, real kills."""

import gzip
import json
import random
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bundle_cases import EXAMPLES
from cases import FP8_RECORDING, SWEEP, config
from commands import run

TUNER = Path(sys.executable).with_name("tuner")
ENGINE = "sglang==0.5.16"
PHASES = ["extend_attention", "decode_attention"]
RECORDED = "fused_moe:E=256,N=256,K=7168,top_k=8,dtype=fp8_w8a8,block_shape=128x128"
DECODE = "decode_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16"
L40S_NAME = "E=256,N=64,device_name=NVIDIA_L40S,dtype=int8_w8a8,per_channel_quant=True"


def tuner(env: dict[str, str], *args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    return run(*args, env=env, code=code)


def replay(*options: str) -> list[str]:
    measure = f"replay:{FP8_RECORDING}"
    return ["tune", RECORDED, "--device", "H200", "--measure", measure, "--json", *options]


# The main job


def test_tune_and_export_end_with_the_next_command(env, tmp_path):
    words = [one for one in replay("--batch-sizes", "2,16", "--effort", "quick") if one != "--json"]
    (line,) = re.findall("^next: tuner (export .*)$", tuner(env, *words).stderr, re.M)
    exported = tuner(env, *shlex.split(line), "--out", str(tmp_path / "out"))
    (line,) = re.findall(": tuner (load-proof .*) server.log$", exported.stderr, re.M)
    log = tmp_path / "server.log"
    log.write_text("nothing of a file\n")
    proof = run(*shlex.split(line), str(log), env=env)
    assert str(tmp_path / "out") in line and proof.returncode in (0, 1), proof.stderr


@pytest.mark.usefixtures("few_kernels")
def test_to_tune_for_a_cluster_ends_with_its_bundle(env, tmp_path):
    cluster = ("--cluster", str(EXAMPLES / "cluster-l40s-4x8.toml"), "--device", "L40S")
    quick = ("--family", "fused_moe", "--batch-sizes", "1", "--effort", "quick")
    done = tuner(env, "tune", *cluster, *quick, "--measure", "predict")
    (line,) = re.findall("^next: tuner (.*)$", done.stderr, re.M)
    archive = tmp_path / "bundle.tar.gz"
    tuner(env, *shlex.split(line), "--out", str(archive))
    assert line.startswith("bundle --cluster ") and archive.is_file()


@pytest.mark.usefixtures("few_kernels")
def test_from_a_model_and_a_gpus_name_to_files_the_engine_loads(env, tmp_path):
    done = tuner(
        env,
        *("tune", "deepseek-r1", "--tp", "32", "--dtype", "int8_w8a8", "--no-fuse-shared"),
        *("--device", "L40S", "--measure", "predict", "--effort", "quick"),
        *("--batch-sizes", "1", "--json"),
    )
    report = json.loads(done.stdout)
    assert report["device"] == "NVIDIA_L40S"
    assert report["file_names"] == {"up": f"{L40S_NAME}.json", "down": f"{L40S_NAME}_down.json"}
    assert f"{L40S_NAME}.json" in done.stderr
    assert "E=256 without the shared experts, as asked" in done.stderr
    assert done.stderr.count("sglang 0.5.16 on NVIDIA_L40S runs Triton here; it reads") == 1
    assert report["runs"]["line"] in done.stderr
    assert [kernel["kernel"] for kernel in report["runs"]["kernels"]] == ["Triton"]
    assert len(report["entries"]) == 2
    for entry in report["entries"]:
        assert entry["shared_bytes"] <= 101_376
        assert entry["status"] == "predicted"
        assert set(entry["incumbents"]) == {"default"}

    refused = tuner(env, "export", "--device", "L40S", "--out", str(tmp_path / "out"), code=1)
    assert refused.stdout == ""
    assert "--allow-predicted" in refused.stderr
    assert not (tmp_path / "out").exists()

    done = tuner(
        env, "export", "--device", "L40S", "--out", str(tmp_path / "out"), "--allow-predicted"
    )
    folder = tmp_path / "out" / "configs" / "triton_3_6_0"
    files = [folder / f"{L40S_NAME}{end}.json" for end in ("", "_down")]
    for file in files:
        entries = json.loads(file.read_text())
        assert len(entries) == 18
        assert all(key.isdigit() for key in entries)

    done = tuner(env, "check", *map(str, files), "--device", "L40S", "--json")
    checked = json.loads(done.stdout)["entries"]
    assert len(checked) == 36
    assert all(entry["fits"] and entry["limit_bytes"] == 101_376 for entry in checked)


@pytest.mark.usefixtures("few_kernels")
def test_what_was_predicted_is_left_out_and_said_on_stderr(env, tmp_path):
    other = RECORDED.replace("N=256", "N=128")
    tuner(env, *replay("--batch-sizes", "2"))
    predict = ("--measure", "predict", "--effort", "quick", "--batch-sizes", "2")
    tuner(env, "tune", other, "--device", "H200", *predict)
    command = ("export", "--device", "H200", "--out", str(tmp_path / "out"))
    named = tuner(env, *command, "--problem", other, code=1)
    assert named.stdout == ""
    assert f"winners for {other} were predicted, not measured" in named.stderr
    assert not (tmp_path / "out").exists()

    done = tuner(env, *command, "--json")
    why = "only predicted: measure it, or allow predicted entries"
    assert f"left out ({why}): {other}" in done.stderr.splitlines()
    report = json.loads(done.stdout)
    assert {file["problem"] for file in report["files"]} == {RECORDED}
    assert report["left_out_problems"] == [{"problem": other, "why": why}]
    (listed,) = (tmp_path / "out/provenance").glob("left_out,device_name=NVIDIA_H200.jsonl")
    assert json.loads(listed.read_text()) == {"problem": other, "why": why}


def test_record_keeps_every_problem_of_a_models_attention(env, tmp_path):
    again = tmp_path / "attention.csv.gz"
    model = ["tune", "qwen3-30b-a3b", *("--family", "attention"), *("--device", "H200")]
    model += ["--engine", ENGINE]
    # The recording is of the 8 splits that the engine makes by itself.
    options = ["--kv-splits", "8", "--effort", "quick", "--json", "--measure"]
    first = tuner(env, *model, *options, f"replay:{SWEEP}", "--record", str(again))
    reports = json.loads(first.stdout)["reports"]
    assert [r["problem"].partition(":")[0] for r in reports] == PHASES
    assert all(report["totals"]["measurements"] > 0 for report in reports)
    for name in PHASES:
        assert name in gzip.decompress(again.read_bytes()).decode()
    second = tuner(env, *model, *options, f"replay:{again}")
    chosen = [
        [[e["config"] for e in report["entries"]] for report in json.loads(done.stdout)["reports"]]
        for done in (first, second)
    ]
    assert chosen[0] == chosen[1]


@pytest.mark.parametrize(
    ("kills", "options"),
    [(2, ("--batch-sizes", "2,1024")), pytest.param(10, (), marks=pytest.mark.slow)],
)
def test_kills_later_the_winners_are_the_same_and_nothing_was_measured_twice(
    env, tmp_path, kills, options
):
    words = replay(*options)
    undisturbed = json.loads(
        tuner({**env, "TUNER_DATABASE_URL": f"sqlite:///{tmp_path / 'other.db'}"}, *words).stdout
    )
    measured = undisturbed["totals"]["measurements"]
    dice = random.Random(7)  # noqa: S311 (kill times)
    store = tmp_path / "store" / "tuner.db"
    for _ in range(kills):
        process = subprocess.Popen(
            [str(TUNER), *words], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wanted = dice.randrange(1, measured)  # trials in the store when it is killed, or the end
        while process.poll() is None and _trials(store) < wanted:
            time.sleep(0.01)  # a poll of another process's progress, not a synchronisation
        process.send_signal(signal.SIGKILL)
        process.wait()
    final = json.loads(tuner(env, *words).stdout)
    # A run that ended before its kill leaves entries; the next one's reasons say that they stay.
    found, expected = (
        [{**e, "reason": ""} for e in one["entries"]] for one in (final, undisturbed)
    )
    assert found == expected
    with sqlite3.connect(store) as connection:
        rows = connection.execute(
            "select part, batch_size, config_key from trials where median_us is not null"
        ).fetchall()
    assert len(rows) == len(set(rows)) == measured


def _trials(store: Path) -> int:
    try:
        with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as connection:
            return connection.execute("select count(*) from trials").fetchone()[0]
    except sqlite3.Error:
        return 0


def test_check_fails_where_the_files_of_one_family_fit_and_those_of_another_do_not(env, tmp_path):
    files = {f"N=2112,K=7168,{_BLOCKS}": _FITS, f"E=256,N=256,{_BLOCKS}": _TOO_BIG}
    for name, tile in files.items():
        (tmp_path / name).write_text(json.dumps({"64": tile}))
    paths = [str(tmp_path / name) for name in files]
    done = tuner(env, "check", *paths, "--device", "L40S", "--json", code=1)
    found = {e["fits"] for one in json.loads(done.stdout)["reports"] for e in one["entries"]}
    assert found == {True, False}, done.stderr


def test_check_of_an_exported_folder_knows_its_files_gpu_and_engine(env, tmp_path):
    name = f"E=256,N=256,{_BLOCKS}"
    environment = {"engine": "sglang", "engine_version": "0.5.16", "triton": "3.6.0"}
    sidecar = json.dumps({"entries": {"64": {"status": "ok", "environment": environment}}})
    for below, text in {
        f"configs/triton_3_6_0/{name}": json.dumps({"64": _FITS}),
        f"configs/triton_3_6_0/{name.replace('N=256', 'N=128')}": json.dumps({"64": _TOO_BIG}),
        f"provenance/triton_3_6_0/{name}": sidecar,
        "other/decode.json": "{}",
        "provenance/other/decode.json": sidecar,
    }.items():
        (tmp_path / "out" / below).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / below).write_text(text)
    done = tuner(env, "check", str(tmp_path / "out"), "--json")
    assert json.loads(done.stdout)["device"] == "NVIDIA_L40S"
    assert (
        "left out: 1 files are of kinds that this does not compile, like decode.json" in done.stderr
    )
    other = tuner(env, "check", str(tmp_path / "out"), "--device", "H200")
    assert "there are files for NVIDIA_L40S" in other.stderr
    assert "there are files tuned with" not in other.stderr
    newer = tuner(env, "check", str(tmp_path / "out"), "--engine", "sglang==0.5.23")
    assert (
        "there are files tuned with Triton 3.6.0, and servers of sglang 0.5.23 run Triton 3.8.0: "
        "tune again for that release" in newer.stderr
    )
    missing = tuner(env, "check", str(tmp_path / "nothing"), code=2)
    assert missing.stderr == f"tuner: error: {tmp_path / 'nothing'} does not exist\n"


def test_check_shows_a_name_of_each_family_for_a_file_of_none(env, tmp_path):
    (tmp_path / "configs.json").write_text("{}")
    done = tuner(env, "check", str(tmp_path / "configs.json"), "--device", "L40S", code=2)
    assert "'configs.json' is not the name of a file that sglang reads, like 'E=" in done.stderr
    assert "or 'N=" in done.stderr


_FITS = {**config(16, 64, 128)}
_TOO_BIG = {**config(128, 256, 128, warps=8, stages=4, group=32)}  # for an L40S
_BLOCKS = "device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128, 128].json"


def with_own_engine(env: dict[str, str], folder: Path) -> dict[str, str]:
    """The variables of a machine whose engine may be written to."""
    engines = Path(sys.prefix, "share", "tuner", "engines")
    shutil.copytree(engines / "sglang-0.5.16", folder / "engines" / "sglang-0.5.16")
    return {**env, "TUNER_ENGINE_PATH": str(folder / "engines")}


def test_into_engine_writes_beside_what_is_shipped(env, tmp_path):
    env = with_own_engine(env, tmp_path)
    tuner(env, *replay())
    done = tuner(env, "export", "--device", "H200", "--into-engine", "--json")
    files = [Path(file["path"]) for file in json.loads(done.stdout)["files"]]
    assert len(files) == 2
    for file in files:
        assert file.is_relative_to(tmp_path / "engines")
        assert set(json.loads(file.read_text())) >= {"2", "16", "128", "1024", "4096"}


# Bad input: one line, exit code 2, nothing written


OF_TWO = ["tune", "deepseek-r1", "--device", "L40S", "--family", "fused_moe,attention"]
BAD_INPUT = [
    (["tune", "deepseek-r1", "--device", "L40SS", "--measure", "predict"], "L40S"),
    (["tune", "deepseek-rr1", "--device", "L40S", "--measure", "predict"], "deepseek-r1"),
    (["tune", "deepseek-r1", "--tp", "48", "--device", "L40S", "--measure", "predict"], "tp"),
    (["tune", "deepseek-r1", "--tp", "32", "--device", "L40S", "--measure", "predict"], "16"),
    (["tune", "{bad_model}", "--device", "L40S", "--measure", "predict"], "config.json"),
    (["tune", RECORDED, "--device", "H200", "--measure", "predict", "--effort", "max"], ""),
    (["tune", RECORDED, "--device", "H200", "--measure", "replay:{missing}"], "missing"),
    (["tune", RECORDED, "--device", "L40S", "--measure", f"replay:{FP8_RECORDING}"], "H200"),
    (["tune", RECORDED, "--device", "H200", "--measure", "guess"], "gpu"),
    (["tune", RECORDED, "--device", "H200", "--measure", "predict", "--batch-sizes", "x"], "x"),
    (["tune", "deepseek-r1", "--device", "L40S", "--ep", "0"], "--ep must be from 1 to 4096"),
    (["tune", RECORDED, "--device", "H200", "--engine", "sglang==0.0.1"], "0.5.16"),
    (["tune", RECORDED, "--device", "H200", "--engine", "sglong"], "sglang"),
    (["check", "{odd_key}", "--device", "L40S"], "not a batch size"),
    (["check", "{missing_field}", "--device", "L40S"], "BLOCK_SIZE_N"),
    (["check", "{misnamed}", "--device", "L40S"], "name"),
    (["check", "{odd_key}", "--device", "L40S", "--tp", "8"], "--tp is for a model"),
    (["check", "deepseek-rr1", "--device", "L40S", "--family", "attention"], "deepseek-r1"),
    (
        ["check", "qwen3-30b-a3b", "gpt-oss-20b", "--device", "L40S", "--family", "attention"],
        "one model",
    ),
    (
        ["check", "deepseek-r1", "--device", "L40S", "--family", "attention", "--top-k", "8"],
        "--top-k",
    ),
    (["check", DECODE, "--device", "L40S", "--family", "attention", "--tp", "8"], "--tp"),
    (["check", "{bad_model}", "--device", "L40S"], "config.json: not JSON"),
    (["check", "{model}", "--device", "L40S"], "config.json: not JSON"),
    (["check", "{long}", "--device", "L40S"], "File name too long"),
    (["diff", "{long}", "{model}"], "File name too long"),
    (["load-proof", "{long}"], "File name too long"),
    (["preflight", "--node", "n={long}"], "File name too long"),
    (["export", "--device", "L40S", "--out", "{file}", "--into-engine"], "--into-engine"),
    (["tune", "qwen3-32b", "--tp", "2", "--device", "L40S"], "attention (--family attention)"),
    (["tune", "deepseek-r1", "--device", "L40S", "--all", "--family", "attention"], "--family"),
    (["tune", "deepseek-r1", "--device", "L40S", "--family", "attn"], "unknown family 'attn'"),
    (["tune", DECODE, "--device", "L40S", "--family", "attention,fused_moe"], "one problem"),
    (["tune", "qwen3-32b", "--device", "L40S", "--all", "--ep", "2"], "--ep"),
    (["tune", DECODE, "--device", "L40S", "--all"], "--all"),
    (["tune", "deepseek-r1", "--device", "L40S", "--all", "--record", "a.csv.gz"], "--record"),
    ([*OF_TWO, "--record", "a.csv.gz"], "--record is for one family of kernels"),
]


def test_all_takes_an_option_of_families_that_the_model_lacks(env):
    # It selects points, and of a dense model in bfloat16 attention alone has some.
    done = tuner(env, "plan", "qwen3-32b", "--tp", "2", "--device", "L40S", "--prompts", "1x64")
    assert "--prompts is for" in flat(done.stderr)
    assert "; qwen3-32b has attention alone" in flat(done.stderr)
    done = tuner(env, "plan", "qwen3-32b", "--tp", "2", "--device", "L40S", "--batch-sizes", "1")
    said = "--batch-sizes is for a fused-MoE layer and quantised dense GEMMs"
    assert said in flat(done.stderr) and "extend_attention" in done.stdout


def flat(text: str) -> str:
    """Text without the folding of lines."""
    return " ".join(text.split())


def test_bad_input_is_one_line_and_exit_code_2(env, tmp_path, subtests):
    env = {**env, "TUNER_CACHE_DIR": str(tmp_path / "cache")}
    places = _bad_files(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for args, named in BAD_INPUT:
        with subtests.test(" ".join(args)):
            done = tuner(env, *(arg.format(**places) for arg in args), code=2)
            assert done.stdout == ""
            lines = [line for line in done.stderr.splitlines() if line.startswith("tuner: error:")]
            assert len(lines) == 1
            assert named in lines[0]
            assert sorted(tmp_path.rglob("*")) == before


def _bad_files(folder: Path) -> dict[str, str]:
    name = "E=256,N=64,device_name=NVIDIA_L40S,dtype=int8_w8a8.json"
    lacking = {key: value for key, value in _FITS.items() if key != "BLOCK_SIZE_N"}
    contents = {
        "bad_model": ("model/config.json", "{not json"),
        "odd_key": (f"a/{name}", json.dumps({"1": _FITS, "sixteen": _FITS})),
        "missing_field": (f"b/{name}", json.dumps({"1": lacking})),
        "misnamed": ("c/tuned.json", json.dumps({"1": _FITS})),
        "file": ("plain", "text"),
    }
    for path, text in contents.values():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return {
        **{key: str(folder / path) for key, (path, _) in contents.items()},
        "model": str(folder / "model"),
        "long": "a" * 5_000,  # a pasted text
        "missing": str(folder / "missing.csv.gz"),
    }


@pytest.mark.parametrize("url", ["sqlite:////proc/store.db", "mysql://host/db", "nonsense"])
def test_a_store_that_cannot_be_used_is_refused(env, url):
    done = tuner({**env, "TUNER_DATABASE_URL": url}, *replay(), code=2)
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("tuner: error:")


def test_an_output_folder_that_cannot_be_written_is_refused(env):
    tuner(env, *replay("--batch-sizes", "2"))
    done = tuner(env, "export", "--device", "H200", "--out", "/proc/nowhere", code=2)
    assert done.stdout == ""
    assert "cannot write" in done.stderr


# Tables


def test_models_say_what_can_be_tuned_for_them_in_80_columns(env):
    has = {
        row["name"]: row["families"]
        for row in json.loads(tuner(env, "list", "models", "--json").stdout)
    }
    assert has["deepseek-r1"][:2] == ["fused_moe", "attention"]
    assert "fused_moe" not in has["qwen3-32b"]
    lines = tuner(env, "list", "models").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    row = next(line for line in lines if line.startswith("deepseek-r1 "))
    assert row.endswith(" ".join(has["deepseek-r1"]))


def test_help_and_tables_import_nothing_heavy(env):
    heavy = ["sqlalchemy", "optuna", "numpy", "triton", "torch", "alembic", "celery", "fastapi"]
    for args in (["--help"], ["list", "devices"], ["list", "models"]):
        command = [sys.executable, "-X", "importtime", str(TUNER), *args]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
        assert done.returncode == 0
        assert imported.isdisjoint(heavy)
