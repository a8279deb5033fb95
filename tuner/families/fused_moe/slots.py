"""How many slots the tokens of a batch take once they are sorted by expert, in whole blocks."""

from __future__ import annotations


def sorted_slots(valid_slots: int, experts: int, block_m: int) -> int:
    """Slots that the engine allocates when it sorts by expert, padded to whole blocks.

    Source: `moe_align_block_size` of sglang 0.5.12 and later. Earlier versions allocate more
    slots where there are fewer valid ones than experts, all of them empty.
    """
    return valid_slots + min(valid_slots, experts + 1) * (block_m - 1)


def padded_slots(valid_slots: int, experts: int, block_m: int) -> int:
    """EM: `sorted_slots`, rounded up to 16; the engine's own sum is not rounded."""
    return -(-sorted_slots(valid_slots, experts, block_m) // 16) * 16
