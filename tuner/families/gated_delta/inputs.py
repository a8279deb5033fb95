"""Inputs of a gated delta net's scan, its float32 reference, and the tensors between kernels.

All functions take `device` "cpu" or "cuda". T tokens lie in c chunks of s tokens; there are h value
heads of v numbers and g key heads of n. Only the last chunk of a sequence may have fewer tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import softplus

from tuner.families.gated_delta.problem import GatedDelta
from tuner.families.scans.chunked import TYPES, Chunks, chunk_layout, inverse_of, unit
from tuner.families.scans.scan import all_chunks, tokens_of
from tuner.problems.points import Point

_LARGEST_A = 16.0  # Qwen3-Next initialises A from 0 to 16


@dataclass(frozen=True)
class Prompt:
    """What the chain is given."""

    q: Tensor  # (T, g, n)
    k: Tensor  # (T, g, n)
    v: Tensor  # (T, h, v)
    g: Tensor  # (T, h) float32, negative: the logarithm of a gate
    beta: Tensor  # (T, h) float32, from 0 to 1

    def clone(self) -> Prompt:
        """The same values elsewhere in memory."""
        return replace(self, **{name: value.clone() for name, value in vars(self).items()})


def make_prompt(problem: GatedDelta, point: Point, *, device: str, seed: int) -> Prompt:
    generator = torch.Generator(device).manual_seed(seed)
    tokens, heads, dtype = tokens_of(point), problem.value_heads, TYPES[problem.dtype.value]

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
    """The prompt's tensors by their names."""
    return dict(vars(prompt))


def layout(problem: GatedDelta, point: Point, device: str) -> dict[str, Tensor]:
    """See `chunk_layout`. For a chain that does not write over them, also the first states,
    `initial` (sequences, h, v, n).
    """
    found = chunk_layout(problem, point, device)
    if problem.chain == "split":
        states = _states(problem, point)
        found["initial"] = torch.zeros(states, dtype=TYPES[problem.state_dtype], device=device)
    return found


def _states(problem: GatedDelta, point: Point) -> tuple[int, ...]:
    return point.batch_size, problem.value_heads, problem.value_dim, problem.key_dim


def outputs(problem: GatedDelta, point: Point, device: str) -> dict[str, Tensor]:
    """Empty tensors for all that the kernels of the chain write; see `stages.operands`."""
    tokens, c = tokens_of(point), all_chunks(problem, point)
    heads, n, v = problem.value_heads, problem.key_dim, problem.value_dim
    dtype = TYPES[problem.dtype.value]
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
    kept = torch.float32 if apart else TYPES[problem.state_dtype]
    found["pool"] = torch.empty(_states(problem, point), dtype=kept, device=device)
    found["g_sum"] = torch.empty((tokens, heads), device=device)
    if apart:
        found["A"] = torch.empty(shapes["T"], device=device)
    return found


def reference(problem: GatedDelta, point: Point, prompt: Prompt) -> dict[str, Tensor]:
    """What each tensor of `outputs` should hold, float32: the states before each chunk in `h`, and
    those at the ends of the sequences in `pool`.
    """
    chunks, size, device = Chunks.of(problem, point), problem.chunk_size, prompt.v.device
    heads, v, n = problem.value_heads, problem.value_dim, problem.key_dim
    normal = {name: unit(getattr(prompt, name).float()) for name in ("q", "k")}
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
        inverse = inverse_of(below)
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
