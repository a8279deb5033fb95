"""The chain of kernels that attend sparsely over prompts, as sglang has it.

Launches of other problems are told apart: an index with values or sinks, scores of another kind
than the largest, several queries with one choice, caches of another type than the queries', and
sglang's HiSparse, whose cache is elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tuner.families.minimax_sparse.problem import (
    NAME,
    MinimaxSparse,
    SparseKernel,
    parse_minimax_sparse,
)
from tuner.families.scans.engine import padded
from tuner.families.scans.scan import Call, Key, Scan, Stage, Stages, chunks_of, dtype_of, tokens_of
from tuner.kernels.stand_ins import SHORT_NAMES, TensorSpec
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Point

_BYTES, _WIDE = 2, 4  # of 16-bit numbers; of float32 and int32
_LONGEST = 1 << 20  # tokens of a prompt
# Of `forward_extend` in sglang's minimax_sparse_backend.py, and of MiniMax-M3's config.json.
_QUERIES, _INIT_BLOCKS, _LOCAL_BLOCKS = 1, 0, 1
# Columns of a request's row of slots beyond the longest context: `extra_max_context_len` in
# mem_cache/kv_cache_configurator.py. So rows do not begin at multiples of 16.
SPARE = 4
_INDEX = "prefill/flash_with_topk_idx.py"
_INDEX_LAUNCHER = "flash_prefill_with_topk_index"
Seen = tuple[Key, int] | None


def _seen_scores(named: Mapping[str, Any]) -> Seen:
    q, dtype = named["q_ptr"], dtype_of(named["q_ptr"])
    if (
        not named["DISABLE_INDEX_VALUE"]
        or named["SCORE_TYPE"] != "max"
        or named["sink_ptr"] is not None
        or dtype_of(named["k_cache_ptr"]) != dtype
    ):
        return None
    return (named["block_size"], q.shape[1], q.shape[2], dtype), q.shape[0]


def _seen_choice(named: Mapping[str, Any]) -> Seen:
    if named["sample_interval"] != _QUERIES:
        return None
    heads, _, blocks = named["s_ptr"].shape
    return (named["block_size"], heads, named["topk"]), blocks


def _seen_attention(named: Mapping[str, Any]) -> Seen:
    q, k, dtype = named["q_ptr"], named["k_cache_ptr"], dtype_of(named["q_ptr"])
    if (
        named["BLOCK_SIZE_Q"] != _QUERIES
        or named["sink_ptr"] is not None
        or named.get("loc_mapping_ptr") is not None  # 0.5.23 has it
        or dtype_of(k) != dtype
    ):
        return None
    key = named["BLOCK_SIZE_K"], q.shape[1], k.shape[1], q.shape[2], named["max_topk"], dtype
    return key, q.shape[0]


def _score_bytes(p: MinimaxSparse, tokens: int, each: int) -> int:
    """Bytes of the scores of all blocks that begin before their query ends."""
    return tokens * p.kv_heads * (chunks_of(p, each) + 1) * _WIDE // 2


def _read(p: MinimaxSparse, each: int) -> float:
    """Keys that a query of a prompt of `each` tokens reads, on average."""
    first = min(each, p.topk * p.block)
    return first * (first + 1) / 2 / each + first * (1 - first / each)


_STAGES: Stages = {
    SparseKernel.SCORES: Stage(
        file=_INDEX,
        calls=(
            Call(
                _INDEX_LAUNCHER, "_flash_attn_fwd_with_block_score_kernel", {"score_ptr": "score"}
            ),
        ),
        writes=("score",),
        blocks={"BLOCK_SIZE_Q": (32, 64, 128, 256), "BLOCK_SIZE_K": (16, 32, 64, 128, 256)},
        covers=lambda p: (_LONGEST, _LONGEST),
        seen=_seen_scores,
        shows=lambda p: (p.block, p.kv_heads, p.index_dim, p.dtype.value),
        operations=lambda p, tokens, each: 1.0 * tokens * (each + 1) * p.kv_heads * p.index_dim,
        moved_bytes=lambda p, tokens, each: (
            tokens * (p.kv_heads + 1) * p.index_dim * _BYTES + _score_bytes(p, tokens, each)
        ),
        warps=(4, 8),
        stages=(2, 3, 4),
        takes=lambda p, config: config["BLOCK_SIZE_K"] >= p.block,
        tokens=lambda p, tokens: tokens,
    ),
    SparseKernel.CHOICE: Stage(
        file=_INDEX,
        calls=(Call(_INDEX_LAUNCHER, "_topk_index_kernel", {"s_ptr": "ranks", "ti_ptr": "topk"}),),
        writes=("topk",),
        blocks={"BLOCK_SIZE_K": (32, 64, 128, 256, 512, 1024, 2048)},
        covers=lambda p: (_LONGEST // p.block,),
        seen=_seen_choice,
        shows=lambda p: (p.block, p.kv_heads, p.topk),
        operations=lambda p, tokens, each: _score_bytes(p, tokens, each) / _WIDE,  # comparisons
        moved_bytes=lambda p, tokens, each: (
            _score_bytes(p, tokens, each) + tokens * p.kv_heads * p.topk * _WIDE
        ),
        stages=(2, 3),  # as in the engine's list: nothing is loaded ahead
        takes=lambda p, config: config["BLOCK_SIZE_K"] > padded(p.topk),
        # It has a program for each query, which reads the scores of all blocks: what its tile has
        # to fit is the longest sequence, not the tokens of all.
        tokens=lambda p, blocks: blocks * p.block,
        length=lambda point: point.new_tokens,
    ),
    SparseKernel.ATTENTION: Stage(
        file="prefill/topk_sparse.py",
        calls=(
            Call(
                "flash_prefill_with_gqa_share_sparse",
                "_gqa_share_sparse_fwd_kernel",
                {"o_ptr": "out"},
            ),
        ),
        writes=("out",),
        blocks={},  # its tiles are the problem's
        covers=lambda p: (),
        seen=_seen_attention,
        shows=lambda p: (p.block, p.heads, p.kv_heads, p.head_dim, p.topk, p.dtype.value),
        operations=lambda p, tokens, each: 4.0 * tokens * _read(p, each) * p.heads * p.head_dim,
        moved_bytes=lambda p, tokens, each: (
            2 * tokens * (p.heads + p.kv_heads) * p.head_dim * _BYTES
            + tokens * p.kv_heads * p.topk * _WIDE
        ),
        tokens=lambda p, tokens: tokens,
    ),
}


def operands(problem: MinimaxSparse, point: Point, call: Call) -> dict[str, Any]:
    """The arguments that launchers have, by their names; see `forward_extend` in sglang's
    minimax_sparse_backend.py. Its queries are parts of longer rows, here they are contiguous.

    With T tokens, h heads of keys and `slots` of the cache: index_q (T, h, index_dim), index_k
    (slots, 1, index_dim), q and out (T, heads, head_dim), k and v (slots, h, head_dim), topk
    (h, T, topk); pages (sequences + 1, width), the slots of each request's tokens; rows
    (sequences), their places in it. score and ranks (h, T, blocks) are one tensor in servers; the
    kernel that chooses gets ranks, because no two of them are equal.
    """
    tokens, each = tokens_of(point), point.new_tokens
    sequences, h, dtype = point.batch_size, problem.kv_heads, SHORT_NAMES[problem.dtype.value]
    room = chunks_of(problem, each) * problem.block
    slots = sequences * room + problem.block  # the first page is nobody's
    ends = TensorSpec("sequence_ends", (sequences + 1,), "i32")
    found: dict[str, Any] = {
        "q": TensorSpec("q", (tokens, problem.heads, problem.head_dim), dtype),
        "k_cache": TensorSpec("k", (slots, h, problem.head_dim), dtype),
        "v_cache": TensorSpec("v", (slots, h, problem.head_dim), dtype),
        "topk_idx": TensorSpec("topk", (h, tokens, problem.topk), "i32"),
        "req_to_token": TensorSpec("pages", (sequences + 1, room + SPARE), "i32"),
        "slot_ids": TensorSpec("rows", (sequences,), "i64"),
        "cu_seqlens": ends,
        "cu_seqblocks_q": ends,  # a block is a query
        "seq_lens": TensorSpec("lengths", (sequences,), "i32"),
        "prefix_lens": TensorSpec("prefixes", (sequences,), "i32"),
        **{"max_seqlen_q": each, "max_seqlen_k": each},
        **{"max_seqblock_q": each, "all_seqblock_q": tokens, "sink": None},
        **{"block_size_q": _QUERIES, "block_size_k": problem.block, "topk": problem.topk},
        **{"init_blocks": _INIT_BLOCKS, "local_blocks": _LOCAL_BLOCKS, "score_type": "max"},
        **{"disable_index_value": True, "page_size": problem.block},
    }
    if call.launcher == _INDEX_LAUNCHER:
        found["q"] = TensorSpec("index_q", (tokens, h, problem.index_dim), dtype)
        found["k_cache"] = TensorSpec("index_k", (slots, 1, problem.index_dim), dtype)
        found["v_cache"] = None
    return found


def title(p: MinimaxSparse) -> str:
    return (
        f"sparse attention, {p.heads}/{p.kv_heads} heads of {p.head_dim}, {p.topk}x{p.block} keys"
    )


# Attention's weights are rounded to 16 bits. At a prompt's first tokens, whose outputs are large,
# that alone errs by 0.058 (bfloat16) and 0.0053 (float16) if the root mean square of all outputs is
# 0.045, about that of 32,768 random tokens (computed on a CPU, not measured). Scores are float32.
_WORST_ERROR = {Dtype.BFLOAT16: 0.12, Dtype.FLOAT16: 0.015}
SCAN = Scan(
    NAME,
    "MiniMax-M3's",
    parse_minimax_sparse,
    title,
    _STAGES,
    operands,
    _WORST_ERROR,
    {"score": -math.inf, "topk": -1},
    chunks=lambda problem, point: point.new_tokens,
)
