"""What tests of dense GEMMs build: problems, configurations and trials."""

from __future__ import annotations

import cases

from tuner.families.dense_gemm.problem import DensePart, parse_dense_gemm
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Compiled, Measurement, Status, Trial
from tuner.tuning.seeds import Baselines

BLOCKS = parse_dense_gemm("block_gemm:N=2112,K=7168,dtype=fp8_w8a8,block=128x128")
SMALL_BLOCKS = parse_dense_gemm("block_gemm:N=1152,K=1024,dtype=fp8_w8a8,block=32x32")
CHANNELS = parse_dense_gemm("channel_gemm:N=2112,K=7168,dtype=fp8_w8a8")


def point(M: int) -> Point:
    return Point(M, DensePart.DENSE)


def tile(
    m: int = 64, n: int = 128, k: int = 128, group: int = 32, warps: int = 4, stages: int = 3
) -> Config:
    """A configuration with blocks; without arguments, the engine's default."""
    return cases.config(m, n, k, warps, stages, group)


def trial(M: int, config: Config, us: float | None, status: Status = Status.OK) -> Trial:
    """A trial that took `us` microseconds, or (None) did not fit into shared memory."""
    status = Status.OUT_OF_RESOURCES if us is None else status
    compiled = Compiled(Status.OK if us else status, shared_bytes=1024)
    return Trial(Candidate(point(M), config), compiled, Measurement(status, us))


def baselines(by_size: dict[int, dict[str, Config]], tuned_near: tuple[int, ...] = ()) -> Baselines:
    configs = {point(M): named for M, named in by_size.items()}
    return Baselines(configs, frozenset(point(M) for M in tuned_near))
