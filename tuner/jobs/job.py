"""Define jobs: tuning runs that were asked for, and their states.

docs/architecture.md, "Jobs", draws the states and names the process that writes each.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from enum import Enum, IntEnum
from typing import Any

from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.errors import BadInput, BadProblem, TunerError, did_you_mean
from tuner.problems.dtypes import Dtype
from tuner.problems.points import UNKNOWN_SERVER, Point, Problem, ServerSettings, read_server
from tuner.problems.registry import Selection, family_of, parse_problem
from tuner.problems.results import MeasureKind, Totals
from tuner.tuning.request import (
    Effort,
    Request,
    Source,
    parse_effort,
    parse_source,
    refuse_unmeasured,
    refuse_unpredicted,
)

HEARTBEAT = timedelta(seconds=10)
LEASE = timedelta(seconds=45)  # three heartbeats may be lost, and most of a fourth
MAX_ATTEMPTS = 5
FRESH = timedelta(days=1)  # a job done within this answers an equal request
_GIB = 1 << 30


class JobState(str, Enum):
    """The state of a job."""

    QUEUED = "queued"
    LEASED = "leased"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DEAD = "dead"

    @property
    def finished(self) -> bool:
        return self not in UNFINISHED


UNFINISHED = (JobState.QUEUED, JobState.LEASED, JobState.RUNNING)
HELD = (JobState.LEASED, JobState.RUNNING)  # a worker has its lease


class Priority(IntEnum):
    """The order of queued jobs: smaller numbers go first."""

    URGENT = 0
    NORMAL = 1


@dataclass(frozen=True)
class JobRequest:
    """A request to tune, in values that travel as JSON.

    Raises BadInput for a value that no worker could run.
    """

    problem: Problem
    device: str  # the device table's name
    selection: Selection  # which points
    engine: str = "sglang"  # or sglang==VERSION
    measure: str = "gpu"  # gpu, predict or replay:FILE, a path for the worker
    effort: Effort = Effort.STANDARD
    wide: bool | None = None  # search beyond the engine's grid; None: if times are measured
    seed: int = 0
    model: str = ""  # the model's name, for people; not part of `key`
    server: ServerSettings = UNKNOWN_SERVER  # the server that will read the files

    def __post_init__(self) -> None:
        if find_device(self.device).name != self.device:
            raise BadInput(f"{self.device} is {find_device(self.device).name} in the device table")
        parse_source(self.measure)
        if not 0 <= self.seed < 1 << 63:
            raise BadInput(f"seed is a whole number from 0 to 2**63 - 1, not {self.seed}")

    @property
    def source(self) -> Source:
        """Return the source of times, as `measure` says."""
        return parse_source(self.measure)

    @property
    def points(self) -> frozenset[Point]:
        """Return the points to tune; none for a replay that tunes all points of its recording."""
        if self.source.kind is MeasureKind.REPLAY and not self.selection.given:
            return frozenset()
        return self.selection.points(self.problem)

    @property
    def needs_gpu(self) -> bool:
        return self.source.kind is MeasureKind.GPU

    @property
    def spec(self) -> str:
        """Return the text of the problem."""
        return self.problem.spec()

    @property
    def key(self) -> str:
        """Return a sha256 that is equal for requests for the same work."""
        identity = {name: value for name, value in self.as_json().items() if name != "model"}
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def to_run(self, source: Source, *, carry_over: bool) -> Request:
        """Return the request as this machine runs it. Raises UnknownEngine if the engine is not
        here.
        """
        return Request(
            problem=self.problem,
            device=find_device(self.device),
            engine=find_engine(self.engine),
            source=source,
            selection=self.selection,
            effort=self.effort,
            wide=self.wide,
            seed=self.seed,
            carry_over=carry_over,
            server=self.server,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the request as JSON, which `read_request` reads back."""
        return {
            "problem": self.problem.spec(),
            "device": self.device,
            "engine": self.engine,
            "measure": self.measure,
            **self.selection.as_json(),
            "effort": self.effort.value,
            "wide": self.wide,
            "seed": self.seed,
            "model": self.model,
            # Left out if it is not known, so that keys of earlier programs are found.
            **self.server.as_json(),
        }


