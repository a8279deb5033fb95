"""The configurations known before a run: what the engine runs, and winners of other layers.

`tuner.tuning.seeds` elects seeds from the winners; this module says how far a file's layer is from
a problem.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cache, partial

from tuner.devices.table import Device
from tuner.engines.config_files import launch_config, read_lenient
from tuner.families.fused_moe.engine import MoeEngine, MoeFileKey, ShippedFile
from tuner.families.fused_moe.problem import BATCH_SIZES, FusedMoe, Gemm, gemm_of
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config, Part, Point
from tuner.tuning.seeds import ballots_of, device_distance, elect, in_turn, octaves
from tuner.tuning.space import Space


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
    """Distinct legal configurations for each point: `known` ones first, then elected ones.

    `at` has the space of each point, and `spaces` the space of each gemm.
    `known`: configurations that are surely worth a trial, such as the engine's.
    `foreseen`: the device model's best. They alternate with the elected ones.
    `without`: (E, N) of files to ignore, for a fair evaluation of a search.
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
    """An octave of N is one unit, an octave of E is half of one."""
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


def baseline_configs(
    engine: MoeEngine,
    problem: FusedMoe,
    device: Device,
    triton: str,
    gemms: Sequence[Gemm],
    batch_sizes: Iterable[int],
) -> dict[Point, dict[str, Config]]:
    """By point: "default", and "shipped" if the loader finds a file.

    The points cover the engine's own batch sizes, `batch_sizes`, and the shipped files' sizes. An
    exported file must hold them all, because with a file the engine no longer uses its heuristic.
    """
    shipped = _shipped_sizes(engine, problem, device, triton)
    found: dict[Point, dict[str, Config]] = {}
    for size in sorted({*BATCH_SIZES, *batch_sizes, *shipped}):
        by_name = engine.incumbents(problem, device, size, triton)
        for gemm in gemms:
            configs = {
                name: launch_config(pair[gemm], device.target.backend)
                for name, pair in by_name.items()
            }
            found[Point(size, gemm)] = configs
    return found


def older_files(
    problem: FusedMoe, device_name: str, corpus: Iterable[ShippedFile]
) -> list[ShippedFile]:
    """Shipped files for the problem and GPU whose names lack the flag for scales per channel.

    Files that are older than this flag kept their names.
    """
    if not problem.per_channel_quant:
        return []
    wanted = (problem.E, problem.N, device_name, problem.dtype.value, Gemm.UP, False)
    return [file for file in corpus if _identity(file.key) == wanted]


def _identity(key: MoeFileKey) -> tuple[object, ...]:
    return (key.E, key.N, key.device, key.dtype, key.gemm, key.per_channel_quant)


def _shipped_sizes(engine: MoeEngine, problem: FusedMoe, device: Device, triton: str) -> set[int]:
    sizes: set[int] = set()
    for gemm in Gemm:
        path = engine.find_file(engine.package_root, problem, device, gemm, triton)
        if path:
            sizes.update(read_lenient(path, engine.fields).entries)
    return sizes
