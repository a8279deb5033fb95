"""Random weights of the size that a trained model's have. Runs inside a server; needs torch.

The dummy weights of most engines lie between -0.001 and 0.001. fp8 rounds these to zero, so that
every expert gets the same score and every product is zero.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import torch

STD = 0.02  # of a trained model's weights, as transformers' initializer_range too
_SPREAD = 4.0  # the largest quantised value is so many standard deviations away
_FASTEST = 16.0  # Mamba-2 initialises its rates of decay from -1 to -16
_INT8, _FP8 = 127.0, 448.0  # the largest values
_SCALES_ALONE = "e8m0"  # a type of scales, which holds exponents


def fill_weights(model: Any, *ignored: object, **options: object) -> None:  # noqa: ANN401
    """Fill a module's parameters and buffers in place. Takes what the engines' function takes.

    The values depend on a tensor's name and shape alone, so two servers get equal weights, and so
    do the ranks of one server in the layers that each of them holds whole.
    """
    for name, tensor in model.state_dict().items():
        fill_weight(tensor, name)


def fill_weight(tensor: torch.Tensor, name: str) -> bool:
    """Fill one tensor in place. Returns whether it did: packed formats and indices are left."""
    if tensor.device.type == "meta" or _SCALES_ALONE in str(tensor.dtype):
        return False
    data = tensor.data
    generator = torch.Generator(device=data.device)
    generator.manual_seed(crc32(f"{name} {tuple(data.shape)}".encode()))
    if data.dtype is torch.int8:
        _draw(data, _INT8, generator)
    elif not data.is_floating_point():
        return False
    elif "scale" in name:
        # With int8 the weights are as large as DeepSeek's, 0.006. Activations and caches have 1.
        data.fill_(STD * _SPREAD / _FP8 if "weight" in name else 1.0)
    elif torch.finfo(data.dtype).bits < 16:
        _draw(data, torch.finfo(data.dtype).max, generator)
    elif name.endswith("bias"):
        data.zero_()
    elif name.rpartition(".")[2] == "A":  # of Mamba-2: with rates above 0, states would grow
        data.uniform_(-_FASTEST, -1.0, generator=generator)
    elif data.dim() == 1 and name.endswith("weight"):  # a norm's
        data.fill_(1.0)
    else:
        data.normal_(0.0, STD, generator=generator)
    return True


def _draw(tensor: torch.Tensor, largest: float, generator: torch.Generator) -> None:
    """Fill a tensor of a type that cannot be drawn directly, a slice at a time."""
    for part in tensor if tensor.dim() > 2 else [tensor]:
        drawn = torch.empty(part.shape, dtype=torch.float32, device=part.device)
        drawn.normal_(0.0, largest / _SPREAD, generator=generator)
        part.copy_(drawn.clamp_(-largest, largest))
