"""FileLoad proof of attention: the messages are made by the plugin that logs them."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from attention_cases import DECODE, EXTEND
from log_lines import parse_log
from plugin_cases import attention_file, here, put

from tuner.bindings.sglang.plugin import backend, kernels
from tuner.bindings.sglang.plugin.file_checks import check_file
from tuner.bindings.sglang.plugin.files import AttentionEntry
from tuner.deploy.load_proof import LoadProof, prove_loads, render_proof
from tuner.deploy.load_proof.deployed import UNKNOWN, Deployed
from tuner.deploy.load_proof.proof import FileLoad, LoadOutcome
from tuner.families.attention.problem import Attention, AttentionPart
from tuner.problems.points import Config
from tuner.problems.results import Status

PLUGIN = Path(backend.__file__).parent
MOE = "Using MoE kernel config from /c/triton_3_6_0/E=8,N=64,device_name=NVIDIA_H200.json."
CONFIGS = {
    AttentionPart.EXTEND: Config({"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}),
    AttentionPart.DECODE: Config({"BLOCK_N": 32, "BLOCK_H": 16, "num_warps": 4, "num_stages": 2}),
}


def parsed(lines: list[str]) -> LoadProof:
    """The proof, for servers of a folder whose fused-MoE file is tuned."""
    tuned = {"triton_3_6_0/E=8,N=64,device_name=NVIDIA_H200.json": {"ok": 1}}
    return parse_log(lines, Deployed(tuned) if MOE in lines else UNKNOWN)


def place(root: Path, problem: Attention, status: Status = Status.OK, **changes: str) -> Path:
    part = problem.parts[0]
    entry = AttentionEntry(part, 8, 1, CONFIGS[part], status)
    return put(root, attention_file(problem, [entry], **changes))


def said(
    *paths: Path, rank: str = "TP0", splits: int = 8, troubles: tuple[str, ...] = ()
) -> list[str]:
    """What a rank logs of these files."""
    facts = here(kv_splits=lambda _: {splits})
    verdicts = [check_file(path, facts) for path in paths]
    malformed = [f"tuner attention: {v}" for v in verdicts if v.file is None]
    lines = [*malformed, backend._line(verdicts, troubles)]
    return [f"[2026-11-01 10:00:00 {rank}] {line}" for line in lines]


def template(module: str, words: str) -> str:
    """A message in the plugin's source, so that ours is not a copy of our own."""
    for node in ast.walk(ast.parse((PLUGIN / f"{module}.py").read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and words in node.value:
            return node.value
    raise AssertionError(f"the plugin's {module} says nothing of {words!r}")


def attention(proof: LoadProof) -> list[FileLoad]:
    return [load for load in proof.loads if load.family == "attention"]


def test_files_that_are_used(tmp_path):
    paths = [place(tmp_path, EXTEND), place(tmp_path, DECODE, Status.PREDICTED)]
    proof = parsed([MOE, *said(*paths), *said(*paths, rank="TP1")])
    assert proof.ok, proof.problems()
    extend, decode = attention(proof)
    assert (extend.name, extend.outcome) == (paths[0].stem, LoadOutcome.LOADED)
    assert (extend.used, extend.triton) == (str(paths[0]), "3.6.0")
    assert (extend.ranks, extend.lines) == (("TP0", "TP1"), ("2", "3"))
    assert (extend.reason, decode.reason) == ("", "predicted")
    assert f"read {paths[0]} (Triton 3.6.0)" in render_proof(proof)


def test_attention_alone_is_a_proof_too(tmp_path):
    proof = parsed(said(place(tmp_path, EXTEND)))
    assert proof.ok
    assert "no config file's message" in render_proof(proof)


def test_decode_attention_without_a_file_is_said(tmp_path):
    note = "decode attention has no tuned file"
    extend = parsed([MOE, *said(place(tmp_path, EXTEND))])
    assert extend.ok
    assert [n.partition(":")[0] for n in extend.notes()] == [note]
    assert f"note            {note}" in render_proof(extend)
    both = parsed([MOE, *said(place(tmp_path, EXTEND), place(tmp_path, DECODE))])
    assert both.notes() == []


def test_a_file_for_something_else_beside_one_that_serves(tmp_path):
    other = place(tmp_path, replace(DECODE, kv_splits=16))
    proof = parsed(said(place(tmp_path, DECODE), other))
    assert proof.ok, proof.problems()
    refused = attention(proof)[1]
    assert (refused.outcome, refused.used) == (LoadOutcome.REFUSED, "")
    assert refused.reason == "made for 16 KV splits, this server launches 8"
    assert refused.reason in render_proof(proof)


def test_a_phase_whose_every_file_is_refused_is_not_as_tuned(tmp_path):
    paths = [place(tmp_path, EXTEND), place(tmp_path, DECODE)]
    proof = parsed(said(*paths, splits=16))
    reason = "made for 8 KV splits, this server launches 16"
    assert proof.problems() == [f"decode_attention: every file was refused: {reason}"]
    assert not proof.ok


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"triton": "3.2.0"}, "made for triton 3.2.0, this is 3.6.0"),
        ({"device": "NVIDIA_L40S"}, "made for NVIDIA_L40S, this is NVIDIA_H200"),
        (
            {"engine_version": "0.5.12", "kernel_hash": "x"},
            "made for sglang 0.5.12, whose kernels are not those of 0.5.16",
        ),
    ],
)
def test_no_file_applies(changes, reason, tmp_path):
    proof = parsed([MOE, *said(place(tmp_path, EXTEND, **changes))])
    assert proof.problems() == [
        "attention: every file: default: no file applies",
        f"extend_attention: every file was refused: {reason}",
    ]


