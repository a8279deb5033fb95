"""The registry entry of MiniMax's sparse attention; importing it loads no heavy module."""

from __future__ import annotations

from tuner.families.minimax_sparse.problem import NAME, SparseKernel, parse_minimax_sparse
from tuner.families.scans.family import SELECTING, held_bytes, least_us, place
from tuner.families.scans.selection import read_selection
from tuner.problems.options import DP
from tuner.problems.registry import Family

FAMILY = Family(
    name=NAME,
    title="MiniMax's sparse attention",
    flag="--minimax-sparse",
    problems=(NAME,),
    example="minimax_sparse:heads=..,kv_heads=..,head_dim=..,index_dim=..,block=..,topk=..",
    parse=parse_minimax_sparse,
    parts=SparseKernel,
    shaping=(DP,),
    selecting=SELECTING,
    searching=(),
    read_selection=read_selection,
    place=place,
    least_us=least_us,
    held_bytes=held_bytes,
    package="tuner.families.minimax_sparse",
    predicts=False,
)
