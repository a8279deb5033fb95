"""How far a kernel's output is from its reference. Imports torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def scale_of(expected: Tensor) -> Tensor:
    """|expected| + root mean square of expected, in 16 bits, which errs by 0.4 % at most."""
    return (expected.abs() + expected.square().mean().sqrt()).bfloat16()


def worst_error(output: Tensor, expected: Tensor, scale: Tensor | None = None) -> float:
    """Largest |difference| / scale; infinite for a NaN. `expected` is float32.

    `scale` is `scale_of(expected)`, for callers that compare many outputs with one reference.
    """
    difference = torch.sub(output, expected.float())
    # The largest of numbers with a NaN is a NaN. Only this line waits for the GPU.
    error = difference.div_(scale_of(expected) if scale is None else scale).abs_().amax().item()
    return math.inf if math.isnan(error) else error
