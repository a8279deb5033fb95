"""Check what an engine runs, or what files say: as for any chunked scan."""

from tuner.families.minimax_sparse.problem import NAME
from tuner.families.scans.check import FILE_OPTIONS, check_files, check_problems, claims_of

__all__ = ["EXAMPLE_NAME", "FILE_OPTIONS", "check_files", "check_problems", "claims"]

EXAMPLE_NAME = (
    "minimax_sparse,heads=16,kv_heads=1,head_dim=128,index_dim=128,block=128,topk=16,"
    "dtype=bfloat16,device_name=NVIDIA_L40S.json"
)
claims = claims_of(NAME)
