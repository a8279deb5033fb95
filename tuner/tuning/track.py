"""One point of a search: its rounds, and where the surrogate puts its configurations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tuner.problems.points import Config, Point
from tuner.tuning.space import Space

# Predicted microseconds of the configurations at a point that will probably fit.
Model = Callable[[Point, Sequence[Config]], Mapping[Config, float]]
# How much an octave counts: of a parameter, of the predicted time, of the point's size. They were
# chosen on the recordings that benchmarks/held_out.py calls SEEN; docs/results.md says what the
# others show.
_PER_OCTAVE, _PER_PREDICTED, _PER_SIZE = 0.9, 1.6, 0.4


@dataclass(eq=False)
class Track:
    """One point's rounds."""

    point: Point
    space: Space
    seeds: Sequence[Config]
    sample: Sequence[Config]  # of the space; each round looks at these
    model: Model | None
    rounds: list[list[Config]] = field(default_factory=list)
    _predicted: dict[Config, float | None] = field(default_factory=dict)
    _places: dict[Config, list[float]] = field(default_factory=dict)

    def before(self, round_: int) -> list[Config]:
        """Everything proposed before a round, in order."""
        return list(itertools.chain.from_iterable(self.rounds[:round_]))

    def likely(self, configs: Iterable[Config]) -> list[Config]:
        """The configurations that will fit, as far as the model knows."""
        some = list(configs)
        if self.model is None:
            return some
        new = [config for config in some if config not in self._predicted]
        found = self.model(self.point, new) if new else {}
        self._predicted.update((config, found.get(config)) for config in new)
        return [config for config in some if self._predicted[config]]

    def place(self, config: Config) -> list[float]:
        """Where the surrogate puts a configuration of this point, once its first round is known."""
        if config not in self._places:
            self._places[config] = self._place(config)
        return self._places[config]

    def _place(self, config: Config) -> list[float]:
        place = [_PER_OCTAVE * at for at in self.space.place(config)]
        place += [_PER_SIZE * math.log2(max(size, 1)) for size in _sizes(self.point)]
        if self.model is not None:
            best = self._best_of_first
            us = self._predicted[config] if self.likely([config]) else best
            place.append(_PER_PREDICTED * math.log2(us / best) if us and best else 0.0)
        return place

    @cached_property
    def _best_of_first(self) -> float | None:
        """The least predicted time in the first round."""
        first = [self._predicted[c] for c in self.likely(self.rounds[0])]
        return min((us for us in first if us), default=None)


def _sizes(point: Point) -> tuple[int, int, int]:
    return point.batch_size, point.new_tokens, point.cached_tokens
