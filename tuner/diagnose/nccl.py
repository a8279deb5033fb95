"""What NCCL's lines say beside each other: variables and steps that other lines show."""

from __future__ import annotations

import re

from tuner.deploy.preflight.facts import joined
from tuner.diagnose.added import Added
from tuner.diagnose.context import Context
from tuner.diagnose.findings import LogFinding
from tuner.diagnose.readers.collective import P2P_STEP, USUAL

_FIRST = re.compile(r"\bSeqNum=1\b")

# Variables that keep NCCL from RDMA, and the facts (facts.toml) that the text shows such a value,
# or another one.
_KEEPS_FROM_RDMA = {
    "NCCL_IB_DISABLE=1": ("ib_off", "ib_on"),
    "NCCL_NET=Socket": ("net_socket", "net_other"),
}


def sockets(finding: LogFinding, context: Context) -> Added:
    """Which variables to unset: none of which the text shows another value alone."""
    shown = context.facts.get
    names = [
        one for one, (is_set, no) in _KEEPS_FROM_RDMA.items() if shown(is_set) or not shown(no)
    ]
    unset = f"Unset {joined(names)}, if set. " if names else ""
    return Added(fix=(f"{unset}Let NCCL_IB_HCA name devices that `ibv_devices` lists.",))


def nccl_timeout(finding: LogFinding, context: Context) -> Added:
    """Whether it is the first collective of a communicator, and whether that was made."""
    if not _FIRST.search(finding.text):
        return Added()
    made = bool(context.facts.get("nccl_done"))
    this = "The communicator was made (`Init COMPLETE`), and this is" if made else "This is"
    does_not = "the transfer itself seems" if made else "NCCL's start, or the transfer, seems"
    first = (
        f"{this} the first collective of its group (SeqNum=1). If all ranks of one node report it, "
        f"none is late: {does_not} not to work."
    )
    return Added((first, USUAL), (P2P_STEP,), {"first": True})
