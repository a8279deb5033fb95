"""Where a server's GPU time goes: reads the traces that torch's profiler writes.

profile = tuner.profile.attribute([Path("1732-TP-0.trace.json.gz")])
profile.times(Phase.DECODE)  # {"fused_moe": 4100.0, "gaps": 800.0, ...} microseconds
"""

from tuner.profile.attribute import read, trace_files
from tuner.profile.profile import GAPS, KernelTime, Phase, Profile, Step

__all__ = ["GAPS", "KernelTime", "Phase", "Profile", "Step", "read", "trace_files"]
