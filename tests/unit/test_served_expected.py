"""The gain that a profile and the kernels' own gains let expect of a load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from attention_cases import DECODE as DECODE_PROBLEM
from attention_cases import EXTEND as EXTEND_PROBLEM
from attention_cases import entry, point, published
from bundle_cases import winners
from profile_traces import CUBLAS, DECODE, MOE, TraceWriter

from tuner.deploy.served.expected import Expected, expected_gains, lengths_of
from tuner.deploy.served.loads import Load
from tuner.deploy.served.measure import Speed
from tuner.families.attention.problem import Stage
from tuner.problems.results import Status
from tuner.profile import Phase, Step

LOAD = Load(8, 1024, 128)
WINNERS = winners("cluster-l40s-4x8")  # fused MoE, each 1.2 times as fast
EXTENDS, DECODES = "step[EXTEND bs=8 toks=8192]", "step[DECODE bs=8]"


def before(prefill_us: float, decode_us: float | None, tpot_us: float | None = None) -> list[Speed]:
    """Rounds in which 8 x 1,024 tokens of prompts, and a step of 8 sequences, took so long."""
    decode_tok_s = decode_us and 8e6 / decode_us
    tpot_ms = (tpot_us or decode_us or 0) / 1e3
    return [Speed(8192e6 / prefill_us, prefill_us / 1e3, decode_tok_s, tpot_ms or None, 1.0)] * 3


def profiled(tmp_path: Path, gap: float = 0.0, marks: bool = True) -> Path:
    """Prefill has 60 us of MoE in 100 us of kernels, decode 30 us in 100."""
    trace = TraceWriter()
    for _ in range(3):
        mark = {"mark": EXTENDS} if marks else {}
        trace.step((MOE, 60.0), (CUBLAS, 40.0), **mark, gap=gap)
        mark = {"mark": DECODES} if marks else {}
        trace.step((MOE, 30.0), (DECODE, 50.0), (CUBLAS, 20.0), **mark, gap=gap)
    return written(trace, tmp_path, LOAD)


def written(trace: TraceWriter, tmp_path: Path, load: Load) -> Path:
    (tmp_path / str(load)).mkdir()
    trace.write(tmp_path / str(load) / "1-TP-0.trace.json.gz")
    return tmp_path


def expected(folder: Path, speeds: Sequence[Speed], load: Load = LOAD) -> Expected:
    return expected_gains(folder, WINNERS, {load: speeds}, pytest.fail)[load]


@pytest.mark.parametrize("gap", [0.0, 70.0])
def test_what_kernels_save_counts_in_the_time_without_a_profiler(
    tmp_path: Path, gap: float
) -> None:
    """The profiler's gaps between kernels say nothing of it."""
    found = expected(profiled(tmp_path, gap), before(200.0, 105.0)).gains
    # A sixth of the MoE kernels' time: 10 us of prefill's 200, and 5 us of a step of 105 us.
    # Attention has no file here, so it is expected to stay as it is.
    assert found == {
        **{"prefill_tok_s": pytest.approx(200 / 190), "ttft_ms": found["prefill_tok_s"]},
        **{"decode_tok_s": pytest.approx(105 / 100), "tpot_ms": pytest.approx(105 / 100)},
    }


def test_a_step_takes_at_least_as_long_as_its_kernels(tmp_path: Path) -> None:
    found = expected(profiled(tmp_path), before(1.0, 1.0)).gains
    assert found["prefill_tok_s"] == pytest.approx(100 / 90)
    assert found["decode_tok_s"] == found["tpot_ms"] == pytest.approx(100 / 95)


def test_no_step_becomes_shorter_than_one_that_waits_for_the_host(tmp_path: Path) -> None:
    """The host needs 102 us for a step of 8 sequences, however short the prompts are."""
    short, long, single = Load(8, 16, 128), LOAD, Load(1, 1024, 128)
    profiled(tmp_path)
    trace = TraceWriter()
    for _ in range(3):
        trace.step((MOE, 60.0), (CUBLAS, 40.0), mark=EXTENDS)
        trace.step((MOE, 30.0), (CUBLAS, 20.0), mark=DECODES)
    written(trace, tmp_path, short)
    written(trace, tmp_path, single)
    speeds = {
        long: before(200.0, 105.0),
        short: before(200.0, 102.0),  # twice as long as its kernels
        single: before(200.0, 8 * 99.0),  # 99 us for one sequence, which is not like eight
    }
    found = expected_gains(tmp_path, WINNERS, speeds, pytest.fail)
    assert found[long].gains["decode_tok_s"] == pytest.approx(105 / 102)
    assert found[short].gains["decode_tok_s"] == found[single].gains["decode_tok_s"] == 1.0
    assert found[long].gains["prefill_tok_s"] == pytest.approx(200 / 190)
    alone = expected_gains(tmp_path, WINNERS, {long: speeds[long]}, pytest.fail)
    assert alone[long].gains["decode_tok_s"] == pytest.approx(105 / 100)


