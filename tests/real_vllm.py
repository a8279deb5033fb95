"""Functions of a real vLLM, run from its wheel's own source files.

Each function is taken out of its file alone. The names that it uses from elsewhere are stand-ins;
its text is the wheel's, unchanged.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from real_sglang import importable
from tiers import only

from tuner.families.fused_moe.problem import FusedMoe
from tuner.problems.dtypes import Dtype

VERSIONS = ("0.10.2", "0.15.1", "0.24.0", "0.33.0")
RELEASES = only(("0.10.2", "0.33.0"), VERSIONS)  # of what is the same rule in each
LAYER = "model_executor/layers/fused_moe"
DTYPE_STR = "_get_config_dtype_str"
PACKAGE = "vllm.model_executor.layers.fused_moe"


def package(version: str) -> Path:
    root = Path(sys.prefix, "share", "tuner", "engines", f"vllm-{version}", "vllm")
    assert root.is_dir(), f"{root} is missing: run `tuner list engines --add vllm=={version}`"
    return root


def functions(version: str, file: str, wanted: set[str], names: dict[str, Any]) -> dict[str, Any]:
    """Return functions and constants of a release's file, with `names` in place of its imports."""
    path = package(version) / file
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [n for n in tree.body if _name(n) in wanted]
    assert {_name(n) for n in tree.body} == wanted
    space = {"functools": functools, "json": json, "os": os, "re": re, "__file__": str(path)}
    space |= {
        "cache": functools.cache,
        "Any": Any,
        "Optional": Any,
        "Union": Any,
        "torch": MagicMock(),
        **names,
    }
    code = compile(tree, str(path), "exec", flags=annotations.compiler_flag)
    exec(code, space)  # noqa: S102
    return space


def _name(node: ast.stmt) -> str:
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", node)
    return str(getattr(target, "id", getattr(target, "name", "")))


class RealVLLM:
    """One version's loader functions, on a pretended GPU."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.envs = SimpleNamespace(VLLM_TUNED_CONFIG_FOLDER=None, VLLM_BATCH_INVARIANT=False)
        self._device = ""
        names = {
            "envs": self.envs,
            "logger": MagicMock(),
            "current_platform": SimpleNamespace(
                get_device_name=lambda *index: self._device,
                is_rocm=lambda: False,
                is_cuda=lambda: True,
            ),
            "vllm_is_batch_invariant": lambda: self.envs.VLLM_BATCH_INVARIANT,
            "next_power_of_2": lambda n: 1 << (n - 1).bit_length(),
        }
        if version == "0.33.0":
            platform = ModuleType("vllm.platforms")
            platform.current_platform = names["current_platform"]
            self._modules = {"vllm": ModuleType("vllm"), "vllm.platforms": platform}
            utils = "utils/platform_utils.py"
            wanted = "get_device_name_as_file_name"
            names[wanted] = functions(version, utils, {wanted}, {})[wanted]
        else:
            self._modules = {}
        wanted = {
            "get_config_file_name",
            "get_moe_configs",
            "get_default_config",
            "try_get_optimal_moe_config",
            "should_moe_wna16_use_cuda",
        }
        self._names = functions(version, f"{LAYER}/fused_moe.py", wanted, names)
        old = version == "0.10.2"
        file, name = ("fused_moe", "get_config_dtype_str") if old else ("config", DTYPE_STR)
        dtypes = functions(version, f"{LAYER}/{file}.py", {name}, {})
        self._dtype_str: Callable[..., str | None] = dtypes[name]

    def file_name(self, problem: FusedMoe, device_name: str) -> str:
        name: str = self._call(
            "get_config_file_name",
            device_name,
            E=problem.E,
            N=problem.N,
            dtype=self.dtype(problem),
            block_shape=list(problem.block_shape) if problem.block_shape else None,
        )
        return name

    def optimal(
        self, problem: FusedMoe, device_name: str, batch_size: int, folder: Path | None = None
    ) -> dict[str, int]:
        """What the engine launches: `try_get_optimal_moe_config` as it is called."""
        self.envs.VLLM_TUNED_CONFIG_FOLDER = None if folder is None else str(folder)
        pack = 2 if problem.dtype is Dtype.INT4_W4A16 else 1
        found: dict[str, int] = self._call(
            "try_get_optimal_moe_config",
            device_name,
            w1_shape=(problem.E, 2 * problem.N, problem.K // pack),
            w2_shape=(problem.E, problem.K, problem.N // pack),
            top_k=problem.top_k,
            dtype=self.dtype(problem),
            M=batch_size,
            block_shape=list(problem.block_shape) if problem.block_shape else None,
        )
        return found

    def dtype(self, problem: FusedMoe) -> str | None:
        return self._dtype_str(
            dtype=object(),
            use_fp8_w8a8=problem.dtype is Dtype.FP8_W8A8,
            use_int8_w8a16=problem.dtype is Dtype.INT8_W8A16,
            use_int4_w4a16=problem.dtype is Dtype.INT4_W4A16,
        )

    def _call(self, name: str, device_name: str, **arguments: object) -> Any:  # noqa: ANN401
        self._device = device_name.replace("_", " ")
        for function in self._names.values():  # some remember what the last card's name was
            getattr(function, "cache_clear", lambda: None)()
        known = inspect.signature(self._names[name]).parameters
        layer = ModuleType(PACKAGE)
        layer.get_config = lambda: None  # no override is set
        parents = [PACKAGE.rsplit(".", n)[0] for n in range(1, PACKAGE.count(".") + 1)]
        stubs = {parent: ModuleType(parent) for parent in parents} | {PACKAGE: layer}
        with importable({**stubs, **self._modules}):
            return self._names[name](**{k: v for k, v in arguments.items() if k in known})
