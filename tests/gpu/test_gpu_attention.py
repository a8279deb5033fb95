"""Attention on a GPU: every phase and trait is right, and what is wrong or too large is told."""

from __future__ import annotations

import random

import pytest
from gpu_benches import open_bench, this_device, trials_of

from tuner.devices.target import Target
from tuner.engines.engine import find_engine
from tuner.engines.sglang.attention.binding import lift_attention
from tuner.families.attention.problem import Attention, Phase, parse_attention
from tuner.families.attention.space import attention_space
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Status

pytestmark = pytest.mark.gpu

GQA = "q_heads=8,kv_heads=2,Lq=128,Lv=128,dtype=bfloat16"
MLA = "q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16"
SMALL = "q_heads=8,kv_heads=2,Lq=64,Lv=64,dtype=bfloat16"
PROBLEMS = [
    f"extend_attention:{GQA}",
    f"extend_attention:{MLA}",
    "extend_attention:q_heads=4,kv_heads=4,Lq=192,Lv=128,dtype=bfloat16",
    f"extend_attention:{SMALL},window=31",
    f"extend_attention:{SMALL},sinks",
    f"extend_attention:{SMALL},logit_cap=30",
    f"extend_attention:{GQA},page_size=64",
    "extend_attention:q_heads=4,kv_heads=2,Lq=80,Lv=80,dtype=float16",
    f"decode_attention:{GQA}",
    f"decode_attention:{MLA}",
    f"decode_attention:{MLA},kv_splits=256",
    "decode_attention:q_heads=4,kv_heads=4,Lq=128,Lv=128,dtype=bfloat16",
    "decode_attention:q_heads=64,kv_heads=1,Lq=128,Lv=128,dtype=float16",
    f"decode_attention:{SMALL},sinks,kv_splits=3",
    f"decode_attention:{SMALL},logit_cap=30",
    f"prefill_attention:{GQA}",
    "prefill_attention:q_heads=4,kv_heads=4,Lq=80,Lv=80,dtype=bfloat16",
]
SAMPLED = 5  # configurations of each stage, beside the engine's own


def points_of(problem: Attention) -> list[Point]:
    new = 1 if problem.phase is Phase.DECODE else 100
    cached = 0 if problem.phase is Phase.PREFILL else 300
    return [Point(3, part, new, cached) for part in problem.parts]


def own(problem: Attention, point: Point, target: Target) -> Config:
    return lift_attention(find_engine("sglang")).default_config(problem, point, target)


@pytest.mark.parametrize("text", PROBLEMS)
def test_configurations_are_right_on_ragged_batches_and_have_times(text, tmp_path):
    problem, device = parse_attention(text), this_device()
    points = points_of(problem)
    candidates = []
    for point in points:
        takes = own(problem, point, device.target)
        configs = attention_space(problem, device, point.part, takes).configs()
        some = random.Random(text).sample(configs, min(SAMPLED, len(configs)))  # noqa: S311
        candidates += [Candidate(point, c) for c in {own(problem, point, device.target), *some}]
    with open_bench(problem, tmp_path, device=device, points=points) as bench:
        trials = trials_of(bench, candidates)
    assert len(trials) == len(candidates)
    for candidate, trial in trials.items():
        fits = trial.compiled.ok
        assert fits or trial.compiled.status is Status.OUT_OF_RESOURCES, trial
        if fits:
            assert trial.measurement.status is Status.OK, (candidate, trial.measurement)
            assert trial.measurement.median_us > 0


def test_a_kernel_that_reads_another_heads_keys_is_wrong_and_has_no_time(tmp_path):
    """24 query heads share a key head; in blocks of 16, a block has heads of two of them."""
    problem = parse_attention("decode_attention:q_heads=48,kv_heads=2,Lq=64,Lv=64,dtype=bfloat16")
    point, device = points_of(problem)[0], this_device()
    candidate = Candidate(point, own(problem, point, device.target))
    with open_bench(problem, tmp_path, device=device, points=[point]) as bench:
        trial = trials_of(bench, [candidate])[candidate]
    assert trial.measurement.status is Status.WRONG_RESULT
    assert trial.measurement.median_us is None


def test_times_taken_in_turn_are_of_every_configuration(tmp_path):
    problem, device = parse_attention(f"decode_attention:{GQA}"), this_device()
    points = points_of(problem)
    assert points
    for point in points:
        configs = [own(problem, point, device.target)]
        configs.append(configs[0].replace(num_warps=2))
        with open_bench(problem, tmp_path, device=device, points=[point]) as bench:
            trials_of(bench, [Candidate(point, c) for c in configs])
            times = bench.race(point, configs, rounds=3)
        assert all(times[config].samples == 3 for config in configs)
