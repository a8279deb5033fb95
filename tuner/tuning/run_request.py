"""What a tuning run is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.devices.table import Device
from tuner.engines.engine import Engine
from tuner.problems.points import Problem
from tuner.problems.registry import Selection, family_of
from tuner.tuning.request import Effort, Source


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
