"""Make the inputs of the dense GEMM kernels and the float32 reference. This module imports torch.

All functions take `device` "cpu" or "cuda".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import ModuleType

import torch
from torch import Tensor

from tuner.families.dense_gemm.engine import GemmLaunch
from tuner.families.dense_gemm.problem import DenseGemm
from tuner.kernels.values import launch_values
from tuner.measure.quantise import quantise, random_matrix, spread, stored_type
from tuner.problems.dtypes import Dtype

TYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "i32": torch.int32,
}
OUTPUT_TYPES = {Dtype.BFLOAT16: torch.bfloat16, Dtype.FLOAT16: torch.float16}
CHUNK = 4096  # columns of C whose weights are dequantised at once


@dataclass(frozen=True)
class Quantised:
    """A matrix (rows, K) with a scale for each tile."""

    values: Tensor  # (rows, K)
    scale: Tensor  # (ceil(rows / tile[0]), ceil(K / tile[1])) float32
    tile: tuple[int, int]

    def clone(self) -> Quantised:
        """Return a copy elsewhere in memory."""
        return replace(self, values=self.values.clone(), scale=self.scale.clone())

    def dense(self, rows: slice | Tensor = slice(None)) -> Tensor:
        """Return the dequantised rows, float32. If tiles have several rows, `rows` begins with a
        tile.
        """
        picked = self.values.view(torch.uint8)[rows].view(self.values.dtype)  # fp8 has no indexing
        if self.tile[0] == 1:
            scale = self.scale[rows]
        else:
            assert isinstance(rows, slice)
            first = (rows.start or 0) // self.tile[0]
            scale = self.scale[first : first - (-len(picked) // self.tile[0])]
        return picked.float() * spread(scale, self.tile, picked.shape)


def make_weights(problem: DenseGemm, *, device: str, seed: int) -> Quantised:
    """Return a random B (N, K), quantised for the problem."""
    generator = torch.Generator(device).manual_seed(seed)
    x = random_matrix((problem.N, problem.K), device, generator) / problem.K**0.5
    return _quantised(x, problem.block or (1, problem.K), problem)


def make_activations(problem: DenseGemm, batch_size: int, *, device: str, seed: int) -> Quantised:
    """Return a random A (M, K), quantised for the problem: a scale for each row and block of K."""
    x = random_matrix((batch_size, problem.K), device, torch.Generator(device).manual_seed(seed))
    return _quantised(x, (1, problem.block[1] if problem.block else problem.K), problem)


def make_output(problem: DenseGemm, batch_size: int, *, device: str) -> Tensor:
    """Return C (M, N), not initialised."""
    shape = (batch_size, problem.N)
    return torch.empty(shape, dtype=OUTPUT_TYPES[problem.out], device=device)


def make_scratch(launches: list[GemmLaunch], *, device: str) -> dict[str, Tensor]:
    """Return the tensors that the engine allocates for the launches of a GEMM, filled with NaN."""
    return {
        name: torch.full(shape, float("nan"), dtype=TYPES[dtype], device=device)
        for launch in launches
        for name, (shape, dtype) in launch.scratch.items()
    }


def operands(a: Quantised, b: Quantised, c: Tensor) -> dict[str, Tensor]:
    """Return the tensors of a GEMM by the names that `GemmLaunch` gives them."""
    return {"a": a.values, "b": b.values, "c": c, "a_scale": a.scale, "b_scale": b.scale}


def launch(module: ModuleType, launches: list[GemmLaunch], tensors: Mapping[str, Tensor]) -> None:
    """Run the lifted kernels of a GEMM (`load_lifted`) once on the tensors' device."""
    for one in launches:
        values = launch_values(one.binding, tensors)
        getattr(module, one.binding.function)[one.grid](*values, **one.binding.options)


def reference(a: Quantised, b: Quantised, rows: Tensor | slice = slice(None)) -> Tensor:
    """Return C from the dequantised operands, (rows, N) float32. `rows`: the rows of A to
    compute.
    """
    left = a.dense(rows)
    n = len(b.values)
    chunk = CHUNK - CHUNK % b.tile[0] if b.tile[0] < CHUNK else b.tile[0]
    parts = [left @ b.dense(slice(at, min(at + chunk, n))).T for at in range(0, n, chunk)]
    return torch.cat(parts, dim=1)


def _quantised(x: Tensor, tile: tuple[int, int], problem: DenseGemm) -> Quantised:
    values, scale = quantise(x, tile, stored_type(problem.dtype))
    return Quantised(values, scale, tile)
