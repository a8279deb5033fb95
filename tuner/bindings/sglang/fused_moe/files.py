"""Read sglang's fused-MoE config files on disk, their delivery, and the rules of its loader.

The rules differ between versions, and patched builds exist, so they come from the code on disk and
never from a version number.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from types import SimpleNamespace

from tuner.bindings.sglang.fused_moe.binding import FusedMoeKernels, lift_fused_moe, takes_tma
from tuner.devices.table import Device
from tuner.devices.target import CUDA, HIP
from tuner.engines.config_files import TILES, EntryFields
from tuner.engines.file_engine import file_in
from tuner.engines.sglang.package import SGLang
from tuner.errors import MalformedConfigFile, UnsupportedKernel
from tuner.families.fused_moe.engine import MoeEngine, MoeFileKey, format_file_name, parse_file_name
from tuner.families.fused_moe.export import MoeDelivery
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.kernels.definitions import Definitions
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config, folder_version, version_folder

CONFIG_DIR_VARIABLE = "SGLANG_MOE_CONFIG_DIR"

# The newest layout is first: later versions keep stubs that re-export at the earlier locations.
_SOURCES = (
    "srt/layers/moe/moe_runner/triton_utils/fused_moe_triton_config.py",
    "srt/layers/moe/fused_moe_triton/fused_moe_triton_config.py",
    "srt/layers/moe/fused_moe_triton/fused_moe.py",
)
_LOADER = "get_moe_configs"
_CHOOSER = "try_get_optimal_moe_config"


@dataclass(frozen=True)
class LoaderRules:
    """The behaviour of a version's `get_moe_configs` and `try_get_optimal_moe_config`."""

    engine: str  # e.g. "sglang 0.5.16", for messages
    source: Path  # the file that defines both functions; configs/ lies beside it
    config_dir_env: bool  # SGLANG_MOE_CONFIG_DIR replaces the packaged tree
    version_folders: bool  # files lie in configs/triton_X_Y_Z/
    # Triton versions that are tried after the running version; None: all on disk.
    fallback: tuple[str, ...] | None
    per_channel_names: bool  # file names may have ",per_channel_quant=True"
    down_files: bool  # the loader looks for "_down" files
    down_reuses_up: bool  # the loader uses the up file for a missing down file
    stops_on_block_m: bool  # an assertion stops the engine if up's and down's BLOCK_SIZE_M differ

    def config_dir(self, root: Path, triton: str) -> Path:
        """Return the folder under a root with the files for a Triton version."""
        configs = root / "configs"
        return configs / version_folder(triton) if self.version_folders else configs

    def search_dirs(self, root: Path, triton: str) -> Iterator[Path]:
        """Yield the folders that the loader searches, in its order.

        Raises MalformedConfigFile for folders at which the engine itself would stop.
        """
        yield self.config_dir(root, triton)
        if not self.version_folders:
            return
        versions = self._on_disk(root) if self.fallback is None else self.fallback
        yield from (root / "configs" / version_folder(v) for v in versions if v != triton)

    def _on_disk(self, root: Path) -> list[str]:
        configs = root / "configs"
        try:
            names = [path.name for path in configs.iterdir() if path.name.startswith("triton_")]
        except OSError as error:
            raise MalformedConfigFile(
                f"{configs}: {self.engine} stops here: {error.strerror}"
            ) from None
        versions = [folder_version(name) for name in names]
        for name, version in zip(names, versions, strict=True):
            if not all(part.isdecimal() for part in version.split(".")):
                raise MalformedConfigFile(
                    f"{configs / name}: {self.engine} stops at a folder whose name is not "
                    "triton_X_Y_Z with whole numbers"
                )
        return sorted(versions, key=lambda v: [int(n) for n in v.split(".")], reverse=True)


def read_loader_rules(root: Path, engine: str) -> LoaderRules:
    """Return the rules of the sglang package at `root`.

    Raises UnsupportedKernel if no known location has the loader.
    """
    for relative in _SOURCES:
        source = root / relative
        if source.is_file() and (found := _rules(engine, source, source.read_text("utf-8"))):
            return found
    raise UnsupportedKernel(f"{engine} does not keep {_LOADER} in a known place")


