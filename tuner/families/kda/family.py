"""The registry entry of KDA; importing it loads no heavy module."""

from __future__ import annotations

from tuner.families.kda.problem import NAME, KdaKernel, parse_kda
from tuner.families.scans.family import SELECTING, SHAPING, held_bytes, least_us, place
from tuner.families.scans.selection import read_selection
from tuner.problems.registry import Family

FAMILY = Family(
    name=NAME,
    title="the chunked scan of Kimi delta attention",
    flag="--kda",
    problems=(NAME,),
    example="kda:heads=..,head_dim=..",
    parse=parse_kda,
    parts=KdaKernel,
    shaping=SHAPING,
    selecting=SELECTING,
    searching=(),
    read_selection=read_selection,
    place=place,
    least_us=least_us,
    held_bytes=held_bytes,
    package="tuner.families.kda",
    predicts=False,
)
