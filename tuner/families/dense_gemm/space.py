"""Define the launch configurations that are legal for a dense GEMM on a device."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial

from tuner.devices.table import Device
from tuner.devices.target import HIP
from tuner.engines.config_files import launch_config
from tuner.families.dense_gemm.engine import GemmEngine, GemmFileKey, ShippedFile
from tuner.families.dense_gemm.problem import DenseGemm, DensePart
from tuner.problems.points import Config, Point, Problem, triton_defaults
from tuner.tuning.seeds import (
    Baselines,
    ballots_of,
    device_distance,
    elect,
    in_turn,
    octaves,
    tuned_near,
)
from tuner.tuning.space import Rule, Space, without_equal_groups

# Values that mean the same as an absent key. Kernels that do not take a key refuse it, so the
# neutral value is never written.
UNSAID = {"SWAP_AB": 0, "SPLIT_K": 1}
# The grid of sglang's script (benchmark/kernels/quantization/tuning_block_wise_kernel.py), with
# two warps for small tiles and a sixth stage, which won on an H100 and on cards with 99 KB of
# shared memory.
_BLOCKS: Mapping[str, tuple[int, ...]] = {
    "BLOCK_SIZE_M": (16, 32, 64, 128, 256),
    "BLOCK_SIZE_N": (32, 64, 128, 256),
    "BLOCK_SIZE_K": (32, 64, 128),
    "GROUP_SIZE_M": (1, 16, 32, 64),
    "num_warps": (2, 4, 8),
    "num_stages": (2, 3, 4, 5, 6),
}
# The values that sglang 0.5.23 ships for MI300X, MI325X and MI455X, with neighbours.
_ROCM_BLOCKS: Mapping[str, tuple[int, ...]] = {
    "BLOCK_SIZE_M": (16, 32, 64, 128, 256),
    "BLOCK_SIZE_N": (16, 32, 64, 128, 256),
    "BLOCK_SIZE_K": (32, 64, 128),
    "GROUP_SIZE_M": (1, 4, 8, 16, 32),
    "num_warps": (1, 2, 4, 8),
    "num_stages": (1, 2, 3),
}
# The values that sglang 0.5.23 ships for an L40S.
_CHANNELS: Mapping[str, tuple[int, ...]] = {
    "BLOCK_SIZE_M": (16, 32, 64, 128, 256),
    "BLOCK_SIZE_N": (16, 32, 64, 128, 256),
    "BLOCK_SIZE_K": (64, 128, 256, 512, 1024),
    "num_warps": (2, 4, 8),
    "num_stages": (1, 2, 3, 4, 5),
}
GROWING = frozenset({"BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_stages"})
MOST_ROW_TILES = 64
LEAST_TALL = 64  # rows of the smallest tile that may be taller than a batch


def gemm_space(
    problem: DenseGemm,
    device: Device,
    choices: Mapping[str, tuple[int, ...]],
    loaded: Callable[[Config], Config],
) -> Space:
    """Return the space of a problem for all batch sizes; `space_at` is smaller.

    `choices`: further keys, from `GemmKernels.choices`. `loaded`: `GemmEngine.effective`, which
    depends on BLOCK_SIZE_K alone.
    """
    blocks = _ROCM_BLOCKS if device.target.platform == HIP else _BLOCKS
    axes = dict(blocks if problem.block else _CHANNELS)
    tile = {name: values[0] for name, values in axes.items()}

    def stays(depth: int) -> bool:
        config = Config({**tile, "BLOCK_SIZE_K": depth})
        return loaded(config)["BLOCK_SIZE_K"] == depth

    depths = tuple(k for k in axes["BLOCK_SIZE_K"] if _depth_is_right(problem, k) and stays(k))
    # With other blocks than the grid's, only a step of a whole block is sure to be right.
    axes["BLOCK_SIZE_K"] = depths or (problem.block[1] if problem.block else 64,)
    axes |= {name: values for name, values in choices.items() if len(values) > 1}
    aligned = problem.K % 16 == 0
    return _space(device, problem.block is not None, aligned, tuple(axes.items()))


def _depth_is_right(problem: DenseGemm, depth: int) -> bool:
    """Say whether the kernel multiplies each element with its own scale, in steps that are not
    needlessly short.
    """
    if problem.block is None:
        return depth <= max(64, problem.K)
    block_k = problem.block[1]
    return block_k % depth == 0 and depth >= min(64, block_k)


@lru_cache(maxsize=64)  # all shapes of a model share a space
def _space(
    device: Device, blocks: bool, aligned: bool, axes: tuple[tuple[str, tuple[int, ...]], ...]
) -> Space:
    options = device.architecture.launch_options
    compiler_defaults = {name: values[0] for name, values in options}
    return Space(
        dict(axes),
        tuple(_rules(device, blocks, aligned)),
        growing=GROWING,
        defaults={**triton_defaults(device.target.platform), "GROUP_SIZE_M": 1},
        unsaid={**UNSAID, **compiler_defaults},
    )


def _rules(device: Device, blocks: bool, aligned: bool) -> Iterator[Rule]:
    warp = device.target.warp_size
    most = 64 if blocks else 128
    yield Rule(
        f"at most {most} accumulators a thread",
        "with blocks, a thread holds the total and a step's product: all 1,941 entries that sglang "
        "0.5.23 ships for NVIDIA cards keep it, and the next larger tiles spill",
        lambda c: _tile(c) <= most * warp * c["num_warps"],
    )
    yield Rule(
        "64 threads for the smallest tiles alone",
        "sglang's script has four warps and eight; a larger tile is more work than two issue",
        lambda c: c["num_warps"] * warp > 64 or _tile(c) <= 1024,
    )
    yield Rule(
        "eight warps have four accumulators a thread",
        "an instruction gives a warp 16 x 8 results, so more warps would repeat the work of others",
        lambda c: c["num_warps"] < 8 or _tile(c) >= 4 * 8 * warp,
    )
    yield Rule(
        "operands are swapped for wide tiles alone",
        "_w8a8_block_fp8_matmul_hopper swaps so that weights are an instruction's 64 rows",
        lambda c: not c.get("SWAP_AB") or c["BLOCK_SIZE_M"] < 64 <= c["BLOCK_SIZE_N"],
    )
    if aligned:
        yield Rule(
            "pipelined tiles fit into shared memory",
            "Triton's pipeliner keeps num_stages - 1 tiles of each operand; a floor",
            lambda c: _pipelined_bytes(c) <= device.shared_optin_bytes,
        )


def _tile(config: Config) -> int:
    return config["BLOCK_SIZE_M"] * config["BLOCK_SIZE_N"]


def _pipelined_bytes(config: Config) -> int:
    rows = config["BLOCK_SIZE_M"] + config["BLOCK_SIZE_N"]
    return (config["num_stages"] - 1) * rows * config["BLOCK_SIZE_K"]


def space_at(space: Space, problem: DenseGemm, device: Device, batch_size: int) -> Space:
    """Return the part of a problem's space that can win at a batch size."""
    at = space.narrowed(_rules_at(problem, device, batch_size))
    return without_equal_groups(at, partial(_row_tiles, batch_size))


