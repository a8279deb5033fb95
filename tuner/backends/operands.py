"""Define the operands of a library's call, and its refusal. Imports torch.

A module of this package has a function for each kind of operands that it takes: `gemm(batch)` or
`attention(batch)`. `batch` has the operands of several launches, which differ only in their
tensors' addresses. The function does the work that an engine does before a layer runs, such as
another layout of scales, and returns a `Call` for each. A call is captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tuner.devices.target import cuda_target

# Runs the library on the current stream. It returns the tensor with the results, which is `out` if
# the library can be told to write there.
Call = Callable[[], Tensor]


class Unsupported(Exception):
    """The library has no kernel for these operands; the message says why."""


def need(condition: bool, why: str) -> None:
    """Raise Unsupported if a condition of the library does not hold."""
    if not condition:
        raise Unsupported(why)


def need_target(name: str, *targets: str) -> None:
    """Raise Unsupported unless `targets` include this GPU's target ("sm_90")."""
    here = this_target()
    need(here in targets, f"{name} has no kernels for {here}")


def this_target() -> str:
    """Return the name of this GPU's target, as the table of devices has it."""
    return cuda_target(*torch.cuda.get_device_capability()).name


@dataclass(frozen=True)
class GemmOperands:
    """`out` (M, N) = A (M, K) x B (N, K) transposed, with scales in float32."""

    a: Tensor
    b: Tensor
    a_scale: Tensor  # (M, ceil(K / block[1])), or (M, 1)
    b_scale: Tensor  # (ceil(N / block[0]), ceil(K / block[1])), or (N, 1)
    out: Tensor
    block: tuple[int, int] | None  # None: a scale for each row of A and each row of B

    @property
    def fp8(self) -> bool:
        return self.a.dtype is torch.float8_e4m3fn


@dataclass(frozen=True)
class AttentionOperands:
    """Causal attention of new tokens to a cache that holds them, too, in pages of a token each.

    At decode, each sequence has one new token. Sequences have their tokens one after the other in
    `q` and `out`.
    """

    q: Tensor  # (new tokens, q_heads, Lq)
    k_cache: Tensor  # (slots, kv_heads, Lq)
    v_cache: Tensor  # (slots, kv_heads, Lv)
    out: Tensor  # (new tokens, q_heads, Lv)
    slots: Tensor  # (tokens) int32: where each sequence's tokens are in the cache
    new: tuple[int, ...]  # tokens of each sequence in `q`
    total: tuple[int, ...]  # tokens of each sequence in the cache, with the new ones
    scale: float  # of logits
    window: int  # the number of previous tokens that a query sees; 0: all
    sinks: Tensor | None  # (q_heads): a learnt logit of each head
    logit_cap: float  # logits become cap * tanh(logit / cap); 0: no cap
    latent: bool  # a value is the first columns of its key

    @property
    def decode(self) -> bool:
        return max(self.new) == 1

    @property
    def q_heads(self) -> int:
        return int(self.q.shape[1])

    @property
    def kv_heads(self) -> int:
        return int(self.k_cache.shape[1])

    @property
    def columns(self) -> tuple[int, int]:
        """Return the columns of a key and of a value."""
        return self.k_cache.shape[2], self.v_cache.shape[2]

    @cached_property
    def q_starts(self) -> Tensor:
        """Return where each sequence begins in `q`: (sequences + 1) int32."""
        return self._starts(self.new)

    @cached_property
    def kv_starts(self) -> Tensor:
        """Return where each sequence begins in `slots`: (sequences + 1) int32."""
        return self._starts(self.total)

    @cached_property
    def lengths(self) -> Tensor:
        """Return `total` as (sequences) int32."""
        return torch.tensor(self.total, dtype=torch.int32, device=self.q.device)

    @cached_property
    def table(self) -> Tensor:
        """Return each sequence's slots, then zeros: (sequences, longest) int32."""
        table = self.slots.new_zeros((len(self.total), max(self.total)))
        for row, one in zip(table, self.slots.split(list(self.total)), strict=True):
            row[: len(one)] = one
        return table

    @cached_property
    def contiguous(self) -> tuple[Tensor, Tensor]:
        """Copy the sequences' keys and values out of the cache: (tokens, kv_heads, columns)."""
        slots = self.slots.long()
        return self.k_cache[slots].contiguous(), self.v_cache[slots].contiguous()

    def _starts(self, counts: tuple[int, ...]) -> Tensor:
        sums = torch.tensor([0, *counts]).cumsum(0)
        return sums.to(device=self.q.device, dtype=torch.int32)
