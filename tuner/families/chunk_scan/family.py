"""The registry entry of the Mamba-2 scans; importing it loads no heavy module."""

from __future__ import annotations

from tuner.families.chunk_scan.problem import NAME, SsdKernel, parse_chunk_scan
from tuner.families.scans.family import SELECTING, SHAPING, held_bytes, least_us, place
from tuner.families.scans.selection import read_selection
from tuner.problems.registry import Family

FAMILY = Family(
    name=NAME,
    title="the chunked scan of Mamba-2 layers",
    flag="--chunk-scan",
    problems=(NAME,),
    example="chunk_scan:heads=..,head_dim=..,groups=..,state_size=..,chunk_size=..",
    parse=parse_chunk_scan,
    parts=SsdKernel,
    shaping=SHAPING,
    selecting=SELECTING,
    searching=(),
    read_selection=read_selection,
    place=place,
    least_us=least_us,
    held_bytes=held_bytes,
    package="tuner.families.chunk_scan",
    predicts=False,
)
