"""Results of tuning: compiled figures, measurements, trials, chosen entries, runs and winners."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from tuner.problems.points import TRITON, Candidate, Config, Point, Problem


class Status(str, Enum):
    """The outcome for a candidate. Only OK has a measured time."""

    OK = "ok"
    PREDICTED = "predicted"  # timed by a model, never measured
    INCUMBENT = "incumbent"  # the engine's own choice, not timed
    COMPILE_ERROR = "compile_error"
    COMPILE_TIMEOUT = "compile_timeout"
    OUT_OF_RESOURCES = "out_of_resources"  # more shared memory than the device allows
    WRONG_RESULT = "wrong_result"
    UNSUPPORTED = "unsupported"  # a backend has no kernel for it, or cannot be loaded
    CRASHED = "crashed"  # a CUDA error; the measuring process was replaced
    TIMED_OUT = "timed_out"
    NOT_RECORDED = "not_recorded"  # absent from the replayed recording


# Statuses that a winner may have. The last one counts: a measured result replaces a predicted one,
# and both replace the engine's own choice.
WINNING = (Status.INCUMBENT, Status.PREDICTED, Status.OK)


# What people are told of an entry with such a status.
WINNING_WORDS = {
    Status.OK: "measured",
    Status.PREDICTED: "predicted",
    Status.INCUMBENT: "the engine's own",
}


def counted(statuses: Mapping[str, int]) -> str:
    """Numbers of entries by status, in words: "4 measured, 32 the engine's own"."""
    words = {status.value: text for status, text in WINNING_WORDS.items()}
    known = [name for name in words if statuses.get(name)]
    rest = sorted(statuses.keys() - words.keys())
    return ", ".join(f"{statuses[name]} {words.get(name, name)}" for name in [*known, *rest])


class MeasureKind(str, Enum):
    """The source of times."""

    GPU = "gpu"
    REPLAY = "replay"
    PREDICT = "predict"


@dataclass(frozen=True)
class Compiled:
    """The result of compiling a kernel for one architecture."""

    # OK, COMPILE_ERROR, COMPILE_TIMEOUT, OUT_OF_RESOURCES; INCUMBENT: it was not compiled
    status: Status
    shared_bytes: int | None = None  # shared memory of a block
    n_regs: int | None = None  # registers of a thread
    n_spills: int | None = None  # bytes a thread spills to local memory
    detail: str = ""  # the compiler's message when it failed
    cached: bool = False  # taken from the cache

    @property
    def ok(self) -> bool:
        return self.status is Status.OK


def compiled_json(compiled: Compiled, limit_bytes: int) -> dict[str, Any]:
    """What `tuner check --json` says of an entry's kernel. `limit_bytes` is the most shared memory
    that a block may have on the device.
    """
    return {
        "shared_bytes": compiled.shared_bytes,
        "limit_bytes": limit_bytes,
        "fits": compiled.ok,
        "status": compiled.status.value,
        "detail": compiled.detail,
    }


@dataclass(frozen=True)
class Measurement:
    """The time of one candidate."""

    status: Status
    median_us: float | None = None  # microseconds per launch
    min_us: float | None = None
    samples: int = 0  # replays behind the median
    detail: str = ""

    @property
    def timed(self) -> bool:
        return self.median_us is not None


@dataclass(frozen=True)
class Trial:
    """A candidate with its compile result and its measurement."""

    candidate: Candidate
    compiled: Compiled
    measurement: Measurement


def untimed(candidate: Candidate, compiled: Compiled) -> Trial:
    """A trial without a time: it failed to compile, or its point is not measured."""
    status = Status.INCUMBENT if compiled.ok else compiled.status
    return Trial(candidate, compiled, Measurement(status, detail=compiled.detail))


@dataclass(frozen=True)
class Incumbent:
    """What the engine could run at a point without this tuner: Triton's kernel with a configuration
    of the engine, or another backend's kernel, which has no configuration.

    A backend may run all parts of a size as one kernel. Then its time is at the first part, and it
    is 0 at the others.
    """

    config: Config
    status: Status
    median_us: float | None = None
    shared_bytes: int | None = None
    backend: str = TRITON


@dataclass(frozen=True)
class Entry:
    """The configuration chosen for a point, and why."""

    point: Point
    config: Config
    # OK (measured), PREDICTED, or INCUMBENT (a point that was not to be tuned, or at which a
    # prediction keeps what the engine ships).
    status: Status
    median_us: float | None
    compiled: Compiled
    # "default", "shipped" where the engine ships a file, and other backends by their names.
    incumbents: Mapping[str, Incumbent]
    reason: str
    # The name of the incumbent that a server runs without this program. A backend that was not
    # measured is not among the incumbents. Empty: not known.
    without_us: str = ""


def is_shipped(entry: Entry) -> bool:
    """Whether the entry is in the engine's own file, which its makers tuned on this card."""
    shipped = entry.incumbents.get("shipped")
    return shipped is not None and shipped.config == entry.config


def incumbent_json(
    incumbent: Incumbent, config: Callable[[Config], Mapping[str, int]] = dict
) -> dict[str, Any]:
    """An incumbent as JSON; `config` converts its configuration."""
    return {
        "backend": incumbent.backend,
        "config": config(incumbent.config),
        "status": incumbent.status.value,
        "median_us": incumbent.median_us,
        "shared_bytes": incumbent.shared_bytes,
    }


def entry_json(
    entry: Entry, config: Callable[[Config], Mapping[str, int]] = dict
) -> dict[str, Any]:
    """An entry as JSON without its point; `config` converts configurations."""
    return {
        "config": config(entry.config),
        "status": entry.status.value,
        "median_us": entry.median_us,
        "shared_bytes": entry.compiled.shared_bytes,
        "n_regs": entry.compiled.n_regs,
        "n_spills": entry.compiled.n_spills,
        "incumbents": {name: incumbent_json(i, config) for name, i in entry.incumbents.items()},
        "without_us": entry.without_us or None,
        "reason": entry.reason,
    }


@dataclass(frozen=True)
class Environment:
    """Everything that a time depends on. A winner is stale when any field has changed."""

    device: str  # the device table's name, e.g. NVIDIA_L40S
    engine: str  # e.g. sglang
    engine_version: str
    triton: str
    kernel_hash: str  # sha256 of the kernels' source as lifted
    torch: str = ""  # this field and the next three are empty if no GPU was used
    cuda: str = ""
    driver: str = ""
    backends: str = ""  # other kernel libraries and their versions: "sgl-deep-gemm 0.1.4.post1"

    @property
    def fingerprint(self) -> str:
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass
class Totals:
    """The cost of a run. Seconds are wall time."""

    configs_compiled: int = 0
    measurements: int = 0
    wall_s: float = 0.0
    compile_s: float = 0.0  # summed over the compile processes
    measure_s: float = 0.0
    extra: dict[str, float] = field(default_factory=dict)


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
    kept: bool = False  # whether they are the engine's own because a prediction keeps these
