"""Define results of tuning: compiled figures, measurements, trials, entries, runs and winners."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import Any

from tuner.problems.points import (
    TRITON,
    UNKNOWN_SERVER,
    Candidate,
    Config,
    Point,
    Problem,
    ServerSettings,
)


class Status(str, Enum):
    """The outcome for a candidate. Only OK has a measured time."""

    OK = "ok"
    PREDICTED = "predicted"  # timed by a model, never measured
    INCUMBENT = "incumbent"  # the engine's own choice, not timed
    COPIED = "copied"  # as at the nearest tuned size, because the engine's own cannot run
    COMPILE_ERROR = "compile_error"
    COMPILE_TIMEOUT = "compile_timeout"
    OUT_OF_RESOURCES = "out_of_resources"  # more shared memory than the device allows
    WRONG_RESULT = "wrong_result"
    UNSUPPORTED = "unsupported"  # there is no kernel for it, or that cannot be loaded or bound
    CRASHED = "crashed"  # its process ended, the device failed, or this program did
    TIMED_OUT = "timed_out"
    NOT_RECORDED = "not_recorded"  # absent from the replayed recording


# A process's mishap says nothing of a configuration: the next try may end otherwise. So a candidate
# with such a status was tried in two processes, or its backend was lost at other points; no store
# keeps it.
MISHAPS = frozenset({Status.COMPILE_TIMEOUT, Status.CRASHED, Status.TIMED_OUT})


def twice(status: Status, detail: str) -> str:
    """Say the outcome of two mishaps: "crashed twice: the process ended (SIGSEGV)"."""
    return f"{status.value.replace('_', ' ')} twice: {detail}"


# Statuses that a winner may have. The last counts: a measured result replaces a predicted result,
# and both replace the entry of a size that was not tuned.
UNTUNED = (Status.INCUMBENT, Status.COPIED)
WINNING = (*UNTUNED, Status.PREDICTED, Status.OK)

# Reasons why a kernel cannot run. Any other failure may be the machine's.
CANNOT_RUN = (Status.OUT_OF_RESOURCES, Status.COMPILE_ERROR, Status.WRONG_RESULT)


# Words for people about an entry with such a status.
WINNING_WORDS = {
    Status.OK: "measured",
    Status.PREDICTED: "predicted",
    Status.INCUMBENT: "the engine's own",
    Status.COPIED: "as at the nearest size",
}


def counted(statuses: Mapping[str, int]) -> str:
    """Say the numbers of entries by status: "4 measured, 32 the engine's own"."""
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

    # OK, COMPILE_ERROR, OUT_OF_RESOURCES, or a mishap; UNSUPPORTED: the kernel does not take the
    # configuration; INCUMBENT: it was not compiled
    status: Status
    shared_bytes: int | None = None  # shared memory of a block
    n_regs: int | None = None  # registers of a thread
    n_spills: int | None = None  # bytes a thread spills to local memory
    detail: str = ""  # the compiler's message when it failed
    cached: bool = False  # taken from the cache
    borrowed: bool = False  # the ptxas is not in the key of the cache: such a result is not kept

    @property
    def ok(self) -> bool:
        return self.status is Status.OK

    @property
    def lost(self) -> bool:
        """Say whether nothing is known of the kernel, because of a mishap."""
        return self.status in MISHAPS

    def within(self, limit_bytes: int) -> Compiled:
        """Return the result, as OUT_OF_RESOURCES if a block needs more shared memory than the
        limit.
        """
        needed = self.shared_bytes
        if not self.ok or needed is None or needed <= limit_bytes:
            return self
        detail = f"needs {needed:,} bytes of shared memory, limit {limit_bytes:,}"
        return replace(self, status=Status.OUT_OF_RESOURCES, detail=detail)


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


UNCHECKED = "slower than the best: not compared"  # of a time whose outputs may be wrong


@dataclass(frozen=True)
class Trial:
    """A candidate with its compile result and its measurement."""

    candidate: Candidate
    compiled: Compiled
    measurement: Measurement

    @property
    def lost(self) -> bool:
        """Say whether nothing is known of the candidate, because of a mishap."""
        return self.measurement.status in MISHAPS

    @property
    def refused(self) -> bool:
        """Say whether the engine's kernel, as it is read here, does not take the configuration."""
        return self.compiled.status is Status.UNSUPPORTED

    @property
    def unchecked(self) -> bool:
        """Say whether it has a time, and its outputs were not compared."""
        return self.measurement.timed and self.measurement.detail.startswith(UNCHECKED)


def untimed(candidate: Candidate, compiled: Compiled) -> Trial:
    """Return a trial without a time: it failed to compile, or its point is not measured."""
    status = Status.INCUMBENT if compiled.ok else compiled.status
    return Trial(candidate, compiled, Measurement(status, detail=compiled.detail))


