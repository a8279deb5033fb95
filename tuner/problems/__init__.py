"""What is tuned: kernels' problems, the points of a problem, and launch configurations.

All sizes are counts of elements, not bytes.
"""

from tuner.problems.attention import ENGINE_KV_SPLITS, Attention, Phase
from tuner.problems.fused_moe import BATCH_SIZES, Dtype, FusedMoe, parse_dtype
from tuner.problems.points import PARTS, Candidate, Config, Gemm, Part, Point, Stage, read_part
from tuner.problems.text import (
    FAMILIES,
    Problem,
    names_attention,
    parse_attention,
    parse_block_shape,
    parse_fused_moe,
    parse_problem,
)

__all__ = [
    "BATCH_SIZES",
    "ENGINE_KV_SPLITS",
    "FAMILIES",
    "PARTS",
    "Attention",
    "Candidate",
    "Config",
    "Dtype",
    "FusedMoe",
    "Gemm",
    "Part",
    "Phase",
    "Point",
    "Problem",
    "Stage",
    "names_attention",
    "parse_attention",
    "parse_block_shape",
    "parse_dtype",
    "parse_fused_moe",
    "parse_problem",
    "read_part",
]
