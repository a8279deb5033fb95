"""Which finished run a new engine or Triton may take results over from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from databases import both_databases
from store_writer import ENVIRONMENT, KEY, POINTS, PROBLEM, trial

from tuner.problems.points import Config, Point
from tuner.problems.records import RunKey
from tuner.problems.results import Compiled, Entry, MeasureKind, Status, Totals
from tuner.store import Store

ON_GPU = replace(ENVIRONMENT, torch="2.11.0", cuda="13.0", driver="580.1")
OLD = replace(KEY, measure=MeasureKind.GPU, recording="", environment=ON_GPU)
NEW = replace(OLD, environment=replace(ON_GPU, engine_version="0.5.23", kernel_hash="cd" * 32))
TRIALS = [replace(trial(n), compiled=Compiled(Status.OK, code=f"code {n}")) for n in range(4)]


def entry(point: Point, status: Status = Status.OK) -> Entry:
    return Entry(point, Config({"M": 1}), status, 1.0, Compiled(Status.OK, code="c"), {}, "why")


def tuned(store: Store, key: RunKey, *entries: Entry) -> None:
    run = store.begin_run(key)
    store.add_trials(run, TRIALS)
    store.finish_run(run, entries or [entry(point) for point in key.points], Totals())


def test_an_older_release_s_run_is_found_with_its_trials_and_entries(store: Store) -> None:
    tuned(store, OLD)
    found = store.earlier_run(NEW)
    assert found is not None
    assert found.run.key == OLD
    assert list(found.trials) == TRIALS
    assert {one.point for one in found.entries} == set(POINTS)
    assert {one.compiled.code for one in found.entries} == {"c"}


@both_databases
def test_the_newest_of_several_counts(store: Store) -> None:
    triton = replace(OLD, environment=replace(ON_GPU, triton="3.5.0"))
    for key in (OLD, triton):
        tuned(store, key)
    found = store.earlier_run(NEW)
    assert found is not None
    assert found.run.key == triton


@pytest.mark.parametrize(
    "change",
    [
        {"problem": replace(PROBLEM, N=128)},
        {"effort": "standard"},
        {"space": "wide"},
        {"routing": "ef" * 32},
        {"points": (*POINTS, Point(2, POINTS[0].part))},
        *(
            {"environment": replace(NEW.environment, **{name: "another"})}
            for name in ("device", "engine", "torch", "cuda", "driver")
        ),
    ],
    ids=str,
)
def test_a_run_that_asked_or_measured_otherwise_does_not_count(
    store: Store, change: Mapping[str, Any]
) -> None:
    tuned(store, OLD)
    assert store.earlier_run(replace(NEW, **change)) is None


def test_the_same_environment_takes_nothing_over_from_itself(store: Store) -> None:
    tuned(store, OLD)
    assert store.earlier_run(replace(OLD, seed=1)) is None


def test_an_environment_with_measured_winners_takes_nothing_over(store: Store) -> None:
    tuned(store, OLD)
    tuned(store, NEW)
    assert store.earlier_run(replace(NEW, seed=1)) is None


def test_predicted_entries_and_unfinished_runs_do_not_count(store: Store) -> None:
    store.add_trials(store.begin_run(OLD), TRIALS)
    assert store.earlier_run(NEW) is None
    tuned(store, OLD, *(entry(point, Status.PREDICTED) for point in POINTS))
    assert store.earlier_run(NEW) is None
