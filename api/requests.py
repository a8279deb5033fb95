"""The fields of bodies, and the jobs and watches that they become.

An unknown field is refused, and the nearest known one is named. No client can make this read a file
of its choice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

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
from tuner.devices.table import find_device
from tuner.engines.engine import parse_spec
from tuner.engines.settings import server_settings
from tuner.errors import BadInput, IndivisibleShape
from tuner.jobs.job import JobRequest, refuse_undoable
from tuner.jobs.workers import JobRequirements, WorkerStatus, engine_version_here
from tuner.models.serving import Note, Serving
from tuner.problems.dtypes import Dtype
from tuner.problems.options import Option
from tuner.problems.points import ServerSettings
from tuner.problems.registry import families, problem_texts
from tuner.problems.results import MeasureKind
from tuner.store.api_key import check_name, parse_expiry, parse_scopes
from tuner.store.database import utc_now
from tuner.targets import TuningTarget, as_flags_say, only_problem, resolve_target, server_for
from tuner.tuning.request import Effort
from workers.settings import Settings
from workers.watches import Watch, check_model, is_preset, model_name, named, read_watch

ModelText = Annotated[
    str,
    Field(
        min_length=1,
        max_length=2000,
        pattern=PLAIN,
        description=f"A preset of GET /v1/models, a problem ({problem_texts()}), or an engine's "
        "warning that it found no config file. Never a path.",
        examples=["deepseek-r1"],
    ),
]
Architecture = Annotated[
    str,
    Field(
        max_length=200,
        pattern=r"^\w*$",
        description="The class of a problem's model, as its config.json names it; it may say which "
        "kernel servers run. Of a model by its name or config.json it is known.",
    ),
]
Checkpoint = Annotated[
    str,
    Field(
        max_length=200,
        pattern=PLAIN,
        description="Likewise how it stores experts, as the request of a job has it.",
    ),
]
ServerFlags = Annotated[
    str,
    Field(
        max_length=SERVER_ARGS,
        description="Flags and variables that servers are started with. What decides which kernel "
        "they run is kept.",
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
    name: Name | None = Field(None, description="What to call the model in lists.")
    tp: Count = Field(1, description="Tensor-parallel size.")
    dtype: Dtype | None = Field(None, description="Default: the model's own.")
    engine: EngineSpec = "sglang"
    measure: Measure = "gpu"
    effort: Effort = Effort.STANDARD
    seed: Seed = 0
    urgent: Flag = Field(False, description="Put it before the jobs that wait.")
    architecture: Architecture = ""
    checkpoint: Checkpoint = ""
    server_args: ServerFlags = ""

    def fields(self, options: Iterable[Option]) -> dict[str, Any]:
        """The JSON values of the options' fields, without nulls."""
        values = self.model_dump(mode="json", include={option.name for option in options})
        return {name: value for name, value in values.items() if value is not None}

    def given(self) -> list[str]:
        """The names of the fields that were sent with another value than their default."""
        fields = type(self).model_fields.items()
        sent = self.model_fields_set
        return [n for n, f in fields if n in sent and getattr(self, n) != f.default]

    def canonical(self) -> bytes:
        """The body as JSON text that is equal for equal requests, whatever their spelling was."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()


def _family_fields() -> dict[str, Any]:
    """The families' fields of a submission, by name. The first family with a name defines it."""
    every = (option for family in reversed(families()) for option in family.options)
    return {option.name: body_field(option) for option in every}


if TYPE_CHECKING:
    SubmitJob = _SubmitJob
else:
    SubmitJob = create_model("SubmitJob", __base__=_SubmitJob, **_family_fields())


MOST_JOBS = 100  # of one batch


@dataclass(frozen=True)
class RefusedJob:
    """A job of a batch with names that nobody knows. The other jobs are queued all the same."""

    values: Mapping[str, Any]
    errors: Sequence[Mapping[str, Any]]  # Pydantic's, each of a text that was refused

    def canonical(self) -> bytes:
        """As `SubmitJob.canonical`."""
        return json.dumps(self.values, sort_keys=True).encode()


