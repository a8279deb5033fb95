"""Make the inputs of attention kernels and the float32 reference. This module imports torch.

Lengths are ragged and a sequence's tokens are scattered over the cache, as they are in a server
after some time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tuner.devices.target import Target, cuda_target
from tuner.families.attention.kernels import AttentionKernels
from tuner.families.attention.problem import Attention, AttentionPhase
from tuner.families.attention.splits import Lengths, kv_splits
from tuner.kernels.launcher import TensorSpec
from tuner.kernels.values import launch_values
from tuner.problems.points import Config, Point

TYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "i32": torch.int32,
    "i64": torch.int64,
}
# Tensors with a row per new token. Decode has one new token per sequence and needs no resizing.
BY_TOKEN: Mapping[AttentionPhase, tuple[str, ...]] = {
    AttentionPhase.EXTEND: ("q_extend", "k_extend", "v_extend", "o_extend"),
    AttentionPhase.PREFILL: ("q", "k", "v", "o"),
    AttentionPhase.DECODE: (),
}


@dataclass(frozen=True)
class Inputs:
    """A batch's tensors, by the parameter names of the engine's launcher."""

    problem: Attention
    lengths: Lengths
    tensors: Mapping[str, Tensor]

    @property
    def output(self) -> Tensor:
        return self.tensors["o_extend" if self.problem.phase is AttentionPhase.EXTEND else "o"]

    def with_output(self, output: Tensor) -> Inputs:
        """Return the same batch with another output of the same shape."""
        name = "o_extend" if self.problem.phase is AttentionPhase.EXTEND else "o"
        return replace(self, tensors={**self.tensors, name: output.view_as(self.output)})

    def tensors_with(self, parts: Sequence[int]) -> Mapping[str, Tensor]:
        """Return the tensors with the sequences' caches split into other numbers of parts."""
        like = self.tensors["num_kv_splits"]
        numbers = torch.tensor(parts, dtype=like.dtype, device=like.device)
        return {**self.tensors, "num_kv_splits": numbers}

    def with_cache(self, k_buffer: Tensor) -> Inputs:
        """Return the same batch with another cache of the same shape."""
        if self.problem.shares_kv:
            v_buffer = k_buffer[..., : self.problem.Lv]
        else:
            v_buffer = torch.randn_like(self.tensors["v_buffer"])
        cache = {"k_buffer": k_buffer, "v_buffer": v_buffer}
        return replace(self, tensors={**self.tensors, **cache})


def make_inputs(
    kernels: AttentionKernels,
    problem: Attention,
    lengths: Lengths,
    *,
    device: str,
    seed: int,
    cores: int,
) -> Inputs:
    """Return random inputs for a batch. `cores`: the device's multiprocessors, on which the
    engine's number of splits depends.
    """
    generator = torch.Generator(device).manual_seed(seed)
    specs = launcher_tensors(kernels, problem, _point(problem, lengths))
    sizes = {"tokens": sum(lengths.new), "slots": max(1, 2 * sum(lengths.cached))}
    tensors = {
        name: _allocate(_resized(spec, sizes, problem), device, generator)
        for name, spec in specs.items()
    }
    tensors |= _indices(problem, lengths, tensors, device, generator)
    if "num_kv_splits" in tensors:
        splits = kv_splits(lengths.cached, problem, cores)
        tensors["num_kv_splits"].copy_(torch.tensor(splits))
    if problem.shares_kv and problem.phase is AttentionPhase.EXTEND:
        tensors["v_extend"] = tensors["k_extend"][..., : problem.Lv].contiguous()
    if problem.shares_kv:
        tensors["v_buffer"] = tensors["k_buffer"][..., : problem.Lv]
    return Inputs(problem, lengths, tensors)


def launch(
    module: ModuleType,
    kernels: AttentionKernels,
    problem: Attention,
    point: Point,
    config: Config,
    target: Target,
    tensors: Mapping[str, Tensor],
) -> Any:  # noqa: ANN401 (triton.compiler.CompiledKernel; None from the interpreter)
    """Run a part's lifted kernel (`load_lifted`) once on the tensors' device with Triton's JIT."""
    binding = kernels.bind(problem, point, config, target)
    grid = kernels.grid(problem, point, config, target)
    values = launch_values(binding, tensors)
    return getattr(module, binding.function)[grid](*values, **binding.options)


