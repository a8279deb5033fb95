"""The config loader of a real sglang, run from its wheel's own source file.

Everything heavy that the file imports (sglang's other modules, vllm, sgl_kernel) is answered by
stand-ins; the functions under test are the wheel's, unchanged.
"""

from __future__ import annotations

import ast
import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock, patch

from tiers import only

from tuner.bindings.sglang.attention.binding import launcher_source
from tuner.bindings.sglang.fused_moe import binding
from tuner.engines.sglang.package import SGLang
from tuner.families.attention.problem import AttentionPhase
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.kernels.lift import find_source
from tuner.problems.dtypes import Dtype

VERSIONS = ("0.4.4", "0.5.2", "0.5.12", "0.5.16", "0.5.23")
# Of what is the same rule in each: an old release, the default one and the newest on each commit.
RELEASES = only(("0.4.4", "0.5.16", "0.5.23"), VERSIONS)

_SOURCES = {
    "0.4.4": "srt/layers/moe/fused_moe_triton/fused_moe.py",
    "0.5.2": "srt/layers/moe/fused_moe_triton/fused_moe_triton_config.py",
    "0.5.12": "srt/layers/moe/moe_runner/triton_utils/fused_moe_triton_config.py",
    "0.5.16": "srt/layers/moe/moe_runner/triton_utils/fused_moe_triton_config.py",
    "0.5.23": "srt/layers/moe/moe_runner/triton_utils/fused_moe_triton_config.py",
}


def package(version: str) -> Path:
    root = Path(sys.prefix, "share", "tuner", "engines", f"sglang-{version}", "sglang")
    assert root.is_dir(), f"{root} is missing: `tuner list engines --add sglang=={version}` adds it"
    return root


def kernel_source(engine: SGLang, module: str) -> Path:
    """The file that holds "fused_moe", "extend_attention", "prefill_attention" or their like."""
    if module == FusedMoe.family:
        return find_source(
            engine.root, f"sglang {engine.version}", binding.DENSE, binding._LOCATIONS
        )
    return launcher_source(engine, AttentionPhase(module.partition("_")[0]))


