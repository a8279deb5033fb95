"""sglang's fused-MoE config files on disk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tuner.devices.table import Device
from tuner.devices.target import CUDA
from tuner.engines.config_files import TILES, EntryFields
from tuner.engines.file_engine import first_file
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
from tuner.families.fused_moe.engine import MoeEngine, MoeFileKey
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.families.fused_moe.warning_line import format_file_name, parse_file_name
from tuner.problems.points import Config


@dataclass(frozen=True)
class SGLangFusedMoe(MoeEngine):
    """The fused-MoE layer of one copy of sglang."""

    engine: SGLang

    @cached_property
    def rules(self) -> LoaderRules:
        return read_loader_rules(self.engine.root, f"{self.name} {self.version}")

    @property
    def package_root(self) -> Path:
        return self.rules.source.parent

    @property
    def config_dir_variable(self) -> str | None:
        return CONFIG_DIR_VARIABLE if self.rules.config_dir_env else None

    @property
    def fields(self) -> EntryFields:
        return TILES

    def config_dir(self, root: Path, triton: str) -> Path:
        return self.rules.config_dir(root, triton)

    def has_down_files(self) -> bool:
        return self.rules.down_files

    def file_name(self, problem: FusedMoe, device: Device, gemm: Gemm) -> str:
        if gemm is Gemm.DOWN and not self.rules.down_files:
            raise UnsupportedKernel(f"{self.rules.engine} reads no _down files: tune up alone")
        per_channel = self.rules.per_channel_names
        return format_file_name(file_key(problem, device.name, gemm, per_channel=per_channel))

    def read_file_name(self, name: str) -> MoeFileKey:
        return parse_file_name(name)

    def find_file(
        self, root: Path, problem: FusedMoe, device: Device, gemm: Gemm, triton: str
    ) -> Path | None:
        """For DOWN this is the up file in versions that use it for a missing down file."""
        if gemm is Gemm.DOWN and not self.rules.down_files:
            return None
        name = self.file_name(problem, device, gemm)
        if found := first_file(self.rules.search_dirs(root, triton), name):
            return found
        if gemm is Gemm.DOWN and self.rules.down_reuses_up:
            return self.find_file(root, problem, device, Gemm.UP, triton)
        return None

    def default_config(self, problem: FusedMoe, device: Device, batch_size: int) -> Config:
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
        """There is no "shipped" if the files of up and down together would stop the engine."""
        default = self.default_config(problem, device, batch_size)
        found = {"default": dict.fromkeys(Gemm, default)}
        folder = root or self.package_root
        up = self.entry(folder, problem, device, Gemm.UP, batch_size, triton)
        down = self.entry(folder, problem, device, Gemm.DOWN, batch_size, triton)
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

    def takes_tma(self, problem: FusedMoe) -> bool:
        return takes_tma(problem) and self.lift().has_tma()

    def lift(self, backend: str = CUDA) -> FusedMoeKernels:
        return lift_fused_moe(self.engine, backend)
