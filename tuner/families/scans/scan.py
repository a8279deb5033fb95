"""Describe a chunked scan as data: the chain of kernels that a family of such problems has.

Servers read it too, so this module and the families' modules `kernels` are light.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import Any, Protocol

from tuner.devices.target import Target
from tuner.errors import BadProblem, did_you_mean
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config, Part, Point, Problem
from tuner.problems.registry import names_below

Key = tuple[object, ...]


class ScanKernel(Part):
    """The base of the kernels of a chain, which families list in the order of launch."""

    def size_of(self, point: Point) -> str:
        return f"{point.batch_size}x{point.new_tokens}"

    def point_json(self, point: Point) -> dict[str, str | int]:
        return {
            "part": self.value,
            "batch_size": point.batch_size,
            "new_tokens": point.new_tokens,
        }


class ScanProblem(Protocol):
    """The attributes that the problems of all such families have."""

    @property
    def family(self) -> str: ...
    @property
    def parts(self) -> tuple[ScanKernel, ...]: ...
    @property
    def chunk_size(self) -> int: ...
    @property
    def dtype(self) -> Dtype: ...

    def spec(self) -> str:
        """Return the problem's text; see `Problem`."""


def chunks_of(problem: ScanProblem, tokens: int) -> int:
    """Return the number of chunks that a number of tokens is cut into."""
    return -(-tokens // problem.chunk_size)


def tokens_of(point: Point) -> int:
    """Return the tokens of a point's sequences together: a launch shows no other length."""
    return point.batch_size * point.new_tokens


def all_chunks(problem: ScanProblem, point: Point) -> int:
    """Return the number of a point's chunks; no chunk has tokens of two sequences."""
    return point.batch_size * chunks_of(problem, point.new_tokens)


@dataclass(frozen=True)
class Call:
    """A function of an engine, and the kernel that it launches."""

    launcher: str
    kernel: str
    # The tensors that it allocates, by the kernel's parameters.
    made: Mapping[str, str] = field(default_factory=dict)
    also: tuple[str, ...] = ()  # the kernel's names in other releases

    @property
    def kernels(self) -> tuple[str, ...]:
        """Return the names of the kernel in all releases."""
        return (self.kernel, *self.also)


@dataclass(frozen=True)
class TunedKernel:
    """A kernel of a chain, or several that share a configuration."""

    file: str
    calls: tuple[Call, ...]  # the main call first
    writes: tuple[str, ...]
    blocks: Mapping[str, tuple[int, ...]]  # the constants of a configuration, and values to try
    covers: Callable[[Any], tuple[int, ...]]  # the lengths of a problem that blocks cover
    # From a launch's arguments: (key of its problem, length). None: the launch is of another
    # chain, or its prompts are so short that an untuned kernel runs.
    seen: Callable[[Mapping[str, Any]], tuple[Key, int] | None]
    shows: Callable[[Any], Key]  # the same key from a problem
    operations: Callable[[Any, int, int], float]  # of a problem, tokens and chunks
    moved_bytes: Callable[[Any, int, int], int]
    warps: tuple[int, ...] = (1, 2, 4, 8)
    stages: tuple[int, ...] = (1, 2, 3, 4, 5)
    # Tiles that are tried first if an engine has no list, by `blocks`; (): the whole space.
    first: tuple[tuple[int, ...], ...] = ()
    # Says which configurations must not be launched on a target; and the source for this.
    unsafe: Callable[[Config, Target], bool] = lambda config, target: False
    unsafe_source: str = ""
    # The tokens of a launch of a length, all sequences together; None: the length is in chunks.
    tokens: Callable[[Any, int], int] | None = None


TunedKernels = Mapping[ScanKernel, TunedKernel]


@dataclass(frozen=True)
class Scan:
    """The chain of a family."""

    name: str
    layers: str  # "Mamba-2": whose prompts these are
    parse: Callable[[str], Any]
    title: Callable[[Any], str]  # of a problem, short
    kernels: TunedKernels
    operands: Callable[[Any, Point, Call], dict[str, Any]]  # see `ScanKernels.operands`
    # The largest |difference| / (|expected| + rms) of a correct kernel.
    worst_error: Mapping[Dtype, float]
    # The first values of tensors that a kernel reads too, or writes in part.
    begins: Mapping[str, float] = field(default_factory=dict)
    # The kernels of each chain by its name, if engines have different chains.
    chains: Mapping[str, tuple[ScanKernel, ...]] = field(default_factory=dict)

    def of_chain(self, chain: str) -> Scan:
        """Return the same scan with only the kernels of the chain."""
        kernels = {part: self.kernels[part] for part in self.chains[chain]}
        return replace(self, kernels=kernels, chains={chain: self.chains[chain]})

    @property
    def inputs(self) -> Any:  # noqa: ANN401
        """Return the family's module that makes tensors; it imports torch."""
        return import_module(f"{__package__}.{self.name}.inputs")


def scan_named(name: str) -> Scan:
    """Return the chain of a family, by its package's name. Raises BadProblem for an unknown
    name.
    """
    names = names_below(str(__package__))
    if name not in names:
        raise BadProblem(f"unknown chunked scan {name!r}{did_you_mean(name, names)}")
    found: Scan = import_module(f"{__package__}.{name}.kernels").SCAN
    return found


def scan_of(problem: Problem) -> Scan:
    """Return the chain of a problem."""
    return scan_named(problem.family)


def kernel_of(problem: Problem, part: Part) -> TunedKernel:
    """Return a kernel of a problem's chain."""
    assert isinstance(part, ScanKernel)  # the problem is a scan
    return scan_of(problem).kernels[part]


def dtype_of(tensor: Any) -> str:  # noqa: ANN401
    """Return the type of a tensor in a server: "bfloat16"."""
    return _name_of(tensor.dtype)


@cache  # at each launch the text would be made anew
def _name_of(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
