"""Define the launch configurations that are legal for a gemm of a fused-MoE layer, and the first to
try.

`tuner.tuning.seeds` elects seeds from other layers' winners; this module computes the distance of a
file's layer to a problem.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial

from tuner.devices.table import Device
from tuner.devices.target import CUDA, HIP
from tuner.families.fused_moe.engine import MoeFileKey, ShippedFile
from tuner.families.fused_moe.problem import FusedMoe, Gemm, gemm_of, sorted_slots
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config, Part, Point, triton_defaults
from tuner.tuning.seeds import ballots_of, device_distance, elect, in_turn, octaves
from tuner.tuning.space import Rule, Space, without_equal_groups


def space_for(
    problem: FusedMoe, device: Device, gemm: Gemm, *, wide: bool = False, tma: bool = False
) -> Space:
    """Return the space of `gemm`. `tma`: the engine's kernel may load through TMA.

    The default grids come from sglang's tuning script, benchmark/kernels/fused_moe_triton/
    common_utils.py: get_configs_compute_bound and get_rocm_configs_compute_bound. The wide grids
    contain them, and on AMD's GPUs the options of Triton's AMD compiler.
    """
    default, wider = _GRIDS[device.target.platform]
    options = dict(device.architecture.launch_options)
    axes = default
    if wide:
        axes = {**wider, **options}
        if tma and device.architecture.has_tma:
            axes = {**axes, "USE_TMA": (0, 1)}
    if problem.block_shape is not None and problem.block_shape[0] and problem.block_shape[1] < 64:
        axes = {**axes, "BLOCK_SIZE_K": (32, 64, 128, 256)}  # only 32 may divide the block
    return Space(
        axes,
        tuple(_rules(problem, device, gemm)),
        growing=frozenset({"BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_stages"}),
        defaults=triton_defaults(device.target.platform),
        unsaid={name: values[0] for name, values in options.items()},
    )


def spaces_at(
    points: Iterable[Point], problem: FusedMoe, spaces: Mapping[Part, Space]
) -> dict[Point, Space]:
    """Return for each point the part of its gemm's space in which all configurations run
    differently.

    However tokens are routed, a launch has no more rows of tiles than the engine has slots for.
    """

    def row_tiles(batch_size: int, block_m: int) -> int:
        return -(-sorted_slots(batch_size * problem.top_k, problem.E, block_m) // block_m)

    return {
        point: without_equal_groups(spaces[point.part], partial(row_tiles, point.batch_size))
        for point in points
    }


_DEFAULT_GRID: Mapping[str, tuple[int, ...]] = {
    "BLOCK_SIZE_M": (16, 32, 64, 128, 256),
    "BLOCK_SIZE_N": (32, 64, 128, 256),
    "BLOCK_SIZE_K": (64, 128, 256),
    "GROUP_SIZE_M": (1, 16, 32, 64),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4, 5),
}
_WIDE_GRID: Mapping[str, tuple[int, ...]] = {
    **_DEFAULT_GRID,
    "BLOCK_SIZE_N": (16, 32, 64, 128, 256),
    "BLOCK_SIZE_K": (32, 64, 128, 256),
    "num_warps": (2, 4, 8, 16),
    "num_stages": (1, 2, 3, 4, 5, 6, 7),
}
# With BLOCK_SIZE_M of 16, which sglang's script lacks and vLLM's has.
_ROCM_GRID: Mapping[str, tuple[int, ...]] = {
    "BLOCK_SIZE_M": (16, 32, 64, 128, 256),
    "BLOCK_SIZE_N": (16, 32, 64, 128, 256),
    "BLOCK_SIZE_K": (32, 64, 128, 256),
    "GROUP_SIZE_M": (1, 4, 8, 16, 32),
    "num_warps": (1, 2, 4, 8),
    "num_stages": (2,),
}
_GRIDS = {
    CUDA: (_DEFAULT_GRID, _WIDE_GRID),
    HIP: (_ROCM_GRID, {**_ROCM_GRID, "num_stages": (1, 2, 3)}),
}


def _rules(problem: FusedMoe, device: Device, gemm: Gemm) -> Iterator[Rule]:
    yield from _ACCUMULATORS[device.target.platform](device.target.warp_size)
    if problem.block_shape is not None:
        yield from _block_rules(problem, problem.block_shape, gemm)
    least = _shared_floor(problem, gemm)
    yield Rule(
        "pipelined tiles fit into shared memory",
        "Triton's pipeliner keeps num_stages - 1 tiles of each operand that it copies "
        "asynchronously; a floor, which all 624 kernels of the H200 recording and 96 others keep",
        lambda c: least(c) <= device.shared_optin_bytes,
    )


def _cuda_accumulators(warp: int) -> Iterator[Rule]:
    yield Rule(
        "at most 256 accumulators a thread",
        "measured: a tile of 65,536 with 4 warps spills, and compiles for minutes",
        lambda c: c["BLOCK_SIZE_M"] * c["BLOCK_SIZE_N"] <= 256 * warp * c["num_warps"],
    )


def _hip_accumulators(warp: int) -> Iterator[Rule]:
    yield Rule(
        "at most 128 accumulators a thread",
        "all entries that sglang 0.5.23 and vLLM 0.33.0 ship for MI cards keep it",
        lambda c: c["BLOCK_SIZE_M"] * c["BLOCK_SIZE_N"] <= 128 * warp * c["num_warps"],
    )
    yield Rule(
        "one warp for the smallest tiles alone",
        "larger tiles compile for more than a minute; sglang 0.5.23 ships none above 2,048",
        lambda c: c["num_warps"] > 1 or c["BLOCK_SIZE_M"] * c["BLOCK_SIZE_N"] <= 2048,
    )


_ACCUMULATORS = {CUDA: _cuda_accumulators, HIP: _hip_accumulators}


def _block_rules(problem: FusedMoe, block: tuple[int, int], gemm: Gemm) -> Iterator[Rule]:
    block_n, block_k = block
    if block_n == 0:  # groups along k: fused_moe_kernel_gptq_awq
        reduced = problem.gemm_shape(gemm)[1]
        yield Rule(
            "BLOCK_SIZE_K divides the reduced length",
            "fused_moe_kernel_gptq_awq loads B without a mask",
            lambda c: reduced % c["BLOCK_SIZE_K"] == 0,
        )
        return
    yield Rule(
        "BLOCK_SIZE_K divides the quantisation block",
        "fused_moe_kernel takes one scale a step, offs_ks = k_start // group_k; "
        "tuning_fused_moe_triton.py leaves the others out",
        lambda c: block_k % c["BLOCK_SIZE_K"] == 0,
    )
    yield Rule(
        "BLOCK_SIZE_N divides the quantisation block or exceeds it",
        "fused_moe_kernel takes one scale a tile if BLOCK_SIZE_N <= group_n",
        lambda c: c["BLOCK_SIZE_N"] > block_n or block_n % c["BLOCK_SIZE_N"] == 0,
    )


def _shared_floor(problem: FusedMoe, gemm: Gemm) -> Callable[[Config], int]:
    """Return a lower bound on the bytes of shared memory that a configuration needs."""
    size = problem.dtype.activation_bits // 8  # bytes per element
    row_bytes = problem.gemm_shape(gemm)[1] * size
    # The bound leaves out loads that may not be copied asynchronously: rows that do not start on
    # 16 bytes, all loads of the gptq kernel (its loop may be unrolled, because its length is a
    # constant), and weights that are narrower than the activations.
    grouped = problem.block_shape is not None and problem.block_shape[0] == 0
    copies_a = row_bytes % 16 == 0 and not grouped
    copies_b = copies_a and problem.dtype.weight_bits == 8 * size

    def floor(config: Config) -> int:
        rows = copies_a * config["BLOCK_SIZE_M"] + copies_b * config["BLOCK_SIZE_N"]
        return (config["num_stages"] - 1) * rows * config["BLOCK_SIZE_K"] * size

    return floor


def seeds_for(
    at: Mapping[Point, Space],
    problem: FusedMoe,
    device: Device,
    spaces: Mapping[Part, Space],
    shipped: Iterable[ShippedFile],
    *,
    known: Mapping[Point, Sequence[Config]] | None = None,
    foreseen: Mapping[Point, Sequence[Config]] | None = None,
    without: Container[tuple[int, int]] = (),
) -> dict[Point, list[Config]]:
    """Return distinct legal configurations for each point: the `known` first, then the elected.

    `at` has the space of each point, and `spaces` the space of each gemm. `known`: configurations
    that are surely worth a trial, such as the engine's. `foreseen`: the device model's best, which
    alternate with the elected. `without`: (E, N) of files to ignore, for a fair evaluation of a
    search.
    """
    files = [file for file in shipped if (file.key.E, file.key.N) not in without]
    away = cache(partial(device_distance, device=device))
    ballots = {
        gemm: ballots_of(
            (
                (_problem_distance(file.key, problem, gemm) + away(file.key.device), file.entries)
                for file in files
            ),
            spaces[gemm],
        )
        for gemm in Gemm
        if gemm in spaces
    }
    seeds = {}
    for point, space in at.items():
        gemm = gemm_of(point)
        voted = elect(ballots[gemm], point.batch_size, spaces[gemm], space)
        first = [space.nearest(config) for config in (known or {}).get(point, ())]
        modelled = [space.nearest(config) for config in (foreseen or {}).get(point, ())]
        seeds[point] = in_turn(first, modelled, voted)
    return seeds


def _problem_distance(key: MoeFileKey, problem: FusedMoe, gemm: Gemm) -> float:
    """Return the distance: a unit for an octave of N, half a unit for an octave of E, a unit for
    the other gemm.
    """
    return (
        _dtype_distance(key, problem)
        + octaves(key.E, problem.E) / 2
        + octaves(key.intermediate_size, problem.N)
        + (key.gemm is not gemm)
    )


def _dtype_distance(key: MoeFileKey, problem: FusedMoe) -> float:
    wide = (Dtype.BFLOAT16, Dtype.FLOAT16)
    dtype = None if problem.dtype in wide else problem.dtype.value  # as the engine's names have it
    blocks = (key.block_shape is None) != (problem.block_shape is None)
    if key.dtype == dtype:
        return blocks
    narrow = problem.dtype.activation_bits == 8 and (key.dtype or "").endswith("w8a8")
    return (2 if narrow else 4) + blocks
