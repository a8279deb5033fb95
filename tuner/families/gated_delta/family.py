"""The registry entry of gated delta nets; importing it loads no heavy module."""

from __future__ import annotations

from tuner.families.gated_delta.problem import NAME, DeltaKernel, parse_gated_delta
from tuner.families.scans.family import SELECTING, SHAPING, held_bytes, least_us, place
from tuner.families.scans.selection import read_selection
from tuner.problems.registry import Family

FAMILY = Family(
    name=NAME,
    title="the chunked scan of gated delta nets",
    flag="--gated-delta",
    problems=(NAME,),
    example="gated_delta:key_heads=..,value_heads=..,key_dim=..,value_dim=..",
    parse=parse_gated_delta,
    parts=DeltaKernel,
    shaping=SHAPING,
    selecting=SELECTING,
    searching=(),
    read_selection=read_selection,
    place=place,
    least_us=least_us,
    held_bytes=held_bytes,
    package="tuner.families.gated_delta",
    predicts=False,
)
