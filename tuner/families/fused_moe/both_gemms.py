"""Group the trials of a fused-MoE layer by batch size, and pair the configurations of its gemms.

This module also finds pairs worth timing again, says why a pair was chosen, and searches for
engines that run both gemms with the same configuration.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.families.fused_moe.problem import Gemm, gemm_of
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import (
    Entry,
    Measurement,
    Status,
    Trial,
    as_incumbent,
    without_time,
)
from tuner.tuning.tune import Strategy

Choice = dict[Gemm, Config]


@dataclass(frozen=True)
class SizeTrials:
    """The trials of a batch size, by gemm and configuration, and its incumbents."""

    batch_size: int
    trials: Mapping[Gemm, Mapping[Config, Trial]]
    incumbents: Mapping[str, Mapping[Gemm, Config]]  # "default", "shipped"
    block: int | None = None  # the BLOCK_SIZE_M of the other gemm, if it is not tuned now
    previous: Mapping[Gemm, Config] | None = None  # the stored pair, which may run here

    @property
    def predicted(self) -> bool:
        trials = (trial for some in self.trials.values() for trial in some.values())
        return any(trial.measurement.status is Status.PREDICTED for trial in trials)

    def total_us(self, choice: Choice) -> float | None:
        """Return the microseconds of both gemms, or None if a gemm has no time or its BLOCK_SIZE_M
        is not `block`.
        """
        total = 0.0
        for gemm, config in choice.items():
            if self.block not in (None, config["BLOCK_SIZE_M"]):
                return None
            trial = self.trials[gemm].get(config)
            if trial is None or trial.measurement.median_us is None:
                return None
            total += trial.measurement.median_us
        return total

    def pair(self, configs: Mapping[Point, Config]) -> Choice | None:
        """Return the pair of these configurations at this size; see `pair_at`."""
        return pair_at([Point(self.batch_size, gemm) for gemm in self.trials], configs)

    def changes(self, choice: Choice) -> int:
        """Return how many of a pair's configurations differ from the stored pair."""
        return sum((self.previous or {}).get(gemm) != config for gemm, config in choice.items())

    def incumbent(self) -> tuple[str, Choice | None]:
        """Return the shipped entry, else the heuristic's; and which of the two it is."""
        for name in ("shipped", "default"):
            if name in self.incumbents:
                return name, dict(self.incumbents[name])
        return "default", None


def trials_by_size(
    trials: Sequence[Trial],
    incumbents: Mapping[Point, Mapping[str, Config]],
    blocks: Mapping[int, int] | None,
    previous: Mapping[Point, Config] | None,
) -> Iterator[SizeTrials]:
    timed: dict[Point, dict[Config, Trial]] = {point: {} for point in incumbents}
    for trial in trials:
        if trial.candidate.point in timed:
            timed[trial.candidate.point][trial.candidate.config] = trial
    for batch_size in sorted({point.batch_size for point in incumbents}):
        points = sorted(point for point in incumbents if point.batch_size == batch_size)
        names = {name for point in points for name in incumbents[point]}
        yield SizeTrials(
            batch_size,
            {gemm_of(point): timed[point] for point in points},
            {
                name: {gemm_of(point): incumbents[point][name] for point in points}
                for name in names
                if all(name in incumbents[point] for point in points)
            },
            (blocks or {}).get(batch_size),
            pair_at(points, previous or {}),
        )


def pair_at(points: Sequence[Point], configs: Mapping[Point, Config]) -> Choice | None:
    """Return a size's configurations, if each gemm has one and they can run together."""
    if any(point not in configs for point in points):
        return None
    if len({configs[point]["BLOCK_SIZE_M"] for point in points}) > 1:
        return None
    return {gemm_of(point): configs[point] for point in points}


def choices_of(field: SizeTrials, one_config: bool) -> Iterator[Choice]:
    """Yield the pairs worth comparing: for every BLOCK_SIZE_M, the fastest of each gemm."""
    gemms = sorted(field.trials)
    if one_config:
        for config in field.trials[gemms[0]]:
            yield dict.fromkeys(gemms, config)
        return
    by_block: dict[int, Choice] = {}
    for gemm in gemms:
        for config, trial in sorted(field.trials[gemm].items(), key=time_then_key):
            if trial.measurement.timed:
                by_block.setdefault(config["BLOCK_SIZE_M"], {}).setdefault(gemm, config)
    yield from (choice for choice in by_block.values() if len(choice) == len(gemms))


def time_then_key(item: tuple[Config, Trial]) -> tuple[float, str]:
    median_us = item[1].measurement.median_us
    return (float("inf") if median_us is None else median_us, item[0].key)