def refuse_undoable(request: JobRequest) -> None:
    """Refuse a job that no worker can do.

    Raises BadInput if it asks for times that nothing predicts or measures, UnsupportedKernel if
    Triton lacks the type of its weights on the card, and BadProblem if the smallest launch that it
    selects needs more memory than the card has.
    """
    device = find_device(request.device)
    refuse_unpredicted(request.problem, request.source.kind)
    refuse_unmeasured(device, request.source.kind)
    if getattr(request.problem, "dtype", None) is Dtype.FP8_W8A8:
        device.architecture.require_fp8()
    if not request.points:
        return  # a replay of all that its recording has
    held_bytes = family_of(request.problem).held_bytes
    point = min(request.points, key=lambda one: held_bytes(request.problem, one))
    needed = held_bytes(request.problem, point)
    if needed > device.memory_bytes:
        raise BadProblem(
            f"{request.problem.spec()} does not fit on {device.name}: its smallest launch, "
            f"{point}, needs {needed / _GIB:,.1f} GiB, and the card has "
            f"{device.memory_bytes // _GIB} GiB"
        )


def read_request(values: Mapping[str, Any]) -> JobRequest:
    """Read a request from the JSON object that `JobRequest.as_json` makes."""
    problem = parse_problem(values["problem"])
    return JobRequest(
        problem=problem,
        device=find_device(values["device"]).name,
        engine=values["engine"],
        measure=values["measure"],
        selection=family_of(problem).read_selection(problem, values),
        effort=parse_effort(values["effort"]),
        wide=values["wide"],
        seed=values["seed"],
        model=values["model"],
        server=read_server(values),  # earlier programs did not know all of it
    )


@dataclass(frozen=True)
class UnreadableRequest:
    """A stored request that this release cannot read: a newer or an older release posted it."""

    stored: Mapping[str, Any]
    why: str

    def text(self, name: str) -> str:
        """Return a value as it is stored; "" without one."""
        value = self.stored.get(name, "")
        return value if isinstance(value, str) else json.dumps(value)

    @property
    def spec(self) -> str:
        return self.text("problem")

    @property
    def device(self) -> str:
        return self.text("device")

    @property
    def engine(self) -> str:
        return self.text("engine")

    @property
    def measure(self) -> str:
        return self.text("measure")

    @property
    def needs_gpu(self) -> bool:
        return self.measure == MeasureKind.GPU.value

    def as_json(self) -> dict[str, Any]:
        return dict(self.stored)


def read_if_possible(values: Mapping[str, Any]) -> JobRequest | UnreadableRequest:
    """Read a request as `read_request` does, but let no unreadable request stop the others."""
    try:
        return read_request(values)
    except Exception as error:  # another release's values may have any form
        why = str(error) if isinstance(error, TunerError) else f"{type(error).__name__}: {error}"
        return UnreadableRequest(values if isinstance(values, Mapping) else {}, why)


@dataclass(frozen=True)
class Cost:
    """The cost of a job, in seconds. A job of two GPUs has two GPU seconds each second."""

    gpu_s: float  # that its GPUs were its own; 0 if it needs none
    gpu_idle_s: float  # of these, neither checking nor timing anything
    cpu_s: float  # of the compile processes, and of the process that searches or predicts

    @classmethod
    def of(cls, totals: Totals) -> Cost:
        """Return the cost of a run."""
        extra = totals.extra
        cpu_s = extra.get("cpu_s", totals.compile_s + totals.measure_s)  # if no GPU is measured
        return cls(extra.get("gpu_s", 0.0), extra.get("gpu_idle_s", 0.0), cpu_s)

    def as_json(self) -> dict[str, float]:
        return {name: round(seconds, 1) for name, seconds in asdict(self).items()}


