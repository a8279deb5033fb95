"""Time an engine's own fused-MoE layer with exported files; an engine's child runs it.

The child's arguments are the problem, a root of config files, and batch sizes. It prints one JSON
line per batch size: the layer's microseconds, and its error against a float32 layer, with the root
("tuned"), with the package's files ("shipped") and without files ("default"), timed in turn.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from tuner.families.fused_moe.inputs import TORCH_TYPES, Weights, make_weights, random_routing
from tuner.families.fused_moe.layer import SKEW, SKEWED
from tuner.families.fused_moe.problem import FusedMoe, Gemm, parse_fused_moe
from tuner.measure.timing import LAUNCHES, Captured, race
from tuner.problems.dtypes import Dtype

ROUNDS = 21
CHECKED_TOKENS = 8

LayerInputs = tuple[
    Tensor, Tensor, Tensor
]  # hidden states (M, K), router weights and ids (M, top_k)


class ServedLayer(Protocol):
    """An engine's layer, run in this process as a server runs it."""

    def run(
        self, problem: FusedMoe, up: Weights, down: Weights, x: Tensor, weights: Tensor, ids: Tensor
    ) -> Tensor:
        """The layer's output (M, K)."""
        ...

    def use_files(self, root: Path | None) -> None:
        """Let the loader read the files that were exported to a root; None: the package's."""
        ...

    def use_no_files(self) -> None: ...


class EngineLayer:
    """An engine's layer on this project's tensors."""

    def __init__(self, served: ServedLayer, problem: FusedMoe, device: str = "cuda") -> None:
        self.served, self.problem = served, problem
        self._device = device
        compute = "fp16" if problem.dtype is Dtype.FLOAT16 else "bf16"
        self._type = TORCH_TYPES[compute]
        self._up = make_weights(problem, Gemm.UP, device=device, seed=1, compute=compute)
        self._down = make_weights(problem, Gemm.DOWN, device=device, seed=2, compute=compute)

    def inputs(self, batch_size: int) -> list[LayerInputs]:
        """The inputs of each launch of a graph. Tokens and routings differ; some are skewed."""
        generator = torch.Generator(self._device).manual_seed(batch_size)
        found = []
        for i in range(LAUNCHES):
            shape = batch_size, self.problem.K
            x = torch.randn(shape, device=self._device, generator=generator)
            skew = SKEW if i >= LAUNCHES - SKEWED else 0.0
            routing = random_routing(
                self.problem, batch_size, device=self._device, seed=i, skew=skew
            )
            found.append((x.to(self._type), routing.weights, routing.ids))
        return found

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """The engine's output (M, K)."""
        return self.served.run(self.problem, self._up, self._down, x, weights, ids)

    def reference(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """The first tokens' output, (at most CHECKED_TOKENS, K) float32, from dense weights."""
        out = torch.zeros((min(len(x), CHECKED_TOKENS), self.problem.K), device=self._device)
        for token in range(len(out)):
            for choice, expert in enumerate(ids[token].tolist()):
                gate, up = (self._up.dense(expert) @ x[token].float()).chunk(2)
                hidden = torch.nn.functional.silu(gate) * up
                out[token] += weights[token, choice] * (self._down.dense(expert) @ hidden)
        return out

    def use(self, files: str, root: Path) -> None:
        """Let the engine read "tuned", "shipped" or no files."""
        if files == "default":
            self.served.use_no_files()
        else:
            self.served.use_files(root if files == "tuned" else None)


def compare(layer: EngineLayer, batch_size: int, root: Path) -> dict[str, Any]:
    """Time and check the layer with the root's files and without, at one batch size."""
    inputs = layer.inputs(batch_size)
    expected = layer.reference(*inputs[0])
    names = ("tuned", "shipped", "default")
    graphs, errors = [], {}
    for name in names:
        layer.use(name, root)
        out = layer(*inputs[0])[: len(expected)].float()
        errors[name] = ((out - expected).norm() / expected.norm()).item()
        graphs.append(_capture(layer, inputs))
    medians = [statistics.median(samples) for samples in race(graphs, ROUNDS)]
    us = dict(zip(names, medians, strict=True))
    return {"batch_size": batch_size, "us": us, "error": errors}


def _capture(layer: Callable[..., Tensor], inputs: Sequence[LayerInputs]) -> Captured:
    for _ in range(2):  # compile, and let the engine do the set-up of its first call
        layer(*inputs[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for args in inputs:
            layer(*args)
    return Captured(graph, inputs)


def main(served: ServedLayer) -> None:
    problem, root, *sizes = sys.argv[1:]
    layer = EngineLayer(served, parse_fused_moe(problem))
    for size in sizes:
        print(json.dumps(compare(layer, int(size), Path(root))), flush=True)  # noqa: T201
