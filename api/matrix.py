"""Problems by device: tuned, predicted, stale or missing, kept up to date in memory.

A store may hold half a million winners. They are summed up once; later, only newly published
winners are read.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from itertools import chain, islice
from typing import Any

from anyio import to_thread

from api.limits import Question
from tuner.errors import TunerError
from tuner.jobs.job import JobRequest
from tuner.jobs.workers import WorkerStatus
from tuner.models.served_as import models_of
from tuner.problems.points import Problem
from tuner.problems.registry import family_of, parse_problem
from tuner.problems.results import Status
from tuner.store.lookups import Lookups, Seen, StoredSummary
from tuner.store.shelf import published_for
from workers.coverage import FROM_SHELF, WatchState, stored_rows, watch_statuses
from workers.watches import UnreadableWatch, Watch

log = logging.getLogger("tuner.api")

FRESH_S = 1.0  # an answer may be so old
WATCHED_S = 30.0  # an unchanged watch list is resolved again after so long
_MOST_WATCHED = 5000  # requests of the watch list that are looked at


class CellState(str, Enum):
    """The state of a problem on a device."""

    MEASURED = "measured"
    PREDICTED = "predicted"
    STALE = "stale"  # the device has a newer environment
    UNTUNED = "untuned"  # only the engine's own choices, without a time
    MISSING = "missing"  # it is watched, and nothing is stored
    NOTHING = "nothing"  # nothing is stored, nor watched: there is no cell


class MatrixOrder(str, Enum):
    """The order of the problems."""

    NAME = "name"
    SPEEDUP = "speedup"
    NEWEST = "newest"


@dataclass(frozen=True)
class CoverageRow:
    """A problem in an engine, with a cell for each device."""

    problem: str
    engine: str
    family: str
    models: Sequence[str]
    cells: Mapping[str, Mapping[str, Any]]  # by device

    def as_json(self, devices: Iterable[str]) -> dict[str, Any]:
        """Return the row as the API shows it, with the cells of some devices."""
        cells = [self.cells[name] for name in devices if name in self.cells]
        return {**vars(self), "models": list(self.models), "cells": cells}

    @property
    def stored(self) -> Sequence[str]:
        """Return the devices with a stored result, which a gap and the shelf have not."""
        return [name for name, cell in self.cells.items() if cell["newest"]]

    def best(self, name: str) -> Any:  # noqa: ANN401 (a number or a time)
        """Return the largest value of a field of its cells; None without any."""
        return max((c[name] for c in self.cells.values() if c[name] is not None), default=None)


def has_words(text: str, *said: object) -> bool:
    """Say whether a row has each word of a search, in capitals or not."""
    row = " ".join(map(str, said)).casefold()
    return all(word in row for word in text.casefold().split())


@dataclass(frozen=True)
class RowFilter:
    """Selects the rows to show. An empty value leaves nothing out."""

    text: str = ""  # each word stands in the problem or in a model's name
    family: str = ""
    state: CellState | None = None
    devices: frozenset[str] = frozenset()
    order: MatrixOrder = MatrixOrder.NAME

    def has(self, row: CoverageRow, devices: Iterable[str]) -> bool:
        """Say whether the filter keeps a row; `devices` are the devices of all rows."""
        if self.family and row.family != self.family:
            return False
        if self.state is CellState.NOTHING:
            shown = not set(self.devices or devices) <= row.cells.keys()
        elif self.state:
            shown = any(c["state"] == self.state for c in self._cells(row))
        else:
            shown = not self.devices or bool(self.devices & row.cells.keys())
        if not shown:
            return False
        return has_words(self.text, row.problem, row.engine, *row.models)

    def _cells(self, row: CoverageRow) -> Iterable[Mapping[str, Any]]:
        return (c for name, c in row.cells.items() if not self.devices or name in self.devices)

    def place(self, row: CoverageRow) -> list[Any]:
        """Return the place of a row in the order, as JSON; a row without the value is last."""
        value = None if self.order is MatrixOrder.NAME else row.best(self.order.value)
        number = value.timestamp() if isinstance(value, datetime) else value
        names = " ".join(row.models), row.problem, row.engine
        return [value is None, -(number or 0.0), not row.models, *names]

    @property
    def digest(self) -> str:
        """Return the filter's digest, as `JobQuery.digest` does for a query."""
        said = repr({**vars(self), "devices": sorted(self.devices)})
        return hashlib.sha256(said.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class _Known:
    """The facts that were read from the store."""

    seen: Seen | None = None
    summaries: Mapping[tuple[int, int], StoredSummary] = field(default_factory=dict)
    watches: Sequence[Watch | UnreadableWatch] = ()
    watched: Sequence[JobRequest] = ()
    rows: Sequence[CoverageRow] = ()


class Matrix:
    """The rows of a store. Threads may share it."""

    def __init__(
        self,
        lookups: Lookups,
        watches: Callable[[], Sequence[Watch | UnreadableWatch]],
        workers: Callable[[], Sequence[WorkerStatus]],
    ) -> None:
        """Take the functions that read the watch list and the known workers."""
        self._lookups, self._read_watches, self._workers = lookups, watches, workers
        self._question = Question()
        self._known = _Known()
        self._fresh_until = self._watched_until = 0.0

    def find(self, wanted: RowFilter) -> list[CoverageRow]:
        """Return the rows that the filter keeps, in order. Raises UnusableStore."""
        rows = self.rows()
        devices = devices_of(rows)
        return sorted((row for row in rows if wanted.has(row, devices)), key=wanted.place)

    def rows(self) -> Sequence[CoverageRow]:
        """Return all rows, at most FRESH_S old. Raises UnusableStore."""
        with self._question.turn():
            if time.monotonic() >= self._fresh_until:
                self._refresh()
                self._fresh_until = time.monotonic() + FRESH_S
            return self._known.rows

    async def warm(self) -> None:
        """Sum up the store before the first request."""
        try:
            await to_thread.run_sync(self.rows, abandon_on_cancel=True)
        except TunerError as error:  # each request is told
            log.info("the coverage was not summed up: %s", error)
        except Exception:  # the server would end
            log.exception("the coverage was not summed up")

    def forget(self) -> None:
        """Sum up the store again: results were withdrawn."""
        with self._question.lock:
            self._known, self._fresh_until = _Known(), 0.0

    def _refresh(self) -> None:
        known, watches = self._known, tuple(self._read_watches())
        watched = known.watched
        if watches != known.watches or time.monotonic() >= self._watched_until:
            watched = list(islice(_requests(watches, self._workers()), _MOST_WATCHED))
            self._watched_until = time.monotonic() + WATCHED_S
            if self._lacks(known):
                known = _Known()
        found, seen = self._lookups.changed_summaries(known.seen)
        if not found and watched == known.watched:
            self._known = replace(known, seen=seen, watches=watches)
            return
        summaries = {**known.summaries, **{one.cursor: one for one in found}}
        devices = {one.environment.device for one in summaries.values()}
        stored = stored_rows(summaries.values(), self._lookups.environments(devices))
        rows = _rows(stored, watched, self._on_shelf(watched))
        self._known = _Known(seen, summaries, watches, watched, rows)

    def _on_shelf(self, watched: Sequence[JobRequest]) -> set[tuple[str, str, Problem]]:
        """Return the devices, engines and problems of the requests that the shelf answers."""
        engines = {one.engine.partition("==")[0] for one in watched}
        devices, asked = {one.device for one in watched}, {one.problem for one in watched}
        shelved = {one.problem for one in published_for(devices, engines, asked)}
        some = [one for one in watched if one.problem in shelved]
        found = watch_statuses(some, self._lookups, self._workers()) if some else ()
        answered = [one.request for one in found if one.why == FROM_SHELF]
        return {(one.device, one.engine, one.problem) for one in answered}

    def _lacks(self, known: _Known) -> bool:
        """Say whether another server of the store withdrew a result that is known here."""
        counted: Counter[int] = Counter()
        for one in known.summaries.values():
            counted[one.cursor[0]] += sum(one.points.values())
        stored = self._lookups.winner_counts() if counted else {}
        return any(stored.get(place, 0) < count for place, count in counted.items())


def _requests(
    watches: Iterable[Watch | UnreadableWatch], workers: Sequence[WorkerStatus]
) -> Iterator[JobRequest]:
    every = chain.from_iterable(watch.requests(workers) for watch in watches)
    return (one for one in every if isinstance(one, JobRequest))


def counts_of(rows: Sequence[CoverageRow]) -> dict[str, int]:
    """Return the number of cells in each state, and of the gaps between them."""
    found = Counter(cell["state"] for row in rows for cell in row.cells.values())
    found[CellState.NOTHING] = len(rows) * len(devices_of(rows)) - found.total()
    return {state.value: found[state] for state in CellState}


def devices_of(rows: Iterable[CoverageRow]) -> list[str]:
    """Return the devices that have a cell, by name."""
    return sorted({name for row in rows for name in row.cells})


def _rows(
    stored: Iterable[Mapping[str, Any]],
    watched: Iterable[JobRequest],
    on_shelf: Collection[tuple[str, str, Problem]],
) -> list[CoverageRow]:
    places: dict[tuple[str, str], dict[str, list[Mapping[str, Any]]]] = defaultdict(dict)
    for one in stored:
        cells = places[one["problem"], one["environment"]["engine"]]
        cells.setdefault(one["device"], []).append(_cell(one))
    for request in watched:
        engine = request.engine.partition("==")[0]
        cells = places[request.problem.spec(), engine]
        cell = _missing(request.device)
        if (request.device, request.engine, request.problem) in on_shelf:
            cell |= {"state": CellState.MEASURED, "why": FROM_SHELF}
        cells.setdefault(request.device, []).append(cell)
    return [
        _row(parse_problem(problem), engine, cells) for (problem, engine), cells in places.items()
    ]


def _row(
    problem: Problem, engine: str, cells: Mapping[str, list[Mapping[str, Any]]]
) -> CoverageRow:
    best = {device: max(some, key=_rank) for device, some in cells.items()}
    family = family_of(problem).name
    return CoverageRow(problem.spec(), engine, family, tuple(models_of(problem)), best)


def _rank(cell: Mapping[str, Any]) -> tuple[object, ...]:
    """Rank a cell: of several results for a device, the result with the highest rank is shown."""
    order = ("missing", "untuned", "stale", "predicted", "measured")
    return order.index(cell["state"]), cell["newest"] or ""


def _cell(stored: Mapping[str, Any]) -> dict[str, Any]:
    points = stored["points"]
    if stored["standing"] == WatchState.STALE.value:
        state = CellState.STALE
    elif points.get(Status.OK.value):
        state = CellState.MEASURED
    elif points.get(Status.PREDICTED.value):
        state = CellState.PREDICTED
    else:
        state = CellState.UNTUNED
    shown = ("device", "why", "points", "speedup", "over", "newest")
    version = stored["environment"]["engine_version"]
    return {"state": state, "engine_version": version, **{n: stored[n] for n in shown}}


def _missing(device: str) -> dict[str, Any]:
    why = "it is watched, and nothing is stored"
    nothing: dict[str, Any] = {
        **dict.fromkeys(("speedup", "over", "newest")),
        "points": {},
        "engine_version": "",
    }
    return {"state": CellState.MISSING, "device": device, "why": why, **nothing}
