"""Make the tensors of a gated delta net's scan and its float32 reference.

All functions take `device` "cpu" or "cuda". T tokens lie in c chunks of s tokens; there are h value
heads of v numbers and g key heads of n. Only the last chunk of a sequence may have fewer tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from tuner.families.scans.gated_delta.problem import GatedDelta
from tuner.families.scans.scan import all_chunks, chunks_of, tokens_of
from tuner.problems.points import Point

_LARGEST_A = 16.0  # Qwen3-Next initialises A from 0 to 16
_EPSILON = 1e-6  # of the lengths of q and k


@dataclass(frozen=True)
class Prompt:
    """The inputs of the chain."""

    q: Tensor  # (T, g, n)
    k: Tensor  # (T, g, n)
    v: Tensor  # (T, h, v)
    g: Tensor  # (T, h) float32, negative: the logarithm of a gate
    beta: Tensor  # (T, h) float32, from 0 to 1

    def clone(self) -> Prompt:
        """Return the same values elsewhere in memory."""
        return replace(self, **{name: value.clone() for name, value in vars(self).items()})


def make_prompt(problem: GatedDelta, point: Point, *, device: str, seed: int) -> Prompt:
    generator = torch.Generator(device).manual_seed(seed)
    tokens, heads, dtype = (
        tokens_of(point),
        problem.value_heads,
        getattr(torch, problem.dtype.value),
    )

    def normal(*shape: int) -> Tensor:
        return torch.empty(shape, device=device).normal_(generator=generator)

    keys = problem.key_heads, problem.key_dim
    rate = _LARGEST_A * torch.rand(heads, device=device, generator=generator)
    return Prompt(
        q=normal(tokens, *keys).to(dtype),
        k=normal(tokens, *keys).to(dtype),
        v=normal(tokens, heads, problem.value_dim).to(dtype),
        g=-rate * softplus(normal(tokens, heads) - 4.0),  # the usual time steps: 0.001 to 0.1
        beta=normal(tokens, heads).sigmoid(),
    )


def views(problem: GatedDelta, prompt: Prompt) -> dict[str, Tensor]:
    """Return the prompt's tensors by their names."""
    return dict(vars(prompt))


