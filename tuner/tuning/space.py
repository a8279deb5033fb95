"""Which launch configurations are legal for a problem on a device.

A space is a grid with rules. A rule says what would be wrong, hopeless or endless to compile,
with its source; whether a configuration really fits is for the compiler to say.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from operator import sub

from tuner.devices.table import Device
from tuner.engines.sglang.fused_moe.binding import takes_tma
from tuner.families.fused_moe.problem import FusedMoe
from tuner.problems.points import Config, Gemm, Part

# What Triton takes where a configuration does not say: `triton.compile`'s CUDA options.
_TRITON_DEFAULTS = {"num_warps": 4, "num_stages": 3}


class Effort(str, Enum):
    """How much of a space a search may try."""

    QUICK = "quick"
    STANDARD = "standard"
    EXHAUSTIVE = "exhaustive"


@dataclass(frozen=True)
class Rule:
    """A limit on configurations, and where it comes from."""

    name: str
    source: str
    allows: Callable[[Config], bool]


@dataclass(frozen=True)
class Space:
    """Ordered axes of ordered values, and the rules that a configuration must keep.

    An axis with the value 0 may be absent from a configuration, which means 0 (a flag).
    """

    axes: Mapping[str, tuple[int, ...]]
    rules: tuple[Rule, ...] = ()
    # Axes along which a kernel needs more of the device's memory: whatever is as large as one
    # that ran out of it, on each of these, will too.
    growing: frozenset[str] = frozenset()
    defaults: Mapping[str, int] = field(default_factory=dict)  # for keys that `nearest` lacks

    def broken_rule(self, config: Config) -> Rule | None:
        """The first rule that `config` breaks."""
        return next((rule for rule in self.rules if not rule.allows(config)), None)

    def legal(self, config: Config) -> bool:
        """Whether `config` lies on the grid and keeps every rule."""
        return config in self._index

    def configs(self) -> tuple[Config, ...]:
        """Every legal configuration, the last axis turning fastest."""
        return self._configs

    def __len__(self) -> int:
        return len(self._configs)

    def neighbours(self, config: Config) -> list[Config]:
        """Legal configurations one step of one axis away: axes in order, the step up first."""
        moves = ({name: step} for name in self.axes for step in (1, -1))
        return list(self._moved(config, moves))

    def exchanges(self, config: Config) -> list[Config]:
        """Legal configurations one step up a growing axis and one step down another.

        What a device's memory allows is often used up: then no single step is open, but a
        wider tile for a shallower pipeline is.
        """
        growing = [name for name in self.axes if name in self.growing]
        moves = ({up: 1, down: -1} for up, down in itertools.permutations(growing, 2))
        return list(self._moved(config, moves))

    def nearest(self, config: Mapping[str, int]) -> Config:
        """The legal configuration nearest to one from elsewhere, by octaves summed over axes.

        Keys that are no axis are dropped, absent ones take their default.
        Raises ValueError in a space without a legal configuration.
        """
        wanted = [_octave(config.get(name, self.defaults.get(name, 0))) for name in self.axes]
        snapped = Config(
            {
                name: min(values, key=lambda value: abs(_octave(value) - octave))
                for (name, values), octave in zip(self.axes.items(), wanted, strict=True)
            }
        )
        if self.legal(snapped):
            return snapped
        distances = (sum(map(abs, map(sub, place, wanted))) for place in self._places)
        return min(zip(distances, self._configs, strict=True))[1]

    def at_least_as_large(self, config: Config, other: Config) -> bool:
        """Whether `config` is `other` or larger along every growing axis."""
        return all(config.get(name, 0) >= other.get(name, 0) for name in self.growing)

    def indices(self, config: Config) -> dict[str, int]:
        """Each axis's position of a legal configuration."""
        return {name: values.index(config.get(name, 0)) for name, values in self.axes.items()}

    def at(self, indices: Mapping[str, int]) -> Config:
        """The configuration at a position of each axis; not necessarily a legal one."""
        return Config({name: values[indices[name]] for name, values in self.axes.items()})

    @cached_property
    def _configs(self) -> tuple[Config, ...]:
        grid = itertools.product(*self.axes.values())
        configs = (Config(dict(zip(self.axes, values, strict=True))) for values in grid)
        return tuple(config for config in configs if self.broken_rule(config) is None)

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
    def _places(self) -> tuple[tuple[float, ...], ...]:
        """Each legal configuration's octave along each axis."""
        return tuple(
            tuple(_octave(config.get(name, 0)) for name in self.axes) for config in self._configs
        )


def _octave(value: int) -> float:
    return math.log2(value) if value > 0 else -1.0  # 0 lies below 1, as 1 lies below 2


def space_identity(spaces: Mapping[Part, Space]) -> str:
    """sha256 of the configurations that may be tried: another grid is another run."""
    digest = hashlib.sha256()
    for part in sorted(spaces):
        digest.update(f"{part.value}\n".encode())
        digest.update("\n".join(config.key for config in spaces[part].configs()).encode())
    return digest.hexdigest()


