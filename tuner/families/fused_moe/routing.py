"""Routings captured from a running engine: top-k expert ids, one row per token."""

from __future__ import annotations

import io
from pathlib import Path

import torch
from torch import Tensor

from tuner.errors import BadInput
from tuner.families.fused_moe.problem import FusedMoe
from tuner.measure.routing_file import RoutingFile

WHOLE = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def load_routing(file: RoutingFile, problem: FusedMoe) -> Tensor:
    """Load the (tokens, top_k) tensor of a `.pt` file as int32 in host memory.

    This loads only tensors, never code. Raises BadInput for a file that holds anything else, or
    expert ids that the problem's layer does not have.
    """
    data = file.read()
    try:
        ids = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # any error of torch's zip and pickle readers
        raise BadInput(f"{file.path}: not a tensor file: {type(error).__name__}") from None
    return _checked(ids, file.path, problem)


def _checked(ids: object, path: Path, problem: FusedMoe) -> Tensor:
    expected = f"expected (tokens, {problem.top_k}) expert ids from 0 to {problem.E - 1}"
    if not isinstance(ids, Tensor):
        raise BadInput(f"{path} holds a {type(ids).__name__}, not a tensor: {expected}")
    plain = ids.layout is torch.strided and ids.device.type == "cpu"  # "meta": without values
    if not plain or ids.dtype not in WHOLE:
        kind = f"{ids.dtype} tensor ({ids.layout}, {ids.device.type})"
        raise BadInput(f"{path} holds a {kind}, not a plain one of whole numbers: {expected}")
    if ids.ndim != 2 or ids.shape[1] != problem.top_k or len(ids) == 0:
        empty = ", no token" if ids.numel() == 0 else ""
        raise BadInput(f"{path} holds a tensor of shape {tuple(ids.shape)}{empty}: {expected}")
    least, most = int(ids.min()), int(ids.max())
    if least == -1:
        raise BadInput(
            f"{path} holds -1, which stands for an expert on another GPU: capture the routing "
            f"without expert parallelism; {expected}"
        )
    if least < 0 or most >= problem.E:
        wrong = least if least < 0 else most
        raise BadInput(f"{path} holds the expert id {wrong}: {expected}")
    return ids.to(torch.int32)
