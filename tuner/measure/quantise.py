"""Quantise by tiles, as engines quantise weights and activations.

A scheme is the tile that shares one scale: (rows, columns) for a whole tensor, (1, columns) for a
channel or token, (1, g) for a group along the reduced length, (n, k) for a block.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from tuner.problems.dtypes import Dtype

LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
SMALLEST_MAGNITUDE = 1e-10  # avoids a division by zero for a tile of zeros


def stored_type(dtype: Dtype) -> torch.dtype:
    """Return the type of quantised numbers."""
    return torch.float8_e4m3fn if dtype is Dtype.FP8_W8A8 else torch.int8


def random_matrix(shape: tuple[int, int], device: str, generator: torch.Generator) -> Tensor:
    """Return normal numbers with rows and columns of different magnitude, to reveal a
    wrong scale.
    """
    x = torch.randn(shape, device=device, generator=generator)
    rows = torch.rand((shape[0], 1), device=device, generator=generator)
    columns = torch.rand((1, shape[1]), device=device, generator=generator)
    return x * (rows + 0.25) * (columns + 0.25)


def quantise(x: Tensor, tile: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Quantise (r, c) numbers to `dtype`. The float32 scales are (ceil(r / t0), ceil(c / t1))."""
    magnitude = _tiled(x.float().abs(), tile).amax((1, 3)).clamp_min(SMALLEST_MAGNITUDE)
    scale = magnitude / LARGEST[dtype]
    scaled = x.float() / spread(scale, tile, x.shape)
    if not dtype.is_floating_point:
        scaled = scaled.round_()
    return scaled.clamp_(-LARGEST[dtype], LARGEST[dtype]).to(dtype), scale


def quantise_unsigned(
    x: Tensor, group: int, bits: int, scale_dtype: torch.dtype, zero_points: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Quantise (r, c) numbers to bytes from 0 to 2**bits - 1.

    Scales and zero points are (r, c / group). A number is (byte - zero point) * scale. Without
    zero points, the middle 2**(bits - 1) takes their place.
    """
    middle, top = 2 ** (bits - 1), 2**bits - 1
    tiled = _tiled(x.float(), (1, group))
    if zero_points:
        low, high = tiled.amin((1, 3)).clamp_max(0), tiled.amax((1, 3)).clamp_min(0)
        scale = ((high - low).clamp_min(SMALLEST_MAGNITUDE) / top).to(scale_dtype)
        zero = (-low / scale.float()).round_().clamp_(0, top)
    else:
        scale = (tiled.abs().amax((1, 3)).clamp_min(SMALLEST_MAGNITUDE) / (middle - 1)).to(
            scale_dtype
        )
        zero = torch.full_like(scale, middle, dtype=torch.float32)
    levels = x / spread(scale.float(), (1, group), x.shape) + spread(zero, (1, group), x.shape)
    quantised = levels.round_().clamp_(0, top).to(torch.uint8)
    return quantised, scale, zero.to(torch.uint8) if zero_points else None


def spread(scale: Tensor, tile: tuple[int, int], shape: torch.Size) -> Tensor:
    """Repeat a scale of each tile for each number of `shape`, along the last two dimensions."""
    full = scale.repeat_interleave(tile[0], -2).repeat_interleave(tile[1], -1)
    return full[..., : shape[-2], : shape[-1]]


def pack_nibbles(x: Tensor, dim: int) -> Tensor:
    """Pack two 4-bit numbers into a byte along `dim`, the even number into the low half."""
    even, odd = x.unfold(dim, 2, 2).unbind(-1)
    return (even | (odd << 4)).contiguous()


def unpack_nibbles(x: Tensor, dim: int) -> Tensor:
    return torch.stack((x & 0xF, x >> 4), dim + 1).flatten(dim, dim + 1)


def _tiled(x: Tensor, tile: tuple[int, int]) -> Tensor:
    """View (r, c) as (ceil(r / t0), t0, ceil(c / t1), t1), padded with zeros."""
    rows, columns = -(-x.shape[0] // tile[0]), -(-x.shape[1] // tile[1])
    padded = pad(x, (0, columns * tile[1] - x.shape[1], 0, rows * tile[0] - x.shape[0]))
    return padded.view(rows, tile[0], columns, tile[1])
