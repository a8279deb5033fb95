"""Rows of a batch of prompts cut into chunks, for references of chunked scans. Imports torch.

T tokens lie in c chunks of s tokens. Only the last chunk of a sequence may have fewer tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from tuner.families.scans.scan import ScanProblem, all_chunks, chunks_of, tokens_of
from tuner.problems.points import Point

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_EPSILON = 1e-6  # of the lengths of q and k


def chunk_layout(problem: ScanProblem, point: Point, device: str) -> dict[str, Tensor]:
    """Which tokens and chunks are whose, int32: sequence_ends and chunk_offsets (sequences + 1),
    chunk_indices (c, 2), slots (sequences).
    """
    each = chunks_of(problem, point.new_tokens)
    numbers = torch.arange(point.batch_size + 1, device=device, dtype=torch.int32)
    chunks = torch.arange(all_chunks(problem, point), device=device, dtype=torch.int32)
    return {
        "sequence_ends": numbers * point.new_tokens,
        "chunk_offsets": numbers * each,
        "chunk_indices": torch.stack([chunks // each, chunks % each], 1).contiguous(),
        "slots": numbers[:-1].clone(),
    }


@dataclass(frozen=True)
class Chunks:
    """How the tokens of a point are cut."""

    sequences: int
    each: int  # chunks of a sequence
    size: int
    tokens: int

    @classmethod
    def of(cls, problem: ScanProblem, point: Point) -> Chunks:
        each = chunks_of(problem, point.new_tokens)
        return cls(point.batch_size, each, problem.chunk_size, tokens_of(point))

    def cut(self, rows: Tensor, width: int) -> Tensor:
        """(T, heads * width) as (sequences, c, heads, s, width), with zeros behind the last."""
        missing = self.sequences * self.each * self.size - self.tokens
        flat = pad(rows.flatten(1), (0, 0, 0, missing))
        return flat.view(self.sequences, self.each, self.size, -1, width).transpose(2, 3)

    def empty(self, heads: int, width: int, device: torch.device) -> Tensor:
        """Float32 numbers of all tokens, cut."""
        return torch.empty((self.sequences, self.each, heads, self.size, width), device=device)

    def join(self, parts: Tensor) -> Tensor:
        """What was cut as (T, heads, width)."""
        return parts.transpose(2, 3).flatten(0, 2)[: self.tokens]


def unit(rows: Tensor) -> Tensor:
    """Rows with length 1."""
    return rows * (rows.square().sum(-1, keepdim=True) + _EPSILON).rsqrt()


def inverse_of(below: Tensor) -> Tensor:
    """The inverse of 1 + a matrix that is zero on and above its diagonal."""
    one = torch.eye(below.shape[-1], device=below.device).expand_as(below)
    return torch.linalg.solve_triangular(one + below, one, upper=False, unitriangular=True)
