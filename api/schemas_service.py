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
    name: str = Field(description="The same after a restart.")
    host: str
    gpu: str = Field(description="The UUID of its GPU; empty without one.")
    device: str = Field(description="The GPU, as GET /v1/devices names it.")
    devices: list[str] | None = Field(
        description="The devices whose predictions and replays it does; null: all."
    )
    engines: list[str] = Field(description="Like sglang==0.5.16; an engine's preferred one first.")
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
    last_used_at: datetime | None = Field(description="To the hour.")
    expires_at: datetime | None
    revoked_at: datetime | None


class KeysOut(BaseModel):
    """All keys, also the revoked ones."""

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
    why: str = Field("", description="Empty for one that is measured again after a while.")
    gain_before: float | None = Field(
        None, description="The mean gain of its results before the night; null without any."
    )
    job_id: str | None = Field(
        None, description="Its job, also one that waited before; null in a dry run."
    )


class OutcomeOut(QueuedOut):
    """A thing that a night queued, and what came of it."""

    kind: Literal["missing", "stale", "revalidated"]
    state: JobState | None = Field(description="The job's present state; null without a job.")
    error: str = Field(description="Why the job failed, is dead, or was last given back.")
    gain_after: float | None = Field(
        description="The mean gain of what the job's problem has where it ran, once it is done."
    )
    faster: bool = Field(description="Whether that is more than before the night.")


class LeftAloneOut(BaseModel):
    """A part of a watched model that is not kept tuned, and the reason."""

    what: str = Field(description="A problem, or families of kernels in words.")
    why: str


class NightModelOut(BaseModel):
    """A watched model on a device in a night's report, in numbers of problems."""

    model: str
    device: str
    new: int = Field(description="Without a result.")
    stale: int
    again: int = Field(description="Measured again though nothing has changed.")
    up_to_date: int
    left_alone: list[LeftAloneOut]
    faster: int = Field(0, description="By now, of those that the night queued.")


class NotDoneOut(BaseModel):
    """What a night could not do."""

    what: str
    why: str


class RoundOut(BaseModel):
    """When a round of a night was done."""

    began: datetime
    ended: datetime
    watch_list: str = Field(description="Names the watches of its nightly.toml; empty: no file.")
    error: str = Field(description="Empty if it was done to its end.")


class SummaryOut(BaseModel):
    """What a night did. One that was skipped has no lists, and a dry run queued no jobs."""

    schedule: str
    date: date
    skipped: str | None = Field(None, description="Why nothing was done.")
    watched: int | None = Field(None, description="The number of watched requests.")
    missing: list[QueuedOut] | None = None
    stale: list[QueuedOut] | None = None
    revalidated: list[QueuedOut] | None = Field(None, description="The oldest results.")
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
    rounds: list[RoundOut] | None = Field(None, description="Of a night: each was added to it.")


class NightOut(BaseModel):
    """A night."""

    schedule: str
    date: date
    summary: SummaryOut | None = Field(description="Null: it was not finished.")
    started_at: datetime
    finished_at: datetime | None
    outcomes: list[OutcomeOut] = Field(
        [], description="What it queued and what came of it, failures first."
    )


class ProblemDiffOut(BaseModel):
    """A problem of two nights."""

    device: str
    problem: str
    change: Literal["only before", "only now", "changed", "the same", "not comparable"]
    states: tuple[str, str] = Field(description="Of the two jobs; empty: a night had none.")
    versions: tuple[str, str] = Field(description="Of engine and Triton; empty: nothing ran.")
    sizes: int = Field(description="That both nights timed.")
    changed: list[str] = Field(description="Sizes whose fastest configuration is another one.")
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
    """A model known by name. Sizes are those of the whole model.

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
    """What is stored for a problem in an environment."""

    device: str
    problem: str
    environment: EnvironmentOut
    standing: str = Field(description="tuned, or stale: the device has a newer environment.")
    why: str
    points: dict[str, int] = Field(description="Numbers of points by their winners' status.")
    speedup: float | None = Field(
        description="How many times as fast as what `over` names: the geometric mean over the "
        "sizes; null where nothing is timed."
    )
    over: str | None = Field(
        description='"what runs without us": what servers run by default. "Triton\'s own '
        'configuration": what they run by default was not measured, or is not known.'
    )
    oldest: datetime
    newest: datetime


class HeldPageOut(BaseModel):
    """A page of what is stored."""

    stored: list[HeldOut]
    next: Next


class CellOut(BaseModel):
    """What there is for a problem on a device."""

    device: str
    state: CellState = Field(
        description="untuned: only the engine's own choices are stored. missing: it is watched, "
        "and nothing is stored."
    )
    why: str = Field(description="Why it is stale or missing.")
    speedup: float | None = Field(description="As in GET /v1/coverage.")
    over: str | None = Field(description="As in GET /v1/coverage.")
    points: dict[str, int]
    engine_version: str
    newest: datetime | None


class MatrixRowOut(BaseModel):
    """A problem in an engine, and its cells; devices without any are left out."""

    problem: str
    engine: str
    family: str
    models: list[str] = Field(description="Well-known models that have the problem.")
    cells: list[CellOut]


class MatrixOut(BaseModel):
    """A page of problems by device."""

    devices: list[str] = Field(description="All devices with a cell.")
    counts: dict[CellState, int] = Field(
        description="Numbers of cells, of all devices. nothing: of the cells that are left out."
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
    family: str = Field(description="Like fused_moe; empty where no problem is named.")
    standing: str = Field(
        description="tuned, stale, missing; left_out: of a model, as servers read no file for it; "
        "or error: no job can be made of it."
    )
    why: str
    tuned_at: datetime | None
    watch_id: int | None = Field(description="Of the watch; null for one of a nightly.toml.")


class WatchedPageOut(BaseModel):
    """A page of what is watched."""

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
