"""A batch as libraries read it: one cache that holds the new tokens too. Imports torch.

Triton's extend kernel reads new keys and values from tensors of their own. An engine writes them
into its cache first, whatever kernel follows, and the libraries' kernels read all of them there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tuner.backends.operands import AttentionOperands as Operands
from tuner.backends.operands import need
from tuner.families.attention.inputs import Inputs
from tuner.families.attention.problem import AttentionPhase


def operands_of(inputs: Inputs) -> Operands:
    """Raises Unsupported for phases that have no cache."""
    problem, tensors, lengths = inputs.problem, inputs.tensors, inputs.lengths
    need(problem.phase is not AttentionPhase.PREFILL, "libraries are measured with a cache alone")
    extend = problem.phase is AttentionPhase.EXTEND
    if extend:
        k, v, slots = _with_new(inputs)
        total = tuple(a + b for a, b in zip(lengths.cached, lengths.new, strict=True))
    else:
        k, v, slots = tensors["k_buffer"], tensors["v_buffer"], tensors["kv_indices"]
        total = lengths.cached
    return Operands(
        q=tensors["q_extend" if extend else "q"],
        k_cache=k,
        v_cache=v,
        out=inputs.output,
        slots=slots.int(),
        new=lengths.new,
        total=total,
        scale=problem.Lq**-0.5,
        window=problem.window,
        sinks=tensors["sinks"] if problem.sinks else None,
        logit_cap=problem.logit_cap,
        latent=problem.shares_kv,
    )


def _with_new(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values and slots where the new tokens lie in the cache, behind the cached ones."""
    tensors, lengths = inputs.tensors, inputs.lengths
    k = torch.cat([tensors["k_buffer"], tensors["k_extend"]])
    if inputs.problem.shares_kv:
        v = k[..., : inputs.problem.Lv]
    else:
        v = torch.cat([tensors["v_buffer"], tensors["v_extend"]])
    cached = tensors["kv_indices"][: sum(lengths.cached)].split(list(lengths.cached))
    first = len(tensors["k_buffer"])
    rows = torch.arange(first, first + sum(lengths.new), device=k.device, dtype=cached[0].dtype)
    new = rows.split(list(lengths.new))
    parts = [part for pair in zip(cached, new, strict=True) for part in pair]
    return k, v, torch.cat(parts)
