"""Every installed backend on a GPU: right or refused, never wrong, and raced with Triton."""

from __future__ import annotations

import logging

import pytest
from gpu_benches import open_bench, this_device, trials_of

from tuner.backends.registry import backends_of
from tuner.engines.engine import find_engine
from tuner.families.attention.engine import attention_engine, engine_config
from tuner.families.attention.problem import Attention, AttentionPhase
from tuner.families.dense_gemm.engine import gemm_engine
from tuner.families.dense_gemm.problem import DensePart
from tuner.problems.points import Candidate, Config, Point, Problem
from tuner.problems.registry import parse_problem
from tuner.problems.results import Status

pytestmark = pytest.mark.gpu
LOG = logging.getLogger(__name__)  # --log-cli-level=INFO shows what each backend says

GEMM = "N=512,K=1024"
GQA = "q_heads=8,kv_heads=2,Lq=128,Lv=128,dtype=bfloat16"
MLA = "q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16"
# What each problem's backends must run on a Hopper card, if they are installed.
PROBLEMS = {
    f"block_gemm:{GEMM},dtype=fp8_w8a8,block=128x128": {"deep_gemm"},
    f"channel_gemm:{GEMM},dtype=fp8_w8a8": {"cutlass", "cublas"},
    f"channel_gemm:{GEMM},dtype=int8_w8a8": {"cutlass", "cublas"},
    f"extend_attention:{GQA}": {"fa3", "flashinfer"},
    f"extend_attention:{MLA}": {"fa3", "flashinfer"},
    "extend_attention:q_heads=4,kv_heads=4,Lq=192,Lv=128,dtype=bfloat16": {"fa3"},
    f"extend_attention:{GQA},window=31": {"fa3", "flashinfer"},
    f"decode_attention:{GQA}": {"fa3", "flashinfer"},
    "decode_attention:q_heads=4,kv_heads=4,Lq=128,Lv=128,dtype=bfloat16": {"fa3", "flashinfer"},
    f"decode_attention:{MLA}": {"fa3", "flashinfer"},
}


def points_of(problem: Problem) -> list[Point]:
    if not isinstance(problem, Attention):
        return [Point(size, DensePart.DENSE) for size in (3, 200)]
    if problem.phase is AttentionPhase.DECODE:
        return [Point(3, problem.parts[0], 1, 300)]
    return [Point(3, problem.parts[0], 100, cached) for cached in (0, 300)]


def engines_own(problem: Problem, point: Point) -> Config:
    engine, device = find_engine("sglang"), this_device()
    if not isinstance(problem, Attention):
        return gemm_engine(engine).incumbents(problem, device, point.batch_size)["default"]
    own = attention_engine(engine)
    room = own.most_splits(problem, device.sm_count)
    return engine_config(own.lift(device.target.platform), problem, point, device.target, room)


@pytest.mark.parametrize("text", PROBLEMS)
def test_backends_are_right_or_refuse_and_race_with_triton(text, tmp_path):
    problem, device = parse_problem(text), this_device()
    points = points_of(problem)
    with open_bench(problem, tmp_path, device=device, points=points) as bench:
        assert set(bench.backends) == {
            one.name for one in backends_of(problem.family) if not one.missing
        }
        candidates = [Candidate(p, Config({}), name) for p in points for name in bench.backends]
        candidates += [Candidate(point, engines_own(problem, point)) for point in points]
        trials = trials_of(bench, candidates)
        told = {
            (c.point.size, c.backend): (t.measurement.status.value, t.measurement.detail)
            for c, t in trials.items()
        }
        LOG.info("%s: %s", text, told)
        bad = {Status.WRONG_RESULT, Status.CRASHED, Status.TIMED_OUT}
        assert not [t for t in trials.values() if t.measurement.status in bad], told
        at_last = [c for c in candidates if c.point == points[-1] and trials[c].measurement.timed]
        raced = bench.race(at_last, rounds=3)
    assert set(raced) == set(at_last)
    timed = {c.backend for c in at_last}
    if device.target.name == "sm_90":
        assert timed >= PROBLEMS[text] & set(bench.backends), told
