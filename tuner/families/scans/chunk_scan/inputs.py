"""Make the tensors of the chunked scan and its float32 reference. This module imports torch.

All functions take `device` "cpu" or "cuda". T tokens lie in c chunks of s tokens; there are h heads
of p, g groups and n states. Sequences of a batch have whole chunks, so no chunk has tokens of two.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from tuner.families.scans.chunk_scan.problem import ChunkScan
from tuner.families.scans.scan import chunks_of, tokens_of
from tuner.problems.points import Point

_LARGEST_A = 16.0  # Mamba-2 initialises A from -1 to -16
_AT_ONCE = 1 << 27  # float32 numbers of an intermediate that the reference makes at once


@dataclass(frozen=True)
class Prompt:
    """The inputs of a layer: its weights, and the rows that its projection and convolution give."""

    A: Tensor  # (h,) float32, negative
    D: Tensor  # (h,)
    dt_bias: Tensor  # (h,)
    rows: Tensor  # (T, h * p + 2 * g * n): x, B and C
    projected: Tensor  # (T, 2 * h * p + 2 * g * n + h): its last h numbers are dt

    def clone(self) -> Prompt:
        """Return the same values elsewhere in memory."""
        weights = self.A, self.D, self.dt_bias
        return Prompt(*weights, self.rows.clone(), self.projected.clone())


def make_prompt(problem: ChunkScan, point: Point, *, device: str, seed: int) -> Prompt:
    generator = torch.Generator(device).manual_seed(seed)
    dtype, h = getattr(torch, problem.dtype.value), problem.heads
    inner, shared = h * problem.head_dim, 2 * problem.groups * problem.state_size

    def normal(*shape: int) -> Tensor:
        found = torch.empty(shape, dtype=dtype, device=device)
        return found.normal_(generator=generator)

    rate = torch.rand(h, device=device, generator=generator)
    bias = (normal(h).float() - 4.0).to(dtype)  # softplus of it is near the usual 0.001 to 0.1
    tokens = tokens_of(point)
    rows, projected = normal(tokens, inner + shared), normal(tokens, 2 * inner + shared + h)
    return Prompt(-1.0 - (_LARGEST_A - 1.0) * rate, normal(h), bias, rows, projected)


def views(problem: ChunkScan, prompt: Prompt) -> dict[str, Tensor]:
    """Return x (T, h, p), B and C (T, g, n) and dt (T, h), which are views of the rows, and the
    weights.
    """
    inner, shared = problem.heads * problem.head_dim, problem.groups * problem.state_size
    x, B, C = prompt.rows.split([inner, shared, shared], dim=1)
    grouped = (problem.groups, problem.state_size)
    return {
        "x": x.unflatten(1, (problem.heads, problem.head_dim)),
        "B": B.unflatten(1, grouped),
        "C": C.unflatten(1, grouped),
        "dt": prompt.projected[:, -problem.heads :],
        **{"A": prompt.A, "D": prompt.D, "dt_bias": prompt.dt_bias},
    }


def layout(problem: ChunkScan, point: Point, device: str) -> dict[str, Tensor]:
    """Return the positions of tokens and chunks, int32: token_sequence (T), sequence_ends
    (sequences + 1), chunk_sequence (c), chunk_ends (c + 1), last_chunks and final_slots
    (sequences).
    """
    sequences, tokens = point.batch_size, point.new_tokens
    each = chunks_of(problem, tokens)
    numbers = torch.arange(sequences, device=device, dtype=torch.int32)
    ends = torch.arange(sequences * each + 1, device=device, dtype=torch.int32) * problem.chunk_size
    return {
        "token_sequence": numbers.repeat_interleave(tokens),
        "sequence_ends": torch.arange(sequences + 1, device=device, dtype=torch.int32) * tokens,
        "chunk_sequence": numbers.repeat_interleave(each),
        "chunk_ends": ends.clamp(max=sequences * tokens),
        "last_chunks": (numbers + 1) * each - 1,
        "final_slots": numbers.clone(),
    }


def outputs(problem: ChunkScan, point: Point, device: str) -> dict[str, Tensor]:
    """Return empty tensors for all outputs of the chain's kernels; see `ScanLaunch`."""
    tokens, c = tokens_of(point), chunks_of(problem, tokens_of(point))
    h, p, n, s = problem.heads, problem.head_dim, problem.state_size, problem.chunk_size
    kept = getattr(torch, problem.state_dtype)
    shapes = {
        "dt_out": ((h, c, s), torch.float32),
        "dA_cumsum": ((h, c, s), torch.float32),
        "states": ((c, h, p, n), torch.float32),
        "CB": ((c, problem.groups, s, s), torch.float32),
        "last": ((h, p, n), torch.float32),
        "passed": ((c, h, p, n), kept),
        "final": ((point.batch_size, h, p, n), kept),
        "out": ((tokens, h, p), getattr(torch, problem.dtype.value)),
    }
    return {
        name: torch.empty(shape, dtype=dtype, device=device)
        for name, (shape, dtype) in shapes.items()
    }


