"""What the driver's faults (Xids) mean that stand near each other."""

from __future__ import annotations

import re

from tuner.diagnose.added import Added
from tuner.diagnose.context import Context
from tuner.diagnose.findings import LogFinding

_XID = re.compile(r"\bXid \([^)]{1,40}\): (\d{1,3})\b|\b[Xx]id (\d{1,3})\b")
# NVIDIA, "XID Errors", catalog of release 580.
_MEANS = {
    13: "a program's kernel failed, most often by an address that is not its own",
    31: "a program's kernel used an address that is not its own",
    43: "a program was stopped after a fault of its own",
    45: "the driver ended a program's work, as it does after another fault: a consequence",
    48: "an error of memory that ECC could not mend",
    62: "the GPU's own processor for power (PMU) stood still",
    63: "a damaged row of memory is noted to be replaced",
    64: "a damaged row of memory could not be noted",
    69: "the GPU was given a command that it does not take, as by a kernel that is wrong",
    74: "an error of NVLink",
    79: "the GPU no longer answers on PCIe",
    92: "many errors of memory that ECC mends",
    94: "an error of memory that was kept within one program",
    95: "an error of memory that was not kept within one program",
    109: "a change from one program to another did not end in time",
    119: "the GPU's own processor (GSP) did not answer in time",
    120: "the GPU's own processor (GSP) ended with a fault",
    140: "an error of memory that was not mended",
    154: "no fault of its own: it says what must be started anew, the GPU or the node",
}


def xids(finding: LogFinding, context: Context) -> Added:
    """The meaning of each Xid in the lines around."""
    found = dict.fromkeys(int(a or b) for a, b in _XID.findall(f"{finding.text}\n{finding.around}"))
    known = [number for number in found if number in _MEANS]
    if not known:
        return Added()
    told = "; ".join(f"{number}: {_MEANS[number]}" for number in known)
    return Added((f"Xid {told}.",), (), {"xids": [*found]})
