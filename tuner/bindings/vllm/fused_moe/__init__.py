"""Fused-MoE layers in vLLM."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from tuner.bindings.vllm.fused_moe.files import (
    VLLMFusedMoe,
    open_delivery,  # noqa: F401  # all modules of a family are asked for this by name
    parse_file_name,
)
from tuner.devices.target import Target
from tuner.engines.engine import find_engine, release_of
from tuner.errors import BadProblem, MalformedConfigFile, PaddedShape, UnknownEngine
from tuner.families.fused_moe.engine import Fusion, FusionCase
from tuner.families.fused_moe.models import SMALLEST_GROUP, Cut, exact_block, fitted_block
from tuner.families.fused_moe.warning_line import NamedLayer, find_config_name
from tuner.models.model import Model
from tuner.models.quantization import Quantization
from tuner.problems.dtypes import Dtype

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
    """Return the numbers of shared experts that a release may have appended: no release appends
    any.
    """
    return set()


# refine_fp8_moe_block_shape of 0.33.0, and the class whose weights it is asked for.
_SOURCES = ("model_executor/layers/fused_moe/oracle/fp8.py",)
_REFINES = "def refine_fp8_moe_block_shape("
_SINCE = (0, 29)  # 0.28.0 refuses: its quantization/fp8.py raises
BLOCKS_REFUSED = "0.28.0"


_IN_BLOCKS = "fp8_per_block"
# Words of --quantization that make fp8 of 16-bit weights, by the first release that knows them:
# _ONLINE_SHORTHANDS in config/quantization.py (0.19.0 has none, and 0.23.0 no fp8_per_channel).
_CONVERTED = {
    _IN_BLOCKS: ((0, 20), Quantization(_IN_BLOCKS, Dtype.FP8_W8A8, (128, 128))),
    "fp8_per_channel": ((0, 24), Quantization("fp8_per_channel", Dtype.FP8_W8A8, None, True)),
}
# maybe_roundup_sizes in model_executor/layers/quantization/online/fp8.py; 0.24.0 has none there.
_PADS_SINCE = (0, 25)


def converted(word: str, engine_version: str | None) -> Quantization | None:
    """Return what servers with a word of --quantization make of 16-bit weights; None: not read."""
    since, made = _CONVERTED.get(word, ((), None))
    return made if engine_version is None or release_of(engine_version) >= since else None


def rank_cut(cut: Cut, engine_version: str | None, target: Target) -> Cut:
    """Return a rank's weights as they are served. Raises BadProblem if no block fits.

    From some release on, blocks of fp8 checkpoints become the greatest common divisor of the block,
    N and K, if the divisor is at least 32. compressed-tensors' and other classes refuse instead.
    Weights that servers make blocks of are padded to whole blocks.
    """
    if cut.quantization == _IN_BLOCKS:
        return _padded(cut, engine_version)
    if cut.block[0] == 0 or cut.quantization not in ("fp8", "asked"):
        return replace(cut, block=fitted_block(cut))
    try:
        return replace(cut, block=exact_block(cut))
    except BadProblem:
        refined = math.gcd(*cut.block, cut.N, cut.K)
        if refined < SMALLEST_GROUP or not _refines(engine_version):
            raise
        return replace(cut, block=(refined, refined))


def _padded(cut: Cut, engine_version: str | None) -> Cut:
    n, k = cut.block
    whole = replace(cut, N=-(-cut.N // n) * n, K=-(-cut.K // k) * k)
    pads = engine_version is None or release_of(engine_version) >= _PADS_SINCE
    if whole != cut and not pads:
        raise PaddedShape(
            f"with --quantization {cut.quantization} vllm {engine_version} makes blocks of {n}x{k} "
            f"that do not divide N={cut.N} and K={cut.K}: 0.25.0 and later pad such weights, and "
            "only those are tuned"
        )
    return whole


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