def test_a_malformed_file_is_named(tmp_path):
    good, bad = place(tmp_path, EXTEND), place(tmp_path, DECODE)
    bad.write_text('{"format": 1, "problem": "decode_atention:x"}')
    proof = parsed(said(good, bad))
    (trouble,) = proof.problems()
    assert trouble.startswith(f"attention: {bad.stem}: malformed: ")
    assert "; did you mean" in trouble


def test_what_the_plugin_could_not_hook(tmp_path):
    kernel = kernels.EXTEND
    names = [*kernel.tensors, *kernel.values]
    troubles = (
        template("backend", "sglang did not hook ") + kernel.name,
        template("backend", "sglang has no ") + kernel.name,
        template("backend", "this triton launches "),
        kernel.unfit([*names, "NEW_ONE"]),
        kernel.unfit(names[1:]),
    )
    assert all(troubles)
    extend, decode = place(tmp_path, EXTEND), place(tmp_path, DECODE)
    proof = parsed(said(extend, decode, splits=4, troubles=troubles))
    failed = [x.reason for x in attention(proof) if x.outcome is LoadOutcome.FAILED]
    assert failed == list(troubles)
    assert not proof.ok


def test_what_the_plugin_says_while_it_is_debugged_changes_nothing(tmp_path):
    lines = said(place(tmp_path, EXTEND))
    debug = [template("launches", words) for words in ("is left alone", "did not compile")]
    assert parsed([*lines, *debug]) == parsed(lines)


def test_a_launch_that_fell_back_is_no_longer_as_tuned(tmp_path):
    text = template("launches", "not with %s")
    grid, constants = (4, 16, 8), {"BLOCK_M": 64, "num_warps": 4}
    line = text % ("_fwd_kernel", grid, constants, "out of resource: shared memory")
    proof = parsed([*said(place(tmp_path, EXTEND)), f"[2026-11-01 10:00:01 TP0] {line}"])
    (failed,) = [load for load in proof.loads if load.outcome is LoadOutcome.FAILED]
    assert (failed.name, failed.ranks) == ("_fwd_kernel", ("TP0",))
    assert "out of resource: shared memory" in proof.problems()[0]


def test_a_plugin_that_broke_and_deterministic_inference():
    broken = parsed([template("hooks", "nothing is applied") % "attention"])
    assert broken.problems() == ["attention: every file: failed: nothing is applied"]
    (load,) = parsed([template("backend", "inference is deterministic")]).loads
    assert load.outcome is LoadOutcome.DETERMINISTIC


def test_a_rank_s_last_word_counts(tmp_path):
    path = place(tmp_path, DECODE)
    lines = [*said(path, splits=16), *said(path)]  # a draft model's backend, then the model's
    assert parsed(lines).ok
    apart = [*said(path, splits=16), *said(path, rank="TP1")]
    assert f"{path.stem}: ranks disagree" in parsed(apart).problems()


def test_logs_of_several_nodes_are_of_several_ranks(tmp_path):
    path = place(tmp_path, DECODE)
    for name, splits in (("a.log", 8), ("b.log", 16)):
        (tmp_path / name).write_text("\n".join(said(path, splits=splits)))
    proof = prove_loads([tmp_path / "a.log", tmp_path / "b.log"])
    assert f"{path.stem}: ranks disagree" in proof.problems()
    assert proof.loads[0].lines == ("a.log:1",)
