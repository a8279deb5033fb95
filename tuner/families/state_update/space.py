"""The launch configurations that are legal for a state update on a device."""

from __future__ import annotations

from tuner.devices.table import Device
from tuner.families.state_update.problem import StateUpdate
from tuner.tuning.space import Rule, Space

# The values in the files that vLLM 0.33.0 ships, and the next larger block.
_BLOCKS = (4, 8, 16, 32, 64, 128)
_WARPS = (1, 2, 4, 8)
_MOST_STATES = 256  # of a thread; shipped entries for CUDA have at most 128, and for AMD 256


def state_space(problem: StateUpdate, device: Device) -> Space:
    """The space of a problem, for all numbers of sequences: at most 24 configurations."""
    width = padded(problem.head_dim)
    columns = padded(problem.state_size)
    warp = device.target.warp_size
    rules = (
        Rule(
            "a block has no more rows than a head",
            "the grid has a block for each BLOCK_SIZE_M rows of a head, and masks the others",
            lambda c: c["BLOCK_SIZE_M"] <= max(_BLOCKS[0], width),
        ),
        Rule(
            f"at most {_MOST_STATES} states a thread",
            "a thread keeps its states in registers; no shipped entry has more",
            lambda c: c["BLOCK_SIZE_M"] * columns <= _MOST_STATES * warp * c["num_warps"],
        ),
    )
    return Space({"BLOCK_SIZE_M": _BLOCKS, "num_warps": _WARPS}, rules)


def padded(n: int) -> int:
    """The next power of two, as the kernel pads head_dim and the state size."""
    return 1 << (n - 1).bit_length()
