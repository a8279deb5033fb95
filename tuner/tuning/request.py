"""Define a tuning request, and a run as a value.

A family's module `tuning` has `prepare(request)`, a function that returns a `PreparedRun`:
everything that the family says about a request before anything is measured. It starts no process
and reads no store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from tuner.compile.candidates import Binder, Companions
from tuner.devices.table import Device
from tuner.devices.target import CUDA, Target
from tuner.engines.engine import Engine, triton_for
from tuner.errors import BadInput, CompilerUnavailable, one_of
from tuner.measure import Measurer
from tuner.measure.recording import (
    Origin,
    RecordedTrials,
    TrialRecording,
    read_trials,
    write_trials,
)
from tuner.problems.points import UNKNOWN_SERVER, Config, Part, Point, Problem, ServerSettings
from tuner.problems.registry import Selection, family_of
from tuner.problems.results import Entry, MeasureKind, Winner
from tuner.tuning import gains
from tuner.tuning.report import EntryTable
from tuner.tuning.space import Space
from tuner.tuning.tune import RunGoal, Strategy


class Effort(str, Enum):
    """How much of a space a search may try."""

    QUICK = "quick"
    STANDARD = "standard"
    EXHAUSTIVE = "exhaustive"


# Configurations that a search tries at a point before its neighbours' winners; an exhaustive run
# tries all.
TRIES = {Effort.QUICK: 16, Effort.STANDARD: 40}


@dataclass(frozen=True)
class Source:
    """The source of times."""

    kind: MeasureKind
    recording: Path | None = None  # for a replay
    gpu: str = "0"  # CUDA's number or name of the GPU to measure on
    routing: Path | None = None  # captured top-k ids to measure with


def parse_source(text: str, routing: Path | None = None) -> Source:
    """Read `gpu`, `predict` or `replay:FILE`. A `routing` is for `gpu`.

    Raises BadInput, which names the nearest valid text.
    """
    kind, _, path = text.partition(":")
    if routing is not None and kind in (MeasureKind.REPLAY.value, MeasureKind.PREDICT.value):
        raise BadInput(f"--routing is for --measure gpu: leave it out of {text!r}")
    if kind == MeasureKind.REPLAY.value and path:
        return Source(MeasureKind.REPLAY, Path(path))
    if text == MeasureKind.PREDICT.value:
        return Source(MeasureKind.PREDICT)
    if text == MeasureKind.GPU.value:
        return Source(MeasureKind.GPU, routing=routing)
    near = one_of(kind, ["gpu", "predict", "replay:FILE"])
    raise BadInput(f"unknown way of measuring {text!r}{near}")


def parse_effort(text: str) -> Effort:
    """Read `quick`, `standard` or `exhaustive`. Raises BadInput, which names the nearest."""
    try:
        return Effort(text)
    except ValueError:
        near = one_of(text, [effort.value for effort in Effort])
        raise BadInput(f"unknown effort {text!r}{near}") from None


@dataclass(frozen=True)
class Request:
    """A problem to tune, its device and engine, and the way to tune it."""

    problem: Problem
    device: Device
    engine: Engine
    source: Source
    selection: Selection | None = None  # which points; None: the family's default points
    effort: Effort = Effort.STANDARD
    wide: bool | None = None  # search beyond the engine's grid; None: only with a GPU
    seed: int = 0
    carry_over: bool = True  # keep stored entries unless something is clearly faster
    server: ServerSettings = UNKNOWN_SERVER  # the server that will read the files

    @property
    def selected(self) -> Selection:
        """Return the selection, or the family's default."""
        return self.selection or family_of(self.problem).read_selection(self.problem, {})


# The seconds of a run beside its tries: the first kernels compile, references are computed, and
# other backends are loaded, compiled and timed (benchmarks/results/h100/leave-qwen3-32b-fp8.txt).
START_S = 9.0
# The R1 job on one H100, with nothing compiled: 27.4 s for 1,440 tries (docs/results.md).
_TRY_S = (27.4 - START_S) / 1440


def start_s(problem: Problem) -> float:
    """Return the GPU seconds of a run beside its tries."""
    return max(START_S, family_of(problem).wait_s(problem))


def typical_gpu_s(problem: Problem, points: int, effort: Effort) -> float | None:
    """Estimate the GPU seconds of a run from its number of tries; None if it tries everything."""
    return start_s(problem) + points * TRIES[effort] * _TRY_S if effort in TRIES else None


def estimate_line(gpu_s: float, device: str) -> str:
    """Say an estimate in words: about 22 s of one NVIDIA_H200."""
    text = f"{gpu_s:.0f} s" if gpu_s < 600 else f"{gpu_s / 60:.0f} minutes"
    return f"about {text} of one {device}"


# The noise of times, as a share: a smaller gain is no gain. Recorded times repeat exactly.
NOISE = {MeasureKind.GPU: gains.NOISE, MeasureKind.REPLAY: 0.0}
Chosen = tuple[Problem, Mapping[Point, Config]]  # a problem, and the choices for it


class Kernels(Protocol):
    """An engine's kernels of one family."""

    @property
    def hash(self) -> str:
        """Return the kernels' identity in the store."""
        ...

    def binder(self, problem: Any, target: Target) -> Binder:  # noqa: ANN401
        """Return the binder that gives the compiler a candidate's kernel and arguments."""
        ...


