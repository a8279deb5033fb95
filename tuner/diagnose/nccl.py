"""Answer messages of NCCL by what other words of the line, or of the text, show."""

from __future__ import annotations

import re

from tuner.deploy.preflight.facts import joined
from tuner.diagnose.added import Added
from tuner.diagnose.context import Context
from tuner.diagnose.findings import LogFinding
from tuner.shell import export_line

_FIRST = re.compile(r"\bSeqNum=1\b")

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


def nccl_silent(finding: LogFinding, context: Context) -> Added:
    """Say what the kind of the error means."""
    return Added(tuple(says for words, says in _MEANS if re.search(words, finding.text))[:1])


def between_nodes(finding: LogFinding, context: Context) -> Added | None:
    """Add nothing; the message says nothing where the text shows that all ranks are on one node."""
    return None if context.facts.get("one_node") else Added()


def nccl_timeout(finding: LogFinding, context: Context) -> Added:
    """Say whether it is the first collective of a communicator."""
    if not _FIRST.search(finding.text):
        return Added()
    first = (
        "This is the first collective of its group (SeqNum=1). If all ranks of one node report it, "
        "none is late: NCCL's start, or the transfer, seems not to work."
    )
    return Added((first,), details={"first": True})


def mixed_networks(finding: LogFinding, context: Context) -> Added:
    """Say the devices of each network, and the value that leaves one network's alone."""
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
