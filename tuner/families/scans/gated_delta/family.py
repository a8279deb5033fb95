"""Register gated delta nets; importing this module loads no heavy module."""

from tuner.families.scans.family import scan_family
from tuner.families.scans.gated_delta.problem import NAME, DeltaKernel, GatedDelta

FAMILY = scan_family(
    name=NAME,
    problems=(NAME,),
    package=str(__package__),
    title="the chunked scan of gated delta nets",
    example="gated_delta:key_heads=..,value_heads=..,key_dim=..,value_dim=..",
    parse=GatedDelta.parse,
    parts=DeltaKernel,
)
