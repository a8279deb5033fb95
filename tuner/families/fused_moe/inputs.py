"""Make the inputs of the fused-MoE kernels and the float32 reference. This module imports torch.

All functions take `device` "cpu" or "cuda". They process some experts at a time, so the float32
weights of a whole layer are never needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.kernels.binding import Binding, Constant, Integer, Pointer
from tuner.kernels.values import launch_values
from tuner.measure.quantise import (
    pack_nibbles,
    quantise,
    quantise_unsigned,
    random_matrix,
    spread,
    stored_type,
    unpack_nibbles,
)
from tuner.problems.dtypes import Dtype

ELSEWHERE = -1  # the id that engines give to an expert of another rank
AT_ONCE = 1 << 26  # numbers in float32 that the reference works on at once, roughly
TORCH_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Weights:
    """A gemm's weights in the engine's layout; `sglang/fused_moe/arguments.py` has the shapes."""

    problem: FusedMoe
    gemm: Gemm
    b: Tensor  # (E, n, k), or (E, n, k / 2) bytes for int4
    scale: Tensor | None
    zero: Tensor | None

    def dense(self, experts: int | slice) -> Tensor:
        """Return the dequantised weights of an expert, (n, k) float32, or of several, (experts, n,
        k).
        """
        b = self.b[experts]
        if self.problem.grouped:
            return self._dense_grouped(experts, b)
        if self.scale is None:
            return b.float()
        shape = self.problem.gemm_shape(self.gemm)
        tile = _weight_tile(self.problem, shape)
        scale = self.scale[experts].reshape(*b.shape[:-2], -(-shape[0] // tile[0]), -1)
        return b.float() * spread(scale, tile, b.shape)

    def _dense_grouped(self, experts: int | slice, b: Tensor) -> Tensor:
        assert self.scale is not None and self.problem.block_shape is not None
        tile = (1, self.problem.block_shape[1])
        int4 = self.problem.dtype is Dtype.INT4_W4A16
        levels = unpack_nibbles(b, b.dim() - 1).float() if int4 else b.float()
        if self.zero is None:
            zero: Tensor | float = 8.0 if int4 else 128.0
        else:
            packed = self.zero[experts]
            found = unpack_nibbles(packed, packed.dim() - 2) if int4 else packed
            zero = spread(found.float(), tile, levels.shape)
        return (levels - zero) * spread(self.scale[experts].float(), tile, levels.shape)


@dataclass(frozen=True)
class Activations:
    """A (rows, k), with a scale for each tile if the engine quantises it."""

    a: Tensor
    scale: Tensor | None
    tile: tuple[int, int]

    def dense(self) -> Tensor:
        """Return the dequantised activations, (rows, k) float32."""
        a = self.a.float()
        if self.scale is None:
            return a
        scale = self.scale.reshape(-(-a.shape[0] // self.tile[0]), -1)
        return a * spread(scale, self.tile, a.shape)


@dataclass(frozen=True)
class Routing:
    """The experts of each token."""

    ids: Tensor  # (M, top_k) int32, distinct in a row; ELSEWHERE: an expert of another rank
    weights: Tensor  # (M, top_k) float32


@dataclass(frozen=True)
class Slots:
    """A routing sorted by expert. Each expert's slots are padded to whole blocks."""

    # (EM,) int32: token * top_k + choice; M * top_k for padding. None: unsorted, one slot a block
    sorted_ids: Tensor | None
    expert_ids: Tensor  # (ceil(EM / BLOCK_SIZE_M),) int32
    used: Tensor  # (1,) int32: slots in blocks with rows, including their padding


def make_weights(
    problem: FusedMoe,
    gemm: Gemm,
    *,
    device: str,
    seed: int,
    compute: str = "bf16",
    zero_points: bool = False,
) -> Weights:
    """Return random weights, quantised for the problem. `compute`: the layer's 16-bit type."""
    generator = torch.Generator(device).manual_seed(seed)
    shape = problem.gemm_shape(gemm)
    made: tuple[list[Tensor], ...] = ([], [], [])
    for _ in range(problem.E):
        x = random_matrix(shape, device, generator) / shape[1] ** 0.5
        parts = _quantise_weight(problem, x, TORCH_TYPES[compute], zero_points)
        for kept, part in zip(made, parts, strict=True):
            if part is not None:
                kept.append(part)
    b, scale, zero = (torch.stack(parts) if parts else None for parts in made)
    assert b is not None
    return Weights(problem, gemm, b, scale, zero)