def _or_refused(
    values: Mapping[str, Any], read: ValidatorFunctionWrapHandler
) -> SubmitJob | RefusedJob:
    """Let an unknown name refuse its job alone. What the schema forbids refuses the whole batch."""
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
        """The jobs, and what became of the ones with unknown names."""
        return self.jobs

    def canonical(self) -> bytes:
        """As `SubmitJob.canonical`."""
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
    """What to pack, and for which cluster."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"cluster": EXAMPLE_CLUSTER, "device": "L40S"}]}
    )

    cluster: str = Field(
        min_length=1,
        max_length=CLUSTER_CHARS,
        description="The text of a cluster.toml; see `tuner bundle`.",
    )
    device: KnownDevice
    allow_predicted: Annotated[Flag, Field(description="Pack predicted winners too.")] = False
    allow_missing: Annotated[
        Flag, Field(description="Pack without all files that the servers ask for.")
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
        description="read, submit or admin; `submit,urgent` lets its jobs go before waiting ones.",
    )
    expires: Annotated[str | None, refusing(_ends)] = Field(
        None,
        max_length=20,
        pattern=ENDS,
        description="90d, or a date at whose beginning (UTC) it ends; null: never.",
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
    architecture: Architecture = ""
    checkpoint: Checkpoint = ""
    server_args: ServerFlags = ""


class HideIn(Strict):
    """Which problem of a watch to hide, or to show again."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"problem": EXAMPLE_PROBLEM}]})

    problem: Name = Field(description="A problem's text.")
    hidden: Annotated[Flag, Field(description="false: keep it tuned again.")] = True


class NightIn(Strict):
    """How to do tonight's round."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"dry_run": True}]})

    dry_run: Annotated[
        Flag, Field(description="Answer what would be queued, and queue nothing.")
    ] = False
    force: Annotated[Flag, Field(description="Do it again if it was done today.")] = False


def job_request(
    body: SubmitJob, settings: Settings, workers: Sequence[WorkerStatus]
) -> tuple[JobRequest, list[str]]:
    """The job, for one version of its engine, and what was assumed of its model.

    Raises BadInput, which says which field is wrong if it is known; for fields that do not apply to
    the problem, OptionsRefused.
    """
    with _in_field("measure"):
        check_measure(body.measure, settings)
    asked = JobRequirements(
        find_device(body.device).name, body.measure == MeasureKind.GPU.value, body.engine
    )
    engine = asked.pinned(workers, engine_version_here(body.engine)).engine
    with _in_field("server_args"):
        flags = server_settings(body.server_args)
    with _in_field("model"):
        target, label = _target(body, engine, flags)
        problem = only_problem(target)
    shaping = body.fields(target.family.shaping)
    request = JobRequest(
        problem=problem,
        device=find_device(body.device).name,
        engine=engine,
        measure=body.measure,
        selection=target.family.read_selection(problem, body.fields(target.family.selecting)),
        effort=body.effort,
        wide=body.fields(target.family.searching).get("wide"),
        seed=body.seed,
        model=body.name or label,
        server=server_for(
            _model_of(body, target), problem, asked.engine, flags, shaping.get("ep", 1)
        ),
    )
    with _in_field("model"):
        refuse_undoable(request)
    notes = [note.api if isinstance(note, Note) else note for note in target.notes]
    return request, notes


@contextmanager
def _in_field(name: str) -> Iterator[None]:
    """Say of a mistake that it is in that field, if no other one is known to be wrong."""
    try:
        yield
    except BadInput as error:
        error.field = error.field or ("tp" if isinstance(error, IndivisibleShape) else name)
        raise


def watch_of(body: WatchIn, settings: Settings) -> Watch:
    """The watch as it is stored, see `named`. Raises BadInput."""
    with _in_field("measure"):
        check_measure(body.measure, settings)
    with _in_field("server_args"):
        server_settings(body.server_args)
    return named(read_watch(body.model_dump(mode="json")))


def check_measure(measure: str, settings: Settings) -> None:
    """Raises BadInput for a replay on a server that has no folder of recordings."""
    if measure.startswith("replay:") and settings.recordings is None:
        raise BadInput("this server replays no recordings: TUNER_RECORDINGS names no folder")


def _model_of(body: SubmitJob, target: TuningTarget) -> ServerSettings:
    """The class and the checkpoint of the model; of a problem, as the body says them."""
    return target.server or ServerSettings(body.architecture, body.checkpoint)


def _target(body: SubmitJob, engine: str, flags: Mapping[str, str]) -> tuple[TuningTarget, str]:
    """The resolved problem, and the model's name where it has one."""
    every = (option for family in families() for option in family.shaping)
    # A default is nothing that the server's flags could contradict.
    sent = [option for option in every if option.name in body.model_fields_set]
    name, version = parse_spec(engine)
    serving = Serving(
        engine=name,
        engine_version=version,
        device=find_device(body.device),
        tp=body.tp,
        dtype=body.dtype,
        options=body.fields(sent),
    )
    serving = as_flags_say(serving, flags)
    given = body.given()
    if isinstance(body.model, dict):
        name = body.name or "config.json"
        data = json.dumps(body.model).encode()
        return resolve_target(data, serving, name=name, given=given), name
    text = model_name(body.model)
    return resolve_target(text, serving, given=given), text if is_preset(text) else ""
