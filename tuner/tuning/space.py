"""Define which launch configurations are legal for a problem on a device.

A space is a grid with rules. A rule excludes configurations that are wrong, hopeless or take too
long to compile, and names its source. The compiler decides whether a configuration fits.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Union

from tuner.problems.points import Config, Part

_Tree = dict[float, Union["_Tree", Config]]


@dataclass(frozen=True)
class Rule:
    """A limit on configurations, and its source."""

    name: str
    source: str
    allows: Callable[[Config], bool]


@dataclass(frozen=True)
class Space:
    """Ordered axes of ordered values, and the rules that a configuration must keep.

    A configuration may lack an axis that has the value 0 (a flag); this means 0. It lacks an axis
    of `unsaid` if the axis has the value that `unsaid` gives.
    """

    axes: Mapping[str, tuple[int, ...]]
    rules: tuple[Rule, ...] = ()
    # Axes along which a kernel needs more of the device's memory. If a configuration runs out of
    # memory, a configuration that is at least as large on each axis runs out too.
    growing: frozenset[str] = frozenset()
    defaults: Mapping[str, int] = field(default_factory=dict)  # for keys that `nearest` lacks
    # Values that are left out of configurations, because they mean the same as an absent key and
    # the engine's kernel may not take that key.
    unsaid: Mapping[str, int] = field(default_factory=dict)
    # Gives the configuration that stands for all that run the same way.
    settle: Callable[[Mapping[str, int]], Mapping[str, int]] | None = None
    # The space that a narrowed space was made of, whose rules are the first of its rules.
    _wider: Space | None = field(default=None, init=False, repr=False, compare=False)

    def broken_rule(self, config: Config) -> Rule | None:
        """Return the first rule that `config` breaks."""
        return next((rule for rule in self.rules if not rule.allows(config)), None)

    def legal(self, config: Config) -> bool:
        """Say whether `config` lies on the grid and keeps every rule."""
        return config in self._index

    def configs(self) -> tuple[Config, ...]:
        """Return every legal configuration; the last axis varies fastest."""
        return self._configs

    def __len__(self) -> int:
        return len(self._configs)

    def narrowed(
        self,
        rules: Iterable[Rule],
        settle: Callable[[Mapping[str, int]], Mapping[str, int]] | None = None,
    ) -> Space:
        """Return the same grid with further rules, which alone are looked at for it."""
        found = replace(self, rules=(*self.rules, *rules), settle=settle or self.settle)
        object.__setattr__(found, "_wider", self)
        return found

    def neighbours(self, config: Config) -> list[Config]:
        """List legal configurations one step away on one axis; axes in order, the step up first."""
        moves = ({name: step} for name in self.axes for step in (1, -1))
        return list(self._moved(config, moves))

    def exchanges(self, config: Config) -> list[Config]:
        """List legal configurations one step up on one growing axis and one step down on another.

        A configuration often uses all the memory that a device allows. Then no single step up fits,
        but a wider tile with a shallower pipeline may.
        """
        growing = [name for name in self.axes if name in self.growing]
        moves = ({up: 1, down: -1} for up, down in itertools.permutations(growing, 2))
        return list(self._moved(config, moves))

    def settled(self, config: Mapping[str, int]) -> Config:
        """Return the configuration that stands for all that run the same way; it may
        break a rule.
        """
        return Config(self.settle(config) if self.settle else config)

    def nearest(self, config: Mapping[str, int]) -> Config:
        """Return the legal configuration nearest to a given one, by octaves summed over axes.

        Keys that are not an axis are ignored; absent axes take their default. Raises ValueError in
        a space without a legal configuration.
        """
        config = self.settled(config)
        absent = {**self.unsaid, **self.defaults}
        wanted = [_octave(config.get(name, absent.get(name, 0))) for name in self.axes]
        snapped = self._said(
            {
                name: min(values, key=lambda value: abs(_octave(value) - octave))
                for (name, values), octave in zip(self.axes.items(), wanted, strict=True)
            }
        )
        if self.legal(snapped):
            return snapped
        key = tuple(wanted)
        if key not in self._found:  # the search asks for the same values again
            self._found[key] = self._closest(wanted)
        return self._found[key]

    def _closest(self, wanted: Sequence[float]) -> Config:
        """Return the legal configuration with the least distance; of several, the first by its
        text.

        Search an axis at a time, and skip every branch that begins too far away.
        """
        best: list[tuple[float, Config]] = []

        def look(tree: _Tree, axis: int, so_far: float) -> None:
            for octave in sorted(tree, key=lambda octave: abs(octave - wanted[axis])):
                distance, below = so_far + abs(octave - wanted[axis]), tree[octave]
                if best and distance > best[0][0]:
                    return
                if isinstance(below, Config):
                    best[:] = [min([*best, (distance, below)])]
                else:
                    look(below, axis + 1, distance)

        look(self._tree, 0, 0.0)
        if not best:
            raise ValueError("the space has no legal configuration")
        return best[0][1]

    def at_least_as_large(self, config: Config, other: Config) -> bool:
        """Say whether `config` is at least as large as `other` along every growing axis."""
        return all(config.get(name, 0) >= other.get(name, 0) for name in self.growing)

    def as_large_as(self, other: Config) -> frozenset[Config]:
        """Return the legal configurations that are at least as large as `other`."""
        if other not in self._larger:  # the search asks in each round
            found = (c for c in self._configs if self.at_least_as_large(c, other))
            self._larger[other] = frozenset(found)
        return self._larger[other]

    def indices(self, config: Config) -> dict[str, int]:
        """Return the position of a legal configuration on each axis."""
        return {name: values.index(self._value(config, name)) for name, values in self.axes.items()}

    def place(self, config: Config) -> tuple[float, ...]:
        """Return a configuration's place on each axis, in octaves.

        A step from one value to the next counts one octave at most: the effects of GROUP_SIZE_M = 1
        and 16 differ less than their sizes.
        """
        if config not in self._placed:  # all points of a part ask
            stops = (self._stops[name][self._value(config, name)] for name in self.axes)
            self._placed[config] = tuple(stops)
        return self._placed[config]

    def at(self, indices: Mapping[str, int]) -> Config:
        """Return the configuration at a position on each axis; it may break a rule."""
        return self._said({name: values[indices[name]] for name, values in self.axes.items()})

    def _said(self, values: Mapping[str, int]) -> Config:
        return _said(values, self.unsaid)

    def _value(self, config: Config, name: str) -> int:
        return config.get(name, self.unsaid.get(name, 0))

    @cached_property
    def _configs(self) -> tuple[Config, ...]:
        if self._wider:  # a run may look at few of its points' spaces
            return _keeping(self.rules[len(self._wider.rules) :], self._wider.configs())
        return _keeping(self.rules, _grid(tuple(self.axes.items()), tuple(self.unsaid.items())))

    @cached_property
    def _stops(self) -> dict[str, dict[int, float]]:
        """Return the place of each value of each axis."""
        found = {}
        for name, values in self.axes.items():
            octaves = [_octave(value) for value in values]
            steps = (min(1.0, b - a) for a, b in itertools.pairwise(octaves))
            found[name] = dict(zip(values, itertools.accumulate(steps, initial=0.0), strict=True))
        return found

    @cached_property
    def _found(self) -> dict[tuple[float, ...], Config]:
        return {}

    @cached_property
    def _larger(self) -> dict[Config, frozenset[Config]]:
        return {}

    @cached_property
    def _placed(self) -> dict[Config, tuple[float, ...]]:
        return {}

    @cached_property
    def _index(self) -> frozenset[Config]:
        return frozenset(self._configs)

    def _moved(self, config: Config, moves: Iterable[Mapping[str, int]]) -> Iterator[Config]:
        here = self.indices(config)
        for move in moves:
            there = {**here, **{name: here[name] + step for name, step in move.items()}}
            if all(0 <= there[name] < len(self.axes[name]) for name in move):
                moved = self.at(there)
                if self.legal(moved):
                    yield moved

    @cached_property
    def _tree(self) -> _Tree:
        """Return the legal configurations, by their octaves on one axis after the other."""
        tree: _Tree = {}
        *first, last = self.axes
        for config in self._configs:
            below = tree
            for name in first:
                at = below.setdefault(_octave(self._value(config, name)), {})
                assert not isinstance(at, Config)  # only the last axis has them
                below = at
            below[_octave(self._value(config, last))] = config
        return tree


def _said(values: Mapping[str, int], unsaid: Mapping[str, int]) -> Config:
    return Config({name: value for name, value in values.items() if unsaid.get(name) != value})


@lru_cache(maxsize=2)  # both gemms of a layer, and all layers of a command, have one or two grids
def _grid(
    axes: tuple[tuple[str, tuple[int, ...]], ...], unsaid: tuple[tuple[str, int], ...]
) -> tuple[Config, ...]:
    names, without = [name for name, _ in axes], dict(unsaid)
    grid = itertools.product(*(values for _, values in axes))
    return tuple(_said(dict(zip(names, values, strict=True)), without) for values in grid)


def _keeping(rules: Iterable[Rule], configs: Iterable[Config]) -> tuple[Config, ...]:
    for rule in rules:
        configs = filter(rule.allows, configs)
    return tuple(configs)


def _octave(value: int) -> float:
    return math.log2(value) if value > 0 else -1.0  # 0 lies below 1, as 1 lies below 2


def space_identity(spaces: Mapping[Part, Space]) -> str:
    """Return the sha256 of the configurations that may be tried; a run's identity has it."""
    digest = hashlib.sha256()
    for part in sorted(spaces):
        digest.update(f"{part.value}\n".encode())
        digest.update("\n".join(config.key for config in spaces[part].configs()).encode())
    return digest.hexdigest()


