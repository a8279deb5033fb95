"""Random weights of the size that a trained model's have. Runs inside a server; needs torch.

The engines' own dummy weights lie between -0.001 and 0.001. fp8 rounds these to zero, so that every
expert gets the same score and every product is zero.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import torch

STD = 0.02  # of a trained model's weights, as transformers' initializer_range too
_SPREAD = 4.0  # the largest quantised value is so many standard deviations away


def fill_weights(model: Any, *ignored: object, **options: object) -> None:  # noqa: ANN401
    """Fill a module's parameters and buffers in place. Takes what the engines' function takes.

    The values depend on a tensor's name and shape alone, so two servers get equal weights, and so
    do the ranks of one server in the layers that each of them holds whole.
    """
    kind = type(model).__name__.lower()  # vLLM passes single layers, whose tensors are "weight"
    for name, tensor in model.state_dict().items():
        if tensor.device.type != "meta":
            _fill(name, tensor.data, is_norm="norm" in name or kind.endswith("norm"))


def _fill(name: str, tensor: torch.Tensor, *, is_norm: bool) -> None:
    seed = crc32(f"{name} {tuple(tensor.shape)}".encode())
    generator = torch.Generator(device=tensor.device).manual_seed(seed)
    if "scale" in name and tensor.is_floating_point():
        tensor.fill_(_scale(name))
    elif tensor.dtype is torch.int8:
        _copy(tensor, 127.0 / _SPREAD, 127.0, generator)
    elif not tensor.is_floating_point():
        return  # an index or a packed format: the engine has filled it
    elif torch.finfo(tensor.dtype).bits < 16:
        largest = torch.finfo(tensor.dtype).max
        _copy(tensor, largest / _SPREAD, largest, generator)
    elif is_norm:
        tensor.fill_(1.0 if name.endswith("weight") else 0.0)
    elif name.endswith("bias"):
        tensor.zero_()
    else:
        tensor.normal_(0.0, STD, generator=generator)


def _scale(name: str) -> float:
    """What quantised weights are multiplied by. Scales of activations and caches are 1."""
    # 448 is fp8's largest value. With int8's 127 the weights are of the size of DeepSeek's, 0.006.
    return STD * _SPREAD / 448.0 if "weight" in name else 1.0


def _copy(tensor: torch.Tensor, std: float, largest: float, generator: torch.Generator) -> None:
    """Fill a tensor whose type cannot be drawn directly, a slice at a time."""
    for part in tensor if tensor.dim() > 2 else [tensor]:
        drawn = torch.empty(part.shape, dtype=torch.float32, device=part.device)
        part.copy_(drawn.normal_(0.0, std, generator=generator).clamp_(-largest, largest))
