"""How much a search may spend."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.tuning.request import Effort

TRIES = {Effort.QUICK: 16, Effort.STANDARD: 40}  # at a point, at most


@dataclass(frozen=True)
class Budget:
    """How much a search may spend."""

    per_point: int  # configurations tried at a point, including failures
    kernels: int  # kernels compiled in total; a configuration counts once for each part
    seeds: int  # tries in a point's first round: seeds, then random configurations
    per_round: int = 5  # tries in each later round
    nearby: int = 1  # how many of the best at each neighbouring point a round tries first


def budget_for(effort: Effort, points: int, space_size: int) -> Budget:
    """The budget of an effort for a number of points and of configurations in the space."""
    if effort is Effort.QUICK:
        return Budget(TRIES[effort], kernels=max(100, 10 * points), seeds=8, per_round=4)
    if effort is Effort.STANDARD:
        return Budget(TRIES[effort], kernels=max(250, 25 * points), seeds=12)
    return Budget(space_size, kernels=points * space_size, seeds=space_size)
