"""State updates and chunked scans on a GPU: each configuration is right, and no run is slower.

The tests of state updates were not run on a GPU yet.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from cases import tuned
from gpu_benches import open_bench, this_device, trials_of

from tuner.engines.engine import find_engine
from tuner.families.scans.selection import PromptSelection
from tuner.families.state_update.family import StateSelection
from tuner.families.state_update.gpu import PLACES, StateUpdateBatches
from tuner.families.state_update.predict import state_space
from tuner.families.state_update.problem import Update, parse_state_update
from tuner.measure.timing import LAUNCHES
from tuner.measure.workbench import Workbench
from tuner.problems.points import Candidate, Point
from tuner.problems.registry import parse_problem
from tuner.problems.results import Status
from tuner.store.results import ResultStore
from tuner.tuning.request import Effort, Request, parse_source, prepare
from tuner.tuning.run import execute, open_source

pytestmark = pytest.mark.gpu

RELEASES = ("vllm==0.33.0", "vllm==0.24.0")
PROBLEMS = (
    "state_update:heads=16,head_dim=64,state_size=128,groups=2,cache_dtype=float32",
    "state_update:heads=24,head_dim=64,state_size=128,groups=1,cache_dtype=bfloat16",
    "state_update:heads=3,head_dim=80,state_size=96,groups=1,dtype=float16,cache_dtype=float16",
)
SIZES = (1, 3, 64, 512)
L2_BYTES = 50 << 20


def point(sequences: int) -> Point:
    return Point(sequences, Update.STATE)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("text", PROBLEMS)
def test_every_configuration_is_right_and_has_a_time(text, release, tmp_path):
    problem, engine = parse_state_update(text), find_engine(release)
    configs = state_space(problem, this_device()).configs()
    candidates = [Candidate(point(n), config) for n in SIZES for config in configs]
    points = [point(n) for n in SIZES]
    with open_bench(problem, tmp_path, engine=engine, points=points) as bench:
        trials = trials_of(bench, candidates)
        raced = bench.race([Candidate(point(64), c) for c in list(configs)[:4]], rounds=3)
    assert len(trials) == len(candidates)
    assert {trial.measurement.status for trial in trials.values()} == {Status.OK}
    assert len(raced) == 4


def test_outputs_that_are_not_written_are_wrong():
    batches = StateUpdateBatches(parse_state_update(PROBLEMS[0]), seed=1, l2_bytes=L2_BYTES)
    assert batches.at(16).error([]) == math.inf


def test_launches_update_slots_of_their_own_until_one_fills_the_cache():
    batches = StateUpdateBatches(parse_state_update(PROBLEMS[0]), seed=1, l2_bytes=L2_BYTES)
    small = batches.at(4)
    slots = torch.cat([step.indices for step in small.steps]).flatten().tolist()
    assert len(set(slots)) == 4 * LAUNCHES
    assert 0 not in slots  # the slot of a sequence that is not there
    large = batches.at(512)
    slots = torch.cat([step.indices for step in large.steps]).flatten().tolist()
    assert len(set(slots)) == 512


def test_a_race_has_the_same_inputs_at_several_places():
    batches = StateUpdateBatches(parse_state_update(PROBLEMS[0]), seed=1, l2_bytes=L2_BYTES)
    places = batches.places(16)
    assert len({one.steps[0].projected.data_ptr() for one in places}) == PLACES
    first = places[0].steps[0]
    for other in places[1:]:
        assert torch.equal(other.steps[0].projected, first.projected)
        assert sorted(other.steps[0].indices.flatten().tolist()) == sorted(
            first.indices.flatten().tolist()
        )


def test_a_run_is_never_slower_than_the_engine(tmp_path, monkeypatch):
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path / "cache"))
    request = Request(
        problem=parse_state_update(PROBLEMS[0]),
        device=this_device(),
        engine=find_engine(RELEASES[0]),
        source=parse_source("gpu"),
        selection=StateSelection((1, 64, 512)),
    )
    with ResultStore.open(f"sqlite:///{tmp_path}/tuner.db") as store:
        report = tuned(request, store)
    assert [entry.point.batch_size for entry in report.entries] == [1, 64, 512]
    for entry in report.entries:
        assert entry.status is Status.OK
        assert all(entry.median_us <= 1.005 * one.median_us for one in entry.incumbents.values())


# Chunked scans


_SPARSE = "minimax_sparse:heads=32,kv_heads=2,head_dim=128,index_dim=128,block=128,topk=4"
_DELTA = "gated_delta:key_heads=2,value_heads=4,key_dim=128,value_dim=128"


@pytest.mark.parametrize(
    ("engine", "text"),
    [
        ("sglang", "chunk_scan:heads=8,head_dim=64,groups=1,state_size=128,chunk_size=128"),
        ("sglang", _DELTA),
        ("vllm==0.33.0", f"{_DELTA},chain=split"),
        ("sglang==0.5.16", "kda:heads=4,head_dim=128"),
        ("sglang==0.5.23", "kda:heads=4,head_dim=128"),
        ("vllm==0.33.0", "kda:heads=4,head_dim=128"),
        ("sglang==0.5.16", _SPARSE),
        ("sglang==0.5.23", _SPARSE),
    ],
)
def test_each_kernel_of_a_scan_is_right_and_no_slower(
    engine: str, text: str, tmp_path: Path
) -> None:
    problem = parse_problem(text)
    request = Request(
        problem,
        this_device(),
        find_engine(engine),
        parse_source("gpu"),
        PromptSelection(((1, 1000), (2, 512))),
        Effort.QUICK,
    )
    with ResultStore.open(f"sqlite:///{tmp_path}/t.db") as store, Workbench() as workbench:
        report = execute(prepare(request), open_source(request, workbench), store)
    assert {entry.point.part for entry in report.entries} == {*problem.parts}
    assert len(report.entries) == 2 * len(problem.parts)
    for entry in report.entries:
        own = entry.incumbents["default"].median_us
        assert own is not None, f"the engine's own choice is wrong at {entry.point}"
        assert entry.median_us is not None
        assert entry.median_us <= own
