"""Inputs of the sparse attention, its float32 reference, and the tensors between kernels.

All functions take `device` "cpu" or "cuda". There are T tokens, h heads of keys, and `slots` of the
cache. `stages.operands` has the shapes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf, log

import torch
from torch import Tensor
from torch.nn.functional import pad

from tuner.families.minimax_sparse.problem import MinimaxSparse
from tuner.families.minimax_sparse.stages import SPARE
from tuner.families.scans.chunked import TYPES
from tuner.families.scans.scan import chunks_of, tokens_of
from tuner.problems.points import Point

_AT_ONCE = 1 << 27  # float32 numbers of an intermediate that the reference makes at once


@dataclass(frozen=True)
class Prompt:
    """What the chain is given: queries, and the cache with the prompt's keys and values."""

    index_q: Tensor
    index_k: Tensor
    q: Tensor
    k: Tensor
    v: Tensor

    def clone(self) -> Prompt:
        """The same values elsewhere in memory."""
        return replace(self, **{name: value.clone() for name, value in vars(self).items()})


def make_prompt(problem: MinimaxSparse, point: Point, *, device: str, seed: int) -> Prompt:
    generator = torch.Generator(device).manual_seed(seed)
    tokens, slots = tokens_of(point), _slots(problem, point, device).numel() + problem.block

    def normal(*shape: int) -> Tensor:
        made = torch.empty(shape, device=device).normal_(generator=generator)
        return made.to(TYPES[problem.dtype.value])

    return Prompt(
        index_q=normal(tokens, problem.kv_heads, problem.index_dim),
        index_k=normal(slots, 1, problem.index_dim),
        q=normal(tokens, problem.heads, problem.head_dim),
        k=normal(slots, problem.kv_heads, problem.head_dim),
        v=normal(slots, problem.kv_heads, problem.head_dim),
    )


def views(problem: MinimaxSparse, prompt: Prompt) -> dict[str, Tensor]:
    """The prompt's tensors by their names."""
    return dict(vars(prompt))


def _slots(problem: MinimaxSparse, point: Point, device: str | torch.device) -> Tensor:
    """(sequences, tokens): where each token is in the cache. Pages of a block lie in any order, as
    in a server that has run for a while; the first one is nobody's.
    """
    blocks, size = chunks_of(problem, point.new_tokens), problem.block
    generator = torch.Generator(device).manual_seed(0)
    pages = torch.randperm(point.batch_size * blocks, generator=generator, device=device) + 1
    slots = pages[:, None] * size + torch.arange(size, device=device)
    return slots.view(point.batch_size, blocks * size)


def layout(problem: MinimaxSparse, point: Point, device: str) -> dict[str, Tensor]:
    """Where the tokens of each sequence are: pages, sequence_ends, lengths and prefixes int32, rows
    int64.
    """
    numbers = torch.arange(point.batch_size + 1, device=device)
    return {
        # The first row is nobody's.
        "pages": pad(_slots(problem, point, device), (0, SPARE, 1, 0)).int(),
        "rows": numbers[1:].clone(),
        "sequence_ends": (numbers * point.new_tokens).int(),
        "lengths": torch.full_like(numbers[1:], point.new_tokens, dtype=torch.int32),
        "prefixes": torch.zeros_like(numbers[1:], dtype=torch.int32),
    }


def outputs(problem: MinimaxSparse, point: Point, device: str) -> dict[str, Tensor]:
    """Empty tensors for all that the kernels of the chain write or read."""
    tokens, blocks = tokens_of(point), chunks_of(problem, point.new_tokens)
    scores = problem.kv_heads, tokens, blocks
    chosen, out = (*scores[:2], problem.topk), (tokens, problem.heads, problem.head_dim)
    return {
        "score": torch.empty(scores, device=device),
        "ranks": torch.empty(scores, device=device),
        "topk": torch.empty(chosen, dtype=torch.int32, device=device),
        "out": torch.empty(out, dtype=TYPES[problem.dtype.value], device=device),
    }


def reference(
    problem: MinimaxSparse, point: Point, prompt: Prompt, topk: Tensor | None = None
) -> dict[str, Tensor]:
    """What each tensor of `outputs` should hold: topk int32, all others float32.

    `topk`: what was chosen elsewhere. Products that are added up in another order may change which
    of two nearly equal blocks is chosen, and then other keys are read: an output of the whole chain
    is compared with attention over its own choice.
    """
    made = outputs(problem, point, str(prompt.q.device))
    made["out"] = made["out"].float()
    for slots, rows, places in _parts(problem, point, prompt):
        keys = torch.arange(len(slots), device=slots.device)
        seen = keys <= places[:, None]
        own = places[:, None] // problem.block
        for h in range(problem.kv_heads):
            products = prompt.index_q[rows, h].float() @ prompt.index_k[slots, 0].float().T
            products *= problem.index_dim**-0.5 / log(2.0)
            score = products.masked_fill_(~seen, -inf).unflatten(1, (-1, problem.block)).amax(2)
            ranks = score.argsort(1).argsort(1)
            made["score"][h, rows], made["ranks"][h, rows] = score, ranks.float()
            made["topk"][h, rows] = _chosen(problem, ranks, own)
            used = made["topk"][h, rows] if topk is None else topk[h, rows]
            heads = slice(h * problem.group, (h + 1) * problem.group)
            weights = torch.einsum(
                "rgd,kd->rgk", prompt.q[rows, heads].float(), prompt.k[slots, h].float()
            )
            weights *= problem.head_dim**-0.5
            read = (seen & _read(problem, used, score.shape[1]))[:, None]
            weights = weights.masked_fill_(~read, -inf).softmax(2)
            made["out"][rows, heads] = weights @ prompt.v[slots, h].float()
    return made


def _parts(
    problem: MinimaxSparse, point: Point, prompt: Prompt
) -> Iterator[tuple[Tensor, slice, Tensor]]:
    """Some queries of a sequence at once: the slots of its keys, their rows, and their places."""
    for sequence, slots in enumerate(_slots(problem, point, prompt.q.device)):
        first, step = sequence * point.new_tokens, _AT_ONCE // (len(slots) * problem.group)
        for at in range(0, point.new_tokens, max(1, step)):
            end = min(at + max(1, step), point.new_tokens)
            yield slots, slice(first + at, first + end), torch.arange(at, end, device=slots.device)


def _chosen(problem: MinimaxSparse, ranks: Tensor, own: Tensor) -> Tensor:
    """(queries, topk): their own blocks and the highest before them, ascending, then -1."""
    blocks = ranks.shape[1]
    first = ranks.scatter(1, own, blocks)  # above all others
    found = first.topk(min(problem.topk, blocks)).indices
    found = found.masked_fill(found > own, blocks).sort().values
    chosen = found.new_full((len(ranks), problem.topk), -1)
    chosen[:, : found.shape[1]] = found.masked_fill(found == blocks, -1)
    return chosen.int()


def _read(problem: MinimaxSparse, chosen: Tensor, blocks: int) -> Tensor:
    """(queries, keys): whether a query reads a key's block."""
    read = torch.zeros((len(chosen), blocks + 1), dtype=torch.bool, device=chosen.device)
    read.scatter_(1, chosen.long().where(chosen >= 0, blocks), True)
    return read[:, :blocks].repeat_interleave(problem.block, 1)