def make_activations(
    problem: FusedMoe, gemm: Gemm, batch_size: int, *, device: str, seed: int, compute: str = "bf16"
) -> Activations:
    """Return random activations: a row for each token for up, a row for each slot for down."""
    rows = batch_size if gemm is Gemm.UP else batch_size * problem.top_k
    k = problem.gemm_shape(gemm)[1]
    x = random_matrix((rows, k), device, torch.Generator(device).manual_seed(seed))
    if problem.dtype.activation_bits == 16:
        return Activations(x.to(TORCH_TYPES[compute]), None, (1, 1))
    if problem.block_shape:
        tile = (1, problem.block_shape[1])
    else:
        tile = (1, k) if problem.per_channel_quant else (rows, k)
    a, scale = quantise(x, tile, stored_type(problem.dtype))
    return Activations(a, scale.view(-1) if tile[0] > 1 else scale, tile)


def random_routing(
    problem: FusedMoe, batch_size: int, *, device: str, seed: int, skew: float = 0.0
) -> Routing:
    """Draw distinct experts for each token; the r-th likeliest has the weight r ** -skew.

    Each token draws among the routed experts of all ranks. This rank keeps its own, which are the
    first. Fused shared experts take the last places of each token.
    """
    generator = torch.Generator(device).manual_seed(seed)
    experts = problem.all_routed
    noise = torch.rand((batch_size, experts), device=device, generator=generator)
    rank = torch.randperm(experts, device=device, generator=generator) + 1
    scores = -skew * rank.log() - (-noise.clamp_min(1e-20).log()).log()  # Gumbel's top-k draw
    ids = scores.topk(problem.routed_top_k, dim=1).indices
    ids = ids.where(ids < problem.routed, ELSEWHERE)
    if problem.shared_experts:
        last = torch.arange(problem.routed, problem.E, device=device)
        ids = torch.cat([ids, last.expand(batch_size, -1)], dim=1)
    weights = torch.rand(ids.shape, device=device, generator=generator) + 0.1
    return Routing(ids.to(torch.int32), weights / weights.sum(1, keepdim=True))


def align(
    routings: Sequence[Routing], experts: int, block_m: int, slots: int, *, foreign_blocks: bool
) -> list[Slots]:
    """Sort routings of the same size like `moe_align_block_size`. `slots`: EM, the allocated
    length.

    `foreign_blocks`: slots of experts elsewhere fill the first blocks, as in sglang. Otherwise they
    are in no block, as in vLLM.
    """
    # Bucket 0 has the slots of experts elsewhere, bucket e + 1 has expert e's.
    flat = torch.stack([routing.ids.flatten() for routing in routings]).long() + 1
    on, count = {"device": flat.device}, flat.shape[1]
    order = flat.argsort(dim=1, stable=True)
    bucket = flat.gather(1, order)
    counts = torch.zeros((len(routings), experts + 1), dtype=torch.long, **on)
    counts.scatter_add_(1, flat, torch.ones_like(flat))
    padded = (counts + block_m - 1) // block_m * block_m
    if not foreign_blocks:
        padded[:, 0] = 0
    ends = padded.cumsum(1)
    within = torch.arange(count, **on) - (counts.cumsum(1) - counts).gather(1, bucket)
    places = (ends - padded).gather(1, bucket) + within
    if not foreign_blocks:
        places = places.where(bucket > 0, slots)  # a place that is cut off
    sorted_ids = torch.full((len(routings), slots + 1), count, dtype=torch.int32, **on)
    sorted_ids = sorted_ids.scatter_(1, places, order.to(torch.int32))[:, :slots]
    begins = torch.arange(0, slots, block_m, **on).expand(len(routings), -1).contiguous()
    owners = torch.searchsorted(ends, begins, right=True) - 1  # `experts` behind the last blocks
    expert_ids = owners.where(owners < experts, 0).to(torch.int32)
    used = ends[:, -1:].to(torch.int32)
    # Kernels are compiled for tensors that begin at a multiple of 16 bytes. A row of a matrix may
    # begin elsewhere, so each row is copied.
    return [
        Slots(*(row.clone() for row in rows))
        for rows in zip(sorted_ids, expert_ids, used, strict=True)
    ]


