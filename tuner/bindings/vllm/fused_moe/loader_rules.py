"""Read from its loader's source how a version of vLLM finds fused-MoE config files."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tuner.errors import UnsupportedKernel

CONFIG_DIR_VARIABLE = "VLLM_TUNED_CONFIG_FOLDER"
SOURCE = "model_executor/layers/fused_moe/fused_moe.py"
_LOADER = "get_moe_configs"


@dataclass(frozen=True)
class LoaderRules:
    """The behaviour of a version's `get_moe_configs`."""

    source: Path  # the file that defines it; configs/ lies beside it
    config_dir_env: bool  # VLLM_TUNED_CONFIG_FOLDER is asked before the package
    takes_triton_version: bool  # a file may name its Triton; 0.10 stops at that key


@lru_cache(maxsize=16)
def read_loader_rules(root: Path, engine: str) -> LoaderRules:
    """Return the rules of the vLLM package at `root`.

    Raises UnsupportedKernel if the loader is not in the place of every known version.
    """
    source = root / SOURCE
    try:
        tree = ast.parse(source.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        raise UnsupportedKernel(f"{engine}: cannot read {source}: {error}") from None
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == _LOADER:
            inside = list(ast.walk(node))
            return LoaderRules(
                source,
                config_dir_env=any(
                    isinstance(n, ast.Attribute) and n.attr == CONFIG_DIR_VARIABLE for n in inside
                ),
                takes_triton_version=any(
                    isinstance(n, ast.Constant) and n.value == "triton_version" for n in inside
                ),
            )
    raise UnsupportedKernel(f"{engine} does not keep {_LOADER} in the known place")
