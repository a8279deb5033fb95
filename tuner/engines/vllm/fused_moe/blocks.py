"""What vLLM does with fp8 blocks that do not divide a rank's columns."""

from __future__ import annotations

import math
from functools import lru_cache

from tuner.engines.engine import find_engine
from tuner.engines.locate import release_of
from tuner.errors import BadProblem, UnknownEngine
from tuner.families.fused_moe.models import SMALLEST_GROUP, Block, Cut, exact_block, fitted_block

# refine_fp8_moe_block_shape of 0.33.0, and the class whose weights it is asked for.
_SOURCES = ("model_executor/layers/fused_moe/oracle/fp8.py",)
_REFINES = "def refine_fp8_moe_block_shape("
_SINCE = (0, 29)  # 0.27.0 refuses; 0.28 was not looked at


def rank_block(cut: Cut, engine_version: str | None) -> Block:
    """The block of a rank's weights. Raises BadProblem, in vLLM's words, if none fits.

    From some release on, blocks of fp8 checkpoints become the greatest common divisor of the block,
    N and K, if that is at least 32. compressed-tensors' and other classes refuse instead.
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
    """Whether that release refines blocks: as its source says, if it is on disk."""
    if version is None:
        return True
    try:
        root = find_engine(f"vllm=={version}").root
    except UnknownEngine:
        return release_of(version) >= _SINCE
    files = [root / name for name in _SOURCES]
    return any(_REFINES in file.read_text(encoding="utf-8") for file in files if file.exists())
