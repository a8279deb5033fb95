"""What a trace says, as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

GAPS = "gaps"  # the name under which `times` counts the time in which no kernel ran


class Phase(str, Enum):
    """What a step of a server does."""

    PREFILL = "prefill"  # new tokens of prompts
    DECODE = "decode"  # one new token a sequence, or a few with speculation
    MIXED = "mixed"  # both in one step
    UNKNOWN = "unknown"  # nothing in the trace tells


@dataclass(frozen=True)
class KernelTime:
    """The time of a kernel (or a copy) in a phase, on all GPUs of the trace together."""

    name: str  # as the trace has it; names of C++ kernels are long
    family: str  # a name of `families.toml`; "" where no row knows the kernel
    phase: Phase
    calls: int
    # Microseconds. Where kernels run side by side, each moment counts for the one that began first.
    time_us: float


@dataclass(frozen=True)
class FamilyTime:
    """The kernels of a family at the steps of one size."""

    calls: int
    time_us: float  # as in `KernelTime`


@dataclass(frozen=True)
class Step:
    """Steps of equal size, which the engine itself marked in the trace."""

    phase: Phase
    sequences: int  # in decode, or of both kinds in a mixed step
    new_tokens: int  # of prompts; 0 for decode, and where the mark does not say
    count: int
    time_us: float  # of all of them, from the first kernel's start to the last one's end
    # By family. What runs between two steps is in none of them.
    families: Mapping[str, FamilyTime] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Profile:
    """The GPU time of one or several traces."""

    kernels: tuple[KernelTime, ...]  # the longest first
    gap_us: Mapping[Phase, float]  # time in which the GPU ran nothing, before a kernel of the phase
    steps: tuple[Step, ...]  # empty where the engine marks none
    device: str  # the GPU's name as the driver has it; "" where the trace does not say
    told_by: str  # how phases were told apart, for people
    engine: str = ""  # whose marks the trace has; "" where it has none
    idle_us: float = 0.0  # gaps in which the server had no request; no part of any other figure

    def time_us(self, phase: Phase | None = None) -> float:
        """Microseconds of kernels and gaps, of a phase or of all."""
        return sum(self.times(phase).values())

    def times(self, phase: Phase | None = None) -> dict[str, float]:
        """Microseconds by family, the longest first; `GAPS` is one, and "" has unknown kernels."""
        found: dict[str, float] = {}
        for kernel in self.of(phase):
            found[kernel.family] = found.get(kernel.family, 0.0) + kernel.time_us
        gaps = sum(us for at, us in self.gap_us.items() if phase in (None, at))
        if gaps:
            found[GAPS] = gaps
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def of(self, phase: Phase | None) -> Iterable[KernelTime]:
        """The kernels of a phase, or all."""
        return (kernel for kernel in self.kernels if phase in (None, kernel.phase))

    def coverage(self) -> float:
        """The part of the kernels' time that families know, 0 to 1."""
        total = sum(kernel.time_us for kernel in self.kernels)
        known = sum(kernel.time_us for kernel in self.kernels if kernel.family)
        return known / total if total else 1.0
