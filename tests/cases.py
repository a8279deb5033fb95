"""What tests of several folders build: problems, configurations, trials, recordings, devices."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tuner.devices.table import Device, find_device
from tuner.export.files import sidecar_text, write_all
from tuner.families.attention.problem import Attention
from tuner.families.fused_moe import models as moe_models
from tuner.families.fused_moe.problem import FusedMoe
from tuner.jobs.job import JobRequest, Priority, Submitted
from tuner.measure.workbench import Workbench
from tuner.models.config_json import parse_model, read_model
from tuner.models.model import Model
from tuner.models.serving import Resolved, Serving
from tuner.models.table import find_model
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Candidate, Config, Point, Problem
from tuner.problems.registry import Selection, family_named, family_of
from tuner.problems.results import Compiled, Measurement, Status, Trial, Winner
from tuner.store.jobs import JobStore
from tuner.targets import resolve_target
from tuner.tuning.report import RunReport
from tuner.tuning.request import Request, prepare
from tuner.tuning.run import RunStore, execute, open_source

H200, L40S = find_device("H200"), find_device("L40S")
# The layers of the two fused-MoE recordings.
FP8 = FusedMoe(256, 256, 7168, 8, Dtype.FP8_W8A8, (128, 128))
INT8 = FusedMoe(256, 64, 7168, 8, Dtype.INT8_W8A8, per_channel_quant=True)

ROOT = Path(__file__).parents[1]
RECORDINGS = ROOT / "tests" / "data" / "recordings"
FP8_RECORDING = RECORDINGS / "h200_E256_N256_K7168_top8_fp8w8a8_b128.csv.gz"
INT8_RECORDING = RECORDINGS / "h200_E256_N64_K7168_top8_int8w8a8.csv.gz"
SWEEP = ROOT / "benchmarks/results/h200/h200_attention_sweep.csv.gz"


def config(
    m: int = 64, n: int = 128, k: int = 128, warps: int = 4, stages: int = 3, group: int = 1
) -> Config:
    """A configuration of a fused-MoE kernel."""
    tile = {"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": n, "BLOCK_SIZE_K": k, "GROUP_SIZE_M": group}
    return Config({**tile, "num_warps": warps, "num_stages": stages})


def trial(point: Point, one: Config, us: float | None) -> Trial:
    """A trial that took `us` microseconds, or (None) did not fit into shared memory."""
    status = Status.OUT_OF_RESOURCES if us is None else Status.OK
    compiled = Compiled(status, shared_bytes=1024)
    return Trial(Candidate(point, one), compiled, Measurement(status, us))


def deliver(delivery: Any, winners: Sequence[Winner], root: Path, device: Device) -> list[Any]:
    """Write the files of one family's winners under `root`, as `export` does."""
    files = list(delivery.files(winners, device, root))
    data = {file.path: file.text().encode() for file in files}
    data |= {file.sidecar: sidecar_text(file.provenance).encode() for file in files}
    write_all(root, data)
    delivery.verify(files, device, root)
    return files


def tuned(
    request: Request,
    store: RunStore,
    workbench: Workbench | None = None,
    **options: Any,  # noqa: ANN401
) -> RunReport:
    """The report of a request's run; `options` are those of `execute`."""
    with contextlib.ExitStack() as opened:
        shared = workbench or opened.enter_context(Workbench())
        return execute(prepare(request), open_source(request, shared), store, **options)


@dataclass(frozen=True)
class Layer:
    """A fused-MoE layer that a text stands for."""

    problem: FusedMoe
    notes: tuple[str, ...]
    device_name: str | None = None


def serving(
    *,
    tp: int = 1,
    dtype: Dtype | None = None,
    engine_version: str | None = None,
    device: Device | None = None,
    **options: object,
) -> Serving:
    """How a model is served; `options` are a family's, None where they are not given."""
    given = {name: value for name, value in options.items() if value is not None}
    return Serving("sglang", engine_version, device, tp, dtype, given)


def resolve(text: str, **how: object) -> Layer:
    """The layer that a problem's text, a line, a preset or a path stands for."""
    target = resolve_target(text, serving(**how))
    if target.is_model:
        return _layer(problems_of(moe_models, text, serving(**how)))
    return _layer(Resolved(target.problems, target.notes))


def resolve_model(model: Model, **how: object) -> Layer:
    return _layer(moe_models.problems(model, serving(**how)))


def problems_of(models: ModuleType, named: str | bytes | Path, how: Serving) -> Resolved:
    """The problems of a family, by its module `models`, of a line, a preset or a config.json."""
    if isinstance(named, str) and models.reads(named):
        found: Resolved = models.of_line(named, how)
        return found
    return models.problems(find_model(str(named) if isinstance(named, Path) else named, "x"), how)


def parse_experts(data: bytes, name: str) -> Model:
    """The model of a config.json's bytes. Raises MalformedCheckpoint without experts."""
    model = parse_model(data, name)
    model.refuse_unread("experts")
    return model


def read_experts(path: Path) -> Model:
    """The model of a config.json. Raises MalformedCheckpoint without experts."""
    model = read_model(path)
    model.refuse_unread("experts")
    return model


def resolve_attention(text: str, **how: object) -> Resolved:
    """The attention problems that a problem's text, a preset or a path stands for."""
    target = resolve_target(text, serving(**how), family=family_named("extend_attention"))
    return Resolved(target.problems, target.notes)


def attention_of(text: str, **how: object) -> tuple[Attention, ...]:
    return tuple(p for p in resolve_attention(text, **how).problems if isinstance(p, Attention))


def _layer(resolved: Resolved) -> Layer:
    (problem,) = resolved.problems
    assert isinstance(problem, FusedMoe)
    return Layer(problem, resolved.notes, resolved.device_name)


def new_request(
    problem: Problem,
    device: str,
    engine: str = "sglang",
    measure: str = "gpu",
    selection: Selection | None = None,
    **more: Any,
) -> JobRequest:
    """A request for any spelling of a device; without a selection, for all that a family tunes."""
    chosen = selection or family_of(problem).read_selection(problem, {})
    return JobRequest(problem, find_device(device).name, chosen, engine, measure, **more)


def submit(
    jobs: JobStore, request: JobRequest, priority: Priority = Priority.NORMAL, **more: Any
) -> Submitted:
    """Queue a job, or find the one that answers the request; `more` is for `submit_all`."""
    (answer,) = jobs.submit_all([(request, priority)], **more)
    return answer
