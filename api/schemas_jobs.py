"""The fields of answers about jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from api.errors import ProblemDetails
from api.schemas_out import Next
from tuner.jobs.job import JobState


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


class StalledOut(BaseModel):
    """What is known of a job whose worker sends no heartbeats. The job's state stays as it is."""

    worker: str = Field(description="The name of the worker that has the job.")
    heartbeat_at: datetime = Field(description="The last heartbeat.")
    last_step_at: datetime = Field(description="The job's newest event, most often its trials.")
    lease_ends_at: datetime
    another: bool = Field(description="Whether another living worker can take the job then.")
    why: str = Field(description="All of it in words.")


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
    cost: CostOut | None = Field(description="Null where it has not ended, or is not known.")
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None = Field(description="When a worker first had it.")
    finished_at: datetime | None
    waiting: str = Field(
        "",
        description="Why it does not go on: no living worker can do it, or its worker is silent.",
    )
    stalled: StalledOut | None = Field(
        None, description="Set while its worker sends no heartbeats, for 25 s or more."
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
