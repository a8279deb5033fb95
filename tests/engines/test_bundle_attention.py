"""Attention's part of a bundle: what servers get, and what their operator is told."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib
from attention_cases import DECODE, EXTEND, fill
from bundle_cases import CASES, build, example, files_of, place, printed
from bundle_cases import fill as fill_moe

from tuner.bindings.sglang.plugin.files import (
    CONFIG_DIR_VARIABLE,
    attention_root,
    find_attention_files,
    read_attention_file,
)
from tuner.deploy.bundle.build import Bundle
from tuner.deploy.bundle.notes import usable_winners
from tuner.deploy.cluster import Cluster
from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.errors import ExportRefused
from tuner.families.attention.problem import Attention, parse_attention
from tuner.families.fused_moe.problem import BATCH_SIZES, FusedMoe
from tuner.problems.points import Config
from tuner.problems.results import Incumbent, Status, Winner
from tuner.store.results import ResultStore

L40S, H20, RAY = CASES
SHELLCHECK = Path(sys.executable).with_name("shellcheck")
MOUNTED = "/opt/tuner/engine-configs"
# A bundle's check imports the module that an engine would load: the one of the entry point.
PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
PLUGIN = PROJECT["entry-points"]["sglang.srt.plugins"]["tuner_attention"].partition(":")[0]
IMPORT = ["-c", f"import {PLUGIN}"]
# What a rank of DeepSeek-R1 at TP 32 runs on an L40S; tuned for the 8 of the flag's default.
RANKS = parse_attention("extend_attention:q_heads=4,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16")

BOTH = (EXTEND, RANKS)


@cache
def winners(
    case: str, problems: Sequence[Attention] = (RANKS,), status: Status = Status.OK
) -> list[Winner]:
    device = find_device(CASES[case][0]).name
    with ResultStore.open("sqlite://") as store:
        fill_moe(store, case)
        for problem in problems:
            fill(store, problem, status=status, device=device)
        return store.winners(device=device, engine="sglang", engine_version="0.5.16")


def bundle(case: str, cluster: Cluster | None = None, of: Sequence[Winner] | None = None) -> Bundle:
    """A bundle of sglang's files; these tests are about what is there, so others may be missing,
    and all that is stored is asked for.
    """
    found = winners(case) if of is None else of
    wanted = [winner.problem for winner in found]
    return build(case, cluster, found, "sglang==0.5.16", allow_missing=True, wanted=wanted)


@cache
def built() -> Bundle:
    return bundle(L40S)


def with_flags(case: str, *flags: str) -> Cluster:
    whole = example(case)
    return replace(whole, engine=replace(whole.engine, flags=flags))


def unknown_model(cluster: Cluster) -> Cluster:
    return replace(cluster, model=replace(cluster.model, name="my-own", path="/models/my-own"))


def attention_paths(found: Bundle) -> list[str]:
    return [path for path in files_of(found) if path.startswith("engine-configs/attention/")]


def test_the_plugin_finds_the_files_by_the_variables_of_the_scripts(tmp_path: Path) -> None:
    root = place(built(), tmp_path)
    lines = printed(root / "nodes/l40s-01/bare.sh")
    assert lines[0] == ["python3", *IMPORT]
    variables = dict(line[1].split("=", 1) for line in lines if line[0] == "export")
    assert attention_root(variables) == (CONFIG_DIR_VARIABLE, root / "engine-configs")
    (path,) = find_attention_files(Path(variables[CONFIG_DIR_VARIABLE]))
    assert read_attention_file(path).problem == RANKS
    sidecar = root / "engine-configs/provenance" / path.relative_to(root / "engine-configs")
    assert json.loads(sidecar.read_text())["problem"] == RANKS.spec()


def test_containers_and_pods_get_the_variable_too(tmp_path: Path) -> None:
    root = place(built(), tmp_path)
    check, launch = printed(root / "nodes/l40s-01/docker.sh")
    image = example(L40S).engine.image
    assert check == ["docker", "run", "--rm", "--entrypoint", "python3", image, *IMPORT]
    assert f"{CONFIG_DIR_VARIABLE}={MOUNTED}" in launch
    manifest = json.loads((root / "kubernetes/leaderworkerset.json").read_text())
    template = manifest["items"][0]["spec"]["leaderWorkerTemplate"]
    for role in ("leaderTemplate", "workerTemplate"):
        (container,) = template[role]["spec"]["containers"]
        assert {"name": CONFIG_DIR_VARIABLE, "value": MOUNTED} in container["env"]


def test_scripts_with_the_check_are_clean(tmp_path: Path) -> None:
    scripts = sorted(place(built(), tmp_path).rglob("*.sh"))
    done = subprocess.run([SHELLCHECK, *scripts], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("", 0)


@pytest.mark.parametrize("installed", [True, False])
def test_a_server_starts_without_the_plugin_too_after_a_warning(
    installed: bool, tmp_path: Path
) -> None:
    root = place(built(), tmp_path)
    python = tmp_path / "bin/python3"
    python.parent.mkdir()
    refuse = "" if installed else '[[ "$1" == -m ]] || exit 1\n'
    python.write_text(f'#!/bin/bash\n{refuse}[[ "$1" != -m ]] || echo "serving: $2"\n')
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", root / "nodes/l40s-01/bare.sh"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"},
    )
    assert done.stdout == "serving: sglang.launch_server\n"
    assert ("warning: no engine-tuner beside the engine" in done.stderr) is not installed


def test_the_readme_says_what_the_plugin_needs() -> None:
    text = files_of(built())["README.md"].data.decode()
    assert "FROM lmsysorg/sglang:v0.5.16\nRUN python3 -m pip install" in text
    assert re.search(r"engine-tuner==\d", text)
    assert f"`SGLANG_MOE_CONFIG_DIR` and `{CONFIG_DIR_VARIABLE}` must be the same" in text
    assert "docker run --rm --entrypoint python3 lmsysorg/sglang:v0.5.16 -c 'import" in text
    bare = replace(example(L40S), engine=replace(example(L40S).engine, image=""))
    text = files_of(bundle(L40S, bare))["README.md"].data.decode()
    assert "FROM" not in text
    assert f"python3 -c 'import {PLUGIN}'" in text


def test_without_attention_nothing_speaks_of_it() -> None:
    found = bundle(L40S, of=[w for w in winners(L40S) if not isinstance(w.problem, Attention)])
    for path, file in files_of(found).items():
        if not path.startswith("engine-configs/") and path != "preflight.py":
            assert CONFIG_DIR_VARIABLE.encode() not in file.data, path
            assert PLUGIN.encode() not in file.data, path
    assert found.manifest["statuses"] == {"predicted": 36}


# The manifest


def test_every_entry_is_in_the_manifest_with_its_provenance() -> None:
    manifest = built().manifest
    rows = [row for row in manifest["entries"] if "part" in row]
    (path,) = attention_paths(built())
    assert {row["file"] for row in rows} == {path}
    assert [(r["part"], r["batch_size"], r["new_tokens"]) for r in rows] == [
        ("extend", 1, 512),
        ("extend", 8, 512),
    ]
    assert manifest["statuses"] == {"ok": 2, "predicted": 36}
    first = rows[0]
    assert first["median_us"] == {"1024": 101.024, "8000": 108.0}
    assert first["reason"] == "1.500x as fast as the engine's own constants"
    assert manifest["environments"][first["environment"]]["kernel_hash"] == "kernels"
    origins = {row["path"]: row["origin"] for row in manifest["files"]}
    assert origins[path] == "tuned"


def test_predicted_attention_is_refused_unless_asked_for_and_counted() -> None:
    found = winners(L40S, (RANKS,), Status.PREDICTED)
    assert bundle(L40S, of=found).manifest["statuses"] == {"predicted": 38}
    alone = [winner for winner in found if winner.problem == RANKS]
    with pytest.raises(ExportRefused, match="4 of the 4 winners .* --allow-predicted"):
        build(L40S, of=alone, allow_predicted=False)


def test_what_was_predicted_is_left_out_with_a_note() -> None:
    with ResultStore.open("sqlite://") as store:
        fill_moe(store, L40S, dict.fromkeys(BATCH_SIZES, Status.OK))
        fill(store, RANKS, status=Status.PREDICTED, device="NVIDIA_L40S")
        mixed = store.winners(device="NVIDIA_L40S", engine="sglang", engine_version="0.5.16")
    found = build(L40S, of=mixed, allow_predicted=False)
    assert found.manifest["statuses"] == {"ok": 36}
    assert not attention_paths(found)
    why = "only predicted: measure it, or allow predicted entries"
    assert f"left out ({why}): {RANKS.spec()}" in found.notes
    for path, file in files_of(found).items():
        if path.startswith("nodes/"):
            assert CONFIG_DIR_VARIABLE.encode() not in file.data, path
    with pytest.raises(ExportRefused, match=f"4 of the 4 winners for {RANKS.spec()} were pred"):
        build(L40S, of=mixed, allow_predicted=False, named=[RANKS])


def test_a_bundle_without_the_layers_of_its_model_is_refused() -> None:
    with pytest.raises(
        ExportRefused, match=r"left out \(only predicted: .*\): fused_moe:E=256,.* --allow-missing$"
    ):
        build(L40S, of=winners(L40S), allow_predicted=False)
    own, wanted = unknown_model(example(L40S)), [one.problem for one in winners(L40S)]
    found = build(L40S, own, winners(L40S), allow_predicted=False, wanted=wanted)
    assert found.manifest["statuses"] == {"ok": 2}
    assert any(note.startswith("left out (only predicted") for note in found.notes)


# What servers can use


def test_the_backend_is_the_cluster_file_s_to_choose() -> None:
    by_itself = bundle(L40S, with_flags(L40S))
    assert attention_paths(by_itself)  # latent attention runs on Triton here by default
    files = winners(L40S, (EXTEND,))
    found = bundle(L40S, with_flags(L40S), files)
    assert not attention_paths(found)
    (said,) = [note for note in found.notes if note.startswith(f"leave it: {EXTEND.spec()}")]
    assert "runs FlashInfer here if FlashInfer is installed" in said  # the model's class is known
    assert "it is not known which of them was measured" in said
    told = bundle(L40S, of=files)
    assert attention_paths(told)
    assert not any(note.startswith("leave it") for note in told.notes)
    for text in (file.data for path, file in files_of(by_itself).items() if path.endswith(".sh")):
        assert b"--attention-backend" not in text


@pytest.mark.parametrize(
    ("flags", "title"),
    [
        (("--attention-backend", "fa3"), "FlashAttention 3"),
        (("--attention-backend=flashinfer",), "FlashInfer"),
    ],
)
def test_another_backend_gets_no_attention_files(flags: tuple[str, ...], title: str) -> None:
    found = bundle(L40S, with_flags(L40S, *flags))
    assert not attention_paths(found)
    why = f"servers run {title}, which was not measured beside Triton"
    assert f"leave it: {RANKS.spec()}: {why}" in found.notes
    assert CONFIG_DIR_VARIABLE.encode() not in files_of(found)["nodes/l40s-01/bare.sh"].data
    alone = [winner for winner in winners(L40S) if winner.problem == RANKS]
    with pytest.raises(ExportRefused, match=f"^leave it: {RANKS.spec()}: {why}$"):
        build(L40S, with_flags(L40S, *flags), alone, named=[RANKS], wanted=[RANKS])


def test_problems_that_are_left_alone_for_one_reason_have_one_note() -> None:
    found = bundle(L40S, with_flags(L40S, "--attention-backend", "fa3"), winners(L40S, BOTH))
    said = [note for note in found.notes if note.startswith("leave it")]
    why = "servers run FlashAttention 3, which was not measured beside Triton"
    assert said == [f"leave it: {' '.join(sorted(one.spec() for one in BOTH))}: {why}"]


def test_a_cluster_is_bundled_although_nothing_was_found_faster(tmp_path: Path) -> None:
    alone = [winner for winner in winners(L40S) if winner.problem == RANKS]
    found = bundle(L40S, with_flags(L40S, "--attention-backend", "fa3"), alone)
    assert "no tuned file is in the bundle: all is left alone, as notes say" in found.notes
    files = files_of(found)
    assert {"nodes/l40s-01/docker.sh", "cluster.json", "preflight.py"} <= files.keys()
    for path, file in files.items():
        if path != "preflight.py":
            assert b"engine-configs" not in file.data, path
    root = place(found, tmp_path)
    (launch,) = printed(root / "nodes/l40s-01/docker.sh")
    assert "sglang.launch_server" in launch
    scripts = sorted(root.rglob("*.sh"))
    done = subprocess.run([SHELLCHECK, *scripts], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("", 0)


def test_a_backend_for_one_phase_leaves_the_other() -> None:
    flags = "--attention-backend", "fa3", "--decode-attention-backend", "triton"
    found = bundle(L40S, with_flags(L40S, *flags), winners(L40S, (EXTEND, DECODE)))
    (path,) = attention_paths(found)
    assert "decode_attention" in path
    assert [note for note in found.notes if note.startswith("leave it: extend_attention")]


def test_flags_that_would_help_are_named_and_not_set() -> None:
    """Measured beside FlashAttention 3, which servers run on an H20."""
    other = {"fa3": Incumbent(Config({}), Status.OK, 900.0, backend="fa3")}
    found = [
        replace(one, entry=replace(one.entry, incumbents={**one.entry.incumbents, **other}))
        if one.problem == EXTEND
        else one
        for one in winners(H20, (EXTEND,))
    ]
    bundled = bundle(H20, with_flags(H20), found)
    assert not attention_paths(bundled)
    (said,) = [note for note in bundled.notes if note.endswith("Add it and bundle again")]
    assert said.startswith(f"{EXTEND.spec()}: with --prefill-attention-backend triton in engine.fl")
    flags = ("--prefill-attention-backend", "triton")
    assert attention_paths(bundle(H20, with_flags(H20, *flags), found))


def test_an_engine_without_plugins_gets_none() -> None:
    kept, (note,) = usable_winners(winners(H20), find_engine("sglang==0.5.2"))
    assert {type(winner.problem) for winner in kept} == {FusedMoe}
    assert "sglang 0.5.2 loads no plugins" in note


def test_attention_alone_does_not_point_the_engine_at_a_folder_without_its_files() -> None:
    """sglang's fused-MoE loader stops at a folder without `configs/`."""
    alone = [winner for winner in winners(L40S) if isinstance(winner.problem, Attention)]
    found = files_of(bundle(L40S, example(L40S), alone))
    assert not any(path.startswith("engine-configs/configs/") for path in found)
    for path in ("nodes/l40s-01/bare.sh", "nodes/l40s-01/docker.sh", "README.md"):
        assert b"SGLANG_MOE_CONFIG_DIR" not in found[path].data, path
        assert CONFIG_DIR_VARIABLE.encode() in found[path].data, path


def test_files_for_another_model_are_noticed() -> None:
    other = bundle(L40S, of=winners(L40S, (EXTEND,)))
    (said,) = [note for note in other.notes if note.startswith("the servers ask for")]
    assert RANKS.spec() in said
    assert f"they do not ask for {EXTEND.spec().replace(':', ',')},device_name=" in said
    assert not any(
        "servers ask for 5" in note for note in bundle(L40S, unknown_model(example(L40S))).notes
    )


def test_attention_is_bundled_whole_or_not_at_all() -> None:
    with pytest.raises(
        ExportRefused, match="not all of them .* decode_attention,.* --allow-missing"
    ):
        build(L40S, of=winners(L40S), allow_predicted=True)


def test_a_dense_model_s_cluster_needs_no_fused_moe() -> None:
    whole = example(L40S)
    dense = replace(whole, model=replace(whole.model, name="llama", path="/models/llama"))
    alone = [winner for winner in winners(L40S) if winner.problem == RANKS]
    found = bundle(L40S, dense, alone)
    assert found.manifest["statuses"] == {"ok": 2}
    with pytest.raises(ExportRefused, match="not all of them are bundled: E=256,N=64"):
        build(L40S, of=alone)
