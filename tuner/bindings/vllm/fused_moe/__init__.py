"""Fused-MoE layers in vLLM."""

from __future__ import annotations

import math
from functools import lru_cache

from tuner.bindings.vllm.fused_moe.files import (
    VLLMFusedMoe,
    open_delivery,  # noqa: F401  # all modules of a family are asked for this by name
    parse_file_name,
)
from tuner.devices.target import Target
from tuner.engines.engine import find_engine, release_of
from tuner.errors import BadProblem, MalformedConfigFile, UnknownEngine
from tuner.families.fused_moe.engine import Fusion, FusionCase
from tuner.families.fused_moe.models import SMALLEST_GROUP, Block, Cut, exact_block, fitted_block
from tuner.families.fused_moe.warning_line import NamedLayer, find_config_name
from tuner.models.model import Model

open_family = VLLMFusedMoe


def parse_config_name(text: str) -> NamedLayer | None:
    """Find a config file's name in a line or a path; return None if vLLM never looks for the name.

    Raises BadProblem for a dtype that no problem has.
    """
    missing = find_config_name(text, packed=False, channels=False)
    if missing is None:
        return None
    try:
        parse_file_name(missing.file_name)
    except MalformedConfigFile:
        return None
    return missing


def fusions(model: Model, missing: NamedLayer, moe_tp: int) -> set[int]:
    """Return how many shared experts a release may have appended: none appends any."""
    return set()


# refine_fp8_moe_block_shape of 0.33.0, and the class whose weights it is asked for.
_SOURCES = ("model_executor/layers/fused_moe/oracle/fp8.py",)
_REFINES = "def refine_fp8_moe_block_shape("
_SINCE = (0, 29)  # 0.28.0 refuses: its quantization/fp8.py raises
BLOCKS_REFUSED = "0.28.0"


def rank_block(cut: Cut, engine_version: str | None, target: Target) -> Block:
    """Return the block of a rank's weights. Raises BadProblem, in vLLM's words, if no block fits.

    From some release on, blocks of fp8 checkpoints become the greatest common divisor of the block,
    N and K, if the divisor is at least 32. compressed-tensors' and other classes refuse instead.
    """
    if cut.block[0] == 0 or cut.quantization not in ("fp8", "asked"):
        return fitted_block(cut)
    try:
        return exact_block(cut)
    except BadProblem:
        refined = math.gcd(*cut.block, cut.N, cut.K)
        if refined < SMALLEST_GROUP or not _refines(engine_version):
            raise
        return refined, refined


@lru_cache(maxsize=64)
def _refines(version: str | None) -> bool:
    """Say whether that release refines blocks: as its source says, if it is on disk."""
    if version is None:
        return True
    try:
        root = find_engine(f"vllm=={version}").root
    except UnknownEngine:
        return release_of(version) >= _SINCE
    files = [root / name for name in _SOURCES]
    return any(_REFINES in file.read_text(encoding="utf-8") for file in files if file.exists())


def shared_expert_fusion(asked: FusionCase) -> Fusion:
    """Return no fusion: vLLM's Triton kernel never fuses shared experts, only AITER's does.

    Source: resolve_layer_fused_shared_expert in model_executor/layers/fused_moe/utils.py of 0.33.0;
    earlier releases ask AITER too. Raises BadProblem if fusion is forced.
    """
    if asked.force:
        raise BadProblem("vLLM's Triton kernel runs no fused shared experts: only AITER's does")
    model = asked.model
    if not model.n_shared_experts:
        return Fusion(0, 0, f"{model.name} has no shared experts to fuse")
    return Fusion(
        0, 0, f"E={model.E // asked.ep}: vLLM fuses no shared experts in its Triton kernel"
    )