@dataclass(frozen=True)
class Incumbent:
    """A kernel that the engine could run at a point without this tuner.

    It is Triton's kernel with a configuration of the engine, or another backend's kernel, which has
    no configuration. A backend may run all parts of a size as one kernel. Then its time is at the
    first part, and it is 0 at the others.
    """

    config: Config
    status: Status
    median_us: float | None = None
    shared_bytes: int | None = None
    backend: str = TRITON

    @property
    def cannot_run(self) -> bool:
        """Say whether it is known to fail here. Without a time, it may also not have been tried."""
        return self.status in CANNOT_RUN


def as_incumbent(config: Config, trial: Trial | None) -> Incumbent:
    """Return a run's result for the engine's configuration; `trial` None: it was not tried."""
    if trial is None:
        return Incumbent(config, Status.NOT_RECORDED)
    status = trial.measurement.status if trial.compiled.ok else trial.compiled.status
    return Incumbent(config, status, trial.measurement.median_us, trial.compiled.shared_bytes)


def without_time(what: str, incumbents: Iterable[Incumbent]) -> str:
    """Say why there is no time of `what` the engine runs."""
    if any(one.cannot_run for one in incumbents):
        return f"{what} cannot run here"
    return f"no time is known of {what}"


@dataclass(frozen=True)
class Entry:
    """The configuration chosen for a point, and why."""

    point: Point
    config: Config
    # OK (measured), PREDICTED, or one of UNTUNED (a point that was not to be tuned, at which a
    # prediction keeps the engine's shipped entry, or whose incumbent was lost to a mishap).
    status: Status
    median_us: float | None
    compiled: Compiled
    # "default", "shipped" if the engine ships a file, and other backends by their names.
    incumbents: Mapping[str, Incumbent]
    reason: str
    # The name of the incumbent that a server runs without this program. A backend that was not
    # measured is not among the incumbents. Empty: not known.
    without_us: str = ""
    # The server that `without_us` is of, with the flags without which it would not start.
    server: ServerSettings = UNKNOWN_SERVER


def own_choice(point: Point, config: Config, name: str, trial: Trial | None) -> Entry | None:
    """Return the entry of a point that was not tuned: the engine's configuration, called `name`.

    Return None if its compile says that it cannot run. A compile without such an answer says
    nothing: a recording may lack it, or the compiler was killed.
    """
    compiled = trial.compiled if trial else Compiled(Status.NOT_RECORDED)
    if compiled.status in CANNOT_RUN:
        return None
    reason = f"not tuned: the {name} configuration stands"
    return Entry(point, config, Status.INCUMBENT, None, compiled, {}, reason)


def copied(entry: Entry, point: Point, name: str) -> Entry:
    """Return the entry of the nearest tuned point, for a point at which the configuration `name`
    cannot run.
    """
    return replace(
        entry,
        point=point,
        status=Status.PREDICTED if entry.status is Status.PREDICTED else Status.COPIED,
        median_us=None,
        incumbents={},
        reason=f"not tuned: the {name} configuration cannot run here; as at {entry.point.size}",
    )


def is_shipped(entry: Entry) -> bool:
    """Say whether the entry is in the engine's own file, which its makers tuned on this card."""
    shipped = entry.incumbents.get("shipped")
    return shipped is not None and shipped.config == entry.config


def incumbent_json(
    incumbent: Incumbent, config: Callable[[Config], Mapping[str, int]] = dict
) -> dict[str, Any]:
    """Return an incumbent as JSON; `config` converts its configuration."""
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
    """Return an entry as JSON without its point; `config` converts configurations."""
    return {
        "config": config(entry.config),
        "status": entry.status.value,
        "median_us": entry.median_us,
        "shared_bytes": entry.compiled.shared_bytes,
        "n_regs": entry.compiled.n_regs,
        "n_spills": entry.compiled.n_spills,
        "incumbents": {name: incumbent_json(i, config) for name, i in entry.incumbents.items()},
        "without_us": entry.without_us or None,
        **entry.server.as_json(),
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
    """Return a point in a run's row: [batch size, part], then new and cached tokens for
    attention.
    """
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
    """The candidates that a run will try, as far as they are known before it begins."""

    to_try: int  # the most configurations, summed over the points
    # The engine's configurations without this tuner, at each point to tune.
    incumbents: Mapping[Point, Mapping[str, Config]]


SHELF_RUN = 0  # the run of a winner that comes from the shelf; runs of a store begin at 1


@dataclass(frozen=True)
class Winner:
    """A published entry, with the problem and environment that it holds for."""

    problem: Problem
    environment: Environment
    entry: Entry
    run_id: int
    published_at: datetime  # UTC
    # Of a predicted winner: the winner that counts at its point if predictions do not.
    unpredicted: Winner | None = None

    @property
    def status(self) -> Status:
        return self.entry.status

    @property
    def from_shelf(self) -> bool:
        """Say whether it was measured elsewhere, and came with this program."""
        return self.run_id == SHELF_RUN

    @property
    def points(self) -> Collection[Point]:
        """Return its point, as a collection like `Published.points`."""
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
