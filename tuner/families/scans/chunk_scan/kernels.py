"""Define the chain of kernels that scans the prompts of a Mamba-2 layer.

sglang's and vLLM's kernels have the same origin and kept its names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.devices.target import Target
from tuner.families.scans.chunk_scan.problem import NAME, ChunkScan, SsdKernel
from tuner.families.scans.scan import (
    Call,
    Key,
    Scan,
    TunedKernel,
    TunedKernels,
    chunks_of,
    dtype_of,
    tokens_of,
)
from tuner.kernels.stand_ins import SHORT_NAMES, Element, TensorSpec
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config, Point

# The values in the lists of sglang 0.5.23 and vLLM 0.33.0, and values between and beside them.
_TILE = {
    "BLOCK_SIZE_M": (16, 32, 64, 128),
    "BLOCK_SIZE_N": (16, 32, 64, 128, 256),
    "BLOCK_SIZE_K": (16, 32, 64, 128),
}
_FIRST_TILES = (
    (32, 32, 32),
    (32, 64, 32),
    (64, 32, 32),
    (64, 64, 32),
    (64, 64, 64),
    (64, 128, 32),
    (128, 64, 32),
    (128, 128, 32),
)
_BYTES, _WIDE = 2, 4  # of 16-bit numbers, and of float32


def racy(config: Config, target: Target) -> bool:
    """Say whether the products of the scan may race: on sm_90, whole warpgroups with stages that
    overlap. wgmma has an operand in registers, which the next iteration overwrites (vLLM 0.33.0,
    `_drop_racy_wgmma_configs` in model_executor/layers/mamba/ops/ssd_chunk_scan.py).
    """
    overlaps = config["num_stages"] > 1 and config["num_warps"] % 4 == 0
    return target.is_sm(90) and overlaps and config["BLOCK_SIZE_M"] % 64 == 0


def _seen_cumsum(named: Mapping[str, Any]) -> tuple[Key, int]:
    exact = named["chunk_size"], named["nheads"], dtype_of(named["dt_ptr"])
    return exact, named["dA_cumsum_ptr"].shape[-2]


def _seen_passing(named: Mapping[str, Any]) -> tuple[Key, int]:
    heads = named["states_ptr"].shape[-2]
    exact = named["chunk_size"], heads, named["dim"], dtype_of(named["out_ptr"])
    return exact, named["dA_cs_ptr"].shape[-2]


def _seen_bmm(named: Mapping[str, Any]) -> tuple[Key, int]:
    exact = named["chunk_size"], named["ngroups"], named["K"], dtype_of(named["a_ptr"])
    return exact, named["out_ptr"].shape[-4]


def _seen_x(named: Mapping[str, Any]) -> tuple[Key, int]:
    x = named["x_ptr"]
    sizes = x.shape[-2], named["hdim"], named["nheads_ngroups_ratio"], named["dstate"]
    return (named["chunk_size"], *sizes, dtype_of(x)), named["dA_cumsum_ptr"].shape[-2]


def _shows_x(p: ChunkScan) -> Key:
    sizes = p.heads, p.head_dim, p.heads // p.groups, p.state_size
    return (p.chunk_size, *sizes, p.dtype.value)


def _inner(p: ChunkScan) -> int:
    return p.heads * p.head_dim


def _states(p: ChunkScan, chunks: int) -> int:
    return chunks * _inner(p) * p.state_size


def _kept(p: ChunkScan, chunks: int) -> int:
    """Return the bytes of the states that are passed on."""
    return _states(p, chunks) * (_WIDE if p.state_dtype == "float32" else _BYTES)


def _x_b_and_sums(p: ChunkScan, tokens: int) -> int:
    rows = _inner(p) + p.groups * p.state_size
    return tokens * (rows * _BYTES + 2 * p.heads * _WIDE)


def _products(p: ChunkScan, tokens: int) -> int:
    return tokens * p.chunk_size * p.groups * _WIDE


_KERNELS: TunedKernels = {
    SsdKernel.CUMSUM: TunedKernel(
        file="ssd_chunk_state.py",
        calls=(
            Call(
                "_chunk_cumsum_fwd",
                "_chunk_cumsum_fwd_kernel",
                {"dt_out_ptr": "dt_out", "dA_cumsum_ptr": "dA_cumsum"},
            ),
        ),
        writes=("dt_out", "dA_cumsum"),
        blocks={"BLOCK_SIZE_H": (2, 4, 8, 16, 32, 64)},
        covers=lambda p: (p.heads,),
        seen=_seen_cumsum,
        shows=lambda p: (p.chunk_size, p.heads, p.dtype.value),
        operations=lambda p, tokens, chunks: 3.0 * tokens * p.heads,
        moved_bytes=lambda p, tokens, chunks: 2 * tokens * p.heads * _WIDE,
        stages=(3,),
    ),
    SsdKernel.STATE: TunedKernel(
        file="ssd_chunk_state.py",
        calls=(
            Call("_chunk_state_fwd", "_chunk_state_fwd_kernel", {"states_ptr": "states"}),
            # sglang's alone: the states at the ends of sequences.
            Call("chunk_state_varlen", "_chunk_state_varlen_kernel", {"states_ptr": "final"}),
        ),
        writes=("states", "final"),
        blocks=_TILE,
        covers=lambda p: (p.head_dim, p.state_size, p.chunk_size),
        seen=_seen_x,
        shows=_shows_x,
        operations=lambda p, tokens, chunks: 2.0 * tokens * _inner(p) * p.state_size,
        moved_bytes=lambda p, tokens, chunks: _x_b_and_sums(p, tokens) + _states(p, chunks) * _WIDE,
        first=_FIRST_TILES,
    ),
    SsdKernel.PASSING: TunedKernel(
        file="ssd_state_passing.py",
        calls=(
            Call(
                "_state_passing_fwd",
                "_state_passing_fwd_kernel",
                {"out_ptr": "passed", "final_states_ptr": "last"},
            ),
        ),
        writes=("passed", "final", "last"),
        blocks={"BLOCK_SIZE": (64, 128, 256, 512, 1024, 2048)},
        covers=lambda p: (p.head_dim * p.state_size,),
        seen=_seen_passing,
        shows=lambda p: (p.chunk_size, p.heads, p.head_dim * p.state_size, p.state_dtype),
        operations=lambda p, tokens, chunks: 2.0 * _states(p, chunks),
        moved_bytes=lambda p, tokens, chunks: _states(p, chunks) * _WIDE + _kept(p, chunks),
        stages=(3,),
    ),
    SsdKernel.BMM: TunedKernel(
        file="ssd_bmm.py",
        calls=(Call("_bmm_chunk_fwd", "_bmm_chunk_fwd_kernel", {"out_ptr": "CB"}),),
        writes=("CB",),
        blocks=_TILE,
        covers=lambda p: (p.chunk_size, p.chunk_size, p.state_size),
        seen=_seen_bmm,
        shows=lambda p: (p.chunk_size, p.groups, p.state_size, p.dtype.value),
        operations=lambda p, tokens, chunks: 2.0 * tokens * p.chunk_size * p.groups * p.state_size,
        moved_bytes=lambda p, tokens, chunks: (
            2 * tokens * p.groups * p.state_size * _BYTES + _products(p, tokens)
        ),
        first=_FIRST_TILES,
    ),
    SsdKernel.SCAN: TunedKernel(
        file="ssd_chunk_scan.py",
        calls=(Call("_chunk_scan_fwd", "_chunk_scan_fwd_kernel"),),
        writes=("out",),
        blocks=_TILE,
        covers=lambda p: (p.chunk_size, p.head_dim, p.chunk_size),
        seen=_seen_x,
        shows=_shows_x,
        # Half of the pairs lie below the diagonal.
        operations=lambda p, tokens, chunks: (
            tokens * _inner(p) * (2.0 * p.state_size + p.chunk_size)
        ),
        moved_bytes=lambda p, tokens, chunks: (
            _x_b_and_sums(p, tokens)
            + tokens * _inner(p) * _BYTES
            + _products(p, tokens)
            + _kept(p, chunks)
        ),
        first=_FIRST_TILES,
        unsafe=racy,
        unsafe_source="vLLM 0.33.0 drops these configurations on sm_90",
    ),
}


def operands(problem: ChunkScan, point: Point, call: Call) -> dict[str, Any]:
    """Return the arguments that launchers of all engines have, by their names.

    With T tokens in c chunks of s tokens, h heads of p, g groups and n states: x and out (T, h, p),
    dt (T, h), B and C (T, g, n) are parts of the rows that a layer's convolution and projection
    give; A, D and dt_bias (h); dt_out and dA_cumsum (h, c, s), states (c, h, p, n) and CB (c, g, s,
    s) float32; passed (c, h, p, n); final (sequences, h, p, n); last (h, p, n).
    """
    tokens, chunks = tokens_of(point), chunks_of(problem, tokens_of(point))
    h, p, n = problem.heads, problem.head_dim, problem.state_size
    groups, size = problem.groups, problem.chunk_size
    dtype, kept = SHORT_NAMES[problem.dtype.value], SHORT_NAMES[problem.state_dtype]
    row = h * p + 2 * groups * n  # of the convolution: x, B and C
    projected = 2 * h * p + 2 * groups * n + h  # gate, x, B, C and dt
    found: dict[str, Any] = {
        "x": TensorSpec("x", (tokens, h, p), dtype, (row, p, 1)),
        "B": TensorSpec("B", (tokens, groups, n), dtype, (row, n, 1)),
        "C": TensorSpec("C", (tokens, groups, n), dtype, (row, n, 1)),
        "dt": TensorSpec("dt", (tokens, h), dtype, (projected, 1)),
        "A": TensorSpec("A", (h,), "fp32"),
        "D": TensorSpec("D", (h,), dtype),
        "dt_bias": TensorSpec("dt_bias", (h,), dtype),
        "out": TensorSpec("out", (tokens, h, p), dtype),
        "dA_cumsum": TensorSpec("dA_cumsum", (h, chunks, size), "fp32"),
        "CB": TensorSpec("CB", (chunks, groups, size, size), "fp32"),
        "passed": TensorSpec("passed", (chunks, h, p, n), kept),
        **{"z": None, "initial_states": None, "chunk_size": size, "dt_softplus": True},
        "dt_limit": (0.0, float("inf")),
        **{"output_dtype": Element("fp32"), "out_dtype": Element(kept)},
    }
    if call.launcher == "_state_passing_fwd":
        found["states"] = TensorSpec("states", (chunks, h, p * n), "fp32")
    if call.launcher == "_chunk_scan_fwd":
        found["states"] = found["passed"]
    if call.launcher != "_chunk_cumsum_fwd":
        found["dt"] = TensorSpec("dt_out", (h, chunks, size), "fp32")
    return {**found, "a": found["C"], "b": found["B"], "cb": found["CB"]}


def title(p: ChunkScan) -> str:
    sizes = f"{p.heads}x{p.head_dim} heads, {p.groups} groups, state {p.state_size}"
    return f"chunked scan, {sizes}, chunks of {p.chunk_size}"


# With the engines' own configurations the whole chain errs by 0.023 to 0.037 in bfloat16, because
# products are rounded (six prompts, sglang 0.5.16 and 0.5.23 and vLLM 0.33.0 on an H100).
_WORST_ERROR = {Dtype.BFLOAT16: 0.05, Dtype.FLOAT16: 0.01}
SCAN = Scan(NAME, "Mamba-2", ChunkScan.parse, title, _KERNELS, operands, _WORST_ERROR)
