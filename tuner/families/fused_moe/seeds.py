"""The first configurations of a search, from known winners.

The files that an engine ships hold the winners of other problems. Each entry votes for its
configuration, with a weight that falls with the distance between its problem and this one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import zip_longest

from tuner.devices.table import Device, find_device
from tuner.errors import UnknownDevice
from tuner.families.fused_moe.engine import FileKey, ShippedFile
from tuner.families.fused_moe.problem import FusedMoe, Gemm, gemm_of
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config, Part, Point
from tuner.tuning.space import Space

# A vote halves with each unit of distance. An octave of batch size or of N is one unit, an octave
# of E is half of one. No distance was fitted to a recording.
_HALF = 0.5
_LIMIT = 16  # seeds per point, more than any budget uses


def seeds_for(
    points: Iterable[Point],
    problem: FusedMoe,
    device: Device,
    spaces: Mapping[Part, Space],
    shipped: Iterable[ShippedFile],
    *,
    known: Mapping[Point, Sequence[Config]] | None = None,
    foreseen: Mapping[Point, Sequence[Config]] | None = None,
    without: Container[tuple[int, int]] = (),
) -> dict[Point, list[Config]]:
    """Distinct legal configurations for each point: `known` ones first, then elected ones.

    `known`: configurations that are surely worth a trial, such as the engine's.
    `foreseen`: the device model's best. They alternate with the elected ones, because the model
    and the votes are wrong at different points.
    `without`: (E, N) of files to ignore, for a fair evaluation of a search.
    """
    files = [file for file in shipped if (file.key.E, file.key.N) not in without]
    ballots = {
        gemm: _ballots(files, problem, device, gemm, spaces[gemm])
        for gemm in Gemm
        if gemm in spaces
    }
    seeds = {}
    for point in points:
        space = spaces[gemm_of(point)]
        first = [space.nearest(config) for config in (known or {}).get(point, ())]
        voted = _elect(_votes(ballots[gemm_of(point)], point.batch_size), space)
        modelled = [space.nearest(config) for config in (foreseen or {}).get(point, ())]
        turns = (c for pair in zip_longest(modelled, voted) for c in pair if c is not None)
        seeds[point] = list(dict.fromkeys([*first, *turns]))
    return seeds


def _ballots(
    files: Iterable[ShippedFile], problem: FusedMoe, device: Device, gemm: Gemm, space: Space
) -> list[tuple[float, int, Config]]:
    """(distance, batch size, nearest legal configuration) of each entry."""
    nearest = cache(space.nearest)  # files share most of their configurations
    away = cache(partial(_device_distance, device=device))
    ballots = []
    for file in files:
        distance = _problem_distance(file.key, problem, gemm) + away(file.key.device)
        ballots += [(distance, size, nearest(config)) for size, config in file.entries.items()]
    return ballots


def _votes(ballots: Iterable[tuple[float, int, Config]], batch_size: int) -> dict[Config, float]:
    votes: dict[Config, float] = defaultdict(float)
    for distance, near_size, config in ballots:
        votes[config] += _HALF ** (distance + _octaves(near_size, batch_size))
    return votes


def _elect(votes: dict[Config, float], space: Space) -> list[Config]:
    """The configurations with the most votes. Each halves the votes of its neighbours in the grid.

    Otherwise similar configurations would fill the list, and the search tries neighbours anyway.
    """
    elected: list[Config] = []
    while votes and len(elected) < _LIMIT:
        winner = max(votes, key=lambda config: (votes[config], config))
        elected.append(winner)
        del votes[winner]
        for near in space.neighbours(winner):
            if near in votes:
                votes[near] *= _HALF
    return elected


def _problem_distance(key: FileKey, problem: FusedMoe, gemm: Gemm) -> float:
    return (
        _dtype_distance(key, problem)
        + _octaves(key.E, problem.E) / 2
        + _octaves(key.intermediate_size, problem.N)
        + (key.gemm is not gemm)
    )


def _dtype_distance(key: FileKey, problem: FusedMoe) -> float:
    wide = (Dtype.BFLOAT16, Dtype.FLOAT16)
    dtype = None if problem.dtype in wide else problem.dtype.value  # as the engine's names have it
    blocks = (key.block_shape is None) != (problem.block_shape is None)
    if key.dtype == dtype:
        return blocks
    narrow = problem.dtype.activation_bits == 8 and (key.dtype or "").endswith("w8a8")
    return (2 if narrow else 4) + blocks


def _device_distance(name: str, device: Device) -> int:
    if name == device.name:
        return 0
    try:
        return 1 if find_device(name).target == device.target else 2
    except UnknownDevice:
        return 2


def _octaves(a: int, b: int) -> float:
    return abs(math.log2(a / b))
