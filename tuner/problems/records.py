"""Values that only the store keeps: runs, and published entries."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from tuner.problems.points import Config, Point, Problem
from tuner.problems.results import Entry, Environment, MeasureKind, Status, Totals


class RunState(str, Enum):
    """The state of a tuning run. A killed process leaves its run RUNNING."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


def point_row(point: Point) -> list[int | str]:
    """A point in a run's row: [batch size, part], then new and cached tokens for attention."""
    row: list[int | str] = [point.batch_size, point.part.value]
    tokens = point.new_tokens, point.cached_tokens
    return [*row, *tokens] if any(tokens) else row


@dataclass(frozen=True)
class RunKey:
    """Everything that a run's outcome depends on. A run with an equal key is resumed."""

    problem: Problem
    environment: Environment
    measure: MeasureKind
    effort: str
    seed: int
    points: tuple[Point, ...]  # their order is not part of the identity
    space: str  # identifies the set of configurations searched
    recording: str = ""  # sha256 of the replayed recording; empty without one
    routing: str = ""  # sha256 of the file of captured routings; empty: random routings

    @property
    def fingerprint(self) -> str:
        identity = [
            self.problem.spec(),
            self.environment.fingerprint,
            self.measure.value,
            self.effort,
            self.seed,
            [point_row(point) for point in sorted(self.points)],
            self.space,
            self.recording,
        ]
        if self.routing:  # left out when empty: older runs were stored without this field
            identity.append(self.routing)
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()


@dataclass(frozen=True)
class Run:
    """A tuning run as stored."""

    id: int
    key: RunKey
    state: RunState
    reason: str  # why it failed or was interrupted; empty otherwise
    totals: Totals | None  # the cost of the run that last finished it
    created_at: datetime  # UTC
    updated_at: datetime  # UTC


@dataclass(frozen=True)
class Outlook:
    """What a run will try, as far as it is known before it begins."""

    to_try: int  # the most configurations, summed over the points
    # What the engine would run without this tuner, at each point to tune.
    incumbents: Mapping[Point, Mapping[str, Config]]


@dataclass(frozen=True)
class Winner:
    """A published entry, with the problem and environment that it holds for."""

    problem: Problem
    environment: Environment
    entry: Entry
    run_id: int
    published_at: datetime  # UTC

    @property
    def status(self) -> Status:
        return self.entry.status

    @property
    def points(self) -> Collection[Point]:
        """Its point, as a collection like `Published.points`."""
        return (self.entry.point,)


@dataclass(frozen=True)
class Published:
    """The winners of one problem and status that one run published, without configurations."""

    problem: Problem
    environment: Environment
    status: Status
    points: frozenset[Point]
    run_id: int
    published_at: datetime  # UTC