def reference(
    problem: ChunkScan, point: Point, prompt: Prompt, *, passes_before: bool
) -> dict[str, Tensor]:
    """Return the values that each tensor of `outputs` should hold, float32.

    `passes_before`: `passed` has the states before each chunk, which are the states at the end of
    the chunk before it, even if that chunk is of another sequence.
    """
    h, s, g = problem.heads, problem.chunk_size, problem.groups
    tokens = tokens_of(point)
    c = chunks_of(problem, tokens)
    given = views(problem, prompt)
    dt = softplus(given["dt"].float() + prompt.dt_bias.float())
    dt = pad(dt, (0, 0, 0, c * s - tokens)).view(c, s, h).permute(2, 0, 1)
    cumsum = torch.cumsum(dt * prompt.A[:, None, None], dim=-1)
    parts = {name: _chunked(given[name], c, s) for name in ("x", "B", "C")}
    by_group = parts["x"].unflatten(2, (g, h // g))  # (c, s, g, h / g, p)
    weight, decay = _grouped(torch.exp(cumsum[..., -1:] - cumsum) * dt, g), cumsum[..., -1].exp()
    found = {
        "dt_out": dt,
        "dA_cumsum": cumsum,
        "states": torch.empty(c, h, problem.head_dim, problem.state_size, device=dt.device),
        "CB": torch.empty(c, g, s, s, device=dt.device),
        "out": torch.empty(c, s, h, problem.head_dim, device=dt.device),
    }
    step = max(1, _AT_ONCE // (h * s * max(s, problem.head_dim)))
    pieces = [slice(at, min(at + step, c)) for at in range(0, c, step)]
    for at in pieces:
        x, B, C = by_group[at].float(), parts["B"][at].float(), parts["C"][at].float()
        found["CB"][at] = torch.einsum("csgn,ctgn->cgst", C, B)
        states = torch.einsum("csgrp,csgn->cgrpn", x * weight[at][..., None], B)
        found["states"][at] = states.flatten(1, 2)
    after = _pass(found["states"], decay, chunks_of(problem, point.new_tokens))
    before = torch.cat([torch.zeros_like(after[:1]), after[:-1]])
    begins = torch.arange(0, c, chunks_of(problem, point.new_tokens), device=dt.device)
    entering = before.clone()
    entering[begins] = 0
    rising, steps = _grouped(cumsum, g), _grouped(dt, g)
    for at in pieces:
        x, C = by_group[at].float(), parts["C"][at].float()
        inside = _decays(rising[at]) * steps[at].permute(0, 2, 3, 1)[:, :, :, None, :]
        inside *= found["CB"][at][:, :, None]
        out = torch.einsum("cgrmk,ckgrp->cmgrp", inside, x)
        old = torch.einsum("cmgn,cgrpn->cmgrp", C, entering[at].unflatten(1, (g, h // g)))
        out += old * rising[at].exp()[..., None]
        out += x * prompt.D.float().view(g, h // g)[..., None]
        found["out"][at] = out.flatten(2, 3)
    found["out"] = found["out"].flatten(0, 1)[:tokens]
    found["passed"] = before if passes_before else after
    found["final"] = after[torch.roll(begins, -1) - 1]
    found["last"] = after[-1]
    return found


def _chunked(part: Tensor, chunks: int, size: int) -> Tensor:
    """Return (T, ..) as (c, s, ..), with zeros behind the last token."""
    missing = chunks * size - len(part)
    whole = torch.cat([part, part.new_zeros(missing, *part.shape[1:])]) if missing else part
    return whole.unflatten(0, (chunks, size))


def _grouped(values: Tensor, groups: int) -> Tensor:
    """Return (h, c, s) as (c, s, g, h / g)."""
    return values.permute(1, 2, 0).unflatten(2, (groups, -1))


def _decays(rising: Tensor) -> Tensor:
    """Return exp(sum[m] - sum[k]) for k <= m, else 0: (c, s, g, r) to (c, g, r, m, k)."""
    sums = rising.permute(0, 2, 3, 1)
    apart = sums[..., :, None] - sums[..., None, :]
    return torch.tril(apart.clamp_(max=0.0).exp_())


def _pass(states: Tensor, decay: Tensor, each: int) -> Tensor:
    """Return the states after each chunk; `each` chunks are a sequence. decay: (h, c)."""
    after = torch.empty_like(states)
    for c in range(len(states)):
        after[c] = states[c]
        if c % each:
            after[c] += after[c - 1] * decay[:, c, None, None]
    return after
