"""What an engine launches for a problem without this tuner, compiled for a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tuner.devices.table import Device
from tuner.engines.engine import Engine
from tuner.measure.workbench import Workbench
from tuner.problems.points import Candidate, Problem
from tuner.problems.results import Compiled, MeasureKind
from tuner.tuning.request import Source
from tuner.tuning.run import open_run
from tuner.tuning.run_request import Request


@dataclass(frozen=True)
class Launch:
    """One kernel with a configuration of the engine at one size."""

    name: str  # of the configuration: "default", or "shipped" in the engine's own file
    candidate: Candidate
    compiled: Compiled


def own_launches(
    problem: Problem, device: Device, engine: Engine, workbench: Workbench
) -> Iterator[Launch]:
    """The launches of a problem at each size that a file of it holds.

    Raises BadInput for a problem that the engine cannot run there, and CompilerUnavailable.
    """
    request = Request(problem, device, engine, Source(MeasureKind.PREDICT))
    with open_run(request, workbench) as run:
        for name, candidate, compiled in run.own_launches():
            yield Launch(name, candidate, compiled)
