"""How many blocks of a kernel one multiprocessor holds at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tuner.devices.table import Device
from tuner.problems.results import Compiled

LEAST_REGISTERS = 16  # a thread is given at least so many


@dataclass(frozen=True)
class Footprint:
    """The resources that one block needs of its SM."""

    shared_bytes: int
    n_regs: int  # registers of a thread
    n_spills: int = 0  # bytes a thread spills

    @classmethod
    def of(cls, compiled: Compiled) -> Footprint:
        """The footprint of a kernel that compiled."""
        assert compiled.shared_bytes is not None
        return cls(compiled.shared_bytes, compiled.n_regs or 0, compiled.n_spills or 0)


def blocks_per_sm(device: Device, warps: int, footprint: Footprint) -> int:
    """Blocks that an SM holds at once, at least 1."""
    arch = device.architecture
    steps = math.ceil(max(footprint.n_regs, LEAST_REGISTERS) / arch.register_step)
    registers = steps * arch.register_step * arch.target.warp_size * warps
    return max(
        1,
        min(
            arch.shared_per_sm_bytes // (footprint.shared_bytes + arch.shared_reserved_bytes),
            arch.registers_per_sm // registers,
            arch.max_warps_per_sm // warps,
            arch.max_blocks_per_sm,
        ),
    )


def rounds_of_work(share: float) -> float:
    """Rounds of work. If there are several, the last is half full on average."""
    return share + 0.5 if share > 1 else 1.0
