"""Attention on a GPU: every phase and trait is right, and what is wrong or too large is told."""

from __future__ import annotations

import random

import pytest
from cases import tuned
from gpu_benches import open_bench, this_device, trials_of

from tuner.devices.target import Target
from tuner.engines.engine import find_engine
from tuner.families.attention.engine import attention_engine, engine_config
from tuner.families.attention.family import AttentionSelection
from tuner.families.attention.problem import (
    Attention,
    AttentionPart,
    AttentionPhase,
    parse_attention,
)
from tuner.families.attention.space import attention_space
from tuner.families.attention.splits import with_splits
from tuner.families.attention.workloads import WorkPoint
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Status
from tuner.store.results import ResultStore
from tuner.tuning.request import Effort, Request, parse_source

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
    f"decode_attention:{GQA},kv_splits=8",
    f"decode_attention:{MLA},kv_splits=256",
    "decode_attention:q_heads=4,kv_heads=4,Lq=128,Lv=128,dtype=bfloat16",
    "decode_attention:q_heads=64,kv_heads=1,Lq=128,Lv=128,dtype=float16",
    f"decode_attention:{SMALL},sinks,kv_splits=3",
    f"decode_attention:{SMALL},logit_cap=30",
    f"prefill_attention:{GQA}",
    "prefill_attention:q_heads=4,kv_heads=4,Lq=80,Lv=80,dtype=bfloat16",
]
SAMPLED = 5  # configurations of each part, beside the engine's own


def points_of(problem: Attention) -> list[Point]:
    new = 1 if problem.phase is AttentionPhase.DECODE else 100
    cached = 0 if problem.phase is AttentionPhase.PREFILL else 300
    return [Point(3, part, new, cached) for part in problem.parts]


def own(problem: Attention, point: Point, target: Target) -> Config:
    """The engine's constants, and its own rule where the splits are chosen."""
    engine = attention_engine(find_engine("sglang"))
    room = engine.most_splits(problem, this_device().sm_count)
    return engine_config(engine.lift(target.platform), problem, point, target, room)


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


@pytest.mark.parametrize("text", [f"decode_attention:{GQA}", f"decode_attention:{MLA}"])
def test_more_splits_than_blocks_of_tokens_and_more_room_than_splits_are_right(text, tmp_path):
    """The edge cases have sequences of 1 to 257 tokens, so most of their splits are empty."""
    problem, device = parse_attention(text), this_device()
    points = points_of(problem)
    candidates = [
        Candidate(point, with_splits(own(problem, point, device.target), splits, room))
        for point in points
        for splits, room in ((1, 1), (1, 128), (5, 8), (128, 128))
    ]
    with open_bench(problem, tmp_path, device=device, points=points) as bench:
        trials = trials_of(bench, candidates)
        for point in points:
            configs = [c.config for c in candidates if c.point == point]
            times = bench.race([Candidate(point, c) for c in configs], rounds=3)
            assert all(one.samples == 3 for one in times.values())
    assert {trial.measurement.status for trial in trials.values()} == {Status.OK}


def test_decode_is_tuned_with_its_splits_and_no_length_gets_slower(tmp_path):
    problem = parse_attention(f"decode_attention:{GQA}")
    request = Request(
        problem=problem,
        device=this_device(),
        engine=find_engine("sglang"),
        source=parse_source("gpu"),
        selection=AttentionSelection((WorkPoint(1, 1, 512), WorkPoint(1, 1, 16384))),
        effort=Effort.QUICK,
    )
    with ResultStore.open(f"sqlite:///{tmp_path}/t.db") as store:
        entries = tuned(request, store).entries
    assert len(entries) == 4
    for cached in (512, 16384):
        both = [entry for entry in entries if entry.point.cached_tokens == cached]
        assert len({(e.config["KV_SPLITS"], e.config["MAX_KV_SPLITS"]) for e in both}) == 1
        own_us = sum(entry.incumbents["default"].median_us for entry in both)
        assert sum(entry.median_us for entry in both) <= own_us * 1.004
    chosen = {e.point.cached_tokens: e for e in entries if e.point.part is AttentionPart.DECODE}
    # With two key heads, the 8 splits of the engine leave most of a GPU idle.
    assert chosen[16384].config["KV_SPLITS"] > 8
