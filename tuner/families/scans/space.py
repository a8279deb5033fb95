"""The launch configurations that are legal for the kernels of a chunked scan on a device."""

from __future__ import annotations

import itertools

from tuner.devices.table import Device
from tuner.families.scans.engine import BLOCKS, oversized, racy
from tuner.families.chunk_scan.problem import ChunkScan, ScanKernel
from tuner.problems.points import Config
from tuner.tuning.space import Rule, Space

# The values in the lists of sglang 0.5.23 and vLLM 0.33.0, and those between and beside them.
_LONE = {
    ScanKernel.CUMSUM: (2, 4, 8, 16, 32, 64),
    ScanKernel.PASSING: (64, 128, 256, 512, 1024, 2048),
}
_TILE = ((16, 32, 64, 128), (16, 32, 64, 128, 256), (16, 32, 64, 128))  # M, N, K
_WARPS, _STAGES = (1, 2, 4, 8), (1, 2, 3, 4, 5)
# What is tried first where an engine has no list: tiles of those lists.
_FIRST_TILES = (
    (32, 32, 32),
    (32, 64, 32),
    (64, 32, 32),
    (64, 64, 32),
    (64, 64, 64),
    (64, 128, 32),
    (128, 64, 32),
    (128, 128, 32),
)
_FIRST_LAUNCHES = ((4, 1), (4, 3), (2, 4), (8, 2))  # warps, stages


def scan_space(problem: ChunkScan, part: ScanKernel, device: Device) -> Space:
    """The space of a kernel, for all prompts."""
    rules = [
        Rule(
            "a tile is no wider than what it covers",
            "the kernel would mask the rest",
            lambda config: not oversized(problem, part, config),
        )
    ]
    if part is ScanKernel.SCAN:
        rules.append(
            Rule(
                "no product that Triton miscompiles",
                "vLLM 0.33.0 drops these configurations on sm_90",
                lambda config: not racy(config, device.target),
            )
        )
    lone = part in _LONE
    values = (_LONE[part],) if lone else _TILE
    axes = dict(zip(BLOCKS[part], values, strict=True))
    axes |= {"num_warps": _WARPS, "num_stages": (3,) if lone else _STAGES}
    return Space(axes, tuple(rules), growing=frozenset() if lone else frozenset({*axes}))


def first_configs(space: Space, part: ScanKernel) -> list[Config]:
    """What is tried first where the engine has no list: all of a small space, else usual tiles."""
    if part in _LONE:
        return list(space.configs())
    names = (*BLOCKS[part], "num_warps", "num_stages")
    values = itertools.product(_FIRST_TILES, _FIRST_LAUNCHES)
    found = (Config(dict(zip(names, (*t, *o), strict=True))) for t, o in values)
    return [config for config in found if space.legal(config)]
