"""The fields of bodies.

An unknown field is refused, and the nearest name is suggested. No client can make this module read
a file of the client's choice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
)

from api.examples import EXAMPLE_PROBLEM
from api.fields import (
    ENDS,
    NAME_OF_KEY,
    PLAIN,
    REFUSED,
    SCOPES,
    BatchSize,
    Count,
    EngineSpec,
    Flag,
    KnownDevice,
    Measure,
    Name,
    Seed,
    Strict,
    body_field,
    refusing,
)
from api.settings import CLUSTER_CHARS, SERVER_ARGS
from tuner.problems.dtypes import Dtype
from tuner.problems.options import Option
from tuner.problems.registry import families, problem_texts
from tuner.store.api_key import check_name, parse_expiry, parse_scopes
from tuner.store.database import utc_now
from tuner.targets import families_named
from tuner.tuning.request import Effort
from workers.watches import check_model

ModelText = Annotated[
    str,
    Field(
        min_length=1,
        max_length=2000,
        pattern=PLAIN,
        description=f"A preset of GET /v1/models, a problem ({problem_texts()}), an engine's "
        "warning that it found no config file, or the URL of a running server that TUNER_SERVERS "
        "lists. Never a path.",
        examples=["deepseek-r1"],
    ),
]
Architecture = Annotated[
    str,
    Field(
        max_length=200,
        pattern=r"^\w*$",
        description="The class of a problem's model, as its config.json names it; servers may "
        "choose kernels by it. It is known if `model` is a model's name or config.json.",
    ),
]
Checkpoint = Annotated[
    str,
    Field(
        max_length=200,
        pattern=PLAIN,
        description="How the model's checkpoint stores experts, as in the request of a job.",
    ),
]
FamiliesField = Annotated[
    Literal["all"] | list[Name],
    refusing(families_named),
    Field(
        max_length=20,
        description="Names of families in GET /v1/models, or all: tune their problems, also if "
        "servers read no files for them. Default: all problems whose files servers read.",
        examples=["all", ["fused_moe", "attention"]],
    ),
]
ServerFlags = Annotated[
    str,
    Field(
        max_length=SERVER_ARGS,
        description="Flags and variables that servers are started with. The job keeps those that "
        "decide which kernel servers run.",
    ),
]


class _SubmitJob(Strict):
    """A tuning job to queue."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"model": "deepseek-r1", "tp": 32, "dtype": "int8_w8a8", "device": "L40S"}]
        }
    )

    model: Annotated[ModelText | dict[str, Any], refusing(check_model)] = Field(
        description="A model's name, as below, or the object of its config.json."
    )
    device: KnownDevice
    name: Name | None = Field(None, description="The model's name in lists.")
    tp: Count = Field(1, description="Tensor-parallel size.")
    dtype: Dtype | None = Field(None, description="Default: the model's own.")
    engine: EngineSpec = "sglang"
    measure: Measure = "gpu"
    effort: Effort = Effort.STANDARD
    seed: Seed = 0
    urgent: Flag = Field(False, description="Queue the job before other waiting jobs.")
    architecture: Architecture = ""
    checkpoint: Checkpoint = ""
    server_args: ServerFlags = ""

    def fields(self, options: Iterable[Option]) -> dict[str, Any]:
        """Return the JSON values of the options' fields, without nulls."""
        values = self.model_dump(mode="json", include={option.name for option in options})
        return {name: value for name, value in values.items() if value is not None}

    def given(self) -> list[str]:
        """List the names of the fields that were sent with another value than their default."""
        fields = type(self).model_fields.items()
        sent = self.model_fields_set
        return [n for n, f in fields if n in sent and getattr(self, n) != f.default]

    def canonical(self) -> bytes:
        """Return the body as JSON text that is equal for equal requests, whatever their spelling
        was.
        """
        return json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()


def _family_fields() -> dict[str, Any]:
    """Return the families' fields of a submission, by name. The first family with a name defines
    it.
    """
    every = (option for family in reversed(families()) for option in family.options)
    return {option.name: body_field(option) for option in every}


if TYPE_CHECKING:
    SubmitJob = _SubmitJob
else:
    SubmitJob = create_model("SubmitJob", __base__=_SubmitJob, **_family_fields())


class _SubmitModel(_SubmitJob):
    """A model to tune: a job for each of its problems that is worth tuning."""

    families: FamiliesField = []
    problems: list[Name] = Field(
        [], max_length=100, description="Tune only these problems, as in GET /v1/plan."
    )


if TYPE_CHECKING:

    class SubmitModel(_SubmitModel, SubmitJob): ...

else:
    SubmitModel = create_model("SubmitModel", __base__=_SubmitModel, **_family_fields())

MOST_JOBS = 100  # of one batch


