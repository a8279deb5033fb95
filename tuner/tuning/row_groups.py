"""Values of GROUP_SIZE_M that let a kernel run the same way at a point.

Triton's matrix multiplications visit their tiles in groups of GROUP_SIZE_M rows of tiles. A kernel
limits a group to the rows of tiles that are left. So all values that reach the number of rows are
the same. Source: `matmul_kernel` of Triton's tutorial on matrix multiplication, which the kernels
of sglang and vLLM follow: `group_size_m = min(num_pid_m - first_pid_m, GROUP_SIZE_M)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tuner.tuning.space import Rule, Space

GROUP, BLOCK = "GROUP_SIZE_M", "BLOCK_SIZE_M"


def without_equal_groups(space: Space, row_tiles: Callable[[int], int]) -> Space:
    """The space with one value of GROUP_SIZE_M for each way to run: the smallest one.

    `row_tiles` gives the most rows of tiles that a launch can have with a BLOCK_SIZE_M.
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
        "the kernel limits a group to the rows of tiles that are left, so larger ones are the same",
        lambda config: config.get(GROUP, 1) <= most[config[BLOCK]],
    )
    return space.narrowed([rule], settled)
