"""Find the problem that a launch works on, and the grid that other constants need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.bindings.sglang.plugin.kernels import EXTEND, GROUPED, PREFILL, REDUCE, KernelSignature
from tuner.families.attention.problem import Attention, AttentionPart

Grid = tuple[int, ...]
Launch = Mapping[str, Any]  # a kernel's arguments by name, defaults filled in
ProblemKey = tuple[object, ...]
About = tuple[Any, ...]  # arguments of a launcher (`kernels.LAUNCHERS`); tensors by their shapes


def problem_key(kernel: KernelSignature, problem: Attention, *, paged: bool) -> ProblemKey:
    """Return the key that a launch of a problem shows; `launch_key` reads the key off a launch.

    Prefill has no cache. `paged`: the engine's kernels know a cache's pages.
    """
    p = problem
    if kernel is PREFILL:
        return p.q_heads, p.kv_heads, p.Lq, p.dtype.value
    page_size = p.page_size if paged else 1
    shape = p.q_heads, p.kv_heads, p.Lq, p.Lv, p.dtype.value, page_size, p.logit_cap
    if kernel is EXTEND:
        return *shape, p.window, p.sinks
    return *shape, p.window, p.sinks, p.kv_splits, p.shares_kv and kernel is GROUPED


def launch_key(
    kernel: KernelSignature, launch: Launch, grid: Grid, about: About, room: int = 0
) -> ProblemKey | None:
    """Return the `problem_key` of a launch's problem; None if the launch uses an unsupported
    option.

    `about`: the arguments of the launcher. `room`: the launch has room for so many chosen splits;
    0: the engine chose its splits.
    """
    if any(launch[name] not in usual for name, usual in kernel.plain.items() if name in launch):
        return None
    dtypes = {str(launch[name].dtype).removeprefix("torch.") for name in kernel.tensors}
    if len(dtypes) > 1 or len(grid) != (2 if kernel is REDUCE else 3):
        return None
    dtype = dtypes.pop()
    if kernel is not EXTEND and kernel is not PREFILL:
        return _decode_key(kernel, launch, grid, about, room, dtype)
    heads = grid[1], grid[1] // launch["kv_group_num"]
    if kernel is PREFILL:
        return *heads, launch["Lk"], dtype
    shape = *heads, launch["Lq"], launch["Lv"], dtype, launch.get("PAGE_SIZE", 1)
    if launch.get("BLOCK_N_PREFIX", launch["BLOCK_N"]) != launch["BLOCK_N"]:
        return None
    window = max(0, launch["SLIDING_WINDOW_SIZE"])
    return *shape, launch["logit_cap"], window, bool(launch["HAS_SINK"])


def _decode_key(
    kernel: KernelSignature, launch: Launch, grid: Grid, about: About, room: int, dtype: str
) -> ProblemKey | None:
    """Return the key for decode's launcher, whose kernels get parts of the shape, and never a
    window.
    """
    shape = decode_shape(about)
    q_heads, kv_heads, Lq, Lv, cap, _, sinks = shape
    if kernel is REDUCE:
        fits = (grid[1], launch["Lv"], bool(launch["HAS_SINK"])) == (q_heads, Lv, sinks)
        splits = launch["MAX_KV_SPLITS"]
    else:
        told = launch["kv_group_num"], launch["Lk"], launch["Lv"], launch["logit_cap"]
        fits, splits = told == (q_heads // kv_heads, Lq, Lv, cap), grid[2]
    shares_kv = kernel is GROUPED and bool(launch["HAS_MLA"])
    page_size = about[-1] or 1
    key = *shape[:4], dtype, page_size, *shape[4:], _splits(splits, room), shares_kv
    return key if fits else None


def decode_shape(about: About) -> tuple[Any, ...]:
    """Return the shape from decode's launcher: query heads, key heads, Lq, Lv, cap, no window,
    sinks.

    Raises ValueError for the notes of another launcher.
    """
    q, k, v, cap, sinks, _ = about
    return q[-2], k[-2], q[-1], v[-1], cap, 0, sinks is not None


def _splits(launched: int, room: int) -> int | None:
    """Return a problem's `kv_splits`: None if they are chosen."""
    return None if room == launched else launched


def tuned_grid(
    kernel: KernelSignature, launch: Launch, grid: Grid, config: Mapping[str, int], longest: int
) -> Grid | None:
    """Return the grid with a config's constants. `longest`: new tokens of the longest sequence.

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
    """Return a part's grid with other constants. Dimensions that do not depend on them are kept."""
    if part in (AttentionPart.EXTEND, AttentionPart.PREFILL):
        return grid[0], grid[1], -(-longest // constants["BLOCK_M"])
    if part is AttentionPart.DECODE and "BLOCK_H" in constants:
        return grid[0], -(-q_heads // min(constants["BLOCK_H"], group)), grid[2]
    return grid
