"""The registry entry of fused-MoE layers; importing it loads no heavy module."""

from __future__ import annotations

from tuner.families.fused_moe.problem import FusedMoe, Gemm, parse_fused_moe
from tuner.families.fused_moe.selection import parse_gemms, read_selection
from tuner.problems.batch_sizes import parse_batch_sizes
from tuner.problems.registry import Family, Option
from tuner.problems.text import parse_block_shape

FAMILY = Family(
    name="fused_moe",
    title="a fused-MoE layer",
    flag=None,
    problems=(FusedMoe.family,),
    example="fused_moe:E=..,N=..,K=..,top_k=..,dtype=..",
    parse=parse_fused_moe,
    parts=Gemm,
    shaping=(
        Option("ep", "--ep", int, "Expert-parallel size; default: 1."),
        Option(
            "block_shape",
            "--block-shape",
            str,
            "Quantisation block, e.g. 128x128; default: the model's.",
            parse_block_shape,
        ),
        Option(
            "fuse_shared",
            "--fuse-shared/--no-fuse-shared",
            bool,
            "Count shared experts among the routed ones; default: as the engine does.",
        ),
        Option(
            "hidden_size",
            "--hidden-size",
            int,
            "Hidden size (K); needed only if the input lacks it.",
        ),
        Option("top_k", "--top-k", int, "Experts of a token; needed only if the input lacks it."),
    ),
    selecting=(
        Option(
            "batch_sizes",
            "--batch-sizes",
            str,
            "e.g. 1,2,4; default: the engine's 18. Attention takes --workload instead.",
            parse_batch_sizes,
        ),
        Option(
            "gemms",
            "--gemm",
            str,
            "up (gate and up projection), down, or both: up,down (the default).",
            parse_gemms,
        ),
    ),
    searching=(
        Option(
            "wide",
            "--wide/--grid",
            bool,
            "Search beyond the engine's own tuning grid; default: where times are measured.",
        ),
    ),
    read_selection=read_selection,
    package="tuner.families.fused_moe",
    joins_runs=True,  # each gemm may be tuned in a separate run
)
