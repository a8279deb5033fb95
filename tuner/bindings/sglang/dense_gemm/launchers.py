"""Run sglang's own launchers and loaders of dense GEMMs with stand-ins.

Sources in sglang 0.4.4 to 0.5.23: `w8a8_block_fp8_matmul_triton` (`w8a8_block_fp8_matmul` in
0.4.4), `w8a8_block_int8_matmul`, `triton_scaled_mm`, and the loaders of `plugin/gemm_loaders.py`.
Scales of A are contiguous: sglang makes them so for its Triton launchers.
"""

from __future__ import annotations

import io
import json
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tuner.bindings.sglang.dense_gemm.sources import fp8_source, int8_source
from tuner.bindings.sglang.plugin.gemm_loaders import (
    BLOCK_FIELDS,
    FP8_CHANNELS,
    INT8_BLOCKS,
    Loader,
    loader_of,
)
from tuner.devices.table import architecture
from tuner.devices.target import Target, cuda_target
from tuner.engines.config_files import entry_json
from tuner.engines.sglang.package import SGLang
from tuner.errors import BadProblem, UnsupportedKernel
from tuner.families.dense_gemm.problem import DenseGemm
from tuner.kernels.launcher import Followed, Launcher, TensorSpec
from tuner.kernels.stand_ins import Element, Unknown
from tuner.problems.dtypes import Dtype
from tuner.problems.points import TRITON_DEFAULTS, Config

# Values with which a key of an entry does nothing. The engine asks for both keys with `get`, and
# hands all keys of an entry to a kernel that may not know them.
_NEUTRAL = {"SWAP_AB": 0, "SPLIT_K": 1}
_ELEMENTS = {Dtype.BFLOAT16: Element("bf16"), Dtype.FLOAT16: Element("fp16")}
_ANY_TARGET = cuda_target(9, 0)
# If these are true (0.4.5 to 0.4.6), the launcher calls DeepGEMM in place of its own kernel.
_DEEP_GEMM = ("_enable_jit_deepgemm", "_ENABLE_JIT_DEEPGEMM")


def without_neutral(config: Config) -> Config:
    """Return a configuration without the keys that do nothing, as an entry must be written."""
    return Config({k: v for k, v in config.items() if _NEUTRAL.get(k) != v})


