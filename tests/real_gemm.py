"""The dense GEMM launchers and config loaders of a real sglang, run from its wheel's own files.

They run with real torch tensors on the CPU. Only the engine's other modules are stand-ins, and the
kernels note how they are launched.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import torch
from real_sglang import _stub_modules, importable, package

from tuner.devices.target import Target
from tuner.families.dense_gemm.problem import DenseGemm
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config

_FOLDERS = {
    "0.4.4": "srt/layers/quantization",
    "0.5.2": "srt/layers/quantization",
    "0.5.12": "srt/layers/quantization",
    "0.5.16": "kernels/ops/quantization",
    "0.5.23": "kernels/ops/gemm",
}
KERNELS = (
    "_w8a8_block_fp8_matmul",
    "_w8a8_block_fp8_matmul_hopper",
    "_reduce_block_fp8_split_k",
    "_w8a8_block_int8_matmul",
    "scaled_mm_kernel",
)
FLAGS = ("SWAP_AB",)
ELEMENT = {Dtype.FP8_W8A8: torch.float8_e4m3fn, Dtype.INT8_W8A8: torch.int8}
OUTPUT = {Dtype.BFLOAT16: torch.bfloat16, Dtype.FLOAT16: torch.float16}


class Kernel:
    """Stands for a jitted kernel and notes its launches."""

    def __init__(self, real: Any, launches: list[Launched]) -> None:  # noqa: ANN401
        self.name, self.arg_names, self.launches = real.fn.__name__, real.arg_names, launches

    def __getitem__(self, grid: Any):  # noqa: ANN401
        def launch(*args: object, **kwargs: object) -> None:
            named = dict(zip(self.arg_names, args, strict=False))
            named |= {k: v for k, v in kwargs.items() if k in self.arg_names}
            options = {k: v for k, v in kwargs.items() if k not in self.arg_names}
            blocks = grid({**named, **options}) if callable(grid) else grid
            self.launches.append(Launched(self.name, named, tuple(blocks), options))

        return launch


class Launched(SimpleNamespace):
    """A launch: kernel, arguments by name, grid, options."""

    def __init__(self, kernel: str, arguments: Mapping[str, Any], grid: tuple, options) -> None:
        super().__init__(kernel=kernel, arguments=arguments, grid=grid, options=options)


class RealGemm:
    """One version's loaders and launchers on a pretended GPU."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.folder = package(version) / _FOLDERS[version]
        self.launches: list[Launched] = []
        self.fp8, self.int8 = (self._run(f"{kind}_kernel.py") for kind in ("fp8", "int8"))

    def entries(
        self, problem: DenseGemm, device_name: str, root: Path | None = None
    ) -> dict[int, dict[str, Any] | None] | None:
        """What the loader reads in the package, or in `root`/configs."""
        space = self._space(problem)
        if problem.block is None:
            name, sizes = "get_w8a8_channelwise_fp8_configs", (problem.N, problem.K)
        else:
            kind = problem.dtype.value.partition("_")[0]
            name = f"get_w8a8_block_{kind}_configs"
            sizes = (problem.N, problem.K, *problem.block)
        loader = space[name]
        loader.cache_clear()
        place = {"__file__": str((root or self.folder) / "kernel.py")}
        names = {**place, "get_device_name": lambda: device_name.replace("_", " ")}
        with patch.dict(space, names):
            found: dict[int, dict[str, Any] | None] | None = loader(*sizes)
        return found

    def said(self, problem: DenseGemm, device_name: str, root: Path | None = None) -> list[str]:
        """What the loader logs when it is asked for a problem's file."""
        lines: list[str] = []
        note = SimpleNamespace(
            **{
                level: lambda text, *args: lines.append(text % args if args else text)
                for level in ("info", "warning")
            }
        )
        on_rank_0 = {"log_info_on_rank0": lambda logger, text: lines.append(text)}
        with patch.dict(self._space(problem), {"logger": note, **on_rank_0}):
            self.entries(problem, device_name, root)
        return lines

    def reads(self, problem: DenseGemm) -> bool:
        """Whether there is a loader for such problems."""
        if problem.block is None:
            int8 = problem.dtype is Dtype.INT8_W8A8
            return not int8 and "get_w8a8_channelwise_fp8_configs" in self.fp8
        return True

    def run(
        self, problem: DenseGemm, M: int, config: Config | None, target: Target
    ) -> tuple[list[Launched], dict[str, torch.Tensor]]:
        """(the launches with an entry or, None, without a file; the tensors by operand)."""
        space = self._space(problem)
        tensors = operands(problem, M)
        self.launches.clear()
        with self._on(space, target):
            if problem.block is None:
                out = self._scaled_mm(space, tensors, problem, config)
            else:
                out = self._block_matmul(space, tensors, problem, M, config)
        return list(self.launches), {**tensors, "c": out}

    def _scaled_mm(self, space, tensors, problem, config) -> torch.Tensor:
        entry = {}
        if config is not None:  # as apply_fp8_linear of 0.5.23 calls it
            tiles = {f"block_size_{d.lower()}": config[f"BLOCK_SIZE_{d}"] for d in "MNK"}
            options = {name: config[name] for name in ("num_warps", "num_stages")}
            entry = {**tiles, **options, "use_heuristic": False}
        return space["triton_scaled_mm"](
            tensors["a"],
            tensors["b"].t(),
            tensors["a_scale"],
            tensors["b_scale"],
            OUTPUT[problem.out],
            **entry,
        )

    def _block_matmul(self, space, tensors, problem, M, config) -> torch.Tensor:
        kind = problem.dtype.value.partition("_")[0]
        names = [f"w8a8_block_{kind}_matmul_triton", f"w8a8_block_{kind}_matmul"]
        launcher = next(space[name] for name in names if name in space)
        entries = {M: json_entry(config)} if config is not None else None
        loader = {f"get_w8a8_block_{kind}_configs": lambda *sizes: entries}
        with patch.dict(space, loader):
            return launcher(
                tensors["a"],
                tensors["b"],
                tensors["a_scale"],
                tensors["b_scale"],
                list(problem.block),
                output_dtype=OUTPUT[problem.out],
            )

    def _space(self, problem: DenseGemm) -> dict[str, Any]:
        block_int8 = problem.block is not None and problem.dtype is Dtype.INT8_W8A8
        return self.int8 if block_int8 else self.fp8

    @contextmanager
    def _on(self, space: dict[str, Any], target: Target) -> Iterator[None]:
        platform = SimpleNamespace(is_sm90=target.is_sm(90))
        with patch.dict(space, {"get_platform": lambda: platform}):
            yield

    def _run(self, name: str) -> dict[str, Any]:
        source = self.folder / name
        space: dict[str, Any] = {"__file__": str(source), "__name__": "real_gemm"}
        with importable(_stub_modules(source)):
            exec(compile(source.read_text(), str(source), "exec"), space)  # noqa: S102
        # A CUDA machine. The file was run as on none: its branches for CUDA import extensions.
        space.update({"_is_cuda": True, "_is_gfx1250": False, "logger": MagicMock()})
        for kernel in KERNELS:
            if kernel in space:
                space[kernel] = Kernel(space[kernel], self.launches)
        return space


def operands(problem: DenseGemm, M: int) -> dict[str, torch.Tensor]:
    """Empty tensors of a problem, by operand."""
    N, K = problem.N, problem.K
    n, k = problem.block or (1, K)
    return {
        "a": torch.empty((M, K), dtype=ELEMENT[problem.dtype]),
        "b": torch.empty((N, K), dtype=ELEMENT[problem.dtype]),
        "a_scale": torch.empty((M, -(-K // k))),
        "b_scale": torch.empty((-(-N // n), -(-K // k))),
    }


def json_entry(config: Config) -> dict[str, int | bool]:
    """An entry as json.load gives it."""
    entry: dict[str, int | bool] = json.loads(
        json.dumps({k: bool(v) if k in FLAGS else v for k, v in config.items()})
    )
    return entry
