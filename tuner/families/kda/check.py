"""Check what an engine runs, or what files say: as for any chunked scan."""

from tuner.families.kda.problem import NAME
from tuner.families.scans.check import FILE_OPTIONS, check_files, check_problems, claims_of

__all__ = ["EXAMPLE_NAME", "FILE_OPTIONS", "check_files", "check_problems", "claims"]

EXAMPLE_NAME = (
    "kda,heads=32,head_dim=128,dtype=bfloat16,state_dtype=float32,device_name=NVIDIA_L40S.json"
)
claims = claims_of(NAME)
