"""The fields of answers about jobs, their trials and winners. Times are in microseconds (`_us`)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from api.errors import ProblemDetails
from api.paging import Next
from tuner.export.plan import FoundFile, Reads
from tuner.jobs.job import JobState
from tuner.problems.results import Status


class RequestOut(BaseModel):
    """The request of a job; each family adds its own fields."""

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
    """The cost of a job, in seconds."""

    gpu_s: float = Field(description="The time that GPUs were its own, the sum over the GPUs.")
    gpu_idle_s: float = Field(description="The part of gpu_s without a check or a measurement.")
    cpu_s: float = Field(description="The CPU time of its compile and search processes.")


class StalledOut(BaseModel):
    """The facts about a job whose worker sends no heartbeats. The job's state stays as it is."""

    worker: str = Field(description="The name of the worker that has the job.")
    heartbeat_at: datetime = Field(description="The time of the last heartbeat.")
    last_step_at: datetime = Field(description="The time of the job's newest event.")
    lease_ends_at: datetime
    another: bool = Field(description="Whether another living worker can take the job then.")
    why: str = Field(description="These facts in words.")


class JobOut(BaseModel):
    """A job and its state."""

    id: str
    state: JobState
    priority: str
    request: RequestOut | dict[str, Any]
    unreadable: str = Field(
        "", description="Why this release cannot read the request, which is shown as it is stored."
    )
    client: str = Field(description="The first client: a key's name, nightly or local.")
    clients: list[str] = Field(description="The clients that wait for it and did not cancel.")
    attempts: int
    cancel_requested: bool
    run_id: int | None
    error: str
    cost: CostOut | None = Field(description="Null if the job goes on, or it is unknown.")
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None = Field(description="The time when a worker first took it.")
    finished_at: datetime | None
    waiting: str = Field(
        "",
        description="Why the job waits: no living worker can do it, or its worker is silent.",
    )
    stalled: StalledOut | None = Field(
        None, description="Set if its worker has sent no heartbeats for 25 s or more."
    )


class SubmittedOut(JobOut):
    """A job as it was accepted."""

    created: bool = Field(description="False: this is an equal earlier job.")
    notes: list[str] = Field(description="The assumptions about the model.")
    estimated_gpu_s: float | None = Field(
        None, description="By earlier runs; null if it needs no GPU, or nothing is known."
    )


class BatchItemOut(BaseModel):
    """The answer to a job of a batch: the job, or why it was refused."""

    job: SubmittedOut | None
    problem: ProblemDetails | None


class BatchOut(BaseModel):
    """The answers to a batch, in the order of its jobs."""

    jobs: list[BatchItemOut]


class LeftOutOut(BaseModel):
    """A part of a model that is not queued, and the reason."""

    what: str = Field(description="A problem, or families of kernels in words.")
    why: str


class SubmittedModelOut(BaseModel):
    """The jobs of a model."""

    jobs: list[SubmittedOut]
    left_out: list[LeftOutOut]
    notes: list[str] = Field(description="The assumptions about the model.")


class KernelOut(BaseModel):
    """A kernel that servers run."""

    kernel: str
    backend: str
    triton: bool
    condition: str | None = Field(alias="if")
    source: str


class RunsOut(BaseModel):
    """The kernels that servers run, by the rules that were read of an engine's release."""

    line: str = Field(description="These facts in words.")
    rules_of: str
    kernels: list[KernelOut] = Field(description="Servers run the first kernel whose `if` holds.")
    to_triton: dict[str, str] = Field(description="Flags with which servers read tuned files.")
    needs: dict[str, str] = Field(description="Flags without which servers do not start.")
    problems: list[str]


class ProblemPlanOut(BaseModel):
    """A problem of a model before it is tuned: its kernel, its file and the gain."""

    problem: str
    family: str
    runs: RunsOut | None = Field(description="Null: not known.")
    reads_files: Reads
    file: FoundFile = Field(description="The file that servers would find today.")
    file_triton: str | None = Field(description="The other Triton that made a shipped file.")
    gain: float | None = Field(description="The mean of the stored gains, or of the shelf's.")
    gain_from: Status | None
    gain_stale: str | None = Field(description="Why the stored gain does not count.")
    from_shelf: bool = Field(description="Whether the gain was measured on another machine.")
    leave: str | None = Field(description="The library that is faster for such problems, in words.")
    not_measured: list[str] = Field(description="Kernels that tuning does not measure, in words.")
    gpu_s: float | None = Field(description="The estimated GPU seconds.")
    tune: bool
    left_out: str | None = Field(description="Why it is not worth tuning.")


class PlanOut(BaseModel):
    """The plan of a model: its problems on a device, and which of them are worth tuning."""

    device: str
    engine: str
    summary: str
    problems: list[ProblemPlanOut]
    left_out: list[LeftOutOut] = Field(description="Families that the model may have.")
    notes: list[str] = Field(description="The assumptions about the model.")


