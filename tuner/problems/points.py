"""What a configuration is chosen for, and launch configurations themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum


class Gemm(str, Enum):
    """The two matrix products of a fused-MoE layer."""

    UP = "up"  # A (M, K) x B (E, 2N, K)
    DOWN = "down"  # A (M * top_k, N) x B (E, K, N), scaled by the router's weight


class Stage(str, Enum):
    """The kernels of attention: each is launched, and so configured, on its own."""

    EXTEND = "extend"  # new tokens attend to a cached prefix and to each other
    PREFILL = "prefill"  # an image's tokens, which all see each other; without a cache
    DECODE = "decode"  # one new token a sequence; splits of its cache in parallel
    REDUCE = "reduce"  # adds those splits up


Part = Gemm | Stage
PARTS: tuple[Part, ...] = (*Gemm, *Stage)  # a family's in the order of their launch


def read_part(text: str) -> Part:
    """The part of that name; raises ValueError."""
    return Gemm(text) if text in ("up", "down") else Stage(text)


@dataclass(frozen=True, order=True)
class Point:
    """One thing to choose a configuration for: a part of a problem at a size.

    A fused-MoE layer's size is its tokens; attention's is its sequences, and how many tokens
    each of them adds and finds in the cache.
    """

    batch_size: int  # fused MoE: tokens M; attention: sequences
    part: Part
    new_tokens: int = 0  # attention: of the longest sequence; 1 for decode
    cached_tokens: int = 0  # attention: of a sequence, on average

    @property
    def gemm(self) -> Gemm:
        """The part of a fused-MoE layer's point."""
        assert isinstance(self.part, Gemm), f"{self} is no gemm's"
        return self.part

    @property
    def size(self) -> str:
        """The point without its part, for people: "M=8", or "4x512+8192"."""
        if isinstance(self.part, Gemm):
            return f"M={self.batch_size}"
        return f"{self.batch_size}x{self.new_tokens}+{self.cached_tokens}"

    def as_json(self) -> dict[str, str | int]:
        """As reports and the API show it."""
        if isinstance(self.part, Gemm):
            return {"gemm": self.part.value, "batch_size": self.batch_size}
        return {
            "part": self.part.value,
            "batch_size": self.batch_size,
            "new_tokens": self.new_tokens,
            "cached_tokens": self.cached_tokens,
        }

    def __str__(self) -> str:
        return f"{self.size} {self.part.value}"


class Config(Mapping[str, int]):
    """One launch configuration: an engine's own keys and whole numbers; immutable, hashable.

    Equal configs are equal whatever their order of keys. USE_TMA is 0 or 1 here and a
    boolean in engine files.
    """

    __slots__ = ("_values", "key")

    key: str  # canonical text, e.g. "BLOCK_SIZE_M=16,...": the identity in stores and caches

    def __init__(self, values: Mapping[str, int]) -> None:
        # A false USE_TMA and an absent one launch the same kernel: one identity for both.
        self._values = {k: int(v) for k, v in values.items() if not (k == "USE_TMA" and not v)}
        self.key = ",".join(f"{k}={v}" for k, v in sorted(self._values.items()))

    def __getitem__(self, name: str) -> int:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.key == other.key

    def __lt__(self, other: Config) -> bool:
        return self.key < other.key

    def __repr__(self) -> str:
        return f"Config({self.key})"

    def replace(self, **changes: int) -> Config:
        return Config({**self._values, **changes})


@dataclass(frozen=True)
class Candidate:
    """A configuration proposed for a point."""

    point: Point
    config: Config
