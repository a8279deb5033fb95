"""From a request's body to what the tuner's rooms take. Nothing here reads a file."""

from __future__ import annotations

import json
from typing import Any

from api.schemas_in import SubmitJob, WatchIn
from tuner.devices.table import find_device
from tuner.engines.engine import parse_spec
from tuner.errors import BadInput
from tuner.jobs.job import JobRequest
from tuner.jobs.targets import Target, reader_of, resolve_target
from tuner.models.serving import Serving
from tuner.models.table import find_preset
from tuner.problems.registry import families, find_family
from workers.settings import Settings
from workers.watches import Watch, engine_version


def job_request(body: SubmitJob, settings: Settings) -> tuple[JobRequest, tuple[str, ...]]:
    """The job, and what was assumed of its model.

    Raises BadInput: OptionsRefused for fields that do not apply to the problem.
    """
    check_measure(body.measure, settings)
    target, label = _target(body)
    (problem,) = target.problems
    request = JobRequest(
        problem=problem,
        device=body.device,
        engine=body.engine,
        measure=body.measure,
        selection=target.family.read_selection(problem, body.fields(target.family.selecting)),
        effort=body.effort,
        wide=body.fields(target.family.searching).get("wide"),
        seed=body.seed,
        model=body.name or label,
    )
    return request, target.notes


def watch_of(body: WatchIn, settings: Settings) -> Watch:
    """The watch, its models and devices by the tables' own names. Raises BadInput."""
    check_measure(body.measure, settings)
    values: dict[str, Any] = body.model_dump(mode="json")
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    lists["models"] = tuple(_plain_name(text) for text in body.models)
    lists["devices"] = tuple(find_device(text).name for text in body.devices)
    return Watch(**{**values, **lists})


def check_measure(measure: str, settings: Settings) -> None:
    """Raises BadInput for a replay where nobody has said which folder has the recordings."""
    if measure.startswith("replay:") and settings.recordings is None:
        raise BadInput("this server replays no recordings: TUNER_RECORDINGS names no folder")


def _target(body: SubmitJob) -> tuple[Target, str]:
    """The problem, what was assumed of its model, and the model's name where it has one."""
    shaping = tuple(option for family in families() for option in family.shaping)
    name, _ = parse_spec(body.engine)
    serving = Serving(
        engine=name,
        engine_version=engine_version(body.engine),
        device=find_device(body.device),
        tp=body.tp,
        dtype=body.dtype,
        options=body.fields(shaping),
    )
    given = _given(body)
    if isinstance(body.model, dict):
        name = body.name or "config.json"
        data = json.dumps(body.model).encode()
        return resolve_target(data, serving, name=name, given=given), name
    text = _plain_name(body.model)
    return resolve_target(text, serving, given=given), text if _is_preset(text) else ""


def _given(body: SubmitJob) -> list[str]:
    """The fields that ask for something: one that repeats a plain default, or null, does not."""
    return [
        name
        for name, field in SubmitJob.model_fields.items()
        if name in body.model_fields_set
        and (isinstance(value := getattr(body, name), list) or value != field.default)
    ]


def _plain_name(text: str) -> str:
    """A preset's own name, or a problem or warning as it is; whatever else it may look like, no
    path: that would tell a client what files the server has.

    Raises UnknownModel.
    """
    return find_preset(text).name if _is_preset(text) else text


def _is_preset(text: str) -> bool:
    return find_family(text) is None and reader_of(text) is None
