"""Fused-MoE layers in sglang."""

from __future__ import annotations

import re
from dataclasses import replace

from tuner.bindings.sglang.fused_moe.files import (
    SGLangFusedMoe,
    open_delivery,  # noqa: F401  # all modules of a family are asked for these by name
)
from tuner.bindings.sglang.fused_moe.shared_experts import (
    fuses_in_some_release,
    shared_expert_fusion,  # noqa: F401
)
from tuner.devices.target import HIP, Target
from tuner.engines.engine import Release, release_of
from tuner.errors import BadProblem, PaddedShape
from tuner.families.fused_moe.models import Cut, fitted_block
from tuner.families.fused_moe.warning_line import NamedLayer, find_config_name
from tuner.models.model import Model
from tuner.models.quantization import Quantization

open_family = SGLangFusedMoe
BLOCKS_REFUSED = ""  # no release that was read makes blocks smaller


_PADS_SINCE = (0, 5, 12)  # 0.5.2 does not
_PADDED = 128  # AITER_PADDING_SIZE in srt/layers/moe/utils.py


def rank_cut(cut: Cut, engine_version: str | None, target: Target) -> Cut:
    """Return a rank's weights as they are served.

    Raises BadProblem if no block fits; PaddedShape if servers with AITER pad the weights instead.
    """
    try:
        return replace(cut, block=fitted_block(cut))
    except BadProblem as error:
        pads = engine_version is None or release_of(engine_version) >= _PADS_SINCE
        asked = cut.block == (_PADDED, _PADDED) and cut.quantization in ("fp8", "asked")
        if not (pads and asked and target.platform == HIP):
            raise
        raise PaddedShape(
            f"{error}: sglang refuses it without SGLANG_USE_AITER=1; with it, as in sglang's ROCm "
            f"images, AITER runs weights that are padded to a multiple of {_PADDED}"
        ) from None


def converted(word: str, engine_version: str | None) -> Quantization | None:
    """Return None: `read_flags` has the words of --quantization that were read."""
    return None


# Folders in which releases kept their config files, and the first release without each.
_LAYOUTS: tuple[tuple[str, Release], ...] = (
    ("fused_moe_triton/configs/E=", (0, 4, 7)),
    ("fused_moe_triton/configs/triton_", (0, 5, 11)),
)
# No such release pins a newer Triton: a folder of a newer Triton is of a build with the old layout.
_NEWEST_TRITON = (3, 6)
_TRITON = re.compile(r"configs/triton_(\d+)_(\d+)_")


def parse_config_name(text: str) -> NamedLayer | None:
    """Find a config file's name in a line or a path; return None if there is none.

    Raises BadProblem for an unknown dtype.
    """
    path = text.replace("\\", "/")
    before = next((version for folder, version in _LAYOUTS if folder in path), None)
    if (triton := _TRITON.search(path)) and (int(triton[1]), int(triton[2])) > _NEWEST_TRITON:
        before = None
    return find_config_name(text, packed=True, before=before)


_ONE_FOR_ALL = (0, 4, 7)  # the first release with a single copy of the shared experts


def fusions(model: Model, missing: NamedLayer, moe_tp: int) -> set[int]:
    """Return the numbers of shared experts that a release may have appended."""
    if not fuses_in_some_release(model.architecture):
        return set()
    # Before, there was a copy for each rank. A name without its folder may be of any release.
    if missing.before is None and model.since and release_of(model.since) < _ONE_FOR_ALL:
        return {moe_tp, model.n_shared_experts}
    old = missing.before is not None and missing.before <= _ONE_FOR_ALL
    return {moe_tp if old else model.n_shared_experts}
