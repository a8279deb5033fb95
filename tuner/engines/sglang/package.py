"""sglang on disk: its config files, the rules by which it picks them, and its kernels' sources."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tuner.devices.table import Device
from tuner.engines.config_files import ConfigFile, read_lenient
from tuner.engines.sglang.fused_moe.file_names import (
    FileKey,
    engine_dtype,
    file_key,
    parse_file_name,
    weight_columns,
)
from tuner.engines.sglang.fused_moe.heuristic import default_heuristic
from tuner.engines.sglang.fused_moe.loader_rules import (
    CONFIG_DIR_VARIABLE,
    LoaderRules,
    read_loader_rules,
)
from tuner.errors import MalformedConfigFile, UnsupportedKernel, did_you_mean
from tuner.families.fused_moe.problem import FusedMoe
from tuner.problems.points import Config, Gemm

# The version that is used where several lie unpacked and none is installed: the one that
# `make install` unpacks and that was measured. The newest would change with what tests unpack.
DEFAULT_VERSION = "0.5.16"

# family -> (a function that the file defines, where versions since 0.4.4 keep it)
_KERNEL_SOURCES = {
    "fused_moe": (
        "fused_moe_kernel",
        (
            "kernels/ops/moe/fused_moe_triton_kernels.py",
            "srt/layers/moe/moe_runner/triton_utils/fused_moe_triton_kernels.py",
            "srt/layers/moe/fused_moe_triton/fused_moe_triton_kernels.py",
            "srt/layers/moe/fused_moe_triton/fused_moe.py",
        ),
    ),
    "extend_attention": (
        "extend_attention_fwd",
        (
            "kernels/ops/attention/extend_attention.py",
            "srt/layers/attention/triton_ops/extend_attention.py",
        ),
    ),
    "decode_attention": (
        "decode_attention_fwd",
        (
            "kernels/ops/attention/decode_attention.py",
            "srt/layers/attention/triton_ops/decode_attention.py",
        ),
    ),
    "prefill_attention": (
        "context_attention_fwd",
        (
            "kernels/ops/attention/prefill_attention.py",
            "srt/layers/attention/triton_ops/prefill_attention.py",
        ),
    ),
}


@dataclass(frozen=True)
class ShippedFile:
    """A fused-MoE config file that comes with the engine."""

    path: Path
    key: FileKey
    triton: str | None  # of the folder it lies in; None in the layout without version folders
    entries: Mapping[int, Config]  # in the file's order
    oddities: tuple[str, ...]  # what a strict reading would refuse; no entries if unreadable


@dataclass(frozen=True)
class SGLang:
    """One copy of sglang on disk; see `Engine` for the interface."""

    version: str
    root: Path

    name = "sglang"

    @cached_property
    def rules(self) -> LoaderRules:
        return read_loader_rules(self.root, f"{self.name} {self.version}")

    # Where files are

    @property
    def package_root(self) -> Path:
        """The folder in the package that holds the shipped configs/."""
        return self.rules.source.parent

    @property
    def config_dir_variable(self) -> str | None:
        return CONFIG_DIR_VARIABLE if self.rules.config_dir_env else None

    def config_root(self, environ: Mapping[str, str] = os.environ) -> Path:
        """The folder that holds configs/: SGLANG_MOE_CONFIG_DIR where the version honours it."""
        if self.rules.config_dir_env and CONFIG_DIR_VARIABLE in environ:
            return Path(environ[CONFIG_DIR_VARIABLE])
        return self.package_root

    def config_dir(self, root: Path, triton: str) -> Path:
        """Where files for a Triton version (e.g. "3.6.0") go under a root."""
        return self.rules.config_dir(root, triton)

    def has_down_files(self) -> bool:
        return self.rules.down_files

    def has_plugins(self) -> bool:
        return (self.root / "srt/plugins/hook_registry.py").is_file()

    def file_name(self, problem: FusedMoe, device: Device, gemm: Gemm) -> str:
        """The name that the engine looks for. Raises UnsupportedKernel where it looks for none."""
        if gemm is Gemm.DOWN and not self.rules.down_files:
            raise UnsupportedKernel(f"{self.rules.engine} reads no _down files: tune up alone")
        per_channel = self.rules.per_channel_names
        return str(file_key(problem, device.name, gemm, per_channel=per_channel))

    # How it picks

    def find_file(
        self, root: Path, problem: FusedMoe, device: Device, gemm: Gemm, triton: str
    ) -> Path | None:
        """The file that the engine's loader reads, or None if it finds none.

        Versions that answer a missing down file with the up file give that one for DOWN.
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
        """The entry of the nearest batch size; of two as near, the one that stands first."""
        return entries[min(entries, key=lambda size: abs(size - batch_size))]

    def default_config(self, problem: FusedMoe, device: Device, batch_size: int) -> Config:
        """What the engine runs, up and down, without a file: its own heuristic, its own keys.

        It may lack num_warps and num_stages; `launch_config` makes Triton's defaults explicit.
        """
        rules = self.rules
        heuristic = default_heuristic(
            rules.tree, rules.source, rules.engine, device.shared_optin_bytes
        )
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
        return Config(heuristic(arguments))

    def incumbents(
        self,
        problem: FusedMoe,
        device: Device,
        batch_size: int,
        triton: str,
        root: Path | None = None,
    ) -> dict[str, dict[Gemm, Config]]:
        """What the engine runs at a batch size: "default" without files, "shipped" with them.

        "shipped" is there if the loader finds a file for up or down under `root` (the package's
        own folder unless given), and not where the two would stop the engine.
        """
        default = self.default_config(problem, device, batch_size)
        found = {"default": dict.fromkeys(Gemm, default)}
        folder = root or self.package_root
        up = self._shipped_entry(folder, problem, device, Gemm.UP, batch_size, triton)
        down = self._shipped_entry(folder, problem, device, Gemm.DOWN, batch_size, triton)
        if up is None and down is None:
            return found
        up = up or default
        down = down or up  # one configuration serves both gemms where there is no down file
        if down["BLOCK_SIZE_M"] != up["BLOCK_SIZE_M"]:
            if self.rules.stops_on_block_m:
                return found
            down = down.replace(BLOCK_SIZE_M=up["BLOCK_SIZE_M"])  # they share one sort of tokens
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

    # What it ships

    def shipped(self, *, nvidia_only: bool = True) -> Iterator[ShippedFile]:
        """Every fused-MoE file in the package, by path; other kernels' files are passed over."""
        for path in sorted((self.package_root / "configs").rglob("*.json")):
            try:
                key = parse_file_name(path.name)
            except MalformedConfigFile:
                continue
            if key.device.startswith("NVIDIA") or not nvidia_only:
                yield _read_shipped(path, key)

    def kernel_source(self, family: str) -> Path:
        """The file that defines a family's jitted kernels.

        Raises UnsupportedKernel if this version keeps them nowhere that is known.
        """
        if family not in _KERNEL_SOURCES:
            near = did_you_mean(family, _KERNEL_SOURCES)
            raise UnsupportedKernel(f"no kernels of the family {family!r} are known{near}")
        function, candidates = _KERNEL_SOURCES[family]
        for relative in candidates:
            path = self.root / relative
            if path.is_file() and f"\ndef {function}(" in path.read_text(encoding="utf-8"):
                return path
        raise UnsupportedKernel(
            f"{self.name} {self.version} does not keep {function} where a known version does"
        )


def _read_shipped(path: Path, key: FileKey) -> ShippedFile:
    try:
        file = read_lenient(path)
    except MalformedConfigFile as error:
        file = ConfigFile(path, {}, (str(error),))
    folder = path.parent.name
    triton = folder.removeprefix("triton_").replace("_", ".") if folder != "configs" else None
    return ShippedFile(path, key, triton, file.entries, file.oddities)
