"""What NCCL's lines say beside each other: variables that other lines show."""

from __future__ import annotations

from tuner.deploy.preflight.facts import joined
from tuner.diagnose.added import Added
from tuner.diagnose.context import Context
from tuner.diagnose.findings import LogFinding

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
