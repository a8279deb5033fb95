"""Microseconds of torch's own matrix products, which `gemm_gpu.py` sets beside tuned kernels'.

Weights are cold and each launch has other inputs, as where the tuner measures.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from tuner.measure.timing import LAUNCHES, Captured, race

Calls = list[Callable[[], object]]
ROUNDS = 15


def versions() -> dict[str, str]:
    return {"torch": torch.__version__, "cuda": torch.version.cuda or ""}


def other_times(N: int, K: int, M: int) -> tuple[dict[str, float], dict[str, str]]:
    """Microseconds by kernel, timed in turn, and why a kernel is absent."""
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    weights, graphs, absent = N * K, {}, {}
    for name, make in KERNELS.items():
        try:
            calls = make(N, K, M, 1 if weights > 2 * l2 else LAUNCHES)
            graphs[name] = _captured(calls)
        except (RuntimeError, NotImplementedError, AttributeError) as error:
            absent[name] = str(error).splitlines()[0][:200]
            torch.cuda.synchronize()
    filler = torch.zeros(2 * l2 // 4, dtype=torch.float32, device="cuda")
    samples = race(list(graphs.values()), ROUNDS, before=filler.sum)
    return dict(zip(graphs, map(statistics.median, samples), strict=True)), absent


def _captured(calls: Calls) -> Captured:
    for call in calls[:2]:
        call()  # cuBLAS makes its workspace before a capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for at in range(LAUNCHES):
            calls[at % len(calls)]()
    return Captured(graph, [calls[at % len(calls)] for at in range(LAUNCHES)])


def _cublas_bf16(N: int, K: int, M: int, copies: int) -> Calls:
    def one() -> Callable[[], object]:
        a = torch.randn((M, K), device="cuda", dtype=torch.bfloat16)
        b = torch.randn((N, K), device="cuda", dtype=torch.bfloat16)
        return lambda: torch.nn.functional.linear(a, b)

    return [one() for _ in range(copies)]


def _scaled_mm(N: int, K: int, M: int, copies: int) -> Calls:
    """torch._scaled_mm with one scale for each tensor: cuBLAS's fp8 kernels."""
    scale = torch.ones((), device="cuda")

    def one() -> Callable[[], object]:
        a, b = _fp8(M, K), _fp8(N, K)
        return lambda: torch._scaled_mm(
            a, b.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16
        )

    return [one() for _ in range(copies)]


def _scaled_mm_rows(N: int, K: int, M: int, copies: int) -> Calls:
    """torch._scaled_mm with a scale for each row of A and each column of C: CUTLASS."""
    scale_a = torch.ones((M, 1), device="cuda")
    scale_b = torch.ones((1, N), device="cuda")

    def one() -> Callable[[], object]:
        a, b = _fp8(M, K), _fp8(N, K)
        return lambda: torch._scaled_mm(
            a, b.t(), scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16
        )

    return [one() for _ in range(copies)]


def _scaled_mm_blocks(N: int, K: int, M: int, copies: int) -> Calls:
    """torch._scaled_mm with scales of 1x128 and 128x128: the layouts that its checks ask for."""
    groups, columns = -(-K // 128), -(-N // 128)
    scale_a = torch.ones((groups, M), device="cuda").t()
    padded = torch.ones((columns, -(-groups // 4) * 4), device="cuda")
    scale_b = padded[:, :groups].t()

    def one() -> Callable[[], object]:
        a, b = _fp8(M, K), _fp8(N, K)
        return lambda: torch._scaled_mm(
            a, b.t(), scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16
        )

    return [one() for _ in range(copies)]


def _fp8(rows: int, columns: int) -> Tensor:
    return torch.randn((rows, columns), device="cuda").to(torch.float8_e4m3fn)


KERNELS: dict[str, Callable[[int, int, int, int], Calls]] = {
    "bf16 cuBLAS": _cublas_bf16,
    "fp8 per tensor": _scaled_mm,
    "fp8 per row": _scaled_mm_rows,
    "fp8 blocks": _scaled_mm_blocks,
}
