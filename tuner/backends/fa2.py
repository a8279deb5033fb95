"""FlashAttention 2 as torch has it, on keys and values that were copied out of the cache.

So a time says what the kernel can do, not what an engine would get that reads its cache in pages.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from tuner.backends.operands import AttentionOperands, Call, need
from tuner.backends.sdpa import each_sequence


def attention(batch: Sequence[AttentionOperands]) -> list[Call]:
    first = batch[0]
    need(first.sinks is None, "torch's FlashAttention takes no sinks")
    need(not first.logit_cap, "torch's FlashAttention caps no logits")
    need(not first.window, "torch's FlashAttention is not asked for windows here")
    need(first.columns[0] == first.columns[1], "torch's FlashAttention takes heads of one size")
    if not first.q.is_cuda:
        return each_sequence(batch, SDPBackend.MATH)
    need(first.columns[0] <= 256, "FlashAttention 2 takes heads of up to 256 columns")
    return [_call(one, first) for one in batch]


def _call(one: AttentionOperands, first: AttentionOperands) -> Call:
    k, v = one.contiguous
    longest = max(first.new), max(first.total)

    def call() -> Tensor:
        found: Tensor = torch.ops.aten._flash_attention_forward(
            one.q,
            k,
            v,
            first.q_starts,
            first.kv_starts,
            *longest,
            0.0,
            not first.decode,
            False,
            scale=first.scale,
        )[0]
        return found

    return call
