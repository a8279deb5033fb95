"""Plan the problems of a model with their stored results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tuner.devices.table import Device
from tuner.engines.engine import Engine
from tuner.export.plan import Elsewhere, ModelPlan, plan_model
from tuner.problems.points import Problem
from tuner.problems.registry import Selection
from tuner.problems.results import MeasureKind
from tuner.store.results import ResultStore
from tuner.store.workers import Estimates
from tuner.tuning.request import Effort


def stored_plan(
    results: ResultStore,
    estimates: Estimates,
    problems: Sequence[Problem],
    engine: Engine | Elsewhere,
    device: Device,
    flags: Mapping[str, str],
    effort: Effort,
    selection_of: Callable[[Problem], Selection],
    *,
    unread: bool = False,
    kind: MeasureKind = MeasureKind.GPU,
) -> ModelPlan:
    """Plan problems as `plan_model` does, with the stored winners and an estimate of GPU seconds.

    Raises UnusableStore, and BadInput if `selection_of` does.
    """
    version = engine.version or None
    winners = [
        winner
        for problem in problems
        for winner in results.winners(
            device=device.name, engine=engine.name, engine_version=version, problem=problem
        )
    ]

    def seconds(problem: Problem) -> float | None:
        points = len(selection_of(problem).points(problem))
        return estimates.gpu_s(problem, device.name, effort, points)

    return plan_model(problems, engine, device, flags, winners, seconds, unread=unread, kind=kind)
