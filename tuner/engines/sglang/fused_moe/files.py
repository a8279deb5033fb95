"""sglang's fused-MoE config files on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

from tuner.devices.table import Device
from tuner.devices.target import CUDA, HIP
from tuner.engines.config_files import TILES, EntryFields
from tuner.engines.file_engine import first_file
from tuner.engines.sglang.fused_moe.arguments import takes_tma
from tuner.engines.sglang.fused_moe.binding import FusedMoeKernels, lift_fused_moe
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
from tuner.kernels.definitions import Definitions
from tuner.problems.dtypes import Dtype
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


def engine_dtype(dtype: Dtype) -> str | None:
    """The dtype in the engine's file names; None for 16-bit weights."""
    return None if dtype in (Dtype.BFLOAT16, Dtype.FLOAT16) else dtype.value


def weight_columns(problem: FusedMoe) -> tuple[int, int]:
    """(N, K) as the engine reads them from the weights' shapes: int4 packs two elements a byte."""
    packed = 2 if problem.dtype is Dtype.INT4_W4A16 else 1
    return problem.N // packed, problem.K // packed


def file_key(problem: FusedMoe, device_name: str, gemm: Gemm, *, per_channel: bool) -> MoeFileKey:
    """The key that an engine looks for. `per_channel`: this version's names have the flag."""
    # The engine leaves groups along k, (0, g), out of the name.
    block = problem.block_shape if problem.block_shape and all(problem.block_shape) else None
    return MoeFileKey(
        E=problem.E,
        N=weight_columns(problem)[0],
        device=device_name,
        dtype=engine_dtype(problem.dtype),
        block_shape=block,
        per_channel_quant=per_channel and problem.per_channel_quant,
        gemm=gemm,
    )


def run_heuristic(
    source: Path, root: Path, engine: str, device: Device, arguments: Mapping[str, object]
) -> dict[str, int]:
    """What the engine's heuristic answers on a device. `root` is the engine's package folder.

    Raises UnsupportedKernel where this version's heuristic asks for something that is not known.
    """
    flags = SimpleNamespace(enable_deterministic_inference=False)
    settings = SimpleNamespace(enable_deterministic_inference=False, deterministic=flags)
    hip, optin = device.target.backend == HIP, device.shared_optin_bytes
    # Stand-ins for the names from other modules, for the device and default flags.
    known = {
        "_is_hip": hip,
        "is_hip": lambda: hip,  # 0.4.3 binds it to another name
        "_get_cuda_shared_memory_per_block_optin": lambda: None if hip else optin,
        "get_server_args": lambda: settings,
        "get_global_server_args": lambda: settings,
        "get_exec": lambda: settings,
    }
    found: dict[str, int] = Definitions(source, root, engine, known).call(
        "get_default_config", arguments
    )
    return found
