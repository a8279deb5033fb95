"""Define the launch configurations that are legal for the kernels of a chunked scan on a device."""

from __future__ import annotations

import itertools

from tuner.devices.table import Device
from tuner.families.scans.engine import oversized
from tuner.families.scans.scan import ScanProblem, kernel_of
from tuner.problems.points import Config, Part
from tuner.tuning.space import Rule, Space

_FIRST_LAUNCHES = ((4, 1), (4, 3), (2, 4), (8, 2))  # warps, stages


def scan_space(problem: ScanProblem, part: Part, device: Device) -> Space:
    """Return the space of a kernel, for all prompts."""
    tuned = kernel_of(problem, part)
    rules = [
        Rule(
            "a tile is no wider than the length that it covers",
            "the kernel would mask the rest",
            lambda config: not oversized(problem, part, config),
        ),
    ]
    if tuned.unsafe_source:
        rules.append(
            Rule(
                "no product that Triton miscompiles",
                tuned.unsafe_source,
                lambda config: not tuned.unsafe(config, device.target),
            )
        )
    axes = {**tuned.blocks, "num_warps": tuned.warps, "num_stages": tuned.stages}
    lone = len(tuned.stages) == 1
    return Space(axes, tuple(rules), growing=frozenset() if lone else frozenset(axes))


def first_configs(problem: ScanProblem, part: Part, space: Space) -> list[Config]:
    """Return the configurations to try first if the engine has no list: usual tiles, or a small
    space.
    """
    tuned = kernel_of(problem, part)
    if not tuned.first:
        return list(space.configs())
    names = (*tuned.blocks, "num_warps", "num_stages")
    values = itertools.product(tuned.first, _FIRST_LAUNCHES)
    found = (Config(dict(zip(names, (*t, *o), strict=True))) for t, o in values)
    return [config for config in found if space.legal(config)]
