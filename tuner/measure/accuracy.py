"""How far a kernel's output is from its reference. Imports torch."""

from __future__ import annotations

from torch import Tensor


def worst_error(output: Tensor, expected: Tensor) -> float:
    """Largest |difference| / (|expected| + root mean square of expected); infinite for a NaN."""
    difference = (output.float() - expected).abs()
    error = (difference / (expected.abs() + expected.square().mean().sqrt())).max()
    return float("inf") if error.isnan() else error.item()
