"""The fields of answers. Times are in microseconds (`_us`), memory is in bytes (`_bytes`)."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from api.errors import ProblemDetails
from api.matrix import CellState
from tuner.jobs.job import JobState
from tuner.problems.results import Status
from tuner.store.api_key import KeyState

Next = Annotated[str | None, Field(description="`after` of the next page; null on the last.")]


class RequestOut(BaseModel):
    """What a job tunes; each family adds the fields that it was asked with."""

    model_config = ConfigDict(extra="allow")

    problem: str
    device: str
    engine: str
    measure: str
    effort: str
    wide: bool | None
    seed: int
    model: str


class CostOut(BaseModel):
    """What a job cost, in seconds."""

    gpu_s: float = Field(description="That its GPUs were its own, added up over them.")
    gpu_idle_s: float = Field(description="Of these, neither checking nor timing anything.")
    cpu_s: float = Field(description="Of compile processes, and of the one that searches.")


class JobOut(BaseModel):
    """A job and its state."""

    id: str
    state: JobState
    priority: str
    request: RequestOut
    client: str = Field(description="Who posted it first: a key's name, nightly or local.")
    clients: list[str] = Field(description="Who waits for it, without those that cancelled.")
    attempts: int
    cancel_requested: bool
    run_id: int | None
    error: str
    after_id: str | None = Field(
        description="The job that compiles its kernels, while it waits for that one."
    )
    cost: CostOut | None = Field(description="Null where it has not ended, or is not known.")
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None = Field(description="When a worker first had it.")
    finished_at: datetime | None
    waiting: str = Field(
        "", description="Why it stays queued: no living worker can do it. Not in lists."
    )


class SubmittedOut(JobOut):
    """A job as it was accepted."""

    created: bool = Field(description="False: this is an equal job from before.")
    notes: list[str] = Field(description="What was assumed about the model.")
    estimated_gpu_s: float | None = Field(
        None, description="By earlier runs; null where it needs no GPU or nothing is known."
    )


class BatchItemOut(BaseModel):
    """The answer to one job of a batch: the job, or why it was refused."""

    job: SubmittedOut | None
    problem: ProblemDetails | None


class BatchOut(BaseModel):
    """The answers to a batch, in the order of its jobs."""

    jobs: list[BatchItemOut]


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


class JobsOut(BaseModel):
    """A page of jobs, in the order that was asked for."""

    jobs: list[JobOut]
    next: Next


class EventOut(BaseModel):
    """An event of a job: the `data` of an event stream."""

    seq: int
    kind: str
    at: datetime
    data: dict[str, Any]


class PointOut(BaseModel):
    """What a configuration is for: a gemm of a fused-MoE layer, or a stage of attention."""

    model_config = ConfigDict(extra="allow")

    gemm: str | None = Field(None, description="Only for a fused-MoE layer: up or down.")
    part: str | None = Field(
        None, description="Only for attention: extend, prefill, decode or reduce."
    )
    batch_size: int = Field(description="A layer's tokens, or attention's sequences.")
    new_tokens: int | None = Field(None, description="Only for attention: of each sequence.")
    cached_tokens: int | None = Field(None, description="Only for attention: of each sequence.")


class ResultOut(PointOut):
    """A configuration, compiled and perhaps timed."""

    config: dict[str, int]
    status: Status
    median_us: float | None
    shared_bytes: int | None
    n_regs: int | None
    n_spills: int | None


class TrialOut(ResultOut):
    """A configuration that was tried."""

    min_us: float | None
    samples: int
    compile_status: Status
    detail: str


class IncumbentOut(BaseModel):
    """What the engine would run without this tuner."""

    config: dict[str, int]
    status: Status
    median_us: float | None


class WinnerOut(ResultOut):
    """A configuration that was chosen."""

    incumbents: dict[str, IncumbentOut]
    least_us: float = Field(
        description="The roofline: the least time that the device's memory and tensor cores need."
    )
    reason: str
    run_id: int = Field(description="The run that published it: the job's own, or a later one.")
    published_at: datetime


class TrialsOut(BaseModel):
    """A page of trials, by gemm or stage, size and configuration."""

    trials: list[TrialOut]
    next: Next


class WinnersOut(BaseModel):
    """What is published for a job's problem, in the environment it ran in."""

    problem: str
    environment: EnvironmentOut | None = Field(description="Null until a worker has begun.")
    winners: list[WinnerOut]


