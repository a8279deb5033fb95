"""The fields of answers about coverage, watches, nights, workers, keys, devices and models.

Memory is in bytes.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from api.matrix import CellState
from api.paging import Next
from api.schemas_jobs import EnvironmentOut
from tuner.jobs.job import JobState
from tuner.store.api_key import KeyState


class WorkerOut(BaseModel):
    """A worker process."""

    id: str
    name: str = Field(description="It stays the same after a restart.")
    host: str
    gpu: str = Field(description="The UUID of its GPU; empty without a GPU.")
    device: str = Field(description="The GPU's name in GET /v1/devices.")
    devices: list[str] | None = Field(
        description="The devices whose predictions and replays it does; null: all."
    )
    engines: list[str] = Field(
        description="Such as sglang==0.5.16; the preferred version of an engine comes first."
    )
    packages: dict[str, str]
    state: Literal["idle", "busy", "draining", "drained", "set_aside", "stopped", "lost"]
    reason: str = Field(description="Why it was set aside.")
    job_id: str | None
    started_at: datetime
    seen_at: datetime


class WorkersOut(BaseModel):
    """The workers that were seen in the last two weeks, by host and name."""

    workers: list[WorkerOut]


class KeyOut(BaseModel):
    """A key, without its secret."""

    name: str
    scopes: list[str]
    state: KeyState
    created_at: datetime
    last_used_at: datetime | None = Field(description="Exact to the hour.")
    expires_at: datetime | None
    revoked_at: datetime | None


class KeysOut(BaseModel):
    """All keys, including revoked keys."""

    keys: list[KeyOut]


class NewKeyOut(KeyOut):
    """A key with its secret, which cannot be read again."""

    key: str = Field(description="The secret. Only its hash is stored.")


class QueuedOut(BaseModel):
    """A watched request that a night queued, or would queue."""

    model: str
    problem: str
    device: str
    engine: str
    measure: str
    why: str = Field("", description="Empty if it is only measured again after a while.")
    gain_before: float | None = Field(
        None, description="The mean gain of its results before the night; null without any."
    )
    job_id: str | None = Field(
        None, description="Its job, even if the job waited before; null in a dry run."
    )


class OutcomeOut(QueuedOut):
    """A job that a night queued, and its outcome."""

    kind: Literal["missing", "stale", "revalidated"]
    state: JobState | None = Field(description="The job's present state; null without a job.")
    error: str = Field(description="Why the job failed, is dead, or was last given back.")
    gain_after: float | None = Field(
        description="The mean gain of the problem's results where the job ran, once it is done."
    )
    faster: bool = Field(description="Whether gain_after is more than gain_before.")


class LeftAloneOut(BaseModel):
    """A part of a watched model that is not kept tuned, and the reason."""

    what: str = Field(description="A problem, or families of kernels in words.")
    why: str


class NightModelOut(BaseModel):
    """A watched model on a device in a night's report, in numbers of problems."""

    model: str
    device: str
    new: int = Field(description="Problems without a result.")
    stale: int
    again: int = Field(description="Measured again though nothing has changed.")
    up_to_date: int
    left_alone: list[LeftAloneOut]
    faster: int = Field(0, description="Queued problems that are faster by now.")


class NotDoneOut(BaseModel):
    """A part of a night that could not be done."""

    what: str
    why: str


class RoundOut(BaseModel):
    """The times of a round of a night."""

    began: datetime
    ended: datetime
    watch_list: str = Field(description="The digest of its nightly.toml's watches; empty: no file.")
    forced: bool = Field(False, description="Whether it was asked for with `force`.")
    error: str = Field(description="Empty if the round was done to its end.")


class SummaryOut(BaseModel):
    """The summary of a night. A skipped night has no lists, and a dry run queued no jobs."""

    schedule: str
    date: date
    skipped: str | None = Field(None, description="Why nothing was done.")
    watched: int | None = Field(None, description="The number of watched requests.")
    missing: list[QueuedOut] | None = None
    stale: list[QueuedOut] | None = None
    revalidated: list[QueuedOut] | None = Field(None, description="The oldest results, again.")
    models: list[NightModelOut] | None = None
    errors: list[NotDoneOut] | None = Field(
        None, description="Watched requests that no job can be made of."
    )
    submitted: list[str] | None = Field(None, description="The ids of jobs that were queued.")
    waiting: list[str] | None = Field(None, description="The ids of equal unfinished jobs.")
    not_submitted: list[NotDoneOut] | None = None
    unmet: list[str] | None = Field(
        None, description="Why no living worker will do some of the jobs."
    )
    rounds: list[RoundOut] | None = Field(None, description="All rounds of a night.")


class NightOut(BaseModel):
    """A night."""

    schedule: str
    date: date
    summary: SummaryOut | None = Field(description="Null: it was not finished.")
    started_at: datetime
    finished_at: datetime | None
    outcomes: list[OutcomeOut] = Field(
        [], description="The jobs that it queued and their outcomes, failures first."
    )


