"""cuDNN's attention through torch, on keys and values that were copied out of the cache.

torch calls it for one sequence at a time, or for sequences of one length. Prefill with a cached
prefix is left out, because torch aligns its causal mask to the first key.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.nn.attention import SDPBackend

from tuner.backends.operands import AttentionOperands, Call, need
from tuner.backends.sdpa import each_sequence


def attention(batch: Sequence[AttentionOperands]) -> list[Call]:
    first = batch[0]
    need(first.sinks is None, "cuDNN through torch takes no sinks")
    need(not first.logit_cap, "cuDNN through torch caps no logits")
    need(not first.window, "cuDNN through torch takes no window")
    need(
        first.decode or first.new == first.total,
        "cuDNN through torch takes no cached prefix",
    )
    return each_sequence(batch, SDPBackend.CUDNN_ATTENTION if first.q.is_cuda else SDPBackend.MATH)
