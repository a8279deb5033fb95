"""What an engine runs for a fused-MoE layer without this tuner, and its makers' own entries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from tuner.devices.table import Device
from tuner.engines.config_files import launch_config, read_lenient
from tuner.errors import MalformedConfigFile
from tuner.families.fused_moe.engine import MoeEngine, format_file_name
from tuner.families.fused_moe.problem import FusedMoe, Gemm, gemm_of
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config, Point, folder_version
from tuner.tuning.baselines import Baselines, tuned_near


@dataclass(frozen=True)
class MoeBaselines(Baselines):
    """What the engine runs, and entries for the card in a file that its servers do not ask for."""

    unread: Path | None = None  # that file
    unread_entries: Mapping[Point, Config] = field(default_factory=dict)

    @cached_property
    def trusted(self) -> Mapping[Point, Config]:
        """What the makers measured on the card, near its size. It may not run with this Triton."""
        shipped = {
            point: self.configs[point]["shipped"] for point in self.configs if self._ships(point)
        }
        return {**self.unread_entries, **shipped}


def find_baselines(
    engine: MoeEngine,
    problem: FusedMoe,
    device: Device,
    triton: str,
    gemms: Sequence[Gemm],
    batch_sizes: Iterable[int],
) -> MoeBaselines:
    """By point: "default", and "shipped" if the loader finds a file.

    The points cover what a file must hold, and `batch_sizes`.
    """
    files = _files(engine, problem, device, triton)
    keys = [read_lenient(path, engine.fields).entries.keys() for path in files.values()]
    configs: dict[Point, dict[str, Config]] = {}
    near: set[Point] = set()
    for size in sorted({*engine.sizes(problem, device, triton), *batch_sizes}):
        by_name = engine.incumbents(problem, device, size, triton)
        for gemm in gemms:
            configs[Point(size, gemm)] = {
                name: launch_config(pair[gemm], device.target.platform)
                for name, pair in by_name.items()
            }
        if Gemm.UP in files and "shipped" in by_name and all(tuned_near(size, k) for k in keys):
            near.update(Point(size, gemm) for gemm in gemms)
    # An entry of one gemm may have another BLOCK_SIZE_M than the store has for the other gemm.
    whole = len(gemms) > 1 or not engine.has_down_files()
    found = MoeBaselines(configs, frozenset(near), uncompiled=whole)
    return found if files else _with_unread(found, engine, problem, device)


def _files(engine: MoeEngine, problem: FusedMoe, device: Device, triton: str) -> dict[Gemm, Path]:
    """The files that the loader reads."""
    found = {
        gemm: engine.find_file(None, problem, device, gemm, triton)
        for gemm in (Gemm if engine.has_down_files() else (Gemm.UP,))
    }
    return {gemm: path for gemm, path in found.items() if path is not None}


def _with_unread(
    found: MoeBaselines, engine: MoeEngine, problem: FusedMoe, device: Device
) -> MoeBaselines:
    """The baselines with the entries of the newest file for the card that the loader does not find:
    of another Triton, or under a name of before the flag for scales per channel.
    """
    up, down = (_unread(engine, problem, device, gemm) for gemm in (Gemm.UP, Gemm.DOWN))
    if up is None:
        return found
    files = {Gemm.UP: up, Gemm.DOWN: down if down and down.parent == up.parent else up}
    try:
        entries = {gemm: read_lenient(path, engine.fields).entries for gemm, path in files.items()}
    except MalformedConfigFile:
        return found  # no server reads it
    picked: dict[Point, Config] = {}
    for point in found.configs:
        some = entries[gemm_of(point)]
        if all(tuned_near(point.batch_size, each) for each in entries.values()):
            config = engine.pick(some, point.batch_size)
            picked[point] = launch_config(config, device.target.platform)
    return replace(found, unread=up, unread_entries=picked)


def _unread(engine: MoeEngine, problem: FusedMoe, device: Device, gemm: Gemm) -> Path | None:
    if gemm is Gemm.DOWN and not engine.has_down_files():
        return None
    name = engine.file_name(problem, device, gemm)
    names = [name]
    if problem.dtype is Dtype.INT8_W8A8 and problem.per_channel_quant:
        # Before the flag, names of int8 without blocks meant scales per channel (sglang 0.4.4,
        # fused_moe_kernel: "channel-wise"), and those of fp8 one scale for all.
        key = replace(engine.read_file_name(name), per_channel_quant=False)
        names.append(format_file_name(key))
    paths = [path for path in sorted(engine.configs.glob(engine.pattern)) if path.name in names]
    return max(paths, key=_age, default=None)


def _age(path: Path) -> list[int]:
    version = folder_version(path.parent.name)
    return [int(part) for part in version.split(".") if part.isdecimal()]