def _rules_at(problem: DenseGemm, device: Device, M: int) -> Iterator[Rule]:
    tallest = max(LEAST_TALL, 1 << (M - 1).bit_length())
    yield Rule(
        "a tile is not much taller than the batch",
        "its other rows are multiplied for nothing; 64 rows are one instruction of a warpgroup",
        lambda c: c["BLOCK_SIZE_M"] <= tallest,
    )
    yield Rule(
        f"at most {MOST_ROW_TILES} rows of tiles",
        "each row of tiles reads all of B",
        lambda c: _row_tiles(M, c["BLOCK_SIZE_M"]) <= MOST_ROW_TILES,
    )
    yield Rule(
        "K is split only to fill multiprocessors that would idle",
        "each part writes and reads float32 results of its own",
        lambda c: c.get("SPLIT_K", 1) <= max(1.0, _most_splits(problem, device, c, M)),
    )


def _row_tiles(M: int, block_m: int) -> int:
    return -(-M // block_m)


def _most_splits(problem: DenseGemm, device: Device, config: Config, M: int) -> float:
    """Return the most splits that leave at most four blocks for each multiprocessor and at least
    two steps for each split.
    """
    blocks = _row_tiles(M, config["BLOCK_SIZE_M"]) * -(-problem.N // config["BLOCK_SIZE_N"])
    steps = -(-problem.K // config["BLOCK_SIZE_K"])
    return min(4 * device.sm_count / blocks, steps / 2)


def config_cells(config: Config) -> tuple[object, ...]:
    """Return blocks, group, warps, stages and further keys, as tables show them; blank for null."""
    if not config:
        return ("null", None, None, None, "")
    tiles = [config.get(f"BLOCK_SIZE_{axis}", "?") for axis in "MNK"]
    shown = {f"BLOCK_SIZE_{axis}" for axis in "MNK"} | {"GROUP_SIZE_M", "num_warps", "num_stages"}
    further = " ".join(f"{name}={value}" for name, value in config.items() if name not in shown)
    named = (config.get(name) for name in ("GROUP_SIZE_M", "num_warps", "num_stages"))
    return ("x".join(map(str, tiles)), *named, further)


def seeds_for(
    at: Mapping[Point, Space],
    problem: DenseGemm,
    device: Device,
    space: Space,
    shipped: Iterable[ShippedFile],
    *,
    known: Mapping[Point, Sequence[Config]],
    foreseen: Mapping[Point, Sequence[Config]],
    without: Collection[tuple[int, int]] = (),
) -> dict[Point, list[Config]]:
    """Return distinct legal configurations for each point: the `known` first, then the elected.

    `at` has the space of each point, and `space` is the problem's. `known`: configurations that are
    surely worth a trial, such as the engine's. `foreseen`: the device model's best, which alternate
    with the elected. `without`: (N, K) of files to ignore, for a fair evaluation of a search.
    """
    away = cache(partial(device_distance, device=device))
    files = (
        (_problem_distance(file.key, problem) + away(file.key.device), _not_null(file.entries))
        for file in shipped
        if (file.key.N, file.key.K) not in without and _same_parameters(file.key, problem)
    )
    ballots = ballots_of(files, space)
    seeds = {}
    for point, here in at.items():
        voted = elect(ballots, point.batch_size, space, here)
        first = [here.nearest(config) for config in known.get(point, ())]
        modelled = [here.nearest(config) for config in foreseen.get(point, ())]
        seeds[point] = in_turn(first, modelled, voted)
    return seeds


def relatives(
    problem: DenseGemm, chosen: Iterable[tuple[Problem, Mapping[Point, Config]]]
) -> dict[int, list[Config]]:
    """Return, by batch size, the configurations that were chosen for other GEMMs of the model; the
    nearest GEMM is first.
    """
    found: list[tuple[float, int, Config]] = []
    for other, configs in chosen:
        same = isinstance(other, DenseGemm) and (other.dtype, other.block) == (
            problem.dtype,
            problem.block,
        )
        if isinstance(other, DenseGemm) and same:
            away = octaves(other.N, problem.N) + octaves(other.K, problem.K)
            found += [(away, point.batch_size, config) for point, config in configs.items()]
    by_size: dict[int, list[Config]] = {}
    for _, size, config in sorted(found):
        by_size.setdefault(size, []).append(config)
    return {size: list(dict.fromkeys(configs)) for size, configs in by_size.items()}


def _not_null(entries: Mapping[int, Config]) -> dict[int, Config]:
    return {size: config for size, config in entries.items() if config}


def _same_parameters(key: GemmFileKey, problem: DenseGemm) -> bool:
    """Say whether the file's kernel has the problem's parameters."""
    return (key.block is None) == (problem.block is None)


def _problem_distance(key: GemmFileKey, problem: DenseGemm) -> float:
    """Return the distance: half a unit for an octave of N or of K, a unit for another type or
    block.
    """
    return (
        octaves(key.N, problem.N) / 2
        + octaves(key.K, problem.K) / 2
        + (key.dtype != problem.dtype.value)
        + (key.block != problem.block)
    )


def find_baselines(
    engine: GemmEngine, problem: DenseGemm, device: Device, batch_sizes: Iterable[int]
) -> Baselines:
    """Return the baselines at the sizes that a file must hold, and at `batch_sizes`."""
    keys = engine.entries(problem, device)
    found: dict[Point, dict[str, Config]] = {}
    near, platform = set(), device.target.platform
    for size in sorted({*engine.sizes(problem, device), *batch_sizes}):
        point = Point(size, DensePart.DENSE)
        by_name = engine.incumbents(problem, device, size)
        found[point] = {name: launch_config(config, platform) for name, config in by_name.items()}
        if tuned_near(size, keys):
            near.add(point)
    return Baselines(found, frozenset(near))
