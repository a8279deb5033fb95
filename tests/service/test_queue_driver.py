"""Random operations by eight threads keep what the queue promises, on each database."""

import builtins
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from databases import both_databases
from queue_driver import OPERATIONS, Broken, drive
from sqlalchemy.dialects import postgresql

from tuner.store import submissions
from tuner.store.tables import IS_COALESCIBLE, jobs


@both_databases
def test_random_operations_break_no_promise(store):
    done = drive(store, seed=0, rounds=range(5))
    assert set(OPERATIONS) <= set(done)


def unlocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer with jobs that are not locked."""
    added = postgresql.insert(jobs).on_conflict_do_nothing(
        index_elements=[jobs.c.request_key], index_where=IS_COALESCIBLE
    )
    monkeypatch.setitem(submissions._ADD_OR_LOCK, "postgresql", added.returning(jobs.c.id))


def in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lock jobs in the order in which they are asked for."""

    def unsorted(items: Iterable[Any], key: Callable[[Any], Any] | None = None) -> list[Any]:
        return builtins.sorted(items, key=key) if key else list(items)

    monkeypatch.setattr(submissions, "sorted", unsorted, raising=False)


@pytest.mark.parametrize("database", ["postgresql"])
@pytest.mark.parametrize("plant", [unlocked, in_any_order])
def test_planted_faults_are_found(store, monkeypatch, plant):
    plant(monkeypatch)
    with pytest.raises(Broken):
        drive(store, seed=0, rounds=range(30))  # most often, the first one finds them
