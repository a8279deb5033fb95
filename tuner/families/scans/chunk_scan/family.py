"""Register the Mamba-2 scans; importing this module loads no heavy module."""

from tuner.families.scans.chunk_scan.problem import NAME, ChunkScan, SsdKernel
from tuner.families.scans.family import scan_family

FAMILY = scan_family(
    name=NAME,
    problems=(NAME,),
    package=str(__package__),
    title="the chunked scan of Mamba-2 layers",
    example="chunk_scan:heads=..,head_dim=..,groups=..,state_size=..,chunk_size=..",
    parse=ChunkScan.parse,
    parts=SsdKernel,
)