def reference(inputs: Inputs, sequence: int, rows: slice = slice(None)) -> Tensor:
    """Return the output for a sequence's new tokens, (rows, q_heads, Lv) float32.

    The sequence must be in `compared`.
    """
    problem, tensors = inputs.problem, inputs.tensors
    new, cached = inputs.lengths.new[sequence], inputs.lengths.cached[sequence]
    queries = tensors["q_extend" if problem.phase is AttentionPhase.EXTEND else "q"]
    q = queries[_new_rows(inputs, sequence)][rows].float()
    k, v = _keys_values(inputs, sequence)
    before = cached - 1 if problem.phase is AttentionPhase.DECODE else cached
    at = (torch.arange(new, device=q.device) + before)[rows]
    keys = torch.arange(len(k), device=q.device)
    seen = keys[None, :] <= at[:, None]
    if problem.phase is AttentionPhase.PREFILL:
        seen = torch.ones_like(seen)
    if problem.window:
        seen &= at[:, None] <= keys[None, :] + problem.window
    sinks = tensors["sinks"].float() if problem.sinks else None
    heads = []
    for head in range(problem.q_heads):
        logits = q[:, head] @ k[:, head // problem.group].T * problem.Lq**-0.5
        if problem.logit_cap:
            logits = problem.logit_cap * torch.tanh(logits / problem.logit_cap)
        logits = logits.masked_fill(~seen, float("-inf"))
        if sinks is not None:
            logits = torch.cat([logits, sinks[head].expand(len(q), 1)], dim=1)
        weights = torch.softmax(logits, dim=1)[:, : len(k)]
        heads.append(weights @ v[:, head // problem.group])
    return torch.stack(heads, dim=1)


def output_of(inputs: Inputs, sequence: int) -> Tensor:
    """Return a kernel's output for a sequence, (new tokens, q_heads, Lv)."""
    return inputs.output[_new_rows(inputs, sequence)]


def compared(inputs: Inputs) -> list[int]:
    """Return the sequences with an output: they have new tokens and, at decode, a cache."""
    decode = inputs.problem.phase is AttentionPhase.DECODE
    lengths = zip(inputs.lengths.new, inputs.lengths.cached, strict=True)
    return [i for i, (new, cached) in enumerate(lengths) if new and (cached or not decode)]


def _new_rows(inputs: Inputs, sequence: int) -> slice:
    """Return the rows of a sequence's new tokens."""
    first = sum(inputs.lengths.new[:sequence])
    return slice(first, first + inputs.lengths.new[sequence])


def _keys_values(inputs: Inputs, sequence: int) -> tuple[Tensor, Tensor]:
    tensors, phase = inputs.tensors, inputs.problem.phase
    rows = _new_rows(inputs, sequence)
    if phase is AttentionPhase.PREFILL:
        return tensors["k"][rows].float(), tensors["v"][rows].float()
    start = sum(inputs.lengths.cached[:sequence])
    slots = tensors["kv_indices"][start : start + inputs.lengths.cached[sequence]].long()
    k, v = tensors["k_buffer"][slots].float(), tensors["v_buffer"][slots].float()
    if phase is AttentionPhase.EXTEND:
        k = torch.cat([k, tensors["k_extend"][rows].float()])
        v = torch.cat([v, tensors["v_extend"][rows].float()])
    return k, v


def _point(problem: Attention, lengths: Lengths) -> Point:
    return Point(
        len(lengths.new),
        problem.parts[0],
        lengths.longest_new,
        max(1, max(lengths.cached)) if problem.phase is not AttentionPhase.PREFILL else 0,
    )


def _resized(spec: TensorSpec, sizes: Mapping[str, int], problem: Attention) -> TensorSpec:
    """Return the tensor with as many rows as the lengths add up to."""
    rows = spec.shape[0]
    if spec.name in ("k_buffer", "v_buffer"):
        rows = sizes["slots"]
    elif spec.name in BY_TOKEN[problem.phase]:
        rows = sizes["tokens"]
    return replace(spec, shape=(rows, *spec.shape[1:]))


def _allocate(spec: TensorSpec, device: str, generator: torch.Generator) -> Tensor:
    dtype = TYPES[spec.dtype]
    if not dtype.is_floating_point:
        return torch.zeros(spec.shape, dtype=dtype, device=device)
    if spec.dtype == "fp32":  # the splits' results, which are written before they are read
        return torch.empty(spec.shape, dtype=dtype, device=device)
    return torch.randn(spec.shape, dtype=dtype, device=device, generator=generator)


def _indices(
    problem: Attention,
    lengths: Lengths,
    tensors: Mapping[str, Tensor],
    device: str,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Return the index tensors, which say where each sequence's tokens are."""

    def starts(counts: Sequence[int], like: Tensor) -> Tensor:
        sums = torch.tensor([0, *counts]).cumsum(0)
        return sums.to(device=device, dtype=like.dtype)

    found = {}
    if problem.phase is AttentionPhase.PREFILL:
        like = tensors["b_start_loc"]
        found["b_start_loc"] = starts(lengths.new, like)[:-1].contiguous()
        found["b_seq_len"] = torch.tensor(lengths.new, dtype=like.dtype, device=device)
        return found
    if "qo_indptr" in tensors:
        found["qo_indptr"] = starts(lengths.new, tensors["qo_indptr"])
    found["kv_indptr"] = starts(lengths.cached, tensors["kv_indptr"])
    slots = torch.randperm(len(tensors["k_buffer"]), device=device, generator=generator)
    used = slots[: max(1, sum(lengths.cached))]
    found["kv_indices"] = used.to(tensors["kv_indices"].dtype)
    return found


def launcher_tensors(
    kernels: AttentionKernels, problem: Attention, point: Point
) -> dict[str, TensorSpec]:
    """Return the name, shape and dtype of each tensor argument of the engine's launcher."""
    # The tensors are the same on every target.
    given = kernels.arguments(problem, point, cuda_target(9, 0))
    return {name: value for name, value in given.items() if isinstance(value, TensorSpec)}
