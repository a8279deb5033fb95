"""Bound dense GEMM kernels: what they compute, and what they compile to."""

from __future__ import annotations

import math

import pytest
from interpret_dense_gemm import CASES
from interpreter import interpreted
from real_sglang import VERSIONS
from strata import of_each_kind
from tiers import only

from tuner.compile import CompileJob, Farm
from tuner.devices.target import cuda_target
from tuner.engines.engine import find_engine
from tuner.families.dense_gemm.engine import gemm_engine
from tuner.families.dense_gemm.problem import parse_dense_gemm
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config
from tuner.problems.results import Compiled, Status

NEWEST = "0.5.23"
# Relative to the largest value: one unit in the last place, as the interpreter cuts bf16.
TOLERANCE = {Dtype.BFLOAT16: 2**-7, Dtype.FLOAT16: 2**-10}


def refusal(version: str, case: str) -> str:
    """What a version says of a case that it has nothing for; empty for all others."""
    if "channel" in case and version == "0.4.4":
        return "0.4.4 has no Triton kernel"
    if case == "fp8 channel" and version != NEWEST:
        return "always runs its default"
    if ("swapped" in case or "split" in case) and version != NEWEST:
        return "takes no config key"
    return ""


@pytest.mark.parametrize("version", only([NEWEST], VERSIONS))
def test_bound_kernels_compute_the_dense_product(version, tmp_path):
    errors = interpreted("interpret_dense_gemm.py", version, tmp_path)
    assert errors.keys() == CASES.keys()
    for case, error in errors.items():
        if says := refusal(version, case):
            assert says in error, case
        else:
            assert not math.isnan(error), case
            assert error <= TOLERANCE[parse_dense_gemm(CASES[case][0]).out], case


# Compiled

FP8 = parse_dense_gemm("block_gemm:N=2112,K=7168,dtype=fp8_w8a8,block=128x128")
FP8_32 = parse_dense_gemm("block_gemm:N=2112,K=7168,dtype=fp8_w8a8,block=32x32")
INT8 = parse_dense_gemm("block_gemm:N=2112,K=7168,dtype=int8_w8a8,block=128x128")


def tile(m: int, n: int, k: int, warps: int, stages: int, **more: int) -> Config:
    sizes = {"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": n, "BLOCK_SIZE_K": k, "GROUP_SIZE_M": 32}
    return Config({**sizes, "num_warps": warps, "num_stages": stages, **more})


# Shared bytes of Triton 3.6.0, which this checkout compiles with, measured before this code was
# written with a binding made by hand.
SHARED = [
    (FP8, tile(64, 128, 128, 4, 3), {89: 49_664, 90: 74_240, 100: 74_256, 120: 49_664}),
    (FP8, tile(16, 128, 128, 4, 4), {89: 55_808, 90: 55_808, 100: 55_808, 120: 55_808}),
    (FP8, tile(64, 32, 128, 4, 5), {89: 49_152, 90: 61_440, 100: 61_584, 120: 49_152}),
    (FP8, tile(128, 128, 128, 8, 4), {89: 98_304, 90: 131_072, 100: 131_600, 120: 98_304}),
    (FP8, tile(256, 128, 128, 8, 3), {89: 99_328, 90: 148_480, 100: 147_984, 120: 99_328}),
    (FP8_32, tile(16, 128, 32, 4, 4, SWAP_AB=1), {90: 18_944}),
    (INT8, tile(64, 128, 128, 4, 3), {89: 49_664, 90: 74_240, 120: 49_664}),
    (INT8, tile(128, 128, 128, 8, 4), {89: 98_304, 90: 131_072, 120: 98_304}),
]


def compiled(farm: Farm, jobs: list[CompileJob]) -> dict[CompileJob, Compiled]:
    farm.submit(jobs)
    return dict(farm.completed())


@pytest.mark.timeout(900)
def test_every_kernel_compiles(farm):
    """The two kernels of a split, and channels with both kinds of accumulator."""
    kernels = gemm_engine(find_engine(f"sglang=={NEWEST}")).lift()
    split = tile(16, 64, 32, 4, 3, SWAP_AB=1, SPLIT_K=16)
    cases = [(FP8_32, split, 90)]
    for dtype in ("fp8_w8a8", "int8_w8a8"):
        channel = parse_dense_gemm(f"channel_gemm:N=2112,K=7168,dtype={dtype}")
        for arch in (89, 90):
            target = cuda_target(*divmod(arch, 10))
            cases.append((channel, kernels.default_config(channel, 16, target), arch))
    jobs = []
    for problem, config, arch in cases:
        target = cuda_target(*divmod(arch, 10))
        for launch in kernels.launches(problem, 16, config, target):
            jobs.append(CompileJob(kernels.lifted, launch.binding.variant(), target))
    found = compiled(farm, jobs)
    assert len(found) == 6
    assert {result.status for result in found.values()} == {Status.OK}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", only([8], [8, 27]))
def test_shared_bytes_are_those_of_the_table(farm, count):
    kernels = gemm_engine(find_engine(f"sglang=={NEWEST}")).lift()
    rows = [
        (problem, config, arch, shared)
        for problem, config, expected in SHARED
        for arch, shared in expected.items()
    ]
    jobs = {}
    for problem, config, arch, shared in of_each_kind(rows, lambda row: (row[0], row[2]), count):
        target = cuda_target(*divmod(arch, 10))
        [launch] = kernels.launches(problem, 64, config, target)
        job = CompileJob(kernels.lifted, launch.binding.variant(), target)
        jobs[job] = problem.spec(), config.key, arch, shared
    assert len(jobs) == count
    found = compiled(farm, list(jobs))
    assert {what[:3]: found[job].shared_bytes for job, what in jobs.items()} == {
        what[:3]: what[3] for what in jobs.values()
    }
    assert all(result.status is Status.OK for result in found.values())


def test_shapes_of_a_type_share_machine_code():
    """A scale's stride is K / 128. It is a multiple of 16 or not, so there are two variants."""
    kernels = gemm_engine(find_engine(f"sglang=={NEWEST}")).lift()
    config, target = tile(64, 32, 128, 4, 5), cuda_target(9, 0)
    shapes = [(2112, 7168), (3072, 1536), (4608, 7168), (25600, 5120)]
    wide = [(7168, 2048), (5120, 4096)]
    keys = [
        {
            kernels.launches(
                parse_dense_gemm(f"block_gemm:N={n},K={k},dtype=fp8_w8a8,block=128x128"),
                M,
                config,
                target,
            )[0]
            .binding.variant()
            .key
            for n, k in some
            for M in (16, 64, 4096)
        }
        for some in (shapes, wide)
    ]
    assert [len(some) for some in keys] == [1, 1]
    assert not keys[0] & keys[1]