def layout(problem: GatedDelta, point: Point, device: str) -> dict[str, Tensor]:
    """Return the positions of tokens and chunks, int32: sequence_ends and chunk_offsets (sequences
    + 1), chunk_indices (c, 2), slots (sequences). For a chain that does not write over the first
    states, also these, `initial` (sequences, h, v, n).
    """
    each = chunks_of(problem, point.new_tokens)
    numbers = torch.arange(point.batch_size + 1, device=device, dtype=torch.int32)
    chunks = torch.arange(all_chunks(problem, point), device=device, dtype=torch.int32)
    found = {
        "sequence_ends": numbers * point.new_tokens,
        "chunk_offsets": numbers * each,
        "chunk_indices": torch.stack([chunks // each, chunks % each], 1).contiguous(),
        "slots": numbers[:-1].clone(),
    }
    if problem.chain == "split":
        kept = getattr(torch, problem.state_dtype)
        found["initial"] = torch.zeros(_states(problem, point), dtype=kept, device=device)
    return found


def _states(problem: GatedDelta, point: Point) -> tuple[int, ...]:
    return point.batch_size, problem.value_heads, problem.value_dim, problem.key_dim


def outputs(problem: GatedDelta, point: Point, device: str) -> dict[str, Tensor]:
    """Return empty tensors for all outputs of the chain's kernels; see `kernels.operands`."""
    tokens, c = tokens_of(point), all_chunks(problem, point)
    heads, n, v = problem.value_heads, problem.key_dim, problem.value_dim
    dtype = getattr(torch, problem.dtype.value)
    shapes = {
        "q_normal": (tokens, problem.key_heads, n),
        "k_normal": (tokens, problem.key_heads, n),
        "T": (tokens, heads, problem.chunk_size),
        "w": (tokens, heads, n),
        "u": (tokens, heads, v),
        "h": (c, heads, v, n),
        "v_new": (tokens, heads, v),
        "out": (tokens, heads, v),
    }
    found = {name: torch.empty(shape, dtype=dtype, device=device) for name, shape in shapes.items()}
    apart = problem.chain == "split"
    kept = torch.float32 if apart else getattr(torch, problem.state_dtype)
    found["pool"] = torch.empty(_states(problem, point), dtype=kept, device=device)
    found["g_sum"] = torch.empty((tokens, heads), device=device)
    if apart:
        found["A"] = torch.empty(shapes["T"], device=device)
    return found


@dataclass(frozen=True)
class _Chunks:
    """How the tokens of a point are cut."""

    sequences: int
    each: int  # chunks of a sequence
    size: int
    tokens: int

    @classmethod
    def of(cls, problem: GatedDelta, point: Point) -> _Chunks:
        each = chunks_of(problem, point.new_tokens)
        return cls(point.batch_size, each, problem.chunk_size, tokens_of(point))

    def cut(self, rows: Tensor, width: int) -> Tensor:
        """Return (T, heads * width) as (sequences, c, heads, s, width), with zeros behind the
        last.
        """
        missing = self.sequences * self.each * self.size - self.tokens
        flat = pad(rows.flatten(1), (0, 0, 0, missing))
        return flat.view(self.sequences, self.each, self.size, -1, width).transpose(2, 3)

    def empty(self, heads: int, width: int, device: torch.device) -> Tensor:
        """Return uninitialised float32 numbers for all tokens, cut."""
        return torch.empty((self.sequences, self.each, heads, self.size, width), device=device)

    def join(self, parts: Tensor) -> Tensor:
        """Return cut tokens as (T, heads, width)."""
        return parts.transpose(2, 3).flatten(0, 2)[: self.tokens]


def reference(problem: GatedDelta, point: Point, prompt: Prompt) -> dict[str, Tensor]:
    """Return the values that each tensor of `outputs` should hold, float32: the states before each
    chunk in `h`, and the states at the ends of the sequences in `pool`.
    """
    chunks, size, device = _Chunks.of(problem, point), problem.chunk_size, prompt.v.device
    heads, v, n = problem.value_heads, problem.value_dim, problem.key_dim
    normal = {name: _unit(getattr(prompt, name).float()) for name in ("q", "k")}
    q, k = (chunks.cut(normal[name], n) for name in ("q", "k"))
    values, beta = chunks.cut(prompt.v, v), chunks.cut(prompt.beta, 1)
    gates = chunks.cut(prompt.g, 1).cumsum(3)
    widths = {"T": size, "w": n, "u": v, "v_new": v, "out": v}
    widths |= {"A": size} if problem.chain == "split" else {}
    made = {name: chunks.empty(heads, width, device) for name, width in widths.items()}
    before = torch.empty((chunks.sequences, chunks.each, heads, v, n), device=device)
    state = torch.zeros((chunks.sequences, heads, v, n), device=device)
    for c in range(chunks.each):
        repeated = heads // problem.key_heads
        qc, kc = (tensor[:, c].repeat_interleave(repeated, 1) for tensor in (q, k))
        s, b = gates[:, c], beta[:, c]
        apart = (s - s.mT).clamp(max=0.0).exp()  # of pairs that are not above the diagonal
        below = (kc @ kc.mT * apart * b).tril(-1)
        inverse = _inverse_of(below)
        w, u = inverse @ (kc * b * s.exp()), inverse @ (values[:, c].float() * b)
        new = u - w @ state.mT
        out = qc * s.exp() @ state.mT + (qc @ kc.mT * apart).tril() @ new
        found = {"A": below, "T": inverse, "w": w, "u": u, "v_new": new, "out": out * n**-0.5}
        for name, tensor in made.items():
            tensor[:, c] = found[name]
        before[:, c] = state
        last = s[:, :, -1:]
        state = state * last.exp() + new.mT @ (kc * (last - s).exp())
    joined = {name: chunks.join(tensor) for name, tensor in made.items()}
    given = {f"{name}_normal": tensor for name, tensor in normal.items()}
    sums = chunks.join(gates)[:, :, 0]
    return {**given, **joined, "g_sum": sums, "h": before.flatten(0, 1), "pool": state}


def _unit(rows: Tensor) -> Tensor:
    """Return the rows, scaled to length 1."""
    return rows * (rows.square().sum(-1, keepdim=True) + _EPSILON).rsqrt()


def _inverse_of(below: Tensor) -> Tensor:
    """Return the inverse of 1 + a matrix that is zero on and above its diagonal."""
    one = torch.eye(below.shape[-1], device=below.device).expand_as(below)
    return torch.linalg.solve_triangular(one + below, one, upper=False, unitriangular=True)
