"""Load proofs of logs as people have them: wrapped, quoted, prefixed, cut; and of other servers."""

import html
import json
import re
import textwrap
from pathlib import Path

import pytest

from tuner.cli.check_files import engine_of_files, files_to_check
from tuner.deploy.load_proof import LoadProof, prove_loads, read_deployed, render_proof
from tuner.deploy.load_proof.proof import LoadOutcome

NAME = "E=256,N=64,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128, 128].json"
FOLDER = (
    "/opt/venv/lib/python3.12/site-packages/sglang/srt/layers/moe/moe_runner/configs/triton_3_6_0"
)
STAMP = "[2026-11-20 10:00:00 TP3] "
LOADED = f"{STAMP}Using MoE kernel config from {FOLDER}/{NAME}."
MISSING = (
    f"{STAMP}Using default MoE kernel config. Performance might be sub-optimal! Config file not "
    f"found at {FOLDER}/{NAME}, you can create them with benchmark/kernels/fused_moe_triton"
)
START = (
    "[2026-11-20 09:59:00] server_args=ServerArgs(model_path='deepseek-ai/DeepSeek-R1', "
    "tokenizer_path='deepseek-ai/DeepSeek-R1', quantization=None, tp_size=32, ep_size=1, "
    "pp_size=1, dp_size=1)"
)
VERSION = (
    "sglang 0.5.16 is installed in /opt/venv/lib/python3.12/site-packages/sglang-0.5.16.dist-info"
)
PLUGIN = f"{STAMP}tuner attention: extend 4/4 1/1 bfloat16 from /tuned/attention/extend.json"


def proof(folder: Path, *lines: str, deployed: Path | None = None) -> LoadProof:
    log = folder / "server.log"
    log.write_text("\n".join(lines) + "\n")
    return prove_loads([log], read_deployed(deployed)) if deployed else prove_loads([log])


def wrapped(line: str, width: int) -> list[str]:
    return [line[i : i + width] for i in range(0, len(line), width)]


SHAPES = {
    "a terminal of 80 columns": lambda line: wrapped(line, 80),
    "a terminal of 61 columns": lambda line: wrapped(line, 61),
    "a viewer that indents": lambda line: textwrap.wrap(
        line, 90, subsequent_indent=" " * 12, break_on_hyphens=False, drop_whitespace=False
    ),
    "HTML": lambda line: [html.escape(line)],
    "colours": lambda line: [f"\x1b[33m{line}\x1b[0m"],
    "docker compose": lambda line: [f"sglang-1  | {line}"],
    "docker's JSON": lambda line: [json.dumps({"log": line + "\n", "stream": "stderr"})],
    "journald": lambda line: [f"Nov 20 10:00:00 host python[12]: {line}"],
    "kubectl": lambda line: [f"[pod/llm-0/server] {line}"],
    "Ray": lambda line: [f"(RayWorkerWrapper pid=3, ip=10.0.0.1) {line}"],
}


@pytest.mark.parametrize("line", [LOADED, MISSING], ids=["loaded", "missing"])
def test_a_file_is_read_in_every_shape_of_a_line(subtests, tmp_path, line):
    (plain,) = proof(tmp_path, line).loads
    for shape, change in SHAPES.items():
        with subtests.test(shape):
            found = proof(tmp_path, *change(line), "[2026-11-20 10:00:01 TP3] Capture begins.")
            assert not found.cut
            (load,) = found.loads
            assert (load.name, load.outcome, load.wanted) == (
                plain.name,
                plain.outcome,
                plain.wanted,
            )


def test_lines_of_files_that_follow_each_other_stay_apart(tmp_path):
    bare = [line.removeprefix(STAMP) for line in (LOADED, LOADED.replace("N=64", "N=128"))]
    assert [load.name[:11] for load in proof(tmp_path, *bare).loads] == [
        "E=256,N=64,",
        "E=256,N=128",
    ]


def test_the_plugin_s_lines_may_be_wrapped(tmp_path):
    whole = proof(tmp_path, PLUGIN).loads
    assert [load.outcome for load in whole] == [LoadOutcome.LOADED]
    assert proof(tmp_path, *wrapped(PLUGIN, 70)).loads == whole
    other = proof(tmp_path, PLUGIN, "a line of another program").loads
    assert other == whole


def test_a_message_that_is_cut_is_said_to_be_cut(tmp_path):
    found = proof(tmp_path, LOADED[: LOADED.index("dtype=")])
    assert not found.loads and not found.ok
    assert found.problems() == ["server.log:1: a message about a config file is cut"]
    assert proof(tmp_path, "Using configuration from /usr/lib/ssl/openssl.cnf").cut == ()


def exported(folder: Path, version: str) -> Path:
    root = folder / "configs_out"
    (root / "configs/triton_3_6_0").mkdir(parents=True)
    (root / "provenance/triton_3_6_0").mkdir(parents=True)
    (root / "configs/triton_3_6_0" / NAME).write_text("{}")
    row = {
        "status": "ok",
        "environment": {"engine": "sglang", "engine_version": version, "device": "NVIDIA_L40S"},
    }
    (root / "provenance/triton_3_6_0" / NAME).write_text(json.dumps({"entries": {"1": row}}))
    return root