@lru_cache(maxsize=16)  # by the text, which each of a plan's hundred problems asks for
def _rules(engine: str, source: Path, text: str) -> LoaderRules | None:
    functions = {n.name: n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)}
    if not {_LOADER, _CHOOSER} <= functions.keys():
        return None
    loader, chooser = functions[_LOADER], functions[_CHOOSER]
    texts = {n.value for n in ast.walk(loader) if isinstance(n, ast.Constant)}
    calls = {ast.unparse(n.func) for n in ast.walk(loader) if isinstance(n, ast.Call)}
    asks = {argument.arg for argument in chooser.args.args}
    return LoaderRules(
        engine=engine,
        source=source,
        config_dir_env=CONFIG_DIR_VARIABLE in texts,
        version_folders="triton_" in texts,
        fallback=None if "os.listdir" in calls else _listed_versions(loader),
        per_channel_names="per_channel_quant" in asks,
        down_files="return_down_config" in asks,
        down_reuses_up=_LOADER in calls,
        stops_on_block_m=any(isinstance(n, ast.Assert) for n in ast.walk(chooser)),
    )


def _listed_versions(loader: ast.FunctionDef) -> tuple[str, ...]:
    for node in ast.walk(loader):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("supported_"):
            return tuple(ast.literal_eval(node.value))
    return ()


@dataclass(frozen=True)
class SGLangFusedMoe(MoeEngine):
    """The fused-MoE layer of a copy of sglang."""

    engine: SGLang

    variable = CONFIG_DIR_VARIABLE

    @cached_property
    def rules(self) -> LoaderRules:
        return read_loader_rules(self.engine.root, f"{self.name} {self.version}")

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
        self, root: Path | None, problem: FusedMoe, device: Device, gemm: Gemm, triton: str
    ) -> Path | None:
        """Return the file that the loader reads; for DOWN the up file, if the version reuses it."""
        if gemm is Gemm.DOWN and not self.rules.down_files:
            return None
        name = self.file_name(problem, device, gemm)
        folders = self.rules.search_dirs(root or self.package_root, triton)
        if found := file_in(root, folders, name):
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

    @property
    def stops_on_block_m(self) -> bool:
        return self.rules.stops_on_block_m

    def takes_tma(self, problem: FusedMoe, gemm: Gemm) -> bool:
        return takes_tma(problem, gemm) and self.lift().has_tma(gemm)

    def lift(self, platform: str = CUDA) -> FusedMoeKernels:
        return lift_fused_moe(self.engine, platform)


def engine_dtype(dtype: Dtype) -> str | None:
    """Return the dtype in the engine's file names; None for 16-bit weights."""
    return None if dtype in (Dtype.BFLOAT16, Dtype.FLOAT16) else dtype.value


def weight_columns(problem: FusedMoe) -> tuple[int, int]:
    """Return (N, K) as the engine reads them from the weights' shapes: int4 packs two elements a
    byte.
    """
    packed = 2 if problem.dtype is Dtype.INT4_W4A16 else 1
    return problem.N // packed, problem.K // packed


def file_key(problem: FusedMoe, device_name: str, gemm: Gemm, *, per_channel: bool) -> MoeFileKey:
    """Return the key that an engine looks for. `per_channel`: this version's names have the
    flag.
    """
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
    """Return the configuration of the engine's heuristic on a device. `root` is the engine's
    package folder.

    Raises UnsupportedKernel if this version's heuristic asks for unknown names.
    """
    flags = SimpleNamespace(enable_deterministic_inference=False)
    settings = SimpleNamespace(enable_deterministic_inference=False, deterministic=flags)
    hip, optin = device.target.platform == HIP, device.shared_optin_bytes
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


def open_delivery(engine: SGLang) -> MoeDelivery:
    """Return the delivery of a layer's winners to the servers of a copy of sglang."""
    return MoeDelivery(SGLangFusedMoe(engine), replaces_packaged=True)
