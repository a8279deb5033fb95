"""Inputs of KDA's scan, its float32 reference, and the tensors between kernels.

All functions take `device` "cpu" or "cuda". T tokens lie in c chunks of s tokens; there are h heads
of n numbers. Only the last chunk of a sequence may have fewer tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log

import torch
from torch import Tensor
from torch.nn.functional import softplus

from tuner.families.kda.problem import Kda
from tuner.families.scans.chunked import TYPES, Chunks, chunk_layout, inverse_of, unit
from tuner.families.scans.scan import all_chunks, tokens_of
from tuner.problems.points import Point

_LARGEST_A = 16.0  # Kimi-Linear initialises exp(A_log) from 1 to 16
_BLOCK = 16  # tokens of a block on a diagonal
_AT_ONCE = 1 << 27  # float32 numbers of an intermediate that the reference makes at once


@dataclass(frozen=True)
class Prompt:
    """What the chain is given."""

    q: Tensor  # (T, h, n)
    k: Tensor  # (T, h, n)
    v: Tensor  # (T, h, n)
    raw_g: Tensor  # (T, h, n), of q's type: before the gate's activation
    raw_beta: Tensor  # (T, h), of q's type: before the sigmoid
    A_log: Tensor  # (h,) float32
    bias: Tensor  # (h * n,) float32

    def clone(self) -> Prompt:
        """The same values elsewhere in memory."""
        return replace(self, **{name: value.clone() for name, value in vars(self).items()})


def make_prompt(problem: Kda, point: Point, *, device: str, seed: int) -> Prompt:
    generator = torch.Generator(device).manual_seed(seed)
    tokens, dtype = tokens_of(point), TYPES[problem.dtype.value]
    heads, n = problem.heads, problem.head_dim

    def normal(*shape: int) -> Tensor:
        return torch.empty(shape, device=device).normal_(generator=generator)

    rate = 1.0 + (_LARGEST_A - 1.0) * torch.rand(heads, device=device, generator=generator)
    return Prompt(
        q=normal(tokens, heads, n).to(dtype),
        k=normal(tokens, heads, n).to(dtype),
        v=normal(tokens, heads, n).to(dtype),
        raw_g=normal(tokens, heads, n).to(dtype),
        raw_beta=normal(tokens, heads).to(dtype),
        A_log=rate.log(),
        bias=normal(heads * n) - 4.0,  # the usual time steps: 0.001 to 0.1
    )


def views(problem: Kda, prompt: Prompt) -> dict[str, Tensor]:
    """The prompt's tensors by their names."""
    return dict(vars(prompt))


def layout(problem: Kda, point: Point, device: str) -> dict[str, Tensor]:
    """See `chunk_layout`; also the first states, `initial` (sequences, h, n, n), for engines that
    do not write over them.
    """
    kept = TYPES[problem.state_dtype]
    initial = torch.zeros(_states(problem, point), dtype=kept, device=device)
    return {**chunk_layout(problem, point, device), "initial": initial}


def _states(problem: Kda, point: Point) -> tuple[int, ...]:
    return point.batch_size, problem.heads, problem.head_dim, problem.head_dim


def outputs(problem: Kda, point: Point, device: str) -> dict[str, Tensor]:
    """Empty tensors for all that the kernels of the chain write or read; see `stages.operands`."""
    tokens, heads, n = tokens_of(point), problem.heads, problem.head_dim
    rows, pairs = (tokens, heads, n), (tokens, heads, problem.chunk_size)
    names = ("q_normal", "k_normal", "w", "u", "kg", "v_new", "out")
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(names, rows)
    shapes |= dict.fromkeys(("near", "far", "P", "T"), pairs)
    shapes["h"] = (all_chunks(problem, point), heads, n, n)
    wide: dict[str, tuple[int, ...]] = {"g_sum": rows, "beta": rows[:2]}
    wide |= {"diagonal": (*rows[:2], _BLOCK), "final": _states(problem, point)}
    dtype, kept = TYPES[problem.dtype.value], TYPES[problem.state_dtype]
    found = {name: torch.empty(shape, dtype=dtype, device=device) for name, shape in shapes.items()}
    found |= {name: torch.empty(shape, device=device) for name, shape in wide.items()}
    found["pool"] = torch.empty(_states(problem, point), dtype=kept, device=device)
    return found