@dataclass(frozen=True)
class RefusedJob:
    """A job of a batch with names that nobody knows. The other jobs are queued all the same."""

    values: Mapping[str, Any]
    errors: Sequence[Mapping[str, Any]]  # Pydantic's, each of a text that was refused

    def canonical(self) -> bytes:
        """Return the job's JSON text, as `SubmitJob.canonical` does."""
        return json.dumps(self.values, sort_keys=True).encode()


def _or_refused(
    values: Mapping[str, Any], read: ValidatorFunctionWrapHandler
) -> SubmitJob | RefusedJob:
    """Let an unknown name refuse its job alone. A breach of the schema refuses the batch."""
    try:
        job: SubmitJob = read(values)
    except ValidationError as error:
        errors = error.errors()
        if not all(one["type"].startswith(REFUSED) for one in errors):
            raise
        return RefusedJob(values, [{**one, "loc": ("body", *one["loc"])} for one in errors])
    return job


class SubmitJobs(Strict):
    """Tuning jobs to queue together."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"jobs": [{"model": "deepseek-r1", "tp": tp, "device": "L40S"} for tp in (16, 32)]}
            ]
        }
    )

    jobs: list[Annotated[SubmitJob, WrapValidator(_or_refused)]] = Field(
        min_length=1, max_length=MOST_JOBS
    )

    def read(self) -> Sequence[SubmitJob | RefusedJob]:
        """Return the jobs; a job with unknown names is a RefusedJob."""
        return self.jobs

    def canonical(self) -> bytes:
        """Return the batch's JSON text, as `SubmitJob.canonical` does."""
        return b"[%s]" % b",".join(job.canonical() for job in self.read())


EXAMPLE_CLUSTER = """\
name = "one-node"

[engine]
name = "sglang"
image = "lmsysorg/sglang:v0.5.16"

[model]
name = "mixtral-8x7b"
path = "/models/Mixtral-8x7B-Instruct-v0.1"
context_length = 32768

[parallel]
tp = 8
ep = 1
dp = 1

[[nodes]]
name = "node-1"
host = "192.168.20.11"
interface = "eno1"
gpus = 8
"""


class BundleIn(Strict):
    """The cluster and the device to pack a bundle for."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"cluster": EXAMPLE_CLUSTER, "device": "L40S"}]}
    )

    cluster: str = Field(
        min_length=1,
        max_length=CLUSTER_CHARS,
        description="The text of a cluster.toml, as `tuner bundle` reads it.",
    )
    device: KnownDevice
    allow_predicted: Annotated[Flag, Field(description="Pack predicted winners too.")] = False
    allow_missing: Annotated[
        Flag, Field(description="Pack even if files are missing that the servers ask for.")
    ] = False


def _ends(text: str) -> None:
    parse_expiry(text, utc_now())


class KeyIn(Strict):
    """A key to make."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "ci", "scope": "submit,urgent", "expires": "90d"}]}
    )

    name: Annotated[str, refusing(check_name)] = Field(
        min_length=1, max_length=60, pattern=NAME_OF_KEY
    )
    scope: Annotated[str, refusing(parse_scopes)] = Field(
        "submit",
        max_length=40,
        pattern=SCOPES,
        description="read, submit or admin; `submit,urgent` allows jobs before other waiting jobs.",
    )
    expires: Annotated[str | None, refusing(_ends)] = Field(
        None,
        max_length=20,
        pattern=ENDS,
        description="A number of days such as 90d, or a date, at 00:00 UTC; null: never.",
    )


class WatchIn(Strict):
    """Models to keep tuned: every combination of these, as a [[watch]] of nightly.toml."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"models": ["deepseek-r1"], "devices": ["L40S"], "tp": [8, 16]}]
        }
    )

    models: list[Annotated[ModelText, refusing(check_model)]] = Field(min_length=1, max_length=100)
    devices: list[KnownDevice] = Field(min_length=1, max_length=100)
    tp: list[Count] = Field([1], min_length=1, max_length=20)
    ep: list[Count] = Field([1], min_length=1, max_length=20)
    dtypes: list[Dtype] = Field([], max_length=10, description="Default: the model's own.")
    batch_sizes: list[BatchSize] = Field([], max_length=64, description="Default: the engine's.")
    engine: EngineSpec = "sglang"
    measure: Measure = "gpu"
    effort: Effort = Effort.STANDARD
    families: FamiliesField = []
    architecture: Architecture = ""
    checkpoint: Checkpoint = ""
    server_args: ServerFlags = ""


class HideIn(Strict):
    """The problem of a watch to hide, or to show again."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"problem": EXAMPLE_PROBLEM}]})

    problem: Name = Field(description="A problem's text.")
    hidden: Annotated[Flag, Field(description="false: keep the problem tuned again.")] = True


class NightIn(Strict):
    """The options of tonight's round."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"dry_run": True}]})

    dry_run: Annotated[
        Flag, Field(description="List the jobs that would be queued, and queue nothing.")
    ] = False
    force: Annotated[Flag, Field(description="Repeat the round if it was done today.")] = False
