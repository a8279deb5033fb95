"""The jobs and watches that the bodies of requests become."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from api.requests import SubmitJob, WatchIn
from tuner.devices.table import find_device
from tuner.engines.engine import parse_spec
from tuner.engines.settings import server_settings
from tuner.errors import BadInput, IndivisibleShape
from tuner.jobs.job import JobRequest, refuse_undoable
from tuner.jobs.workers import JobRequirements, WorkerStatus, engine_version_here
from tuner.models.serving import Note, Serving
from tuner.problems.registry import families
from tuner.problems.results import MeasureKind
from tuner.problems.server import ServerSettings
from tuner.targets import TuningTarget, as_flags_say, only_problem, resolve_target, server_for
from workers.settings import Settings
from workers.watches import Watch, is_preset, model_name, named, read_watch


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
