"""Define the chains of kernels that scan the prompts of a gated delta net in sglang and vLLM.

A launch shows its length by the list of its chunks, or by the states that it writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.devices.target import Target
from tuner.families.scans.gated_delta.problem import (
    CHAINS,
    NAME,
    DeltaKernel,
    GatedDelta,
)
from tuner.families.scans.scan import (
    Call,
    Key,
    Scan,
    TunedKernel,
    TunedKernels,
    all_chunks,
    dtype_of,
    tokens_of,
)
from tuner.kernels.stand_ins import SHORT_NAMES, TensorSpec
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config, Point

_BYTES, _WIDE = 2, 4  # of 16-bit numbers, and of float32
_TILE = {"BK": (32, 64, 128), "BV": (32, 64, 128)}
_FIRST_TILES = ((64, 64), (128, 64), (64, 128), (128, 128))


def wide(config: Config, target: Target) -> bool:
    """Say whether a kernel has more warps than the engines let it have on sm_90: `NUM_WARPS` in
    chunk_delta_h.py and chunk_o.py of sglang 0.5.23 and vLLM 0.33.0.
    """
    return target.is_sm(90) and config["num_warps"] > 4


def broken(config: Config, target: Target) -> bool:
    """Say whether a configuration's tiles are narrow for a whole warpgroup: with 8 of 42 such
    configurations, Triton 3.6.0 wrote wrong results or read outside of its tensors (an H100).
    """
    narrow = 32 in (config["BK"], config["BV"])
    return target.is_sm(90) and narrow and config["num_warps"] >= 4


def wide_or_broken(config: Config, target: Target) -> bool:
    return wide(config, target) or broken(config, target)


_WIDE_SOURCE = "sglang and vLLM have no such configurations on sm_90"
_BROKEN_SOURCE = "Triton 3.6.0 breaks some of them on sm_90"


def _seen_norm(named: Mapping[str, Any]) -> tuple[Key, int]:
    return (named["D"], dtype_of(named["x"])), named["T"]


def _seen_gates(named: Mapping[str, Any]) -> tuple[Key, int]:
    return (named["H"], named["BT"], dtype_of(named["s"])), _chunks(named)


def _seen_inverse(named: Mapping[str, Any]) -> tuple[Key, int]:
    return (named["H"], named["BT"], dtype_of(named["Ai"])), _chunks(named)


def _seen_k(named: Mapping[str, Any]) -> tuple[Key, int]:
    return _sizes(named), _chunks(named)


def _seen_kv(named: Mapping[str, Any]) -> tuple[Key, int]:
    return (*_sizes(named), named["V"]), _chunks(named)


def _seen_states(named: Mapping[str, Any]) -> tuple[Key, int] | None:
    if named["g"] is None:  # of other layers, such as KDA's, whose gates are by key
        return None
    pool = dtype_of(named.get("initial_state", named.get("h0")))  # sglang's name, and vLLM's
    return (*_sizes(named), named["V"], pool), named["h"].shape[-4]


def _seen_out(named: Mapping[str, Any]) -> tuple[Key, int] | None:
    # Engines' chunk_o.py takes smaller chunks for prompts of 32 tokens or fewer.
    if named["g"] is None or named["BT"] < GatedDelta.chunk_size:
        return None
    return (*_sizes(named), named["V"]), named["h"].shape[-4]


def _sizes(named: Mapping[str, Any]) -> Key:
    return (named["BT"], named["Hg"], named["H"], named["K"], dtype_of(named["k"]))


def _chunks(named: Mapping[str, Any]) -> int:
    found: int = named["chunk_indices"].shape[0]
    return found


def _own(p: GatedDelta) -> Key:
    return (p.chunk_size, p.key_heads, p.value_heads, p.key_dim, p.dtype.value)


def _keys(p: GatedDelta) -> int:
    return p.key_heads * p.key_dim


def _values(p: GatedDelta) -> int:
    return p.value_heads * p.value_dim


def _by_head(p: GatedDelta, tokens: int) -> int:
    """Return the bytes of T: a row of a chunk for each token and head."""
    return tokens * p.value_heads * p.chunk_size * _BYTES


def _weights(p: GatedDelta, tokens: int) -> int:
    """Return the bytes of w and u."""
    return tokens * (p.value_heads * p.key_dim + _values(p)) * _BYTES


def _states(p: GatedDelta, chunks: int) -> int:
    return chunks * _values(p) * p.key_dim * _BYTES


_KERNELS: TunedKernels = {
    DeltaKernel.NORM: TunedKernel(
        file="l2norm.py",
        calls=(
            Call("l2norm_fwd", "l2norm_fwd_kernel", {"y": "k_normal"}),
            Call("l2norm_fwd", "l2norm_fwd_kernel", {"y": "q_normal"}),
        ),
        writes=("q_normal", "k_normal"),
        blocks={"BT": (4, 8, 16, 32, 64)},
        covers=lambda p: (64,),
        seen=_seen_norm,
        shows=lambda p: (p.key_dim, p.dtype.value),
        operations=lambda p, tokens, chunks: 8.0 * tokens * _keys(p),
        moved_bytes=lambda p, tokens, chunks: 4 * tokens * _keys(p) * _BYTES,
        stages=(3,),
        tokens=lambda p, rows: rows // p.key_heads,
    ),
    DeltaKernel.GATES: TunedKernel(
        file="cumsum.py",
        calls=(
            Call("chunk_local_cumsum_scalar", "chunk_local_cumsum_scalar_kernel", {"o": "g_sum"}),
        ),
        writes=("g_sum",),
        blocks={},
        covers=lambda p: (),
        seen=_seen_gates,
        shows=lambda p: (p.value_heads, p.chunk_size, "float32"),
        operations=lambda p, tokens, chunks: 1.0 * tokens * p.value_heads,
        moved_bytes=lambda p, tokens, chunks: 2 * tokens * p.value_heads * _WIDE,
        stages=(3,),
    ),
    DeltaKernel.SOLVE: TunedKernel(
        file="chunk_fwd.py",
        calls=(
            Call(
                "chunk_gated_delta_rule_fwd_intra",
                "chunk_gated_delta_rule_fwd_kkt_solve_kernel",
                {"A": "T"},
            ),
        ),
        writes=("T",),
        blocks={"BK": (16, 32, 64, 128)},
        covers=lambda p: (p.key_dim,),
        seen=_seen_k,
        shows=_own,
        operations=lambda p, tokens, chunks: (
            tokens * p.chunk_size * p.value_heads * (p.key_dim + p.chunk_size)
        ),
        moved_bytes=lambda p, tokens, chunks: tokens * _keys(p) * _BYTES + _by_head(p, tokens),
        warps=(1, 2, 4),
        stages=(1, 2, 3, 4),
    ),
    DeltaKernel.PRODUCTS: TunedKernel(
        file="chunk_scaled_dot_kkt.py",
        calls=(Call("chunk_scaled_dot_kkt_fwd", "chunk_scaled_dot_kkt_fwd_kernel", {"A": "A"}),),
        writes=("A",),
        blocks={"BK": (32, 64, 128)},
        covers=lambda p: (p.key_dim,),
        seen=_seen_k,
        shows=_own,
        operations=lambda p, tokens, chunks: (
            tokens * p.chunk_size * p.value_heads * 2.0 * p.key_dim
        ),
        moved_bytes=lambda p, tokens, chunks: tokens * _keys(p) * _BYTES + 2 * _by_head(p, tokens),
        warps=(2, 4, 8),
        stages=(1, 2, 3, 4),
    ),
    DeltaKernel.INVERSE: TunedKernel(
        file="solve_tril.py",
        calls=(Call("solve_tril", "merge_16x16_to_64x64_inverse_kernel", {"Ai": "T"}),),
        writes=("T",),
        blocks={},
        covers=lambda p: (),
        seen=_seen_inverse,
        shows=lambda p: (p.value_heads, p.chunk_size, p.dtype.value),
        operations=lambda p, tokens, chunks: 1.0 * tokens * p.chunk_size**2 * p.value_heads,
        moved_bytes=lambda p, tokens, chunks: 3 * _by_head(p, tokens),
        stages=(1, 2, 3, 4, 5),
    ),
    DeltaKernel.WEIGHTS: TunedKernel(
        file="wy_fast.py",
        calls=(Call("recompute_w_u_fwd", "recompute_w_u_fwd_kernel", {"w": "w", "u": "u"}),),
        writes=("w", "u"),
        blocks=_TILE,
        covers=lambda p: (p.key_dim, p.value_dim),
        seen=_seen_kv,
        shows=lambda p: (*_own(p), p.value_dim),
        operations=lambda p, tokens, chunks: (
            2.0 * tokens * p.chunk_size * p.value_heads * (p.key_dim + p.value_dim)
        ),
        moved_bytes=lambda p, tokens, chunks: (
            tokens * (_keys(p) + _values(p)) * _BYTES + _by_head(p, tokens) + _weights(p, tokens)
        ),
        warps=(2, 4, 8),
        first=_FIRST_TILES,
        unsafe=broken,
        unsafe_source=_BROKEN_SOURCE,
    ),
    DeltaKernel.STATES: TunedKernel(
        file="chunk_delta_h.py",
        calls=(
            Call(
                "chunk_gated_delta_rule_fwd_h",
                "chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
                {"h": "h", "v_new": "v_new", "ht": "pool"},  # vLLM's last states are apart
            ),
        ),
        writes=("h", "v_new", "pool"),
        blocks={"BV": (16, 32, 64, 128)},
        covers=lambda p: (p.value_dim,),
        seen=_seen_states,
        shows=lambda p: (*_own(p), p.value_dim, p.state_dtype),
        operations=lambda p, tokens, chunks: 4.0 * tokens * _values(p) * p.key_dim,
        moved_bytes=lambda p, tokens, chunks: (
            tokens * (_keys(p) + _values(p)) * _BYTES + _weights(p, tokens) + _states(p, chunks)
        ),
        warps=(2, 4, 8),
        stages=(1, 2, 3, 4),
        unsafe=wide,
        unsafe_source=_WIDE_SOURCE,
    ),
    DeltaKernel.OUT: TunedKernel(
        file="chunk_o.py",
        calls=(Call("chunk_fwd_o", "chunk_fwd_kernel_o", {"o": "out"}),),
        writes=("out",),
        blocks=_TILE,
        covers=lambda p: (p.key_dim, p.value_dim),
        seen=_seen_out,
        shows=lambda p: (*_own(p), p.value_dim),
        operations=lambda p, tokens, chunks: (
            tokens
            * p.value_heads
            * (2.0 * p.key_dim * p.value_dim + p.chunk_size * (p.key_dim + p.value_dim))
        ),
        moved_bytes=lambda p, tokens, chunks: (
            2 * tokens * (_keys(p) + _values(p)) * _BYTES + _states(p, chunks)
        ),
        warps=(2, 4, 8),
        first=_FIRST_TILES,
        unsafe=wide_or_broken,
        unsafe_source=f"{_WIDE_SOURCE}, or {_BROKEN_SOURCE}",
    ),
}


def operands(problem: GatedDelta, point: Point, call: Call) -> dict[str, Any]:
    """Return the arguments that launchers have, by their names. All prompts are one row of tokens.

    With T tokens in c chunks of s tokens, h value heads of v and g key heads of n numbers: q, k and
    their normal forms (T, g, n); v, u, v_new and out (T, h, v); g, g_sum and beta (T, h) float32;
    T and A (T, h, s); w (T, h, n); h (c, h, v, n); pool and initial (sequences, h, v, n). The chain
    `split` reads the first states of `initial`, and the chain `fused` of `pool`.
    """
    tokens, chunks = tokens_of(point), all_chunks(problem, point)
    heads, n, v = problem.value_heads, problem.key_dim, problem.value_dim
    dtype, kept = SHORT_NAMES[problem.dtype.value], SHORT_NAMES[problem.state_dtype]

    def rows(name: str, *shape: int, of: str = dtype) -> TensorSpec:
        return TensorSpec(name, (1, tokens, *shape), of)

    keys = problem.key_heads, n
    found: dict[str, Any] = {
        "x": rows(call.made.get("y", "x").removesuffix("_normal"), *keys),
        "q": rows("q_normal", *keys),
        "k": rows("k_normal", *keys),
        "v": rows("v", heads, v),
        "g": rows("g_sum", heads, of="fp32"),
        "beta": rows("beta", heads, of="fp32"),
        "A": rows("T", heads, problem.chunk_size),
        "w": rows("w", heads, n),
        "u": rows("u", heads, v),
        "h": TensorSpec("h", (1, chunks, heads, v, n), dtype),
        "initial_state": TensorSpec(_first_states(problem), (point.batch_size, heads, v, n), kept),
        "output_final_state": True,
        "initial_state_indices": TensorSpec("slots", (point.batch_size,), "i32"),
        "cu_seqlens": TensorSpec("sequence_ends", (point.batch_size + 1,), "i32"),
        "chunk_indices": TensorSpec("chunk_indices", (chunks, 2), "i32"),
        "chunk_offsets": TensorSpec("chunk_offsets", (point.batch_size + 1,), "i32"),
        **{"chunk_size": problem.chunk_size, "scale": n**-0.5},
    }
    found["g_cumsum"] = found["g"]
    if call.launcher == "chunk_local_cumsum_scalar":
        found |= {"g": rows("g", heads, of="fp32"), "scale": None}
    if call.launcher == "solve_tril":
        found |= {"A": rows("A", heads, problem.chunk_size, of="fp32"), "output_dtype": dtype}
    if call.launcher == "chunk_fwd_o":
        found["v"] = rows("v_new", heads, v)
    return found


def _first_states(problem: GatedDelta) -> str:
    return "initial" if problem.chain == "split" else "pool"


def title(p: GatedDelta) -> str:
    sizes = f"{p.key_heads}x{p.key_dim} keys, {p.value_heads}x{p.value_dim} values"
    return f"chunked scan, gated deltas of {sizes}"


# With sglang's own configurations, states and new values err by up to 0.093 in bfloat16, and the
# whole chain by 0.040 to 0.069 (0.5.16 and 0.5.23, six prompts of Qwen3-Next's sizes, an H100).
_WORST_ERROR = {Dtype.BFLOAT16: 0.15, Dtype.FLOAT16: 0.03}
SCAN = Scan(
    NAME,
    "gated delta nets'",
    GatedDelta.parse,
    title,
    _KERNELS,
    operands,
    _WORST_ERROR,
    dict.fromkeys(("T", "pool"), 0.0),
    CHAINS,
)
