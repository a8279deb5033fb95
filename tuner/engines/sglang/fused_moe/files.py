"""sglang's fused-MoE config files on disk, and how sglang picks their entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tuner.devices.table import Device
from tuner.devices.target import CUDA
from tuner.engines.config_files import TILES, EntryFields, nearest_entry, read_lenient
from tuner.engines.sglang.fused_moe.arguments import takes_tma
from tuner.engines.sglang.fused_moe.binding import FusedMoeKernels, lift_fused_moe
from tuner.engines.sglang.fused_moe.file_names import (
    engine_dtype,
    file_key,
    weight_columns,
)
from tuner.engines.sglang.fused_moe.heuristic import run_heuristic
from tuner.engines.sglang.fused_moe.loader_rules import (
    CONFIG_DIR_VARIABLE,
    LoaderRules,
    read_loader_rules,
)
from tuner.engines.sglang.package import SGLang
from tuner.errors import UnsupportedKernel
from tuner.families.fused_moe.engine import FileKey, ShippedFile
from tuner.families.fused_moe.file_names import format_file_name, parse_file_name
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.families.fused_moe.shipped import shipped_files
from tuner.problems.points import Config


@dataclass(frozen=True)
class SGLangFusedMoe:
    """The fused-MoE layer of one copy of sglang; see `MoeEngine` for the interface."""

    engine: SGLang

    @property
    def name(self) -> str:
        return self.engine.name

    @property
    def version(self) -> str:
        return self.engine.version

    @cached_property
    def rules(self) -> LoaderRules:
        return read_loader_rules(self.engine.root, f"{self.name} {self.version}")

    # Locations of files

    @property
    def package_root(self) -> Path:
        """The folder of the package that holds the shipped configs/."""
        return self.rules.source.parent

    @property
    def config_dir_variable(self) -> str | None:
        return CONFIG_DIR_VARIABLE if self.rules.config_dir_env else None

    @property
    def fields(self) -> EntryFields:
        return TILES

    def config_dir(self, root: Path, triton: str) -> Path:
        """The folder under a root for a Triton version such as "3.6.0"."""
        return self.rules.config_dir(root, triton)

    def has_down_files(self) -> bool:
        return self.rules.down_files

    def file_name(self, problem: FusedMoe, device: Device, gemm: Gemm) -> str:
        """The name that the engine looks for. Raises UnsupportedKernel if it looks for none."""
        if gemm is Gemm.DOWN and not self.rules.down_files:
            raise UnsupportedKernel(f"{self.rules.engine} reads no _down files: tune up alone")
        per_channel = self.rules.per_channel_names
        return format_file_name(file_key(problem, device.name, gemm, per_channel=per_channel))

    def read_file_name(self, name: str) -> FileKey:
        return parse_file_name(name)

    # The engine's choices

    def find_file(
        self, root: Path, problem: FusedMoe, device: Device, gemm: Gemm, triton: str
    ) -> Path | None:
        """The file that the engine's loader reads, or None if it finds none.

        For DOWN this is the up file in versions that use it for a missing down file.
        """
        if gemm is Gemm.DOWN and not self.rules.down_files:
            return None
        name = self.file_name(problem, device, gemm)
        for folder in self.rules.search_dirs(root, triton):
            if (folder / name).exists():
                return folder / name
        if gemm is Gemm.DOWN and self.rules.down_reuses_up:
            return self.find_file(root, problem, device, Gemm.UP, triton)
        return None

    def pick(self, entries: Mapping[int, Config], batch_size: int) -> Config:
        return nearest_entry(entries, batch_size)

    def default_config(self, problem: FusedMoe, device: Device, batch_size: int) -> Config:
        """The heuristic's configuration, which the engine runs for both gemms without a file.

        It may lack num_warps and num_stages; `launch_config` adds Triton's defaults.
        """
        columns, reduced = weight_columns(problem)
        arguments = {
            "M": batch_size,
            "E": problem.E,
            "N": columns,
            "K": reduced,
            "topk": problem.top_k,
            "dtype": engine_dtype(problem.dtype),
            "is_marlin": False,
            "block_shape": list(problem.block_shape) if problem.block_shape else None,
        }
        rules = self.rules
        found = run_heuristic(rules.source, self.engine.root, rules.engine, device, arguments)
        return Config(found)

    def incumbents(
        self,
        problem: FusedMoe,
        device: Device,
        batch_size: int,
        triton: str,
        root: Path | None = None,
    ) -> dict[str, dict[Gemm, Config]]:
        """What the engine runs at a batch size: "default" without files, "shipped" with them.

        "shipped" exists if the loader finds a file for up or down under `root` (by default the
        package), unless the two files together would stop the engine.
        """
        default = self.default_config(problem, device, batch_size)
        found = {"default": dict.fromkeys(Gemm, default)}
        folder = root or self.package_root
        up = self._shipped_entry(folder, problem, device, Gemm.UP, batch_size, triton)
        down = self._shipped_entry(folder, problem, device, Gemm.DOWN, batch_size, triton)
        if up is None and down is None:
            return found
        up = up or default
        down = down or up  # without a down file, one configuration serves both gemms
        if down["BLOCK_SIZE_M"] != up["BLOCK_SIZE_M"]:
            if self.rules.stops_on_block_m:
                return found
            down = down.replace(BLOCK_SIZE_M=up["BLOCK_SIZE_M"])  # the engine sorts tokens once
        found["shipped"] = {Gemm.UP: up, Gemm.DOWN: down}
        return found

    def _shipped_entry(
        self,
        root: Path,
        problem: FusedMoe,
        device: Device,
        gemm: Gemm,
        batch_size: int,
        triton: str,
    ) -> Config | None:
        path = self.find_file(root, problem, device, gemm, triton)
        entries = read_lenient(path).entries if path else {}
        return self.pick(entries, batch_size) if entries else None

    # Shipped files

    def shipped(self, *, nvidia_only: bool = True) -> Iterator[ShippedFile]:
        """All fused-MoE files in the package, sorted by path. Other kernels' files are skipped."""
        found = shipped_files(self.package_root / "configs", parse_file_name, self.fields)
        return (file for file in found if file.nvidia or not nvidia_only)

    def takes_tma(self, problem: FusedMoe) -> bool:
        return takes_tma(problem) and self.lift().has_tma()

    def lift(self, backend: str = CUDA) -> FusedMoeKernels:
        return lift_fused_moe(self.engine, backend)
