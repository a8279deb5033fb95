"""From a request's body to what the tuner's rooms take. Nothing here reads a file."""

from __future__ import annotations

import json
from typing import Any

from fastapi.exceptions import RequestValidationError

from api.schemas_in import SubmitJob, WatchIn
from tuner.devices.table import find_device
from tuner.errors import BadInput
from tuner.families.attention.workloads import WorkPoint, read_points
from tuner.families.fused_moe.models import Resolved, resolve, resolve_model
from tuner.families.fused_moe.warning_line import parse_config_name
from tuner.jobs.job import JobRequest
from tuner.models.config_json import parse_checkpoint
from tuner.models.table import find_preset
from tuner.problems.points import Gemm
from tuner.problems.text import FAMILIES, Problem, names_attention, parse_attention
from workers.settings import Settings
from workers.watches import Watch, engine_version

# Fields that mean nothing to an attention problem, and why.
_OF_LAYERS = {
    "gemms": "are a fused-MoE layer's",
    **dict.fromkeys(("tp", "dtype"), "is for a model, of which the problem is one rank's part"),
    **dict.fromkeys(
        ("ep", "block_shape", "fuse_shared", "hidden_size", "top_k", "wide"),
        "is a fused-MoE layer's",
    ),
}


def job_request(body: SubmitJob, settings: Settings) -> tuple[JobRequest, tuple[str, ...]]:
    """The job, and what was assumed of its model.

    Raises BadInput, or RequestValidationError for a field that does not apply to the problem.
    """
    check_measure(body.measure, settings)
    if isinstance(body.model, str) and names_attention(body.model):
        _refuse_layer_fields(body)
    problem, notes, label = _resolve(body)
    request = JobRequest(
        problem=problem,
        device=body.device,
        engine=body.engine,
        measure=body.measure,
        batch_sizes=tuple(body.batch_sizes) if body.batch_sizes else None,
        gemms=tuple(gemm for gemm in Gemm if gemm in body.gemms),
        workload=_workload(body),
        effort=body.effort,
        wide=body.wide,
        seed=body.seed,
        model=body.name or label,
    )
    return request, notes


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


def _refuse_layer_fields(body: SubmitJob) -> None:
    """Raises RequestValidationError for each field that an attention problem has no use for."""
    fields = SubmitJob.model_fields
    given = [
        name
        for name in _OF_LAYERS
        if name in body.model_fields_set
        and (name == "gemms" or getattr(body, name) != fields[name].default)
    ]
    if given:
        sent = body.model_dump(mode="json", include=body.model_fields_set)
        raise RequestValidationError([_mistake(name, sent[name]) for name in given], body=sent)


def _mistake(name: str, value: object) -> dict[str, Any]:
    text = f"{name} {_OF_LAYERS[name]}: leave it out for an attention problem"
    return {"type": "value_error", "loc": ("body", name), "msg": text, "input": value}


def _workload(body: SubmitJob) -> str | tuple[WorkPoint, ...]:
    if isinstance(body.workload, list):
        return read_points([point.model_dump() for point in body.workload])
    return body.workload or ""


def _resolve(body: SubmitJob) -> tuple[Problem, tuple[str, ...], str]:
    """The problem, what was assumed of its model, and the model's name where it has one."""
    if isinstance(body.model, str) and names_attention(body.model):
        return parse_attention(body.model), (), ""
    resolved, label = _resolve_layer(body)
    return resolved.problem, resolved.notes, label


def _resolve_layer(body: SubmitJob) -> tuple[Resolved, str]:
    options: dict[str, Any] = {
        "tp": body.tp,
        "ep": body.ep,
        "dtype": body.dtype,
        "block_shape": body.block_shape,
        "engine_version": engine_version(body.engine),
        "device": find_device(body.device),
        "fuse_shared": body.fuse_shared,
    }
    if isinstance(body.model, dict):
        name = body.name or "config.json"
        model = parse_checkpoint(json.dumps(body.model).encode(), name)
        return resolve_model(model, **options), name
    options |= {"hidden_size": body.hidden_size, "top_k": body.top_k}
    text = _plain_name(body.model)
    label = text if _is_preset(text) else ""
    return resolve(text, **options), label


def _plain_name(text: str) -> str:
    """A preset's own name, or a problem or warning as it is; whatever else it may look like, no
    path: that would tell a client what files the server has.

    Raises UnknownModel.
    """
    return find_preset(text).name if _is_preset(text) else text


def _is_preset(text: str) -> bool:
    return text.partition(":")[0] not in FAMILIES and parse_config_name(text) is None
