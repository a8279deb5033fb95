"""Check what an engine runs, or what files say: as for any chunked scan."""

from tuner.families.chunk_scan.problem import NAME
from tuner.families.scans.check import FILE_OPTIONS, check_files, check_problems, claims_of

__all__ = ["EXAMPLE_NAME", "FILE_OPTIONS", "check_files", "check_problems", "claims"]

EXAMPLE_NAME = (
    "chunk_scan,heads=64,head_dim=64,groups=8,state_size=128,chunk_size=128,dtype=bfloat16,"
    "state_dtype=float32,device_name=NVIDIA_L40S.json"
)
claims = claims_of(NAME)
