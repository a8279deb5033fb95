"""Attention through torch's `scaled_dot_product_attention`: no backend itself, but a way to two."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tuner.backends.operands import AttentionOperands, Call

Rows = tuple[Tensor, Tensor, Tensor]  # queries, keys, values: (sequences, heads, tokens, columns)


def each_sequence(batch: Sequence[AttentionOperands], kernel: SDPBackend) -> list[Call]:
    """A call runs each sequence in turn, or all at once if they have the same length."""
    return [partial(_run, one, _rows(one), kernel) for one in batch]


def _rows(one: AttentionOperands) -> list[Rows]:
    k, v = one.contiguous
    same = len(set(zip(one.new, one.total, strict=True))) == 1
    new = [sum(one.new)] if same else list(one.new)
    total = [sum(one.total)] if same else list(one.total)
    count = len(one.new) if same else 1
    parts = zip(one.q.split(new), k.split(total), v.split(total), strict=True)
    return [tuple(_heads_first(part, count) for part in three) for three in parts]


def _heads_first(part: Tensor, sequences: int) -> Tensor:
    tokens, heads, columns = part.shape
    return part.view(sequences, tokens // sequences, heads, columns).transpose(1, 2)


def _run(one: AttentionOperands, rows: Sequence[Rows], kernel: SDPBackend) -> Tensor:
    with sdpa_kernel(kernel):
        parts = [_one(*three, one.scale, causal=not one.decode) for three in rows]
    flat = [part.transpose(1, 2).reshape(-1, *one.out.shape[1:]) for part in parts]
    return flat[0] if len(flat) == 1 else torch.cat(flat)


def _one(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    if not causal:  # decode: query heads that share a key head become rows of one
        sequences, heads, tokens, columns = q.shape
        q = q.reshape(sequences, k.shape[1], -1, columns)
        out = scaled_dot_product_attention(q, k, v, scale=scale)
        return out.view(sequences, heads, tokens, -1)
    shares = q.shape[1] != k.shape[1]
    if q.shape[2] == k.shape[2]:
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=shares)
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
    seen = seen.tril(k.shape[2] - q.shape[2])  # aligned to the last key
    return scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=shares)