class EnvironmentOut(BaseModel):
    """What a time depends on. Fields are empty where nothing was measured on a GPU."""

    device: str
    engine: str
    engine_version: str
    triton: str
    kernel_hash: str
    torch: str
    cuda: str
    driver: str


class HeldOut(BaseModel):
    """What is stored for a problem in an environment."""

    device: str
    problem: str
    environment: EnvironmentOut
    standing: str = Field(description="tuned, or stale: the device has a newer environment.")
    why: str
    points: dict[str, int] = Field(description="Numbers of points by their winners' status.")
    speedup: float | None = Field(
        description="How many times as fast as what the engine would run: the harmonic mean over "
        "the points; null where nothing is timed."
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
    counts: dict[CellState, int] = Field(description="Numbers of cells, of all devices.")
    total: int = Field(description="The number of rows on all pages.")
    rows: list[MatrixRowOut]
    next: Next


class ResultHistoryOut(BaseModel):
    """What is published for a problem on a device in one environment."""

    environment: EnvironmentOut
    standing: str
    why: str
    winners: list[WinnerOut]
    current: bool = Field(description="Whether an export would take some of these winners.")


class ResultsOut(BaseModel):
    """What is published for a problem on a device, the newest environment first."""

    problem: str
    family: str
    models: list[str]
    device: str
    engine: str
    environments: list[ResultHistoryOut]


class BestOut(PointOut):
    """The best time so far at a point."""

    point: str = Field(description="As the events of the job name it.")
    best_us: float


class IncumbentTimesOut(PointOut):
    """A point to tune, and what the engine would run there without this tuner."""

    point: str = Field(description="As the events of the job name it.")
    times_us: dict[str, float | None] = Field(
        description="By name: default, and shipped if the engine has a file. Null: not timed yet."
    )


class ProgressOut(BaseModel):
    """How far a job's run has come."""

    trials: dict[str, int] = Field(description="Numbers of trials by their status.")
    best: list[BestOut]
    incumbents: list[IncumbentTimesOut] = Field([], description="Empty until the run has begun.")
    to_try: int | None = Field(None, description="The most configurations that the run tries.")
    left_s: float | None = Field(
        None, description="Seconds until all are tried at this pace. Null: not known, or ended."
    )
    tried_a_minute: float | None = Field(None, description="The pace of the newest attempt.")
    timed_a_minute: float | None = None


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


class WatchedOut(BaseModel):
    """A watched model on a device, and whether it is tuned."""

    model: str
    problem: str
    device: str
    engine: str
    measure: str
    standing: str = Field(description="tuned, stale, missing, or error: no job can be made of it.")
    why: str
    tuned_at: datetime | None


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


class QueuedOut(BaseModel):
    """A watched request that a night queued, or would queue."""

    model: str
    problem: str
    device: str
    engine: str
    measure: str
    why: str = Field("", description="Empty for one that is measured again after a while.")


class NotDoneOut(BaseModel):
    """What a night could not do."""

    what: str
    why: str


class SummaryOut(BaseModel):
    """What a night did. One that was skipped has no lists, and a dry run queued no jobs."""

    schedule: str
    date: date
    skipped: str | None = Field(None, description="Why nothing was done.")
    watched: int | None = Field(None, description="The number of watched requests.")
    missing: list[QueuedOut] | None = None
    stale: list[QueuedOut] | None = None
    revalidated: list[QueuedOut] | None = Field(None, description="The oldest results.")
    errors: list[NotDoneOut] | None = Field(
        None, description="Watched requests that no job can be made of."
    )
    submitted: list[str] | None = Field(None, description="The ids of jobs that were queued.")
    waiting: list[str] | None = Field(None, description="The ids of equal unfinished jobs.")
    not_submitted: list[NotDoneOut] | None = None


class NightOut(BaseModel):
    """A night."""

    schedule: str
    date: date
    summary: SummaryOut | None = Field(description="Null: it was not finished.")
    started_at: datetime
    finished_at: datetime | None


class NightsOut(BaseModel):
    """A page of nights, the newest first."""

    nights: list[NightOut]
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
