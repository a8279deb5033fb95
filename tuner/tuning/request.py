"""What a tuning run is asked for: the problem, the source of times, the effort.

This module imports little, so that the command line and the API can read a request quickly.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tuner.devices.table import Device
from tuner.engines.engine import Engine
from tuner.errors import BadInput, one_of
from tuner.problems.points import Problem
from tuner.problems.registry import Selection, family_of
from tuner.problems.results import MeasureKind


class Effort(str, Enum):
    """How much of a space a search may try."""

    QUICK = "quick"
    STANDARD = "standard"
    EXHAUSTIVE = "exhaustive"


# Configurations that a search tries at a point, at most; an exhaustive run tries all.
TRIES = {Effort.QUICK: 16, Effort.STANDARD: 40}


@dataclass(frozen=True)
class Source:
    """The source of times."""

    kind: MeasureKind
    recording: Path | None = None  # for a replay
    gpu: str = "0"  # CUDA's number or name of the GPU to measure on
    routing: Path | None = None  # captured top-k ids to measure with


def parse_source(text: str, gpu: str = "0", routing: Path | None = None) -> Source:
    """Read `gpu`, `predict` or `replay:FILE`. A GPU and a `routing` are for `gpu`.

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
        return Source(MeasureKind.GPU, gpu=gpu, routing=routing)
    near = one_of(kind, ["gpu", "predict", "replay:FILE"])
    raise BadInput(f"unknown way of measuring {text!r}{near}")


def parse_gpus(text: str) -> tuple[str, ...]:
    """Read CUDA device numbers, such as 0,1. Raises BadInput."""
    names = tuple(part.strip() for part in text.split(","))
    if not all(name.isascii() and name.isdigit() for name in names):
        raise BadInput(f"GPUs must be numbers like 0,1, not {text!r}")
    if len(set(names)) < len(names):
        raise BadInput(f"{text!r} names a GPU twice")
    return names


def parse_effort(text: str) -> Effort:
    """Read `quick`, `standard` or `exhaustive`. Raises BadInput, which names the nearest."""
    try:
        return Effort(text)
    except ValueError:
        near = one_of(text, [effort.value for effort in Effort])
        raise BadInput(f"unknown effort {text!r}{near}") from None


@dataclass(frozen=True)
class Request:
    """What to tune, for which device and engine, and how."""

    problem: Problem
    device: Device
    engine: Engine
    source: Source
    selection: Selection | None = None  # which points; None: the family's default points
    effort: Effort = Effort.STANDARD
    wide: bool | None = None  # search beyond the engine's grid; None: only with a GPU
    seed: int = 0
    carry_over: bool = True  # keep stored entries unless something is clearly faster
    architecture: str = ""  # the class of the model that it is for; "": not known

    @property
    def selected(self) -> Selection:
        """The selection, or the family's default."""
        return self.selection or family_of(self.problem).read_selection(self.problem, {})
