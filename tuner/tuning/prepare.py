"""A run as a value: everything that a family says of a request before anything is measured.

A family's module `tuning` has `prepare(request)`, a plain function that gives a `Prepared`. It
starts no process and reads no store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tuner.compile.candidates import Binder, Companions
from tuner.compile.environment import triton_for
from tuner.devices.target import Target
from tuner.engines.engine import Engine
from tuner.errors import BadInput, CompilerUnavailable
from tuner.measure import Measurer
from tuner.measure.recording import RecordedTrials, TrialRecording, read_trials, write_trials
from tuner.problems.points import Config, Part, Point, Problem
from tuner.problems.registry import family_of
from tuner.problems.results import MeasureKind, Winner
from tuner.tuning import gains
from tuner.tuning.report import EntryTable
from tuner.tuning.request import Request
from tuner.tuning.space import Space
from tuner.tuning.tune import RunPlan, Strategy

# The noise of times, as a share: a smaller gain is no gain. Recorded times repeat exactly.
NOISE = {MeasureKind.GPU: gains.NOISE, MeasureKind.REPLAY: 0.0}
Chosen = tuple[Problem, Mapping[Point, Config]]  # a problem, and what was chosen for it


class Kernels(Protocol):
    """An engine's kernels of one family."""

    @property
    def hash(self) -> str:
        """The kernels' identity in the store."""
        ...

    def binder(self, problem: Any, target: Target) -> Binder:  # noqa: ANN401
        """The kernel of a candidate and its arguments, for the compiler."""
        ...


@dataclass(frozen=True)
class Known:
    """What is known of earlier runs when a run begins."""

    # What the store has for the run's points, measured in the same environment.
    previous: Mapping[Point, Config] = field(default_factory=dict)
    winners: Sequence[Winner] = ()  # all that the store has for the problem in the environment
    chosen: Sequence[Chosen] = ()  # by earlier runs of the same command


@dataclass(frozen=True)
class Prepared:
    """A request, ready to run."""

    request: Request
    points: tuple[Point, ...]  # the points to tune
    spaces: Mapping[Part, Space]
    kernels: Kernels
    plan: Callable[[Known], RunPlan]  # what the run must answer
    strategy: Callable[[Known], Strategy]  # how configurations are tried; new for each run
    predictor: Measurer  # gives the times of a prediction
    tries: Mapping[str, int]  # the most configurations to try at each size (`Point.size`)
    file_names: Mapping[Part, str]  # names of the engine files that the winners are for
    table: EntryTable  # how the entries are printed
    recording: RecordedTrials | None = None  # the recording that is replayed
    companions: Companions | None = None  # further kernels that a candidate launches
    notes: Sequence[str] = ()  # what users should know before the run
    # Does once what takes `strategy` seconds of CPU, while a GPU's process starts.
    warm_up: Callable[[], object] = lambda: None
    # Whether the first candidates are compiled before the run begins, for a GPU.
    compiles_ahead: bool = False
    write_recording: Callable[..., None] = write_trials
    shares_recordings: bool = True  # whether a file may also hold trials of other problems


def prepare(request: Request) -> Prepared:
    """Prepare a request.

    Raises BadInput for one that cannot be tuned, and UnsupportedKernel where no kernel is lifted.
    """
    prepared: Prepared = family_of(request.problem).module("tuning").prepare(request)
    _ = (
        prepared.kernels.hash
    )  # of some engines and families, kernels are only lifted when asked for
    return prepared


def recording_of(request: Request) -> TrialRecording | None:
    """The recording that a request replays; None for times that are not recorded."""
    path = request.source.recording
    return read_trials(path, request.problem) if path else None


def triton_version(engine: Engine) -> str:
    """The version of the Triton that compiles an engine's kernels; "none" if there is none.

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
        raise BadInput(f"{title} has one space to search: leave --wide and --grid out")
