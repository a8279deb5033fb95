"""The configurations that an engine would run without this tuner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tuner.devices.table import Device
from tuner.engines.config_files import launch_config, read_lenient
from tuner.families.fused_moe.engine import MoeEngine, MoeFileKey, ShippedFile
from tuner.families.fused_moe.problem import BATCH_SIZES, FusedMoe, Gemm
from tuner.problems.points import Config, Point


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