class RealSGLang:
    """One version's loader functions, on a pretended GPU and Triton."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.source = package(version) / _SOURCES[version]
        self._logger = MagicMock()  # the engine's has a warning_once
        self._stubs = _stub_modules(self.source)
        self._names: dict[str, object] = {"__file__": str(self.source), "__name__": "real_sglang"}
        with importable(self._stubs):
            exec(compile(self.source.read_text(), str(self.source), "exec"), self._names)  # noqa: S102

    def file_name(self, problem: FusedMoe, device_name: str, gemm: Gemm) -> str:
        block = list(problem.block_shape) if problem.block_shape else [0, 0]
        with self._on(device_name):
            return self._call(
                "get_config_file_name",
                E=problem.E,
                N=_columns(problem),
                dtype=_dtype(problem),
                block_shape=block,
                per_channel_quant=problem.per_channel_quant,
                down_moe=gemm is Gemm.DOWN,
            )

    def configs(
        self, problem: FusedMoe, device_name: str, gemm: Gemm, triton: str, root: Path | None = None
    ) -> dict[int, dict] | None:
        """What `get_moe_configs` reads, in its order."""
        n, k = problem.block_shape or (0, 0)
        with self._on(device_name, triton, root):
            return self._call(
                "get_moe_configs",
                E=problem.E,
                N=_columns(problem),
                dtype=_dtype(problem),
                block_n=n,
                block_k=k,
                per_channel_quant=problem.per_channel_quant,
                down_moe=gemm is Gemm.DOWN,
            )

    def said(
        self, problem: FusedMoe, device_name: str, gemm: Gemm, triton: str, root: Path
    ) -> list[str]:
        """What `get_moe_configs` logs when it is asked for a problem's file."""
        lines: list[str] = []

        def note(text: str, *args: object) -> None:
            lines.append(text % args if args else text)

        with patch.object(self, "_logger", SimpleNamespace(info=note, warning=note)):
            self.configs(problem, device_name, gemm, triton, root)
        return lines

    def optimal(
        self,
        problem: FusedMoe,
        device_name: str,
        batch_size: int,
        triton: str,
        root: Path | None = None,
        shared_optin_bytes: int = 0,
    ) -> dict[Gemm, dict]:
        """What the engine launches for both gemms: `try_get_optimal_moe_config` as it is called."""
        pack = 2 if problem.dtype is Dtype.INT4_W4A16 else 1
        # It imports the override's accessor when it is called.
        with self._on(device_name, triton, root, shared_optin_bytes), importable(self._stubs):
            answer = self._call(
                "try_get_optimal_moe_config",
                w1_shape=(problem.E, 2 * problem.N, problem.K // pack),
                w2_shape=(problem.E, problem.K, problem.N // pack),
                top_k=problem.top_k,
                dtype=_dtype(problem),
                M=batch_size,
                block_shape=list(problem.block_shape) if problem.block_shape else None,
                per_channel_quant=problem.per_channel_quant,
                return_down_config=True,
            )
        up, (down, _) = answer if isinstance(answer, tuple) else (answer, (None, None))
        return {Gemm.UP: up, Gemm.DOWN: down or up}  # as fused_experts_impl does

    def default(
        self, problem: FusedMoe, batch_size: int, shared_optin_bytes: int
    ) -> dict[str, int]:
        pack = 2 if problem.dtype is Dtype.INT4_W4A16 else 1
        with self._on("any", shared_optin_bytes=shared_optin_bytes):
            return self._call(
                "get_default_config",
                M=batch_size,
                E=problem.E,
                N=problem.N // pack,
                K=problem.K // pack,
                topk=problem.top_k,
                dtype=_dtype(problem),
                is_marlin=False,
                block_shape=list(problem.block_shape) if problem.block_shape else None,
            )

    def _call(self, name: str, **arguments):
        function = self._names[name]
        known = inspect.signature(function).parameters
        return function(**{key: value for key, value in arguments.items() if key in known})

    @contextmanager
    def _on(
        self,
        device_name: str,
        triton: str = "0.0.0",
        root: Path | None = None,
        shared_optin_bytes: int = 0,
    ) -> Iterator[None]:
        """Pretend; versions without SGLANG_MOE_CONFIG_DIR look beside their own file."""
        properties = SimpleNamespace(shared_memory_per_block_optin=shared_optin_bytes)
        cuda = SimpleNamespace(
            is_available=lambda: True,
            current_device=lambda: 0,
            get_device_properties=lambda index: properties,
        )
        flags = SimpleNamespace(enable_deterministic_inference=False)
        settings = SimpleNamespace(deterministic=flags, **vars(flags))
        names = {
            "get_device_name": lambda: device_name.replace("_", " "),
            "triton": SimpleNamespace(__version__=triton),
            "torch": SimpleNamespace(cuda=cuda),
            "logger": self._logger,
            "get_server_args": lambda: settings,
            "get_global_server_args": lambda: settings,
            "get_exec": lambda: settings,
            "__file__": str((root or self.source.parent) / self.source.name),
        }
        for name in ("get_moe_configs", "_get_cuda_shared_memory_per_block_optin"):
            if name in self._names:
                self._names[name].cache_clear()
        environ = {"SGLANG_MOE_CONFIG_DIR": str(root)} if root else {}
        names["os"] = SimpleNamespace(**{**vars(os), "environ": environ})
        with patch.dict(self._names, names):
            yield


class _Stub(ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        # Not on AMD; and no CUDA, whose branch would import compiled extensions; no override set.
        answers = {"get_config": None, "is_hip": False, "is_cuda": False}
        return (lambda: answers[name]) if name in answers else MagicMock(name=name)


@contextmanager
def importable(stubs: dict[str, ModuleType]) -> Iterator[None]:
    """Not patch.dict: it would also forget torch and triton, which crash when imported again."""
    assert not stubs.keys() & sys.modules.keys()
    sys.modules.update(stubs)
    try:
        yield
    finally:
        for name in stubs:
            del sys.modules[name]


def _stub_modules(source: Path) -> dict[str, ModuleType]:
    imported = [
        n.module or ""
        for n in ast.walk(ast.parse(source.read_text()))
        if isinstance(n, ast.ImportFrom)
    ]
    heavy = [m for m in imported if m.partition(".")[0] in ("sglang", "vllm", "sgl_kernel")]
    names = {".".join(m.split(".")[: i + 1]) for m in heavy for i in range(m.count(".") + 1)}
    return {name: _Stub(name) for name in names}


def _columns(problem: FusedMoe) -> int:
    # moe_wna16 makes w2_qweight with intermediate_size // (8 // weight_bits) columns.
    return problem.N // 2 if problem.dtype is Dtype.INT4_W4A16 else problem.N


def _dtype(problem: FusedMoe) -> str | None:
    # get_config_dtype_str has a word for quantised weights (and float32) only.
    return None if problem.dtype in (Dtype.BFLOAT16, Dtype.FLOAT16) else problem.dtype.value
