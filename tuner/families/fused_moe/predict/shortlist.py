"""Choose a small set of configurations to compile that serves all points."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuner.families.fused_moe.problem import Gemm, gemm_of
from tuner.problems.points import Config, Point

GemmConfig = tuple[Gemm, Config]  # one compiled kernel, which batch sizes share
Scores = Mapping[Point, Mapping[Config, float]]

BLOCKS_EACH = 2  # values of BLOCK_SIZE_M that a batch size is offered
WORST_EXCESS = 0.5  # log(time / best time) from which on a choice is as bad as none
# The worth of a need's best choice and of the next ones, which replace it if it does not fit or
# is slower once its registers are known.
RANKS = (1.0, 0.3, 0.1)


@dataclass(frozen=True)
class Need:
    """A point that wants a configuration of one BLOCK_SIZE_M."""

    point: Point
    weight: float
    excess: Mapping[Config, float]  # log(score / best score)


def summed(scores: Scores, gemm: Gemm) -> Scores:
    """Scores of one configuration for all gemms of a batch size, at the points of `gemm`."""
    sums: dict[Point, dict[Config, float]] = {}
    for batch_size in {point.batch_size for point in scores}:
        parts = [scored for point, scored in scores.items() if point.batch_size == batch_size]
        sums[Point(batch_size, gemm)] = {
            config: sum(part[config] for part in parts)
            for config in parts[0]
            if all(config in part for part in parts)
        }
    return sums


def needs(scores: Scores) -> list[Need]:
    """Every point's needs, for the values of BLOCK_SIZE_M that are best for both gemms together.

    An engine sorts a batch once for both gemms, so a pair must share that value.
    """
    found: list[Need] = []
    for batch_size in sorted({point.batch_size for point in scores}):
        points = [point for point in scores if point.batch_size == batch_size]
        found += _needs_at({point: scores[point] for point in points})
    return found


def _needs_at(scores: Scores) -> Iterator[Need]:
    by_block = {point: _split(scored) for point, scored in scores.items()}
    shared = set.intersection(*(set(blocks) for blocks in by_block.values()))
    totals = {
        block: sum(min(blocks[block].values()) for blocks in by_block.values()) for block in shared
    }
    best = sorted(totals, key=lambda block: (totals[block], block))[:BLOCKS_EACH]
    for block in best:
        lag = math.log(totals[block] / totals[best[0]])
        for point, blocks in by_block.items():
            fastest = min(blocks[block].values())
            yield Need(
                point,
                max(0.0, 1 - lag / WORST_EXCESS),
                {config: math.log(score / fastest) for config, score in blocks[block].items()},
            )


def _split(scored: Mapping[Config, float]) -> dict[int, dict[Config, float]]:
    blocks: dict[int, dict[Config, float]] = {}
    for config, score in scored.items():
        blocks.setdefault(config["BLOCK_SIZE_M"], {})[config] = score
    return blocks


def cover(wanted: Sequence[Need], budget: int) -> list[GemmConfig]:
    """Choose at most `budget` kernels greedily: the next one helps the needs most.

    A kernel's help only shrinks as others are chosen. So a kernel whose last known help is below
    the best current one need not be evaluated again.
    """
    served: list[list[float]] = [[WORST_EXCESS] * len(RANKS) for _ in wanted]
    users: dict[GemmConfig, list[tuple[int, float]]] = {}
    for index, need in enumerate(wanted):
        for config, excess in need.excess.items():
            if excess < WORST_EXCESS:
                users.setdefault((gemm_of(need.point), config), []).append((index, excess))

    def help_of(kernel: GemmConfig) -> float:
        return sum(
            wanted[index].weight * (_cost(served[index]) - _cost(_with(served[index], excess)))
            for index, excess in users[kernel]
        )

    queue = [(-help_of(kernel), kernel) for kernel in users]
    heapq.heapify(queue)
    chosen: list[GemmConfig] = []
    while queue and len(chosen) < budget:
        _, kernel = heapq.heappop(queue)
        help_now = help_of(kernel)
        if queue and help_now < -queue[0][0]:
            heapq.heappush(queue, (-help_now, kernel))
            continue
        chosen.append(kernel)
        for index, excess in users[kernel]:
            served[index] = _with(served[index], excess)
    return chosen


def _with(ranked: list[float], excess: float) -> list[float]:
    return sorted([*ranked, excess])[: len(RANKS)]


def _cost(ranked: list[float]) -> float:
    return sum(worth * excess for worth, excess in zip(RANKS, ranked, strict=True))
