"""How far a kernel's output is from its reference. Imports torch."""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor


class Reference:
    """What an output should be, and the scale of its errors, for many outputs."""

    def __init__(self, expected: Tensor) -> None:
        """`expected` is float32."""
        self._expected = expected

    @cached_property
    def _scale(self) -> Tensor:
        """|expected| + root mean square of expected, in 16 bits, which errs by 0.4 % at most."""
        expected = self._expected
        return (expected.abs() + expected.square().mean().sqrt()).bfloat16()

    def worst_error(self, output: Tensor) -> float:
        """Largest |difference| / scale; infinite for a NaN."""
        difference = torch.sub(output, self._expected)
        # The largest of numbers with a NaN is a NaN. Only this line waits for the GPU.
        error = difference.div_(self._scale).abs_().amax().item()
        return math.inf if math.isnan(error) else error