def gain(field: SizeTrials, choice: Choice) -> str:
    """Return a pair's gain over the engine's own pair, in words."""
    name, incumbent = field.incumbent()
    choice_us = field.total_us(choice)
    incumbent_us = field.total_us(incumbent) if incumbent else None
    assert choice_us is not None  # a chosen pair is timed
    if incumbent_us is None:
        return _why_replaced(field, name) if incumbent else "fastest"
    text = f"{incumbent_us / choice_us:.3f}x as fast as the {name} configuration"
    return f"predicted {text}" if field.predicted else text


def why_nothing_fits(field: SizeTrials) -> str:
    """Return why no pair can run at a batch size."""
    why = f"no configuration compiles and fits at batch size {field.batch_size}"
    if field.block is None:
        return why
    return f"{why} with the other gemm's BLOCK_SIZE_M={field.block}: tune both gemms together"


def _why_replaced(field: SizeTrials, name: str) -> str:
    pair = field.incumbents[name].values()
    if field.block is not None and any(c["BLOCK_SIZE_M"] != field.block for c in pair):
        return f"fastest with BLOCK_SIZE_M={field.block}, which the other gemm has"
    tried = ((field.trials[gemm].get(c), c) for gemm, c in field.incumbents[name].items())
    found = [as_incumbent(config, trial) for trial, config in tried]
    return without_time(f"the {name} configuration", found)


def kept(name: str, predicted: bool) -> str:
    """Return why the incumbent of that name stays."""
    if predicted:
        return f"nothing is predicted to be clearly faster than the {name} configuration"
    return f"the {name} configuration is as fast, within the noise"


FINAL_BLOCKS = 2  # values of BLOCK_SIZE_M in the final
FINALISTS = 3  # configurations per gemm and BLOCK_SIZE_M


def finalists(
    fields: Iterable[SizeTrials],
    entries: Sequence[Entry],
    requested: Collection[int],
    *,
    one_config: bool,
) -> list[Trial]:
    """Return the trials worth timing again. At each requested point these are the incumbents, the
    previous choice, the choices there and at the neighbouring batch sizes, and the fastest with the
    two best BLOCK_SIZE_M.

    `one_config`: the fastest in the sum of both gemms.
    """
    found: list[Trial] = []
    sizes = sorted(requested)
    chosen = {entry.point: entry.config for entry in entries}
    for field in fields:
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
    """Return the fastest configurations of both gemms."""
    totals = [(field.total_us(choice), choice) for choice in choices_of(field, one_config=True)]
    timed = [(total, choice) for total, choice in totals if total is not None]
    timed.sort(key=lambda item: (item[0], next(iter(item[1].values())).key))
    best = timed[: FINAL_BLOCKS * FINALISTS]
    return {gemm: [choice[gemm] for _, choice in best] for gemm in field.trials}


def _best_of_blocks(field: SizeTrials) -> Mapping[Gemm, Sequence[Config]]:
    """Return each gemm's fastest configurations with the best values of BLOCK_SIZE_M."""
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


class OneConfigStrategy:
    """Tries the proposals of an inner strategy at both gemms, and tells it the sum of the times.

    The inner strategy proposes for the up gemm's points. Each proposal is tried at the down gemm
    too, however slow its up gemm is: a layer's fastest configuration may be slow at one gemm.
    """

    def __init__(self, inner: Strategy) -> None:
        self._inner = inner
        self._results: dict[Candidate, Measurement] = {}

    def ask(self) -> list[Candidate]:
        proposals = self._inner.ask()
        both = [_at(gemm, proposal) for gemm in Gemm for proposal in proposals]
        return [candidate for candidate in both if candidate not in self._results]

    def tell(self, candidate: Candidate, measurement: Measurement) -> None:
        self._results.setdefault(candidate, measurement)
        up, down = (self._results.get(_at(gemm, candidate)) for gemm in (Gemm.UP, Gemm.DOWN))
        if up and down:
            self._inner.tell(_at(Gemm.UP, candidate), _sum(up, down))


def _at(gemm: Gemm, candidate: Candidate) -> Candidate:
    """Return the candidate's configuration at a gemm of its batch size."""
    return Candidate(Point(candidate.point.batch_size, gemm), candidate.config)


def _sum(up: Measurement, down: Measurement) -> Measurement:
    """Return the time of both gemms, or the first measurement without a time."""
    if up.median_us is None or down.median_us is None:
        return up if up.median_us is None else down
    return replace(up, median_us=up.median_us + down.median_us)
