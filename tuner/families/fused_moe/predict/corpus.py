"""A weak prior on configurations, from the winners that an engine ships.

Every shipped entry votes for its value on each axis, with a weight that falls with the distance
between its problem and this one. The votes become smoothed shares, so few files have little
influence and no files have none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from tuner.devices.table import Device, devices
from tuner.devices.target import Target
from tuner.families.fused_moe.engine import ShippedFile
from tuner.families.fused_moe.problem import FusedMoe, gemm_of
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config, Point

AXES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
SMOOTHING = 1.0  # initial votes of every value of an axis


@dataclass(frozen=True)
class Voter:
    """A shipped file, and the similarity of its problem to the predicted one."""

    file: ShippedFile
    weight: float


class Prior:
    """Rates how common a configuration's values are among winners of similar problems."""

    def __init__(self, problem: FusedMoe, device: Device, files: Iterable[ShippedFile]) -> None:
        self._problem = problem
        target_of = {known.name: known.target for known in devices()}
        self._voters = [
            Voter(file, weight)
            for file in files
            if file.entries and (weight := _likeness(problem, device, file, target_of))
        ]
        self._shares = lru_cache(maxsize=None)(self._count)

    def shortfall(self, point: Point, config: Config) -> float:
        """The mean over the axes of log(commonest value's share / share of this value).

        It is 0 if all values are the commonest, and larger for rarer values.
        """
        shares = self._shares(point)
        found = [of.get(config[axis], of[0]) for axis, of in shares.items()]
        return sum(found) / len(found)

    def _count(self, point: Point) -> dict[str, dict[int, float]]:
        """The shortfall of each value, by axis. The key 0 is for all values without votes."""
        votes: dict[str, dict[int, float]] = {axis: {} for axis in AXES}
        for voter in self._voters:
            for batch_size, config in voter.file.entries.items():
                weight = voter.weight * self._nearness(voter.file, batch_size, point)
                for axis in AXES if weight > 1e-3 else ():
                    if axis in config:
                        votes[axis][config[axis]] = votes[axis].get(config[axis], 0.0) + weight
        return {axis: _shortfalls(counted) for axis, counted in votes.items()}

    def _nearness(self, file: ShippedFile, batch_size: int, point: Point) -> float:
        """The weight of an entry at a point, by its gemm and the octaves in tokens per expert."""
        wanted = point.batch_size / self._problem.E
        # A file without a `_down` file beside it was tuned for the sum of both gemms.
        same = 1.0 if file.key.gemm is gemm_of(point) else 0.5
        return same * _decayed(max(1, batch_size) / file.key.E, wanted)


@lru_cache(maxsize=4096)
def _decayed(there: float, wanted: float) -> float:
    """What the octaves between two numbers of tokens per expert leave of a vote."""
    return math.exp(-abs(math.log2(there / wanted)))


def _shortfalls(votes: Mapping[int, float]) -> dict[int, float]:
    most = SMOOTHING + max(votes.values(), default=0.0)
    return {
        value: math.log(most / (SMOOTHING + count)) for value, count in {0: 0.0, **votes}.items()
    }


def _likeness(
    problem: FusedMoe, device: Device, file: ShippedFile, target_of: Mapping[str, Target]
) -> float:
    """The similarity of a shipped file to this problem and device, at most 1.

    Each difference makes the file's winners less likely to win here.
    """
    key = file.key
    if key.device not in target_of:
        return 0.0
    dtype = Dtype(key.dtype) if key.dtype else Dtype.BFLOAT16
    weight = 1.0
    if dtype is not problem.dtype:
        same_widths = (dtype.weight_bits, dtype.activation_bits) == (
            problem.dtype.weight_bits,
            problem.dtype.activation_bits,
        )
        weight *= 0.3 if same_widths else 0.1
    if key.block_shape != problem.block_shape:
        weight *= 0.3
    if key.device != device.name:
        weight *= 0.7 if target_of[key.device] == device.target else 0.3
    octaves = abs(math.log2(key.intermediate_size / problem.N))
    return weight * math.exp(-octaves / 2)