def space_for(problem: FusedMoe, device: Device, gemm: Gemm, *, wide: bool = False) -> Space:
    """The space of `gemm`; up and down may differ, as only down can load through TMA.

    The default grid is that of sglang's tuning script, benchmark/kernels/fused_moe_triton/
    common_utils.py:get_configs_compute_bound; the wide one surrounds it.
    """
    axes = _DEFAULT_GRID
    if wide:
        axes = _WIDE_GRID
        if gemm is Gemm.DOWN and _tma_down(problem, device):
            axes = {**axes, "USE_TMA": (0, 1)}
    if problem.block_shape is not None and problem.block_shape[0] and problem.block_shape[1] < 64:
        axes = {**axes, "BLOCK_SIZE_K": (32, 64, 128, 256)}  # no other would divide the block
    return Space(
        axes,
        tuple(_rules(problem, device, gemm)),
        growing=frozenset({"BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_stages"}),
        defaults=_TRITON_DEFAULTS,
    )


_DEFAULT_GRID: Mapping[str, tuple[int, ...]] = {
    "BLOCK_SIZE_M": (16, 32, 64, 128, 256),
    "BLOCK_SIZE_N": (32, 64, 128, 256),
    "BLOCK_SIZE_K": (64, 128, 256),
    "GROUP_SIZE_M": (1, 16, 32, 64),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4, 5),
}
_WIDE_GRID: Mapping[str, tuple[int, ...]] = {
    **_DEFAULT_GRID,
    "BLOCK_SIZE_N": (16, 32, 64, 128, 256),
    "BLOCK_SIZE_K": (32, 64, 128, 256),
    "num_warps": (2, 4, 8, 16),
    "num_stages": (1, 2, 3, 4, 5, 6, 7),
}


def _tma_down(problem: FusedMoe, device: Device) -> bool:
    """Whether down can load through tensor descriptors; the hardware unit came with sm_90."""
    return takes_tma(problem) and device.arch >= 90


def _rules(problem: FusedMoe, device: Device, gemm: Gemm) -> Iterator[Rule]:
    yield Rule(
        "at most 256 accumulators a thread",
        "measured: a tile of 65,536 with 4 warps spills, and compiles for minutes",
        lambda c: c["BLOCK_SIZE_M"] * c["BLOCK_SIZE_N"] <= 256 * 32 * c["num_warps"],
    )
    if problem.block_shape is not None:
        yield from _block_rules(problem, problem.block_shape, gemm)
    least = _shared_floor(problem, gemm)
    yield Rule(
        "pipelined tiles fit into shared memory",
        "Triton's pipeliner keeps num_stages - 1 tiles of each operand that it copies "
        "asynchronously; a floor, which all 624 kernels of the H200 recording and 96 others keep",
        lambda c: least(c) <= device.shared_optin_bytes,
    )


def _block_rules(problem: FusedMoe, block: tuple[int, int], gemm: Gemm) -> Iterator[Rule]:
    block_n, block_k = block
    if block_n == 0:  # groups along k: fused_moe_kernel_gptq_awq
        reduced = problem.gemm_shape(gemm)[1]
        yield Rule(
            "BLOCK_SIZE_K divides the reduced length",
            "fused_moe_kernel_gptq_awq loads B without a mask",
            lambda c: reduced % c["BLOCK_SIZE_K"] == 0,
        )
        return
    yield Rule(
        "BLOCK_SIZE_K divides the quantisation block",
        "fused_moe_kernel takes one scale a step, offs_ks = k_start // group_k; "
        "tuning_fused_moe_triton.py leaves the others out",
        lambda c: block_k % c["BLOCK_SIZE_K"] == 0,
    )
    yield Rule(
        "BLOCK_SIZE_N divides the quantisation block or exceeds it",
        "fused_moe_kernel takes one scale a tile where BLOCK_SIZE_N <= group_n",
        lambda c: c["BLOCK_SIZE_N"] > block_n or block_n % c["BLOCK_SIZE_N"] == 0,
    )


def _shared_floor(problem: FusedMoe, gemm: Gemm) -> Callable[[Config], int]:
    """Bytes of shared memory that a configuration cannot do without."""
    size = problem.dtype.activation_bits // 8  # bytes an element
    row_bytes = problem.gemm_shape(gemm)[1] * size
    # Nothing is certain of rows that do not start on 16 bytes, which are not copied
    # asynchronously; nor of the gptq kernel, whose loop may be unrolled, as its length is known;
    # nor of weights that are narrower than what they are multiplied with.
    grouped = problem.block_shape is not None and problem.block_shape[0] == 0
    copies_a = row_bytes % 16 == 0 and not grouped
    copies_b = copies_a and problem.dtype.weight_bits == 8 * size

    def floor(config: Config) -> int:
        rows = copies_a * config["BLOCK_SIZE_M"] + copies_b * config["BLOCK_SIZE_N"]
        return (config["num_stages"] - 1) * rows * config["BLOCK_SIZE_K"] * size

    return floor
