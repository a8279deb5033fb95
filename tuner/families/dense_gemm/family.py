"""The registry entry of quantised dense GEMMs; importing it loads no heavy module."""

from __future__ import annotations

from tuner.families.dense_gemm.problem import DENSE_GEMMS, Gemm, parse_dense_gemm, same_weights
from tuner.families.dense_gemm.selection import read_selection
from tuner.problems.batch_sizes import parse_batch_sizes
from tuner.problems.registry import Family, Option

FAMILY = Family(
    name="dense_gemm",
    title="quantised dense GEMMs",
    flag="--dense-gemm",
    problems=DENSE_GEMMS,
    example="block_gemm:N=..,K=..,dtype=..,block=..",
    parse=parse_dense_gemm,
    parts=Gemm,
    shaping=(
        Option(
            "dp",
            "--dp",
            int,
            "Data-parallel size of attention (--enable-dp-attention); default: 1.",
        ),
        Option(
            "moe_dense_tp",
            "--moe-dense-tp",
            int,
            "Tensor-parallel size of the layers without experts; default: that of --tp.",
        ),
        # An engine runs fused shared experts in its fused-MoE kernel, and not as dense GEMMs.
        Option("ep", "--ep", int, "Expert-parallel size; default: 1."),
        Option(
            "fuse_shared",
            "--fuse-shared/--no-fuse-shared",
            bool,
            "Count shared experts among the routed ones; default: as the engine does.",
        ),
    ),
    selecting=(
        Option(
            "batch_sizes",
            "--batch-sizes",
            str,
            "e.g. 1,2,4; default: the engine's 18. Attention takes --workload instead.",
            parse_batch_sizes,
        ),
    ),
    searching=(),
    read_selection=read_selection,
    package="tuner.families.dense_gemm",
    alike=same_weights,
)
