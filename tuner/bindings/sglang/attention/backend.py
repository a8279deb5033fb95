"""Build the arguments that sglang's attention backend passes to its launchers.

Source: `TritonAttnBackend` in sglang 0.4.4 to 0.5.23 (forward_extend, forward_decode,
init_forward_metadata), for one rank and a cache of 16-bit elements.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.devices.table import architecture
from tuner.devices.target import Target
from tuner.errors import UnsupportedKernel
from tuner.families.attention.problem import Attention, AttentionPhase
from tuner.kernels.launcher import TensorSpec
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Point

PHASE_FLAGS = {  # these override --attention-backend for one phase
    AttentionPhase.EXTEND: "--prefill-attention-backend",
    AttentionPhase.DECODE: "--decode-attention-backend",
}
ELEMENT = {Dtype.BFLOAT16: "bf16", Dtype.FLOAT16: "fp16"}


def index_types(root: Path, origin: str) -> dict[str, str]:
    """Read the types of index tensors (i32 or i64), which differ between versions.

    `root` is the engine's package. Raises UnsupportedKernel.
    """
    backend = root / "srt/layers/attention/triton_backend.py"
    try:
        text = backend.read_text(encoding="utf-8")
    except OSError:
        raise UnsupportedKernel(f"{origin} has no {backend.name}") from None
    return {name: _index_type(origin, text, name) for name in ("qo_indptr", "kv_indices")}


def launcher_arguments(
    problem: Attention,
    point: Point,
    target: Target,
    takes: tuple[str, ...],
    types: Mapping[str, str],
) -> dict[str, Any]:
    """Return the arguments of the launcher, by the launcher's parameter names.

    Raises UnsupportedKernel if this version's kernel lacks sinks or a window that it needs.
    """
    for field, parameter in (("sinks", "sinks"), ("window", "sliding_window_size")):
        if getattr(problem, field) and parameter not in takes:
            raise UnsupportedKernel(f"{problem.spec()}: this version's kernel has no {field}")
    scale = problem.Lq**-0.5
    if problem.phase is AttentionPhase.PREFILL:
        # Servers run prefill only for images, whose tokens all see each other.
        return {
            **prefill_tensors(problem, point),
            "max_input_len": point.new_tokens,
            "is_causal": False,
        }
    common = {
        "k_scale": 1.0,
        "v_scale": 1.0,
        "sm_scale": scale,
        "logit_cap": problem.logit_cap,
        "sinks": TensorSpec("sinks", (problem.q_heads,), ELEMENT[problem.dtype])
        if problem.sinks
        else None,
        "page_size": problem.page_size,
    }
    if problem.phase is AttentionPhase.EXTEND:
        return {
            **common,
            **extend_tensors(problem, point, types),
            "custom_mask": None,
            "is_causal": True,
            "mask_indptr": None,
            "max_len_extend": point.new_tokens,
            "sliding_window_size": problem.window or -1,
        }
    one_number = "max_kv_splits" not in takes  # sglang 0.4.4: all sequences have the same splits
    return {
        **common,
        **decode_tensors(problem, point, takes, types),
        **({"num_kv_splits": problem.most_splits} if one_number else {}),
        "max_kv_splits": problem.most_splits,
        "has_mla": problem.shares_kv,
        "use_pdl": architecture(target).has_pdl,  # is_arch_support_pdl()
    }


def extend_tensors(
    problem: Attention, point: Point, types: Mapping[str, str]
) -> dict[str, TensorSpec]:
    """Return the new tokens' queries, keys and values, and the cache, by the launcher's names."""
    rows = point.batch_size * point.new_tokens
    kind = ELEMENT[problem.dtype]
    heads, kv_heads = problem.q_heads, problem.kv_heads
    return {
        "q_extend": TensorSpec("q_extend", (rows, heads, problem.Lq), kind),
        "k_extend": TensorSpec("k_extend", (rows, kv_heads, problem.Lq), kind),
        "v_extend": TensorSpec("v_extend", (rows, kv_heads, problem.Lv), kind),
        "o_extend": TensorSpec("o_extend", (rows, heads, problem.Lv), kind),
        "qo_indptr": TensorSpec("qo_indptr", (point.batch_size + 1,), types["qo_indptr"]),
        **_cache(problem, point, types),
    }


def decode_tensors(
    problem: Attention, point: Point, takes: tuple[str, ...], types: Mapping[str, str]
) -> dict[str, TensorSpec]:
    """Return a query per sequence, the cache, and the splits' results, by the launcher's names."""
    batch, heads, splits = point.batch_size, problem.q_heads, problem.most_splits
    kind = ELEMENT[problem.dtype]
    # sglang 0.4.4 stores a split's log-sum-exp after its values.
    columns = problem.Lv + ("attn_lse" not in takes)
    return {
        "q": TensorSpec("q", (batch, heads, problem.Lq), kind),
        "o": TensorSpec("o", (batch, heads, problem.Lv), kind),
        "attn_logits": TensorSpec("attn_logits", (batch, heads, splits, columns), "fp32"),
        "attn_lse": TensorSpec("attn_lse", (batch, heads, splits), "fp32"),
        "num_kv_splits": TensorSpec("num_kv_splits", (batch,), "i32"),
        **_cache(problem, point, types),
    }


def prefill_tensors(problem: Attention, point: Point) -> dict[str, TensorSpec]:
    """Return queries, keys and values, by the launcher's names."""
    rows, kind = point.batch_size * point.new_tokens, ELEMENT[problem.dtype]
    return {
        "q": TensorSpec("q", (rows, problem.q_heads, problem.Lq), kind),
        "k": TensorSpec("k", (rows, problem.kv_heads, problem.Lq), kind),
        "v": TensorSpec("v", (rows, problem.kv_heads, problem.Lv), kind),
        "o": TensorSpec("o", (rows, problem.q_heads, problem.Lv), kind),
        "b_start_loc": TensorSpec("b_start_loc", (point.batch_size,), "i32"),
        "b_seq_len": TensorSpec("b_seq_len", (point.batch_size,), "i32"),
    }


def _cache(problem: Attention, point: Point, types: Mapping[str, str]) -> dict[str, TensorSpec]:
    slots = point.batch_size * (point.cached_tokens + point.new_tokens)
    kind, kv_heads = ELEMENT[problem.dtype], problem.kv_heads
    row = kv_heads * problem.Lq
    views = (row, problem.Lq, 1) if problem.shares_kv else None
    return {
        "k_buffer": TensorSpec("k_buffer", (slots, kv_heads, problem.Lq), kind),
        "v_buffer": TensorSpec("v_buffer", (slots, kv_heads, problem.Lv), kind, views),
        "kv_indptr": TensorSpec("kv_indptr", (point.batch_size + 1,), "i32"),
        "kv_indices": TensorSpec("kv_indices", (slots,), types["kv_indices"]),
    }


def _index_type(origin: str, text: str, name: str) -> str:
    """Return the type of an index tensor: the last type in the backend's allocation."""
    found = re.search(rf"\b{name} = torch\.(?:zeros|empty)\((.*?)device=", text, re.DOTALL)
    bits = re.findall(r"torch\.int(32|64)", found[1]) if found else []
    if not bits:
        raise UnsupportedKernel(f"{origin} allocates {name} in an unknown way")
    return f"i{bits[-1]}"