def unsorted(routing: Routing, block_m: int) -> Slots:
    """Return each slot as a block, unsorted: an engine does this for few tokens and many
    experts.
    """
    ids = routing.ids.flatten()
    used = torch.full((1,), ids.numel() * block_m, dtype=torch.int32, device=ids.device)
    return Slots(None, ids, used)


def slots_for(
    binding: Binding, routings: Sequence[Routing], experts: int, *, foreign_blocks: bool
) -> list[Slots]:
    """Return the slots of routings of the same size for a bound kernel; for `foreign_blocks` see
    `align`.
    """
    numbers = _numbers(binding)
    block_m = numbers["BLOCK_SIZE_M"]
    if not isinstance(binding.arguments["sorted_token_ids_ptr"], Pointer):
        return [unsorted(routing, block_m) for routing in routings]
    return align(routings, experts, block_m, numbers["EM"], foreign_blocks=foreign_blocks)


def sort_activations(activations: Activations, slots: Slots, rows: int) -> Activations:
    """Return the activations with rows in slot order, which a down gemm with TMA reads."""
    assert slots.sorted_ids is not None  # TMA reads sorted rows
    valid = (slots.sorted_ids < activations.a.shape[0]).nonzero().view(-1)
    source = slots.sorted_ids[valid].long()

    def placed(x: Tensor) -> Tensor:
        out = torch.zeros((rows, x.shape[1]), dtype=x.dtype, device=x.device)
        out.view(_bytes(x))[valid] = x.view(_bytes(x))[source]  # fp8 cannot be indexed
        return out

    scale = activations.scale
    if scale is not None and scale.dim() == 2:  # a row has scales of its own
        scale = placed(scale)
    return Activations(placed(activations.a), scale, activations.tile)


def operands(
    weights: Weights, activations: Activations, routing: Routing, slots: Slots, output: Tensor
) -> dict[str, Tensor]:
    """Return the kernels' tensors by parameter name. `output`: C (slots, n)."""
    tensors = {
        "a_ptr": activations.a,
        "b_ptr": weights.b,
        "c_ptr": output,
        "a_scale_ptr": activations.scale,
        "b_scale_ptr": weights.scale,
        "b_zp_ptr": weights.zero,
        "topk_weights_ptr": routing.weights,
        "sorted_token_ids_ptr": slots.sorted_ids,
        "expert_ids_ptr": slots.expert_ids,
        "num_tokens_post_padded_ptr": slots.used,
        "a_desc": activations.a,
        "b_desc": weights.b,
    }
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def launch(module: ModuleType, binding: Binding, tensors: Mapping[str, Tensor]) -> None:
    """Run a lifted kernel (`load_lifted`) once on the tensors' device."""
    kernel = getattr(module, binding.function)[(grid_size(binding),)]
    kernel(*launch_values(binding, tensors), **binding.options)


