"""What a layer's points need of a small set of kernels; `tuner.tuning.seeds` chooses it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from tuner.families.fused_moe.problem import Gemm
from tuner.problems.points import Config, Point
from tuner.tuning.seeds import WORST_EXCESS, Need

Scores = Mapping[Point, Mapping[Config, float]]

BLOCKS_EACH = 2  # values of BLOCK_SIZE_M that a batch size is offered


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
