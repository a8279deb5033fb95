"""Routings captured from a running engine: top-k expert ids, one row a token."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from tuner.errors import BadInput


def load_routing(path: Path) -> Tensor:
    """(tokens, top_k) int32 on the GPU, from a `.pt` file that holds such a tensor.

    Only tensors are loaded, never code. Raises BadInput for a file that holds anything else.
    """
    try:
        ids = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever its zip and pickle readers raise
        raise BadInput(f"{path}: not a tensor file: {type(error).__name__}") from None
    if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.is_floating_point():
        raise BadInput(f"{path}: must hold one (tokens, top_k) tensor of whole numbers")
    return ids.to(device="cuda", dtype=torch.int32)
