"""The chain of kernels that scans the prompts of KDA, as sglang has it, and vLLM in other files.

A launch shows how long it is by the list of its chunks, by the states that it writes, or by its
tokens. Launches of other chains are told apart: those of gates with a lower bound (Kimi-K3), of
gated delta nets, and of sglang's short prompts, which have two kernels fewer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.devices.target import Target
from tuner.families.kda.problem import NAME, Kda, KdaKernel, parse_kda
from tuner.families.scans.scan import (
    Call,
    Key,
    Scan,
    Stage,
    Stages,
    all_chunks,
    dtype_of,
    tokens_of,
)
from tuner.kernels.stand_ins import SHORT_NAMES, TensorSpec
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config, Point

_BYTES, _WIDE = 2, 4  # of 16-bit numbers, and of float32
_BLOCK = 16  # tokens of a block on a diagonal
Seen = tuple[Key, int] | None


def wide(config: Config, target: Target) -> bool:
    """Whether a kernel has more warps than the engines let it have on sm_90: `NUM_WARPS` in
    chunk_delta_h.py of sglang 0.5.23, and vLLM 0.33.0's list there.
    """
    return target.is_sm(90) and config["num_warps"] > 4


def narrow(config: Config, target: Target) -> bool:
    """Whether its tiles are narrow for a whole warpgroup on sm_90: in kernels of gated delta nets,
    Triton 3.6.0 breaks some of them.
    """
    return target.is_sm(90) and 32 in (config["BK"], config["BV"]) and config["num_warps"] >= 4


def narrow_values(config: Config, target: Target) -> bool:
    """The same, but for tiles that both engines list."""
    return config["BV"] == 32 and narrow(config, target)


_NARROW = "Triton 3.6.0 breaks some of such tiles in kernels of gated delta nets"


def _seen_gates(named: Mapping[str, Any]) -> Seen:
    if named["lower_bound"]:  # None or 0.0 without one
        return None
    return (named["H"], named["S"], named["BT"], dtype_of(named["s"])), _chunks(named)


def _seen_diagonal(named: Mapping[str, Any]) -> Seen:
    return _sizes(named, "q"), named["T"]


def _seen_solve(named: Mapping[str, Any]) -> Seen:
    if named["USE_SAFE_GATE"] or named.get("FUSE_DIAGONAL"):
        return None
    return _sizes(named, "q"), _chunks(named)


def _seen_weights(named: Mapping[str, Any]) -> Seen:
    return _sizes(named, "k"), _chunks(named)


def _seen_states(named: Mapping[str, Any]) -> Seen:
    if named["gk"] is None:  # of gated delta nets
        return None
    pool = dtype_of(named.get("initial_state", named.get("h0")))  # sglang's name, and vLLM's
    return (*_sizes(named, "k"), pool), named["h"].shape[-4]


def _seen_out(named: Mapping[str, Any]) -> Seen:
    return _sizes(named, "q"), named["h"].shape[-4]


def _sizes(named: Mapping[str, Any], rows: str) -> Key:
    return (named["BT"], named["H"], named["K"], dtype_of(named[rows]))


def _chunks(named: Mapping[str, Any]) -> int:
    found: int = named["chunk_indices"].shape[0]
    return found


def _own(p: Kda) -> Key:
    return (p.chunk_size, p.heads, p.head_dim, p.dtype.value)


def _row(p: Kda, tokens: int) -> int:
    """Numbers of q, or of what is as large."""
    return tokens * p.heads * p.head_dim


def _by_head(p: Kda, tokens: int) -> int:
    """Bytes of T: a row of a chunk for each token and head."""
    return tokens * p.heads * p.chunk_size * _BYTES


def _states(p: Kda, chunks: int) -> int:
    return chunks * p.heads * p.head_dim**2 * _BYTES


def _gated(p: Kda, tokens: int, rows: int) -> int:
    """Bytes of so many tensors like q, and of s."""
    return _row(p, tokens) * (rows * _BYTES + _WIDE)


_STAGES: Stages = {
    KdaKernel.GATES: Stage(
        file="kda.py",
        calls=(
            Call(
                "kda_gate_chunk_cumsum",
                "kda_gate_chunk_cumsum_vector_kernel",
                {"o": "g_sum", "beta_out": "beta"},
            ),
        ),
        writes=("g_sum", "beta"),
        blocks={"BS": (16, 32, 64, 128)},
        covers=lambda p: (p.head_dim,),
        seen=_seen_gates,
        shows=lambda p: (p.heads, p.head_dim, p.chunk_size, p.dtype.value),
        operations=lambda p, tokens, chunks: 8.0 * _row(p, tokens),
        moved_bytes=lambda p, tokens, chunks: _gated(p, tokens, 1),
        stages=(3,),
    ),
    KdaKernel.DIAGONAL: Stage(
        file="chunk_intra_token_parallel.py",
        calls=(
            Call("chunk_kda_fwd_intra_token_parallel", "chunk_kda_fwd_kernel_intra_token_parallel"),
        ),
        writes=("near", "diagonal"),
        blocks={"BH": (1, 2, 4, 8)},
        covers=lambda p: (p.heads,),
        seen=_seen_diagonal,
        shows=_own,
        operations=lambda p, tokens, chunks: 4.0 * _BLOCK * _row(p, tokens),
        moved_bytes=lambda p, tokens, chunks: _gated(p, tokens, 2),
        stages=(3,),
        tokens=lambda p, tokens: tokens,
    ),
    KdaKernel.SOLVE: Stage(
        file="chunk_intra.py",
        calls=(
            Call(
                "chunk_kda_fwd_intra",
                "chunk_kda_fwd_kernel_inter_solve_fused",
                {"Aqk": "far", "Akkd": "diagonal", "Akk": "T"},
            ),
        ),
        writes=("far", "T"),
        blocks={"BK": (16, 32, 64, 128)},
        covers=lambda p: (p.head_dim,),
        seen=_seen_solve,
        shows=_own,
        operations=lambda p, tokens, chunks: (
            tokens * p.chunk_size * p.heads * (2.0 * p.head_dim + p.chunk_size)
        ),
        moved_bytes=lambda p, tokens, chunks: _gated(p, tokens, 2) + 2 * _by_head(p, tokens),
        warps=(1, 2, 4),
        stages=(1, 2, 3, 4),
    ),
    KdaKernel.WEIGHTS: Stage(
        file="kda.py",
        calls=(
            Call(
                "recompute_w_u_fwd",
                "recompute_w_u_fwd_kernel",
                {"w": "w", "u": "u", "kg": "kg"},
                also=("_recompute_w_u_fwd_kernel",),
            ),
        ),
        writes=("w", "u", "kg"),
        blocks={"BK": (32, 64, 128), "BV": (32, 64, 128)},
        covers=lambda p: (p.head_dim, p.head_dim),
        seen=_seen_weights,
        shows=_own,
        operations=lambda p, tokens, chunks: 4.0 * p.chunk_size * _row(p, tokens),
        moved_bytes=lambda p, tokens, chunks: _gated(p, tokens, 5) + _by_head(p, tokens),
        warps=(2, 4, 8),
        first=((64, 64), (128, 64), (64, 128), (128, 128)),
        unsafe=narrow,
        unsafe_source=_NARROW,
    ),
    KdaKernel.STATES: Stage(
        file="chunk_delta_h.py",
        calls=(
            Call(
                "chunk_gated_delta_rule_fwd_h",
                "chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
                {"h": "h", "v_new": "v_new", "ht": "final"},  # vLLM's last states are apart
            ),
        ),
        writes=("h", "v_new", "pool", "final"),
        blocks={"BV": (16, 32, 64, 128)},
        covers=lambda p: (p.head_dim,),
        seen=_seen_states,
        shows=lambda p: (*_own(p), p.state_dtype),
        operations=lambda p, tokens, chunks: 4.0 * p.head_dim * _row(p, tokens),
        moved_bytes=lambda p, tokens, chunks: _row(p, tokens) * 4 * _BYTES + _states(p, chunks),
        warps=(2, 4, 8),
        stages=(1, 2, 3, 4),
        unsafe=wide,
        unsafe_source="sglang and vLLM have no such configurations on sm_90",
    ),
    KdaKernel.OUT: Stage(
        file="kda.py",
        calls=(Call("chunk_gla_fwd_o_gk", "chunk_gla_fwd_kernel_o"),),
        writes=("out",),
        blocks={"BK": (32, 64, 128), "BV": (32, 64, 128)},
        covers=lambda p: (p.head_dim, p.head_dim),
        seen=_seen_out,
        shows=_own,
        operations=lambda p, tokens, chunks: (
            _row(p, tokens) * (2.0 * p.head_dim + 2.0 * p.chunk_size)
        ),
        moved_bytes=lambda p, tokens, chunks: (
            _gated(p, tokens, 3) + _by_head(p, tokens) + _states(p, chunks)
        ),
        warps=(2, 4, 8),
        first=((64, 64), (64, 128), (32, 64), (32, 128)),
        unsafe=narrow_values,
        unsafe_source=_NARROW,
    ),
}


def operands(problem: Kda, point: Point, call: Call) -> dict[str, Any]:
    """The arguments that launchers have, by their names. All prompts are one row of tokens.

    With T tokens in c chunks of s tokens and h heads of n numbers: q, k and their normal forms, v,
    w, u, kg, v_new, out (T, h, n); g_sum the same in float32; beta (T, h) float32; near, far, P and
    T (T, h, s); diagonal (T, h, 16) float32; h (c, h, n, n); pool, initial and final (sequences, h,
    n, n). The kernels of `near` and `far` write into one tensor, P, in servers.
    """
    tokens, chunks = tokens_of(point), all_chunks(problem, point)
    heads, n = problem.heads, problem.head_dim
    dtype, kept = SHORT_NAMES[problem.dtype.value], SHORT_NAMES[problem.state_dtype]

    def rows(name: str, *shape: int, of: str = dtype) -> TensorSpec:
        return TensorSpec(name, (1, tokens, *(shape or (heads, n))), of)

    pairs = heads, problem.chunk_size
    first = TensorSpec("pool", (point.batch_size, heads, n, n), kept)
    found: dict[str, Any] = {
        "q": rows("q_normal"),
        "k": rows("k_normal"),
        "v": rows("v"),
        "gk": rows("g_sum", of="fp32"),
        "beta": rows("beta", heads, of="fp32"),
        "A": rows("T", *pairs),
        "Aqk": rows("near", *pairs),
        "Akk": rows("diagonal", heads, _BLOCK, of="fp32"),
        "w": rows("w"),
        "u": rows("u"),
        "h": TensorSpec("h", (1, chunks, heads, n, n), dtype),
        "o": rows("out"),
        "A_log": TensorSpec("A_log", (heads,), "fp32"),
        "initial_state": first,
        "initial_state_indices": TensorSpec("slots", (point.batch_size,), "i32"),
        "output_final_state": True,
        "cu_seqlens": TensorSpec("sequence_ends", (point.batch_size + 1,), "i32"),
        "chunk_indices": TensorSpec("chunk_indices", (chunks, 2), "i32"),
        "chunk_offsets": TensorSpec("chunk_offsets", (point.batch_size + 1,), "i32"),
        **{"chunk_size": problem.chunk_size, "scale": n**-0.5},
    }
    if call.launcher == "recompute_w_u_fwd":
        del found["q"]  # an option that servers do not take
    if call.launcher == "chunk_gated_delta_rule_fwd_h":
        found["k"] = rows("kg")
    if call.launcher == "chunk_gla_fwd_o_gk":
        found |= {"g": found["gk"], "v": rows("v_new"), "A": rows("P", *pairs)}
    return found


def gate_operands(problem: Kda, point: Point) -> dict[str, TensorSpec]:
    """What the kernel of gates is given, by the names of tensors."""
    shape = 1, tokens_of(point), problem.heads
    dtype = SHORT_NAMES[problem.dtype.value]
    bias = (problem.heads * problem.head_dim,)
    return {
        "raw_g": TensorSpec("raw_g", (*shape, problem.head_dim), dtype),
        "raw_beta": TensorSpec("raw_beta", shape, dtype),
        "bias": TensorSpec("bias", bias, "fp32"),
    }


def launched_apart(source: Path) -> dict[str, object]:
    """A stand-in for the kernel of DIAGONAL in the file of SOLVE, whose launcher calls it first."""
    if source.name != "chunk_intra.py":
        return {}
    return {
        "chunk_kda_fwd_intra_token_parallel": lambda **given: (given["Aqk"], given["Akk"]),
    }


def title(p: Kda) -> str:
    return f"chunked scan, KDA of {p.heads}x{p.head_dim}"


# As for gated delta nets. With the engines' own configurations and with tuned ones, the whole chain
# errs by 0.039 to 0.049 in bfloat16 (sglang 0.5.16 and 0.5.23, vLLM 0.33.0, an H100).
_WORST_ERROR = {Dtype.BFLOAT16: 0.15, Dtype.FLOAT16: 0.03}
SCAN = Scan(
    NAME,
    "KDA's",
    parse_kda,
    title,
    _STAGES,
    operands,
    _WORST_ERROR,
    dict.fromkeys(("near", "far", "diagonal", "T", "pool"), 0.0),
)
