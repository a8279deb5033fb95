"""What requests may hold. Unknown fields are refused, with the nearest known one."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from api.text import Cursor, DeviceName, EngineSpec, Measure, Name
from tuner.errors import did_you_mean
from tuner.families.attention.workloads import (
    MAX_BATCH,
    MAX_CACHED,
    MAX_NEW,
    MAX_POINTS,
    MAX_WEIGHT,
)
from tuner.families.fused_moe.problem import Dtype
from tuner.jobs.job import JobState
from tuner.problems.points import Gemm
from tuner.tuning.space import Effort


def _number(value: object) -> object:
    # Pydantic would take "8" and true; but its strict numbers refuse 8.0, which JSON calls whole.
    if isinstance(value, str | bool):
        raise ValueError("should be a number")
    return value


# The bounds come first: behind a validator of ours they would not show in the schema.
Count = Annotated[int, Field(ge=1, le=4096), BeforeValidator(_number)]
Size = Annotated[int, Field(ge=1, le=1 << 24), BeforeValidator(_number)]
BatchSize = Annotated[int, Field(ge=1, lt=1 << 20), BeforeValidator(_number)]
Groups = Annotated[int, Field(ge=0, lt=1 << 20), BeforeValidator(_number)]
# Up to where every JSON reader has whole numbers exactly.
Seed = Annotated[int, Field(ge=0, lt=1 << 53), BeforeValidator(_number)]
Weight = Annotated[float, Field(gt=0, le=MAX_WEIGHT), BeforeValidator(_number)]
Sequences = Annotated[int, Field(ge=1, le=MAX_BATCH), BeforeValidator(_number)]
NewTokens = Annotated[int, Field(ge=1, le=MAX_NEW), BeforeValidator(_number)]
CachedTokens = Annotated[int, Field(ge=0, le=MAX_CACHED), BeforeValidator(_number)]
Flag = Annotated[bool, Field(strict=True)]
ModelText = Annotated[
    str,
    Field(
        min_length=1,
        max_length=2000,
        pattern=r"^[^\x00-\x1f\x7f]*$",
        description="A preset of GET /v1/models, a problem (fused_moe:E=..,N=..,K=..,top_k=..,"
        "dtype=.. or decode_attention:q_heads=..,kv_heads=..,Lq=..,Lv=..,dtype=..), or an engine's "
        "warning that it found no config file. Never a path.",
        examples=["deepseek-r1"],
    ),
]


class Strict(BaseModel):
    """A table of known fields."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _no_unknown_fields(cls, values: object) -> object:
        if isinstance(values, dict):
            for name in values:
                if name not in cls.model_fields:
                    near = did_you_mean(str(name)[:100], cls.model_fields)
                    raise ValueError(f"unknown field {str(name)[:100]!r}{near}")
        return values


class WorkPointIn(Strict):
    """One size to tune attention for."""

    batch_size: Sequences
    new_tokens: NewTokens = Field(1, description="Of the longest sequence; 1 is decode.")
    cached_tokens: CachedTokens = Field(0, description="Of a sequence, on average.")
    weight: Weight = Field(1.0, description="How much of the work it is, beside the others.")


class SubmitJob(Strict):
    """A tuning job to queue."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"model": "deepseek-r1", "tp": 32, "dtype": "int8_w8a8", "device": "L40S"}]
        }
    )

    model: ModelText | dict[str, Any] = Field(
        description="A model's name, as below, or the object of its config.json."
    )
    device: DeviceName
    name: Name | None = Field(None, description="What to call the model in lists.")
    tp: Count = Field(1, description="Tensor-parallel size.")
    ep: Count = Field(1, description="Expert-parallel size.")
    dtype: Dtype | None = Field(None, description="Default: the model's own.")
    block_shape: tuple[Groups, BatchSize] | None = Field(
        None, description="Quantisation block (n, k); default: the model's own."
    )
    fuse_shared: Flag | None = Field(
        None,
        description="Count shared experts among the routed ones; default: as the engine does.",
    )
    hidden_size: Size | None = Field(None, description="For a warning that lacks it.")
    top_k: Count | None = Field(None, description="For a warning that lacks it.")
    engine: EngineSpec = "sglang"
    measure: Measure = "gpu"
    batch_sizes: list[BatchSize] | None = Field(
        None,
        min_length=1,
        max_length=64,
        description="A fused-MoE layer's tokens; default: the engine's own.",
    )
    gemms: list[Gemm] = Field(
        [Gemm.UP, Gemm.DOWN], min_length=1, max_length=2, description="A fused-MoE layer's."
    )
    workload: (
        Literal["chat", "long-context", "offline"]
        | Annotated[list[WorkPointIn], Field(min_length=1, max_length=MAX_POINTS)]
        | None
    ) = Field(None, description="Attention's: a use, or its points; default: chat.")
    effort: Effort = Effort.STANDARD
    wide: Flag | None = Field(
        None,
        description="Search beyond the engine's own grid; default: where times are measured.",
    )
    seed: Seed = 0
    urgent: Flag = Field(False, description="Before the jobs that wait.")

    def canonical(self) -> bytes:
        """Equal for equal requests, however their JSON was written."""
        values = self.model_dump(mode="json")
        if values["workload"] is None:  # as a body was before there were workloads
            del values["workload"]
        return json.dumps(values, sort_keys=True).encode()


class Page(Strict):
    """Which page of a list."""

    after: Cursor | None = None
    limit: int = Field(50, ge=1, le=1000)


class JobPage(Page):
    """Which jobs to list."""

    device: DeviceName | None = None
    model: Name | None = Field(None, description="As the job's request names it.")
    state: JobState | None = None


class StoredPage(Page):
    """Which stored results to list."""

    device: DeviceName | None = None


class WatchedPage(Page):
    """Which watched keys to judge."""

    device: DeviceName | None = None
    limit: int = Field(20, ge=1, le=100)


class ExportIn(Strict):
    """Which export to make."""

    engine: EngineSpec = "sglang"
    allow_predicted: bool = Field(False, description="Also what was predicted, not measured.")
    problem: Name | None = Field(None, description="Only the winners of this problem's text.")


class WatchIn(Strict):
    """Models to keep tuned: every combination of these, as a [[watch]] of nightly.toml."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"models": ["deepseek-r1"], "devices": ["L40S"], "tp": [8, 16]}]
        }
    )

    models: list[ModelText] = Field(min_length=1, max_length=100)
    devices: list[DeviceName] = Field(min_length=1, max_length=100)
    tp: list[Count] = Field([1], min_length=1, max_length=20)
    ep: list[Count] = Field([1], min_length=1, max_length=20)
    dtypes: list[Dtype] = Field([], max_length=10, description="Default: the model's own.")
    batch_sizes: list[BatchSize] = Field([], max_length=64, description="Default: the engine's.")
    engine: EngineSpec = "sglang"
    measure: Measure = "gpu"
    effort: Effort = Effort.STANDARD