def reference(
    problem: Kda, point: Point, prompt: Prompt, *, base_two: bool = True
) -> dict[str, Tensor]:
    """What each tensor of `outputs` should hold, float32: the states before each chunk in `h`, and
    those at the ends of the sequences in `final` and `pool`.

    `base_two`: s is kept for powers of 2. Otherwise it is kept for powers of e, as in sglang before
    0.5.23, which takes powers of 2 of it within a chunk: A and P hold 2 ** (s[i] - s[j]) there.
    """
    chunks, size, device = Chunks.of(problem, point), problem.chunk_size, prompt.v.device
    heads, n = problem.heads, problem.head_dim
    normal = {name: unit(getattr(prompt, name).float()) for name in ("q", "k")}
    q, k = (chunks.cut(normal[name], n) for name in ("q", "k"))
    rates = prompt.raw_g.float() + prompt.bias.view(heads, n)
    fades = chunks.cut(-prompt.A_log.exp()[:, None] * softplus(rates), n).cumsum(3)
    beta = prompt.raw_beta.float().sigmoid()
    values, strength = chunks.cut(prompt.v, n), chunks.cut(beta, 1)
    widths = {"T": size, "P": size, "A": size} | dict.fromkeys(("w", "u", "kg", "v_new", "out"), n)
    made = {name: chunks.empty(heads, width, device) for name, width in widths.items()}
    before = torch.empty((chunks.sequences, chunks.each, heads, n, n), device=device)
    state = torch.zeros((chunks.sequences, heads, n, n), device=device)
    for c in range(chunks.each):
        s, b, qc, kc = fades[:, c], strength[:, c], q[:, c] * n**-0.5, k[:, c]
        products, own = _pairs(kc, kc, s, base_two), _pairs(qc, kc, s, base_two)
        below = (products * b).tril(-1)
        inverse = inverse_of(below)
        w, u = inverse @ (kc * b * s.exp()), inverse @ (values[:, c].float() * b)
        new, last = u - w @ state.mT, s[:, :, -1:]
        kg = kc * (last - s).exp()
        out = qc * s.exp() @ state.mT + own.tril() @ new
        found = {"A": below, "P": own.tril(), "T": inverse, "w": w, "u": u, "kg": kg}
        for name, tensor in {**found, "v_new": new, "out": out}.items():
            made[name][:, c] = tensor
        before[:, c] = state
        state = state * last.exp() + new.mT @ kg
    block = torch.arange(size, device=device) // _BLOCK
    same = block[:, None] == block
    made["near"], made["far"] = made["P"] * same, made["P"] * ~same
    made["diagonal"] = _own_blocks(made.pop("A"))
    joined = {name: chunks.join(tensor) for name, tensor in made.items()}
    given = {f"{name}_normal": tensor for name, tensor in normal.items()}
    sums = chunks.join(fades) / (log(2.0) if base_two else 1.0)
    ends = {"h": before.flatten(0, 1), "final": state, "pool": state}
    return {**given, **joined, **ends, "g_sum": sums, "beta": beta}


def _pairs(left: Tensor, right: Tensor, s: Tensor, base_two: bool) -> Tensor:
    """(.., s, s): the sums of left[i] * right[j] * exp(s[i] - s[j]) for j <= i; see `reference`."""
    found = torch.empty((*left.shape[:-1], left.shape[-2]), device=left.device)
    step = max(1, _AT_ONCE // left[0].numel() // left.shape[-2])
    for at in range(0, len(left), step):
        some = slice(at, at + step)
        apart = (s[some, :, :, None] - s[some, :, None]).clamp(max=0.0)
        faded = (apart.exp() if base_two else apart.exp2()).mul_(right[some, :, None])
        found[some] = torch.einsum("bhin,bhijn->bhij", left[some], faded)
    return found


def _own_blocks(pairs: Tensor) -> Tensor:
    """(.., s, s) as (.., s, 16): of each token, its block on the diagonal."""
    blocks = pairs.unflatten(-1, (-1, _BLOCK)).unflatten(-3, (-1, _BLOCK))
    return blocks.diagonal(dim1=-4, dim2=-2).movedim(-1, -3).flatten(-3, -2)