@dataclass(frozen=True)
class GemmLaunchers:
    """The launchers and loaders of a copy of sglang. All methods may raise UnsupportedKernel."""

    engine: SGLang
    _launchers: dict[tuple[Path, Target], Launcher] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        return f"{self.engine.name} {self.engine.version}"

    @cached_property
    def fp8_source(self) -> Path:
        return fp8_source(self.engine)

    @cached_property
    def int8_source(self) -> Path:
        return int8_source(self.engine)

    def reads_files(self, problem: DenseGemm) -> bool:
        """Say whether the engine looks for a file for a problem."""
        loader = loader_of(problem)
        return loader is not None and self._launcher(problem, _ANY_TARGET).has(loader.function)

    def loaded(self, problem: DenseGemm, config: Config, target: Target) -> Config:
        """Return an entry of a file as the engine's loader gives it to the launcher."""
        loader = loader_of(problem)
        if problem.block is None or loader is None:  # other loaders change nothing
            return without_neutral(config)
        n, k = problem.block
        sizes = {"N": problem.N, "K": problem.K, "block_n": n, "block_k": k}
        text = json.dumps({"1": entry_json(config, BLOCK_FIELDS)})
        there = SimpleNamespace(**{**vars(os.path), "exists": lambda path: True})
        instead = {
            "os": SimpleNamespace(path=there),
            "open": lambda path: io.StringIO(text),
            "get_device_name": lambda: "this GPU",
            "logger": Unknown("logger"),  # the engine's warnings are for its own files
        }
        found = self._launcher(problem, target).follow(loader.function, sizes, instead).result
        if not isinstance(found, dict):
            raise UnsupportedKernel(f"{self.origin}: {loader.function} reads files in another way")
        return without_neutral(Config(found[1]))

    def follow(
        self, problem: DenseGemm, batch_size: int, config: Config | None, target: Target
    ) -> Followed:
        """Return the engine's launches at a batch size with an entry; None: without a file.

        The entry comes from `loaded`.
        """
        if batch_size < 1:
            raise BadProblem(f"the batch size must be at least 1, not {batch_size}")
        launcher = self._launcher(problem, target)
        function = self._function(problem, launcher)
        operands = self._operands(problem, batch_size, target)
        if problem.block is None:
            entry = {} if config is None else self._entry_arguments(problem, launcher, config)
            return launcher.follow(function, {**operands, **entry})
        loader = loader_of(problem)
        assert loader is not None  # all problems with blocks have a loader
        entries = None if config is None else {batch_size: entry_json(config, BLOCK_FIELDS)}
        instead: dict[str, object] = {loader.function: lambda *sizes: entries}
        instead |= {name: False for name in _DEEP_GEMM if launcher.has(name)}
        return launcher.follow(function, operands, instead)

    def takes_entries(self, problem: DenseGemm) -> bool:
        """Say whether the launcher takes a configuration from a file."""
        return problem.block is not None or self.reads_files(problem)

    def _entry_arguments(
        self, problem: DenseGemm, launcher: Launcher, config: Config
    ) -> dict[str, Any]:
        """Return an entry as `apply_fp8_linear` of 0.5.23 passes it to `triton_scaled_mm`."""
        if not self.takes_entries(problem):
            raise UnsupportedKernel(
                f"{self.origin} reads no file for {problem.spec()}: it always runs its default"
            )
        options = {name: config[name] for name in TRITON_DEFAULTS}
        tiles = {f"block_size_{d}": config[f"BLOCK_SIZE_{d.upper()}"] for d in "mnk"}
        return {**tiles, **options, "use_heuristic": False}

    def _operands(self, problem: DenseGemm, M: int, target: Target) -> dict[str, Any]:
        """Return the launcher's tensors: A (M, K), B (N, K), and float32 scales."""
        N, K = problem.N, problem.K
        fp8 = problem.dtype is Dtype.FP8_W8A8
        kind = architecture(target).require_fp8() if fp8 else "i8"
        out = _ELEMENTS[problem.out]
        if problem.block is None:  # its launcher gets B transposed
            return {
                "input": TensorSpec("a", (M, K), kind),
                "weight": TensorSpec("b", (K, N), kind, (1, K)),
                "scale_a": TensorSpec("a_scale", (M, 1), "fp32"),
                "scale_b": TensorSpec("b_scale", (N, 1), "fp32"),
                "out_dtype": out,
            }
        n, k = problem.block
        groups = -(-K // k)
        return {
            "A": TensorSpec("a", (M, K), kind),
            "B": TensorSpec("b", (N, K), kind),
            "As": TensorSpec("a_scale", (M, groups), "fp32"),
            "Bs": TensorSpec("b_scale", (-(-N // n), groups), "fp32"),
            "block_size": [n, k],
            "output_dtype": out,
        }

    def _function(self, problem: DenseGemm, launcher: Launcher) -> str:
        names = _launching(problem).launchers
        for name in names:
            if launcher.has(name):
                return name
        raise UnsupportedKernel(f"{self.origin} has no Triton kernel for {problem.spec()}")

    def _launcher(self, problem: DenseGemm, target: Target) -> Launcher:
        int8 = _launching(problem) is INT8_BLOCKS
        source = self.int8_source if int8 else self.fp8_source
        key = source, target
        if key not in self._launchers:
            self._launchers[key] = Launcher(source, self.engine.root, self.origin, target)
        return self._launchers[key]


def _launching(problem: DenseGemm) -> Loader:
    """Return the loader whose launchers run a problem. The same launcher takes both types per
    channel.
    """
    return loader_of(problem) or FP8_CHANNELS
