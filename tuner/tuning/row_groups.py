"""Values of GROUP_SIZE_M that let a kernel run the same way at a point.

Triton's matrix multiplications visit their tiles in groups of GROUP_SIZE_M rows of tiles. A kernel
limits a group to the rows of tiles that are left, so all values from that number on are the same.
Source: `grouped_launch` of Triton's tutorial, which sglang's and vLLM's kernels follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tuner.tuning.space import Rule, Space

GROUP = "GROUP_SIZE_M"


def without_equal_groups(space: Space, row_tiles: Callable[[Mapping[str, int]], int]) -> Space:
    """The space with one value of GROUP_SIZE_M for each way to run: the smallest one.

    `row_tiles` gives the most rows of tiles that a configuration can have at the point.
    """
    groups = space.axes.get(GROUP, (1,))

    def enough(config: Mapping[str, int]) -> int:
        tiles = row_tiles(config)
        return next((group for group in groups if group >= tiles), groups[-1])

    def settled(config: Mapping[str, int]) -> Mapping[str, int]:
        if GROUP not in config:
            return config
        return {**config, GROUP: min(config[GROUP], enough(config))}

    rule = Rule(
        "a group is not larger than the rows of tiles need",
        "the kernel limits a group to the rows of tiles that are left, so larger ones are the same",
        lambda config: config.get(GROUP, 1) <= enough(config),
    )
    return space.narrowed([rule], settled)