class JobsOut(BaseModel):
    """A page of jobs, in the requested order."""

    jobs: list[JobOut]
    next: Next


class EventOut(BaseModel):
    """An event of a job: the `data` of an event stream."""

    seq: int
    kind: str
    at: datetime
    data: dict[str, Any]


class PointOut(BaseModel):
    """The point of a configuration: a gemm of a fused-MoE layer, or a stage of attention."""

    model_config = ConfigDict(extra="allow")

    gemm: str | None = Field(None, description="Only for a fused-MoE layer: up or down.")
    part: str | None = Field(
        None, description="Only for attention: extend, prefill, decode or reduce."
    )
    batch_size: int = Field(description="A layer's tokens, or attention's sequences.")
    new_tokens: int | None = Field(None, description="Only for attention: for each sequence.")
    cached_tokens: int | None = Field(None, description="Only for attention: for each sequence.")


class ResultOut(PointOut):
    """A configuration, compiled and perhaps timed."""

    config: dict[str, int]
    status: Status
    median_us: float | None
    shared_bytes: int | None
    n_regs: int | None
    n_spills: int | None


class TrialOut(ResultOut):
    """A configuration that was tried, or another backend's kernel that was timed."""

    backend: str = Field(description="The library of the kernel: triton, deep_gemm, fa3 ...")
    min_us: float | None
    samples: int
    compile_status: Status
    detail: str


class IncumbentOut(BaseModel):
    """A kernel that the engine could run without this tuner."""

    backend: str = Field(description="The library of the kernel. Only Triton's has a `config`.")
    config: dict[str, int]
    status: Status
    median_us: float | None


class WinnerOut(ResultOut):
    """A configuration that was chosen."""

    incumbents: dict[str, IncumbentOut] = Field(
        description="By name: default, shipped (in the engine's own file), and other backends. If "
        "a backend runs all parts of a size as one kernel, its time is at the first part, and the "
        "others have 0."
    )
    without_us: str | None = Field(
        description="The incumbent that servers run without this program. It has no time if it is "
        "not among the incumbents. Null: not known."
    )
    architecture: str = Field("", description="The class of these servers' model, if it is known.")
    checkpoint: str = Field("", description="How the model's checkpoint stores experts, if known.")
    server_args: str = Field(
        "", description="The flags and variables that these servers are started with."
    )
    least_us: float = Field(
        description="The roofline: the least time that the device's memory and tensor cores need."
    )
    reason: str
    run_id: int = Field(description="The run that published it: the job's own, or a later run.")
    published_at: datetime


class TrialsOut(BaseModel):
    """A page of trials, by gemm or stage, size and configuration."""

    trials: list[TrialOut]
    next: Next


class WinnersOut(BaseModel):
    """The winners that are published for a job's problem, in the environment it ran in."""

    problem: str
    environment: EnvironmentOut | None = Field(description="Null until a worker begins.")
    winners: list[WinnerOut]


class CurrentWinnersOut(BaseModel):
    """The winners for a device and an engine: `tuner export --server` makes files of them."""

    winners: list[dict[str, Any]]


class EnvironmentOut(BaseModel):
    """The environment of a time. Fields are empty if nothing was measured on a GPU."""

    device: str
    engine: str
    engine_version: str
    triton: str
    kernel_hash: str
    torch: str
    cuda: str
    driver: str
    backends: str = Field(description="Other kernel libraries with their versions.")


class ResultHistoryOut(BaseModel):
    """The winners that are published for a problem on a device in an environment."""

    environment: EnvironmentOut
    standing: str
    why: str
    winners: list[WinnerOut]
    current: bool = Field(description="Whether an export would take some of these winners.")


class ResultsOut(BaseModel):
    """The winners that are published for a problem on a device, the newest environment first."""

    problem: str
    family: str
    models: list[str]
    device: str
    engine: str
    environments: list[ResultHistoryOut]


class BestOut(PointOut):
    """The best time so far at a point."""

    point: str = Field(description="The point's name in the events of the job.")
    best_us: float


class IncumbentTimesOut(PointOut):
    """A point to tune, and the times there of the engine's own configurations."""

    point: str = Field(description="The point's name in the events of the job.")
    times_us: dict[str, float | None] = Field(
        description="By name: default, and shipped if the engine has a file. Null: not timed yet."
    )


class ProgressOut(BaseModel):
    """The progress of a job's run."""

    trials: dict[str, int] = Field(description="Numbers of trials by their status.")
    best: list[BestOut]
    incumbents: list[IncumbentTimesOut] = Field([], description="Empty until the run has begun.")
    to_try: int | None = Field(None, description="The most configurations that the run tries.")
    left_s: float | None = Field(
        None, description="Seconds until all are tried at this pace. Null: not known, or ended."
    )
    tried_a_minute: float | None = Field(None, description="The pace of the newest attempt.")
    timed_a_minute: float | None = None
