"""The trials of a fused-MoE layer that are worth timing again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tuner.families.fused_moe.pairs import SizeTrials, choices_of, time_then_key, trials_by_size
from tuner.families.fused_moe.problem import Gemm
from tuner.problems.points import Config, Point
from tuner.problems.results import Entry, Trial

FINAL_BLOCKS = 2  # values of BLOCK_SIZE_M in the final
FINALISTS = 3  # configurations per gemm and BLOCK_SIZE_M


def finalists(
    trials: Sequence[Trial],
    incumbents: Mapping[Point, Mapping[str, Config]],
    entries: Sequence[Entry],
    requested: Collection[int],
    blocks: Mapping[int, int] | None = None,
    one_config: bool = False,
    previous: Mapping[Point, Config] | None = None,
) -> list[Trial]:
    """The trials worth timing again. At each requested point these are the incumbents, the previous
    choice, the choices there and at the neighbouring batch sizes, and the fastest with the two best
    BLOCK_SIZE_M.

    `one_config`: the fastest in the sum of both gemms.
    """
    found: list[Trial] = []
    sizes = sorted(requested)
    chosen = {entry.point: entry.config for entry in entries}
    for field in trials_by_size(trials, incumbents, blocks, previous):
        if field.batch_size not in requested:
            continue
        at = sizes.index(field.batch_size)
        near = sizes[max(at - 1, 0) : at + 2]
        best = _best_together(field) if one_config else _best_of_blocks(field)
        for gemm, timed in field.trials.items():
            wanted = {pair[gemm] for pair in field.incumbents.values()}
            wanted.update(chosen[Point(size, gemm)] for size in near)
            wanted.update(best[gemm])
            wanted.update([field.previous[gemm]] if field.previous else [])
            some = [timed[config] for config in sorted(wanted) if config in timed]
            found += [trial for trial in some if trial.measurement.timed]
    return found


def _best_together(field: SizeTrials) -> Mapping[Gemm, Sequence[Config]]:
    """The fastest configurations of both gemms."""
    totals = [(field.total_us(choice), choice) for choice in choices_of(field, one_config=True)]
    timed = [(total, choice) for total, choice in totals if total is not None]
    timed.sort(key=lambda item: (item[0], next(iter(item[1].values())).key))
    best = timed[: FINAL_BLOCKS * FINALISTS]
    return {gemm: [choice[gemm] for _, choice in best] for gemm in field.trials}


def _best_of_blocks(field: SizeTrials) -> Mapping[Gemm, Sequence[Config]]:
    """Each gemm's fastest configurations with the best values of BLOCK_SIZE_M."""
    best = _best_blocks(field)
    return {
        gemm: [config for block in best for config in _fastest_of(timed, block)]
        for gemm, timed in field.trials.items()
    }


def _best_blocks(field: SizeTrials) -> list[int]:
    totals: dict[int, float] = {}
    for choice in choices_of(field, one_config=False):
        total = field.total_us(choice)
        if total is not None:
            totals[next(iter(choice.values()))["BLOCK_SIZE_M"]] = total
    return sorted(totals, key=lambda block: totals[block])[:FINAL_BLOCKS]


def _fastest_of(timed: Mapping[Config, Trial], block: int) -> list[Config]:
    same = [item for item in timed.items() if item[0]["BLOCK_SIZE_M"] == block]
    return [config for config, _ in sorted(same, key=time_then_key)[:FINALISTS]]
