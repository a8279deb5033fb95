"""From a request's body to a job or a watch. No client can make this read a file of its choice."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from api.schemas_in import SubmitJob, WatchIn
from tuner.devices.table import find_device
from tuner.engines.engine import parse_spec
from tuner.errors import BadInput, IndivisibleShape
from tuner.jobs.job import JobRequest
from tuner.jobs.targets import TuningTarget, engine_version_here, refuse_too_large, resolve_target
from tuner.jobs.workers import JobRequirements, WorkerStatus
from tuner.models.serving import Note, Serving
from tuner.problems.registry import families
from tuner.problems.results import MeasureKind
from workers.settings import Settings
from workers.watches import Watch, is_preset, model_name, named


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
    with _in_field("model"):
        target, label = _target(body, engine)
    (problem,) = target.problems
    request = JobRequest(
        problem=problem,
        device=body.device,
        engine=engine,
        measure=body.measure,
        selection=target.family.read_selection(problem, body.fields(target.family.selecting)),
        effort=body.effort,
        wide=body.fields(target.family.searching).get("wide"),
        seed=body.seed,
        model=body.name or label,
        architecture=target.architecture or body.architecture,
    )
    with _in_field("model"):
        refuse_too_large(request)
    notes = [note.api if isinstance(note, Note) else note for note in target.notes]
    return request, notes


@contextmanager
def _in_field(name: str) -> Iterator[None]:
    """Says of a mistake that it is in that field, or that a size does not divide the model."""
    try:
        yield
    except BadInput as error:
        error.field = "tp" if isinstance(error, IndivisibleShape) else name
        raise


def watch_of(body: WatchIn, settings: Settings) -> Watch:
    """The watch, with the tables' names of its models and devices. Raises BadInput."""
    with _in_field("measure"):
        check_measure(body.measure, settings)
    values: dict[str, Any] = body.model_dump(mode="json")
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return named(Watch(**{**values, **lists}))


def check_measure(measure: str, settings: Settings) -> None:
    """Raises BadInput for a replay on a server that has no folder of recordings."""
    if measure.startswith("replay:") and settings.recordings is None:
        raise BadInput("this server replays no recordings: TUNER_RECORDINGS names no folder")


def _target(body: SubmitJob, engine: str) -> tuple[TuningTarget, str]:
    """The resolved problem, and the model's name where it has one."""
    shaping = tuple(option for family in families() for option in family.shaping)
    name, version = parse_spec(engine)
    serving = Serving(
        engine=name,
        engine_version=version,
        device=find_device(body.device),
        tp=body.tp,
        dtype=body.dtype,
        options=body.fields(shaping),
    )
    given = body.given()
    if isinstance(body.model, dict):
        name = body.name or "config.json"
        data = json.dumps(body.model).encode()
        return resolve_target(data, serving, name=name, given=given), name
    text = model_name(body.model)
    return resolve_target(text, serving, given=given), text if is_preset(text) else ""
