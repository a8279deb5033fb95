"""The trials of a fused-MoE layer at one batch size, and the pairs of configurations in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuner.families.fused_moe.problem import Gemm, gemm_of
from tuner.problems.points import Config, Point
from tuner.problems.results import Status, Trial

Choice = dict[Gemm, Config]


@dataclass(frozen=True)
class SizeTrials:
    """One batch size's trials by gemm and configuration, and its incumbents."""

    batch_size: int
    trials: Mapping[Gemm, Mapping[Config, Trial]]
    incumbents: Mapping[str, Mapping[Gemm, Config]]  # "default", "shipped"
    block: int | None = None  # the BLOCK_SIZE_M of the other gemm, if it is not tuned now
    previous: Mapping[Gemm, Config] | None = None  # the pair that the store has; it may run here

    @property
    def predicted(self) -> bool:
        trials = (trial for some in self.trials.values() for trial in some.values())
        return any(trial.measurement.status is Status.PREDICTED for trial in trials)

    def total_us(self, choice: Choice) -> float | None:
        """Microseconds of both gemms, or None if one has no time or a BLOCK_SIZE_M other than
        `block`.
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

    def changes(self, choice: Choice) -> int:
        """How many of a pair's configurations are others than the store has."""
        return sum((self.previous or {}).get(gemm) != config for gemm, config in choice.items())

    def incumbent(self) -> tuple[str, Choice | None]:
        """What the engine would run: its file's entry if it finds one, else its heuristic's."""
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
            _pair(points, previous or {}),
        )


def _pair(points: Sequence[Point], configs: Mapping[Point, Config]) -> Choice | None:
    """The configurations at a size, if there is one for each gemm and they can run together."""
    if any(point not in configs for point in points):
        return None
    if len({configs[point]["BLOCK_SIZE_M"] for point in points}) > 1:
        return None
    return {gemm_of(point): configs[point] for point in points}


def choices_of(field: SizeTrials, one_config: bool) -> Iterator[Choice]:
    """The pairs worth comparing: for every BLOCK_SIZE_M, the fastest of each gemm."""
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
