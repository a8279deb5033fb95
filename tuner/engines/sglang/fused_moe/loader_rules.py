"""How a version of sglang finds fused-MoE config files, read from its loader's source.

The rules differ between versions, and patched builds exist, so they come from the code on disk
and never from a version number.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import MalformedConfigFile, UnsupportedKernel
from tuner.problems.points import folder_version, version_folder

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
    """The behaviour of one version's `get_moe_configs` and `try_get_optimal_moe_config`."""

    engine: str  # e.g. "sglang 0.5.16", for messages
    source: Path  # the file that defines both functions; configs/ lies beside it
    config_dir_env: bool  # SGLANG_MOE_CONFIG_DIR replaces the packaged tree
    version_folders: bool  # files lie in configs/triton_X_Y_Z/
    # Triton versions that are tried after the running one; None: all on disk.
    fallback: tuple[str, ...] | None
    per_channel_names: bool  # file names may have ",per_channel_quant=True"
    down_files: bool  # the loader looks for "_down" files
    down_reuses_up: bool  # the loader uses the up file for a missing down file
    stops_on_block_m: bool  # an assertion stops the engine if up's and down's BLOCK_SIZE_M differ

    def config_dir(self, root: Path, triton: str) -> Path:
        """The folder under a root with the files for a Triton version."""
        configs = root / "configs"
        return configs / version_folder(triton) if self.version_folders else configs

    def search_dirs(self, root: Path, triton: str) -> Iterator[Path]:
        """The folders that the loader searches, in its order.

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
    """The rules of the sglang package at `root`.

    Raises UnsupportedKernel if the loader is in none of the known locations.
    """
    for relative in _SOURCES:
        source = root / relative
        if not source.is_file():
            continue
        tree = ast.parse(source.read_text(encoding="utf-8"))
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        if _LOADER in functions and _CHOOSER in functions:
            return _rules(engine, source, functions[_LOADER], functions[_CHOOSER])
    raise UnsupportedKernel(f"{engine} does not keep {_LOADER} where a known version does")


def _rules(
    engine: str, source: Path, loader: ast.FunctionDef, chooser: ast.FunctionDef
) -> LoaderRules:
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