def test_other_sequences_prefill_between_two_tokens_gains_what_prefill_gains(
    tmp_path: Path,
) -> None:
    """Eight prompts of 8,192 on an H100: a step takes 4.14 ms, and two tokens are 7.41 ms apart."""
    load, sixth = Load(8, 8192, 64), 6.0
    prefill_us, step_us, tpot_us = 8192e6 / 133_006, 4140.0, 7410.0
    trace = TraceWriter()
    moe_us = sixth * prefill_us * (1 - 1 / 1.02)
    for _ in range(8):
        trace.step((MOE, moe_us), (CUBLAS, prefill_us - moe_us), mark="step[EXTEND bs=1 toks=8192]")
    moe_us = sixth * step_us * (1 - 1 / 1.16)
    for _ in range(7):
        trace.step((MOE, moe_us), (CUBLAS, 500.0), mark=DECODES)
    found = expected(written(trace, tmp_path, load), before(prefill_us, step_us, tpot_us), load)
    gains = found.gains
    assert gains["ttft_ms"] == pytest.approx(1.02, abs=1e-4)
    assert gains["decode_tok_s"] == pytest.approx(1.16, abs=1e-4)
    assert gains["tpot_ms"] == pytest.approx(7.41 / (4.14 / 1.16 + 3.27 / 1.02), abs=1e-4)


def test_decode_that_was_never_measured_alone_counts_as_its_kernels(tmp_path: Path) -> None:
    found = expected(profiled(tmp_path, gap=70.0), before(200.0, None, 300.0)).gains
    others_us = (300 - 100) / (200 / 190)
    assert found["tpot_ms"] == pytest.approx(300 / (95 + others_us))


def test_a_profile_without_marks_tells_shares_alone(tmp_path: Path) -> None:
    found = expected(profiled(tmp_path, marks=False), before(200.0, 125.0)).gains
    assert found["decode_tok_s"] == found["tpot_ms"] == pytest.approx(200 / 185, rel=0.01)


def test_a_mark_without_tokens_tells_shares_of_prefill_alone(tmp_path: Path) -> None:
    trace = TraceWriter()
    for _ in range(3):
        trace.step((MOE, 60.0), (CUBLAS, 40.0), mark="step[EXTEND bs=8]", gap=50.0)
    found = expected(written(trace, tmp_path, LOAD), before(1.0, 125.0)).gains
    assert found["prefill_tok_s"] == pytest.approx(200 / 190, rel=0.02)


def test_without_a_profile_or_files_nothing_is_expected(tmp_path: Path) -> None:
    said: list[str] = []
    speeds = before(200.0, 125.0)
    assert expected_gains(tmp_path, WINNERS, {LOAD: speeds}, said.append) == {}
    assert said and str(LOAD) in said[0]
    assert expected_gains(profiled(tmp_path), [], {LOAD: speeds}, said.append) == {}


def test_a_size_that_keeps_the_engines_own_choice_gains_nothing(tmp_path: Path) -> None:
    kept = [
        replace(one, entry=replace(one.entry, status=Status.INCUMBENT, median_us=None))
        if one.entry.point.batch_size == 8
        else one
        for one in WINNERS
    ]
    folder, speeds = profiled(tmp_path), before(200.0, 125.0)
    found = expected_gains(folder, kept, {LOAD: speeds}, pytest.fail)[LOAD].gains
    assert found["decode_tok_s"] == 1.0
    assert found["prefill_tok_s"] == pytest.approx(200 / 190)


# Lengths


def prefill(sequences: int, new_tokens: int) -> Step:
    return Step(Phase.PREFILL, sequences, new_tokens, 1, 1.0)


@pytest.mark.parametrize(
    ("load", "steps", "lengths"),
    [
        (Load(1, 32768, 32), [prefill(1, 8192)], [[0, 8192, 16384, 24576]]),
        (Load(1, 8192, 32), [prefill(1, 8192)], [[0]]),
        (Load(1, 10_000, 32), [prefill(1, 8192), prefill(1, 1808)], [[0], [8192]]),
        # The first prompt runs alone, and the others arrive meanwhile.
        (Load(8, 1024, 32), [prefill(1, 1024), prefill(7, 7168)], [[0], [0]]),
        (Load(64, 1024, 32), [prefill(8, 8192)], [[0]]),
        (Load(8, 1024, 32), [prefill(8, 0)], [[]]),
        (Load(8, 1024, 32), [Step(Phase.DECODE, 8, 0, 7, 1.0)], [[1040]]),
        (Load(8, 1024, 32), [Step(Phase.MIXED, 8, 512, 7, 1.0)], [[]]),
    ],
)
def test_how_much_is_cached_at_the_steps_of_a_load(
    load: Load, steps: list[Step], lengths: list[list[int]]
) -> None:
    found = lengths_of(load, steps)
    assert [[*found(step)] for step in steps] == lengths


def test_a_note_says_that_longer_lengths_were_not_tuned(tmp_path: Path) -> None:
    load = Load(1, 32768, 32)
    trace = TraceWriter()
    trace.step((CUBLAS, 40.0), mark="step[EXTEND bs=1 toks=8192]")
    trace.step((DECODE, 50.0), mark="step[DECODE bs=1]")
    tuned = [
        *(published(DECODE_PROBLEM, entry(point(Stage.DECODE, 1, 1, n))) for n in (1024, 8192)),
        published(EXTEND_PROBLEM, entry(point(Stage.EXTEND, 1, 8192, 24576))),
    ]
    folder, speeds = written(trace, tmp_path, load), before(200.0, 125.0)
    found = expected_gains(folder, tuned, {load: speeds}, pytest.fail)[load]
    assert found.notes == ["1x32768+32: no point beyond 8,192 cached tokens was tuned for decode"]
    window = replace(DECODE_PROBLEM, window=8192)  # where no more than these are ever read
    tuned = [replace(one, problem=window) for one in tuned[:2]]
    assert expected_gains(folder, tuned, {load: speeds}, pytest.fail)[load].notes == []
