"""What NCCL's lines say beside each other: variables and steps that other lines show."""

from __future__ import annotations

import re

from tuner.deploy.preflight.facts import joined
from tuner.diagnose.added import Added
from tuner.diagnose.context import Context
from tuner.diagnose.findings import LogFinding
from tuner.diagnose.readers.collective import P2P_STEP, USUAL
from tuner.shell import export_line

_FIRST = re.compile(r"\bSeqNum=1\b")

# Variables that keep NCCL from RDMA, and the facts (facts.toml) that the text shows such a value,
# or another one.
_KEEPS_FROM_RDMA = {
    "NCCL_IB_DISABLE=1": ("ib_off", "ib_on"),
    "NCCL_NET=Socket": ("net_socket", "net_other"),
}

# What NCCL means by the kinds of its errors, by their words in its own and in torch's messages
# (NCCL's documentation, ncclResult_t, and where its sources return them).
_MEANS = (
    (
        r"internal error|InternalError",
        "NCCL calls an error internal if a check of its own fails: among others if a message has "
        "another size than it awaits (ranks with different releases of NCCL, another program at "
        "the port), if it cannot use the topology of PCIe, NVLink and network cards that it finds "
        "in a container or a virtual machine, or if a network plugin fails.",
    ),
    (
        r"system error|SystemError",
        "A system error is a call to the system or to a network library that failed: shared "
        "memory (/dev/shm), sockets, or RDMA.",
    ),
    (
        r"cuda error|CudaError",
        "A CUDA error is a CUDA call of NCCL that failed: memory, P2P or the driver in this "
        "container, or an earlier kernel.",
    ),
    (
        r"invalid usage|InvalidUsage|invalid argument|InvalidArgument",
        "NCCL was called in a way that it does not allow: often two ranks on one GPU.",
    ),
)
_DEVICE = re.compile(r"\[\d+\](\w+):\d+/(IB|RoCE)\b")
_NETWORK = {"IB": "InfiniBand", "RoCE": "RoCE"}
_PLUGINS = {
    "aws": "The text tells of AWS: between nodes NCCL needs EFA there, with libfabric and the "
    "plugin aws-ofi-nccl in the image (without these it uses sockets). A working network shows "
    "lines `NET/OFI` in that log.",
    "google": "The text tells of Google's cloud: between nodes NCCL needs the plugin of the "
    "machine type there (gIB or GPUDirect-TCPX), mounted into the container.",
}


def nccl_silent(finding: LogFinding, context: Context) -> Added:
    """Tell what the kind of the error means, and whether the cloud's network needs a plugin."""
    said = [says for words, says in _MEANS if re.search(words, finding.text)][:1]
    plugin = _PLUGINS.get(context.facts.get("cloud"))
    return Added((*said, *([plugin] if plugin else [])))


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


def mixed_networks(finding: LogFinding, context: Context) -> Added:
    """The devices of each network, and the value that leaves one network's alone."""
    found: dict[str, list[str]] = {}
    for device, kind in _DEVICE.findall(finding.text):
        found.setdefault(kind, []).append(device)
    if len(found) < len(_NETWORK):
        return Added()
    named = [f"{_NETWORK[kind]} with {joined(devices)}" for kind, devices in found.items()]
    most = max(found.values(), key=len)
    return Added(
        (f"Here: {', and '.join(named)}.",),
        (
            "If the larger set is the network for the GPUs, on each node:",
            f"$ {export_line('NCCL_IB_HCA', ','.join(most))}",
        ),
    )
