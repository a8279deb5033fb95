"""Check what an engine runs, or what files say: as for any chunked scan."""

from tuner.families.gated_delta.problem import NAME
from tuner.families.scans.check import FILE_OPTIONS, check_files, check_problems, claims_of

__all__ = ["EXAMPLE_NAME", "FILE_OPTIONS", "check_files", "check_problems", "claims"]

EXAMPLE_NAME = (
    "gated_delta,key_heads=16,value_heads=32,key_dim=128,value_dim=128,dtype=bfloat16,"
    "state_dtype=float32,device_name=NVIDIA_L40S.json"
)
claims = claims_of(NAME)
