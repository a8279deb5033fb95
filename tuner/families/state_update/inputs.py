"""Inputs of the state update and its float32 reference. This module imports torch.

All functions take `device` "cpu" or "cuda".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from tuner.families.state_update.problem import StateUpdate

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_FIRST_SLOT = 1  # vLLM's slot 0 (NULL_BLOCK_ID) stands for a sequence that is not there
_LARGEST_A = 16.0  # Mamba-2 initialises A from -1 to -16


@dataclass(frozen=True)
class LayerWeights:
    """The weights of a layer, by head."""

    A: Tensor  # (heads,) float32, negative
    D: Tensor  # (heads,)
    dt_bias: Tensor  # (heads,)


@dataclass(frozen=True)
class StepTensors:
    """What a batch brings to one launch."""

    projected: Tensor  # (sequences, row): gate, x, B, C, dt, as the layer's projection gives them
    indices: Tensor  # (sequences, 1) int32: the slot of each sequence
    out: Tensor  # (sequences, heads, head_dim)

    def clone(self) -> StepTensors:
        """A copy elsewhere in memory."""
        return StepTensors(self.projected.clone(), self.indices.clone(), torch.empty_like(self.out))


def make_layer(problem: StateUpdate, *, device: str, seed: int) -> LayerWeights:
    generator = torch.Generator(device).manual_seed(seed)
    dtype = TYPES[problem.dtype.value]
    rate = torch.rand(problem.heads, device=device, generator=generator)
    bias = torch.randn(problem.heads, device=device, generator=generator) - 4.0
    skip = torch.randn(problem.heads, device=device, generator=generator)
    return LayerWeights(-1.0 - (_LARGEST_A - 1.0) * rate, skip.to(dtype), bias.to(dtype))


def make_states(problem: StateUpdate, slots: int, *, device: str, seed: int) -> Tensor:
    """Random states (slots + 1, heads, head_dim, state_size); the first slot stands for none."""
    generator = torch.Generator(device).manual_seed(seed)
    shape = (slots + _FIRST_SLOT, problem.heads, problem.head_dim, problem.state_size)
    dtype = TYPES[problem.cache_dtype]
    return torch.empty(shape, dtype=dtype, device=device).normal_(generator=generator)


def make_step(
    problem: StateUpdate, batch_size: int, slots: Tensor, *, device: str, seed: int
) -> StepTensors:
    """One launch's inputs. `slots`: (sequences,) numbers from 0, each once."""
    generator = torch.Generator(device).manual_seed(seed)
    inner, dtype = problem.heads * problem.head_dim, TYPES[problem.dtype.value]
    row = 2 * inner + 2 * problem.groups * problem.state_size + problem.heads
    projected = torch.randn(batch_size, row, device=device, generator=generator).to(dtype)
    indices = (slots + _FIRST_SLOT).to(torch.int32)[:, None].contiguous()
    shape = (batch_size, problem.heads, problem.head_dim)
    return StepTensors(projected, indices, torch.empty(shape, dtype=dtype, device=device))


def operands(
    problem: StateUpdate, layer: LayerWeights, step: StepTensors, states: Tensor
) -> dict[str, Tensor]:
    """The tensors of a launch by the names that `StateLaunch` gives them."""
    x, B, C, dt = _parts(problem, step.projected)
    width = problem.head_dim
    return {
        "state": states,
        "x": x,
        "dt": dt[:, :, None].expand(-1, -1, width),
        "A": layer.A[:, None, None].expand(-1, width, problem.state_size),
        "B": B,
        "C": C,
        "D": layer.D[:, None].expand(-1, width),
        "dt_bias": layer.dt_bias[:, None].expand(-1, width),
        "out": step.out,
        "indices": step.indices,
    }


def reference(
    problem: StateUpdate, layer: LayerWeights, step: StepTensors, states: Tensor, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs (rows, heads, head_dim) and new states (rows, heads, head_dim, state_size) of some
    sequences, float32.

    `states`: the states of these sequences before the step.
    """
    x, B, C, dt = (part[rows].float() for part in _parts(problem, step.projected))
    each = problem.heads // problem.groups
    B, C = (part.repeat_interleave(each, dim=1)[:, :, None, :] for part in (B, C))
    dt = softplus(dt + layer.dt_bias.float())
    decay = torch.exp(dt * layer.A)[:, :, None, None]
    state = states.float() * decay + (dt[:, :, None] * x)[..., None] * B
    out = (state * C).sum(-1) + x * layer.D.float()[None, :, None]
    return out, state


def _parts(problem: StateUpdate, projected: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x (n, heads, head_dim), B and C (n, groups, state_size), dt (n, heads): views of the rows."""
    n, inner = len(projected), problem.heads * problem.head_dim
    shared = problem.groups * problem.state_size
    _, x, B, C, dt = projected.split([inner, inner, shared, shared, problem.heads], dim=1)
    grouped = (n, problem.groups, problem.state_size)
    return x.view(n, problem.heads, problem.head_dim), B.view(grouped), C.view(grouped), dt