@dataclass(frozen=True)
class Job:
    """A job as stored."""

    id: str
    request: JobRequest | UnreadableRequest
    priority: Priority
    state: JobState
    client: str  # that posted it first: an API key's name, "nightly" or "local"
    clients: tuple[str, ...]  # that wait for it: a client that cancels is removed
    attempts: int  # claims so far, without claims that were given back uncounted
    owner: str  # the worker that has it, or had it last
    lease_expires_at: datetime | None
    cancel_requested: bool
    run_id: int | None  # the run that its trials and winners belong to
    error: str  # why it failed, is dead, or was last given back
    available_at: datetime  # no worker claims it before this
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None  # when a worker first had it
    finished_at: datetime | None
    cost: Cost | None = None  # of the attempt that ended it; None: not known

    def as_json(self) -> dict[str, Any]:
        """Return the job as the API and `tuner jobs show --json` show it."""
        asked = self.request
        unreadable = {"unreadable": asked.why} if isinstance(asked, UnreadableRequest) else {}
        return {
            "id": self.id,
            "state": self.state.value,
            "priority": self.priority.name.lower(),
            "request": asked.as_json(),
            **unreadable,
            "client": self.client,
            "clients": list(self.clients),
            "attempts": self.attempts,
            "cancel_requested": self.cancel_requested,
            "run_id": self.run_id,
            "error": self.error,
            "cost": self.cost and self.cost.as_json(),
            **{
                name: iso(getattr(self, name))
                for name in ("created_at", "updated_at", "started_at", "finished_at")
            },
        }


PLANNED = "planned"  # the kind of the event that announces the tries of a run


@dataclass(frozen=True)
class JobEvent:
    """An event of a job."""

    job_id: str
    seq: int  # 1, 2, 3, ... without gaps
    # submitted, waiting, joined, withdrawn, leased, running, planned, trials, compiled, requeued,
    # refused, retried, cancel_requested, or a final state
    kind: str
    at: datetime
    data: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        return {"seq": self.seq, "kind": self.kind, "at": iso(self.at), "data": dict(self.data)}


@dataclass(frozen=True)
class Submitted:
    """The answer to a submission."""

    job: Job
    created: bool  # False: an earlier job is the answer
    replayed: bool = False  # the same idempotency key and body were sent before
    estimated_gpu_s: float | None = None  # None: it needs no GPU, or nothing is known


@dataclass(frozen=True)
class Lease:
    """The right to work on a job, until the lease expires and another worker gets the job.

    Writes under the lease raise StaleLease once the job has another lease, or has ended.
    """

    job_id: str
    owner: str
    fence: int
    request: JobRequest


@dataclass(frozen=True)
class JobFilter:
    """The jobs that a worker can do."""

    needs_gpu: bool
    devices: tuple[str, ...] | None = None  # None: all devices
    engines: tuple[str, ...] | None = None  # sglang==0.5.16, sglang (any version); None: all


def new_job_id() -> str:
    """Make 26 letters and digits that sort by time to the millisecond, like a ULID's."""
    value = time.time_ns() // 1_000_000 << 80 | secrets.randbits(80)
    digits = "0123456789abcdefghjkmnpqrstvwxyz"
    return "".join(digits[value >> shift & 31] for shift in range(125, -1, -5))


def parse_state(text: str) -> JobState:
    """Read a state's name. Raises BadInput, which names the nearest."""
    try:
        return JobState(text)
    except ValueError:
        near = did_you_mean(text, [state.value for state in JobState])
        raise BadInput(f"unknown state {text!r}{near}") from None


def read_time(text: str) -> datetime:
    """Read a time of the API's answers."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))  # Python 3.10 knows no Z


def iso(at: datetime | None) -> str | None:
    """Write a time in UTC as JSON has it everywhere: 2026-11-21T05:54:55.337798Z."""
    return None if at is None else at.isoformat().replace("+00:00", "Z")