def loaded_by(ranks, path="/tuned/configs/triton_3_6_0"):
    return [LOADED.replace(FOLDER, path).replace("TP3]", f"TP{rank}]") for rank in ranks]


def test_ranks_of_a_server_are_counted_for_a_folder_too(tmp_path):
    """The log says TP 32: it proves nothing of a rank of which it has no line."""
    folder = exported(tmp_path, "0.5.16")
    found = proof(tmp_path, START, *loaded_by(range(8)), deployed=folder)
    said = "loaded by 8 of 32 ranks, and no line is of TP8 to TP31: give the logs of all nodes"
    assert found.problems() == [f"{NAME.removesuffix('.json')}: {said}"]
    staged = START.replace("tp_size=32", "tp_size=2").replace("pp_size=1", "pp_size=2")
    stages = [line.replace("TP", f"PP{at} TP") for at in (0, 1) for line in loaded_by((0, 1))]
    assert "no line is of PP1 TP0 to PP1 TP1" in str(
        proof(tmp_path, staged, *stages[:2], deployed=folder).problems()
    )
    for lines in (
        [START, *loaded_by(range(32))],
        [staged, *stages],
        loaded_by([3]),  # nothing says how many ranks there are
        [START.replace("tp_size=32", f"tp_size={10**12}"), *loaded_by([3])],
        # One rank of vLLM writes the line for its node.
        ["tensor_parallel_size=8", *loaded_by([0])],
    ):
        assert proof(tmp_path, *lines, deployed=folder).ok


def test_a_log_of_another_release_than_the_files_are_for_is_noted(tmp_path):
    lines = START, VERSION, *loaded_by(range(32))
    found = proof(tmp_path, *lines, deployed=exported(tmp_path, "0.5.12"))
    assert found.ok
    assert found.notes() == [
        "the log says version 0.5.16 (server.log:2), and the files are for version 0.5.12"
    ]
    assert found.as_dict()["facts"]["tp"] == {"value": "32", "where": "server.log:1"}


def test_the_same_release_is_no_note(tmp_path):
    lines = START, VERSION, *loaded_by([3])
    assert not proof(tmp_path, *lines, deployed=exported(tmp_path, "0.5.16")).notes()


def test_commands_have_every_fact_and_no_placeholder(tmp_path):
    found = proof(tmp_path, START, VERSION, MISSING, PLUGIN)
    options = "--device L40S --engine sglang==0.5.16"
    assert found.as_dict()["commands"] == [
        f"tuner tune {tmp_path}/server.log {options}",
        f"tuner tune deepseek-r1 --family attention --tp 32 {options}",
        f"tuner export {options}",
    ]
    printed = [x for x in render_proof(found).splitlines() if x.startswith("tuner")]
    assert printed == found.as_dict()["commands"]
    assert not re.search(r"\b[A-Z]{4,}\b", " ".join(printed).replace(str(tmp_path), ""))


def test_a_fact_that_is_missing_is_named_and_no_command_is_printed(tmp_path):
    found = proof(tmp_path, PLUGIN)
    assert found.as_dict()["commands"] == []
    (step,) = found.steps()
    for words in ("--device", "the model", "--tp", "--engine"):
        assert words in step
    assert not [x for x in render_proof(found).splitlines() if x.startswith("tuner")]


def test_a_model_without_a_preset_needs_its_config_json(tmp_path):
    start = START.replace("deepseek-ai/DeepSeek-R1", "/models/our-own")
    found = proof(tmp_path, start, VERSION, "| 0 NVIDIA L40S    On |", PLUGIN)
    assert found.steps()[0] == "copy the config.json of /models/our-own to this folder"
    assert "tune config.json --family attention --tp 32" in found.as_dict()["commands"][0]


def test_a_release_of_which_only_an_end_is_known_is_asked_for(tmp_path):
    old = MISSING.replace(FOLDER, "/opt/sglang/srt/layers/moe/fused_moe_triton/configs")
    found = proof(tmp_path, START, old)
    assert found.as_dict()["commands"] == []
    assert "before sglang 0.4.7, and newer releases look for other files" in found.steps()[0]


ROW = {"status": "ok"}


@pytest.mark.parametrize("entries", [None, 3, [1], {"1": {**ROW, "environment": None}}, {"1": ROW}])
def test_a_sidecar_without_environments_tells_of_none(tmp_path, entries):
    (tmp_path / "provenance").mkdir()
    (tmp_path / "provenance" / NAME).write_text(json.dumps({"entries": entries}))
    (tmp_path / NAME).write_text("{}")
    assert engine_of_files(files_to_check([str(tmp_path)])) == "sglang"
    assert not read_deployed(tmp_path).made_for
