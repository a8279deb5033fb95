"""Which problem a launch works on, and the grid that other constants need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.bindings.sglang.plugin.kernels import EXTEND, GROUPED, PREFILL, REDUCE, KernelSignature
from tuner.families.attention.problem import Attention, AttentionPart

Grid = tuple[int, ...]
Launch = Mapping[str, Any]  # a kernel's arguments by name, defaults filled in
ProblemKey = tuple[object, ...]


def problem_key(kernel: KernelSignature, problem: Attention, *, paged: bool) -> ProblemKey:
    """The part of a problem that a kernel's arguments reveal; `launch_key` reads it off a launch.

    The rest does not affect the kernel: decode's first kernel runs the same with and without
    sinks, and the second is independent of the keys. `paged`: the kernel has a page size.
    """
    p = problem
    if kernel is REDUCE:
        return p.q_heads, p.Lv, p.dtype.value, p.kv_splits, p.sinks
    if kernel is PREFILL:
        return p.q_heads, p.kv_heads, p.Lq, p.dtype.value
    page_size = p.page_size if paged else 1
    shape = p.q_heads, p.kv_heads, p.Lq, p.Lv, p.dtype.value, page_size, p.logit_cap
    if kernel is EXTEND:
        return *shape, p.window, p.sinks
    return *shape, p.kv_splits, p.shares_kv and kernel is GROUPED


def launch_key(
    kernel: KernelSignature, launch: Launch, grid: Grid, room: int = 0
) -> ProblemKey | None:
    """The `problem_key` of a launch's problem; None if the launch uses an unsupported option.

    `room`: the launch has room for so many chosen splits; 0: the engine chose its splits.
    """
    if any(launch[name] not in usual for name, usual in kernel.plain.items() if name in launch):
        return None
    dtypes = {str(launch[name].dtype).removeprefix("torch.") for name in kernel.tensors}
    if len(dtypes) > 1 or len(grid) != (2 if kernel is REDUCE else 3):
        return None
    dtype = dtypes.pop()
    if kernel is REDUCE:
        splits, sinks = _splits(launch["MAX_KV_SPLITS"], room), bool(launch["HAS_SINK"])
        return grid[1], launch["Lv"], dtype, splits, sinks
    q_heads = launch["q_head_num"] if kernel is GROUPED else grid[1]
    heads = q_heads, q_heads // launch["kv_group_num"]
    if kernel is PREFILL:
        return *heads, launch["Lk"], dtype
    columns = launch["Lq" if kernel is EXTEND else "Lk"], launch["Lv"]
    shape = *heads, *columns, dtype, launch.get("PAGE_SIZE", 1), launch["logit_cap"]
    if kernel is not EXTEND:
        return *shape, _splits(grid[2], room), kernel is GROUPED and bool(launch["HAS_MLA"])
    if launch.get("BLOCK_N_PREFIX", launch["BLOCK_N"]) != launch["BLOCK_N"]:
        return None
    return *shape, max(0, launch["SLIDING_WINDOW_SIZE"]), bool(launch["HAS_SINK"])


def _splits(launched: int, room: int) -> int | None:
    """A problem's `kv_splits`: None where they are chosen."""
    return None if room == launched else launched


def tuned_grid(
    kernel: KernelSignature, launch: Launch, grid: Grid, config: Mapping[str, int], longest: int
) -> Grid | None:
    """The grid with a config's constants. `longest`: new tokens of the longest sequence.

    None if `grid_rule` does not reproduce the engine's grid from the engine's constants.
    """
    q_heads, group = launch.get("q_head_num", grid[1]), launch.get("kv_group_num", 1)
    if grid_rule(kernel.part, grid, launch, longest, q_heads, group) != grid:
        return None
    return grid_rule(kernel.part, grid, {**launch, **config}, longest, q_heads, group)


def grid_rule(
    part: AttentionPart,
    grid: Grid,
    constants: Mapping[str, Any],
    longest: int,
    q_heads: int,
    group: int,
) -> Grid:
    """A part's grid with other constants. Dimensions that do not depend on them are kept."""
    if part in (AttentionPart.EXTEND, AttentionPart.PREFILL):
        return grid[0], grid[1], -(-longest // constants["BLOCK_M"])
    if part is AttentionPart.DECODE and "BLOCK_H" in constants:
        return grid[0], -(-q_heads // min(constants["BLOCK_H"], group)), grid[2]
    return grid