# Triton's matrix multiplications visit their tiles in groups of GROUP_SIZE_M rows of tiles. A
# kernel limits a group to the rows of tiles that are left, so all values that reach the number of
# rows are the same. Source: `matmul_kernel` of Triton's tutorial on matrix multiplication, which
# the kernels of sglang and vLLM follow: `group_size_m = min(num_pid_m - first_pid_m,
# GROUP_SIZE_M)`.
GROUP, BLOCK = "GROUP_SIZE_M", "BLOCK_SIZE_M"


def without_equal_groups(space: Space, row_tiles: Callable[[int], int]) -> Space:
    """Keep one value of GROUP_SIZE_M for each way to run: the smallest.

    `row_tiles` returns the most rows of tiles that a launch can have with a BLOCK_SIZE_M.
    """
    groups = space.axes.get(GROUP, (1,))

    def enough(block_m: int) -> int:
        tiles = row_tiles(block_m)
        return next((group for group in groups if group >= tiles), groups[-1])

    most = {block_m: enough(block_m) for block_m in space.axes[BLOCK]}
    if all(group == groups[-1] for group in most.values()):
        return space

    def settled(config: Mapping[str, int]) -> Mapping[str, int]:
        if GROUP not in config:
            return config
        return {**config, GROUP: min(config[GROUP], enough(config[BLOCK]))}

    rule = Rule(
        "a group is not larger than the rows of tiles need",
        "the kernel limits a group to the rows of tiles that are left: larger groups are the same",
        lambda config: config.get(GROUP, 1) <= most[config[BLOCK]],
    )
    return space.narrowed([rule], settled)
