"""Run FlashInfer, which compiles its kernels at the first call that needs them.

On Hopper, prefill runs its kernels of FlashAttention 3's class, and elsewhere its kernels of
FlashAttention 2's class. Decode runs FlashAttention 2's, with tensor cores if four or more query
heads share a key head, as sglang runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

import flashinfer
import torch
from torch import Tensor

from tuner.backends.operands import AttentionOperands, Call, need, this_target

WORKSPACE_BYTES = 1 << 29  # sglang's size for Qwen models
TENSOR_CORES_FROM = 4  # query heads that share a key head
LATENT = (576, 512)  # columns of keys and values

Run = Callable[[AttentionOperands], Tensor]


def attention(batch: Sequence[AttentionOperands]) -> list[Call]:
    first = batch[0]
    need(first.sinks is None, "FlashInfer's kernels with sinks are compiled for each model")
    if first.latent:
        need(first.columns == LATENT, "FlashInfer takes latent attention of 576 and 512 columns")
        run = _latent(first)
    elif first.decode:
        run = _decode(first)
    else:
        run = _extend(first)
    return [partial(run, one) for one in batch]


def _extend(first: AttentionOperands) -> Run:
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
        _workspace(), "NHD", backend=_architecture()
    )
    wrapper.plan(
        first.q_starts,
        first.kv_starts,
        first.slots,
        torch.ones_like(first.lengths),
        first.q_heads,
        first.kv_heads,
        first.columns[0],
        1,
        head_dim_vo=first.columns[1],
        causal=True,
        sm_scale=first.scale,
        window_left=first.window or -1,
        logits_soft_cap=first.logit_cap or None,
        q_data_type=first.q.dtype,
        kv_data_type=first.k_cache.dtype,
    )
    return partial(_run, wrapper)


def _decode(first: AttentionOperands) -> Run:
    need(first.columns[0] == first.columns[1], "FlashInfer's decode takes heads of one size")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        _workspace(),
        "NHD",
        backend="fa2",
        use_cuda_graph=True,
        use_tensor_cores=first.q_heads >= TENSOR_CORES_FROM * first.kv_heads,
        paged_kv_indptr_buffer=torch.empty_like(first.kv_starts),
        paged_kv_indices_buffer=torch.empty_like(first.slots),
        paged_kv_last_page_len_buffer=torch.empty_like(first.lengths),
    )
    wrapper.plan(
        first.kv_starts,
        first.slots,
        torch.ones_like(first.lengths),
        first.q_heads,
        first.kv_heads,
        first.columns[0],
        1,
        sm_scale=first.scale,
        window_left=first.window or -1,
        logits_soft_cap=first.logit_cap or None,
        q_data_type=first.q.dtype,
        kv_data_type=first.k_cache.dtype,
    )
    return partial(_run, wrapper)


def _run(wrapper: flashinfer.BatchPrefillWithPagedKVCacheWrapper, one: AttentionOperands) -> Tensor:
    caches = one.k_cache.unsqueeze(1), one.v_cache.unsqueeze(1)
    result: Tensor = wrapper.run(one.q, caches, out=one.out)
    return result


def _latent(first: AttentionOperands) -> Run:
    wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(_workspace(), backend=_architecture())
    keys, values = first.columns
    wrapper.plan(
        first.q_starts,
        first.kv_starts,
        first.slots,
        first.lengths,
        first.q_heads,
        values,
        keys - values,
        1,
        True,
        first.scale,
        first.q.dtype,
        first.k_cache.dtype,
    )

    def run(one: AttentionOperands) -> Tensor:
        result: Tensor = wrapper.run(
            one.q[..., :values],
            one.q[..., values:],
            one.k_cache[..., :values],
            one.k_cache[..., values:],
            out=one.out,
        )
        return result

    return run


def _architecture() -> str:
    return "fa3" if this_target() == "sm_90" else "fa2"


@cache
def _workspace() -> Tensor:
    """Allocate zeros, because the decode kernels need zeros at first."""
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