class ProblemDiffOut(BaseModel):
    """A problem of two nights."""

    device: str
    problem: str
    change: Literal["only before", "only now", "changed", "the same", "not comparable"]
    states: tuple[str, str] = Field(description="The two jobs' states; empty: a night had no job.")
    versions: tuple[str, str] = Field(description="Engine and Triton; empty: nothing ran.")
    sizes: int = Field(description="The number of sizes that both nights timed.")
    changed: list[str] = Field(description="Sizes whose fastest configuration has changed.")
    faster: float | None = Field(description="Old times over new times: a geometric mean.")


class NightDiffOut(BaseModel):
    """Two finished nights."""

    before: date
    now: date
    problems: list[ProblemDiffOut]


class NightCountsOut(BaseModel):
    """A night in a list."""

    schedule: str
    date: date
    started_at: datetime
    finished_at: datetime | None
    counts: dict[str, int] | None = Field(
        description="`watched`, and the lengths of the lists of its summary; null: not finished."
    )


class NightsOut(BaseModel):
    """A page of nights, the newest first."""

    nights: list[NightCountsOut]
    next: str | None


class DeviceOut(BaseModel):
    """A GPU that can be tuned for."""

    name: str
    aliases: list[str]
    arch: int | str
    sm_count: int
    memory_bytes: int
    bandwidth_gbs: float
    shared_optin_bytes: int


class DevicesOut(BaseModel):
    """The GPUs that can be tuned for."""

    devices: list[DeviceOut]


class ModelOut(BaseModel):
    """A model known by name, with the sizes of the whole model.

    E, intermediate and top_k are 0 if it has no experts. `families` are the families of kernels
    that can be tuned for it.
    """

    name: str
    aliases: list[str]
    architecture: str
    E: int
    intermediate: int
    hidden: int
    top_k: int
    n_shared_experts: int
    quantization: str
    dtype: str | None
    families: list[str]


class ModelsOut(BaseModel):
    """The models known by name."""

    models: list[ModelOut]


class StatusOut(BaseModel):
    """The server's health."""

    status: str


class HeldOut(BaseModel):
    """The results that are stored for a problem in an environment."""

    device: str
    problem: str
    environment: EnvironmentOut
    standing: str = Field(description="tuned, or stale: the device has a newer environment.")
    why: str
    points: dict[str, int] = Field(description="Numbers of points by their winners' status.")
    speedup: float | None = Field(
        description="How many times as fast as the baseline in `over`: the geometric mean over the "
        "sizes; null if nothing is timed."
    )
    over: str | None = Field(
        description='"the server\'s own choice": the kernel that servers run by default. '
        '"Triton\'s own configuration": the default kernel was not measured, or is not known.'
    )
    oldest: datetime
    newest: datetime


class HeldPageOut(BaseModel):
    """A page of stored results."""

    stored: list[HeldOut]
    next: Next


class CellOut(BaseModel):
    """The state of a problem on a device."""

    device: str
    state: CellState = Field(
        description="untuned: only the engine's own choices are stored. missing: the problem is "
        "watched, and nothing is stored."
    )
    why: str = Field(description="Why the problem is stale or missing.")
    speedup: float | None = Field(description="As in GET /v1/coverage.")
    over: str | None = Field(description="As in GET /v1/coverage.")
    points: dict[str, int]
    engine_version: str
    newest: datetime | None


class MatrixRowOut(BaseModel):
    """A problem in an engine, and its cells; devices without a cell are left out."""

    problem: str
    engine: str
    family: str
    models: list[str] = Field(description="Well-known models that have the problem.")
    cells: list[CellOut]


class MatrixOut(BaseModel):
    """A page of problems by device."""

    devices: list[str] = Field(description="All devices with a cell.")
    counts: dict[CellState, int] = Field(
        description="Numbers of cells over all devices. nothing: the cells that are left out."
    )
    total: int = Field(description="The number of rows on all pages.")
    rows: list[MatrixRowOut]
    next: Next


class WatchedOut(BaseModel):
    """A watched model on a device, and whether it is tuned."""

    model: str
    problem: str
    device: str
    engine: str
    measure: str
    family: str = Field(description="Such as fused_moe; empty if no problem is named.")
    standing: str = Field(
        description="tuned, stale or missing; left_out: servers read no file for this problem of a "
        "model; error: no job can be made of it."
    )
    why: str
    tuned_at: datetime | None
    watch_id: int | None = Field(description="The watch's id; null for a watch of a file.")


class WatchedPageOut(BaseModel):
    """A page of watched models."""

    watched: list[WatchedOut]
    next: Next


class WatchOut(BaseModel):
    """A watch that was added over the API."""

    id: int
    watch: dict[str, Any]
    client: str
    created_at: datetime


class WatchesOut(BaseModel):
    """The watches that were added over the API; a nightly.toml may have more."""

    watches: list[WatchOut]