@dataclass(frozen=True)
class KnownBefore:
    """The results of earlier runs when a run begins."""

    # The store's entries for the run's points, measured in the same environment.
    previous: Mapping[Point, Config] = field(default_factory=dict)
    winners: Sequence[Winner] = ()  # all that the store has for the problem in the environment
    chosen: Sequence[Chosen] = ()  # by earlier runs of the same command


@dataclass(frozen=True)
class PreparedRun:
    """A request, ready to run."""

    request: Request
    points: tuple[Point, ...]  # the points to tune
    spaces: Mapping[Part, Space]
    kernels: Kernels
    goal: Callable[[KnownBefore], RunGoal]  # makes the goal of the run
    strategy: Callable[[KnownBefore], Strategy]  # how configurations are tried; new for each run
    predictor: Measurer | None  # gives the times of a prediction; None: they are not predicted
    tries: Mapping[str, int]  # the most configurations to try at each size (`Point.size`)
    file_names: Mapping[Part, str]  # names of the engine files that the winners are for
    table: EntryTable  # how the entries are printed
    recording: RecordedTrials | None = None  # the recording that is replayed
    kept: Sequence[Entry] = ()  # entries at points of `points` at which nothing is tried
    companions: Companions | None = None  # further kernels that a candidate launches
    notes: Sequence[str] = ()  # sentences for users before the run
    # Does early the work that takes `strategy` seconds of CPU, while a GPU's process starts.
    warm_up: Callable[[], object] = lambda: None
    # Whether the first candidates are compiled before the run begins, for a GPU.
    compiles_ahead: bool = False
    write_recording: Callable[..., None] = write_trials
    shares_recordings: bool = True  # whether a file may also hold trials of other problems
    kernel_hash: str = ""  # the identity of `kernels` in the store; `prepare` sets it


def prepare(request: Request) -> PreparedRun:
    """Prepare a request.

    Raises BadInput for a request that cannot be tuned, and UnsupportedKernel if no kernel is
    lifted.
    """
    refuse_unpredicted(request.problem, request.source.kind)
    prepared: PreparedRun = family_of(request.problem).module("tuning").prepare(request)
    # Some engines and families lift kernels when these are first asked for their hash.
    prepared = replace(prepared, kernel_hash=prepared.kernels.hash)
    if prepared.recording is None:
        return prepared
    return replace(prepared, notes=[*prepared.notes, *_origin_notes(request, prepared.recording)])


def _origin_notes(request: Request, recording: RecordedTrials) -> list[str]:
    """Name the facts that a recording does not tell about its origin.

    Raises BadInput if the recording is of another card, engine or Triton.
    """
    path, origin, asked = request.source.recording, recording.origin, origin_of(request)
    if not origin.device:
        raise BadInput(
            f"{path} does not say on which card it was recorded: begin its name with the card, "
            "as in h200_layer.csv.gz, or record it again with --record"
        )
    if origin.differs(asked):
        raise BadInput(
            f"{path} was recorded on {origin}, not {asked}: tune for the device, engine and Triton "
            "that it was recorded on"
        )
    if not origin.engine:
        return [f"{path} does not say which engine and Triton its times are of"]
    return []


def origin_of(request: Request) -> Origin:
    """Return the device, engine and Triton of a request's times."""
    engine, triton = request.engine, triton_version(request.engine)
    return Origin(
        request.device.name, engine.name, engine.version, "" if triton == "none" else triton
    )


def refuse_unpredicted(problem: Problem, kind: MeasureKind) -> None:
    """Raise BadInput for a prediction of a problem whose times are not predicted."""
    family = family_of(problem)
    if kind is MeasureKind.PREDICT and not family.predicts:
        error = BadInput(
            f"the times of {family.title} are not predicted: measure them on a GPU, ",
            cli="with the same command and --measure gpu",
            api='with "measure": "gpu"',
            page="with times from gpu",
        )
        error.field = "measure"
        raise error


def refuse_unmeasured(device: Device, kind: MeasureKind) -> None:
    """Raise BadInput for measuring on a GPU that this program does not measure on."""
    if kind is MeasureKind.GPU and device.target.platform != CUDA:
        error = BadInput(
            f"this tuner measures on NVIDIA's GPUs alone, and not on {device.name}: predict the "
            "times, ",
            cli="with the same command and --measure predict",
            api='with "measure": "predict"',
            page="with times from predict",
        )
        error.field = "measure"
        raise error


def recording_of(request: Request) -> TrialRecording | None:
    """Return the recording that a request replays; None if it replays nothing."""
    path = request.source.recording
    return read_trials(path, request.problem) if path else None


def triton_version(engine: Engine) -> str:
    """Return the version of the Triton that compiles an engine's kernels; "none" without Triton.

    A replay needs no Triton.
    """
    try:
        return triton_for(engine).version
    except CompilerUnavailable:
        return "none"


def refuse_moe_options(request: Request, title: str) -> None:
    """Raise BadInput for options that only fused-MoE layers have."""
    if request.source.routing is not None:
        raise BadInput(f"{title} has no routing: leave --routing out")
    if request.wide is not None:
        raise BadInput(f"{title} has one space to search: leave wide out")