def grid_size(binding: Binding) -> int:
    """Return the number of blocks of a launch: the tiles of C with EM rows."""
    number = _numbers(binding)
    rows = -(-number["EM"] // number["BLOCK_SIZE_M"])
    return rows * -(-number["N"] // number["BLOCK_SIZE_N"])


def _numbers(binding: Binding) -> dict[str, int]:
    """Return the arguments that are whole numbers."""
    return {
        name: argument.value
        for name, argument in binding.arguments.items()
        if isinstance(argument, Integer | Constant) and isinstance(argument.value, int)
    }


def reference(
    weights: Weights, activations: Activations, routing: Routing, slots: Tensor | None = None
) -> Tensor:
    """Return C from the dense operands, (slots, n) float32. `slots`: the slots to compute; None:
    all.

    If a routing has several times as many tokens as the activations, the activations are read
    again.
    """
    top_k = routing.ids.shape[1]
    experts = routing.ids.flatten()
    chosen = torch.arange(experts.numel(), device=experts.device) if slots is None else slots
    n = weights.problem.gemm_shape(weights.gemm)[0]
    out = torch.empty((chosen.numel(), n), dtype=torch.float32, device=experts.device)
    a = activations.dense()
    rows = (chosen // top_k if weights.gemm is Gemm.UP else chosen) % a.shape[0]
    # A loop that asked for each expert's slots would wait for the GPU each time.
    order = experts[chosen].argsort(stable=True)
    counts = experts[chosen].bincount(minlength=weights.problem.E)
    starts, places = counts.cumsum(0) - counts, torch.arange(chosen.numel(), device=a.device)
    for some, most in _groups(counts.tolist(), weights.problem.gemm_shape(weights.gemm)):
        # An expert with fewer slots than another of its group computes its last slot again.
        last = (counts[some] - 1).unsqueeze(1)
        at = order[starts[some].unsqueeze(1) + places[:most].minimum(last)]
        out[at] = a[rows[at]] @ weights.dense(some).mT
    if weights.gemm is Gemm.DOWN:
        out *= routing.weights.flatten()[chosen].unsqueeze(1)
    return out


def local_slots(routing: Routing) -> Tensor:
    """Return the slots whose experts are this rank's: the rows of C that a kernel computes."""
    return (routing.ids.flatten() != ELSEWHERE).nonzero().view(-1)


def references(
    weights: Weights, activations: Activations, routings: Sequence[Routing]
) -> list[Tensor]:
    """Return the `reference` for the local slots of each of several routings of the same size.

    They are computed as one routing of all their tokens, so each expert's weights are dequantised
    once.
    """
    ids = torch.cat([routing.ids for routing in routings])
    together = Routing(ids, torch.cat([routing.weights for routing in routings]))
    found = reference(weights, activations, together, local_slots(together))
    return [*found.split([local_slots(routing).numel() for routing in routings])]


def _groups(counts: Sequence[int], shape: tuple[int, int]) -> Iterator[tuple[slice, int]]:
    """Yield (experts with slots that follow one another, the most slots of any of them).

    Few large operations take a GPU less time than many small operations.
    """
    begin, most = 0, 0
    for expert, count in enumerate([*counts, 0]):
        numbers = (expert + 1 - begin) * max(most, count, shape[0]) * max(shape)
        if most and (not count or numbers > AT_ONCE):
            yield slice(begin, expert), most
            most = 0
        if not most:
            begin = expert
        most = max(most, count)


def _weight_tile(problem: FusedMoe, shape: tuple[int, int]) -> tuple[int, int]:
    if problem.block_shape:
        return problem.block_shape
    by_row = problem.per_channel_quant or problem.dtype is Dtype.INT8_W8A16
    return (1, shape[1]) if by_row else shape


def _quantise_weight(
    problem: FusedMoe, x: Tensor, compute: torch.dtype, zero_points: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    if problem.dtype.weight_bits == 16:
        return x.to(compute), None, None
    if problem.grouped:
        assert problem.block_shape is not None
        bits, group = problem.dtype.weight_bits, problem.block_shape[1]
        b, scale, zero = quantise_unsigned(x, group, bits, compute, zero_points)
        if bits == 4:
            b, zero = pack_nibbles(b, 1), None if zero is None else pack_nibbles(zero, 0)
        return b, scale, zero
    tile = _weight_tile(problem, (x.shape[0], x.shape[1]))
    b, scale = quantise(x, tile, stored_type(problem.dtype))
    if problem.block_shape or problem.per_channel_quant:
        return b, scale, None  # (blocks, blocks) or (n, 1)
    return b, scale.view(-1) if problem.dtype is Dtype.INT8_W8A16 else scale.view(()), None


def _bytes(x: Tensor) -> torch.dtype:
    return {1: torch.uint8, 2: torch.int16, 4: torch.int32}[x.element_size()]
