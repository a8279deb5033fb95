"""Outputs of a node's own tools in a text: what they show alone, by the preflight's rules."""

from __future__ import annotations

from tuner.deploy.preflight.check_gpus import SWITCH, THROUGH, check_topology
from tuner.deploy.preflight.check_network import check_rdma
from tuner.deploy.preflight.facts import Node, Topology, joined
from tuner.deploy.preflight.gpus import parse_topology
from tuner.deploy.preflight.links import find_links
from tuner.deploy.preflight.network import (
    parse_ibdev2netdev,
    parse_ibstat,
    parse_ibv_devinfo,
    parse_rdma_link,
)
from tuner.diagnose.added import Added
from tuner.diagnose.context import Context
from tuner.diagnose.findings import LogFinding

_NODE = "the node"


def topology(finding: LogFinding, context: Context) -> Added:
    """Which GPUs have an RDMA device near them, as far as the matrix shows it."""
    found = parse_topology(finding.around)
    cut = [gpu for gpu in found.gpus if gpu not in found.lines]
    cause = [f"The rows of {joined(cut)} are cut or not readable here."] if cut else []
    if not found.nics:
        return Added((*cause, "It names no RDMA device (NIC), so it says nothing of the network."))
    cause += [f"{words}." for words in _nearest(found)]
    node = Node(_NODE, topology=found)
    # A device that is far from the GPUs of these rows may be near one whose row is cut.
    near = {nic for gpu in found.read_gpus for nic in found.nics if found.near(gpu, nic, SWITCH)}
    whole = not cut or near == {*found.nics}
    findings = list(check_topology(node, find_links(node))) if whole else []
    cause += [f"{one.message[:1].upper()}{one.message[1:]}." for one in findings]
    fix = [f"{one.fix[:1].upper()}{one.fix[1:]}." for one in findings]
    return Added(tuple(cause), tuple(fix), {"far_gpus": _far(found)})


def rdma_ports(finding: LogFinding, context: Context) -> Added:
    """Which ports are down."""
    text = finding.around
    devices = parse_ibv_devinfo(text) or parse_ibstat(text) or parse_rdma_link(text)
    node = Node(_NODE, ports=parse_ibdev2netdev(text), devices=devices)
    findings = list(check_rdma(node, find_links(node), None))
    if not findings and (node.ports or devices):
        names = {port.device for port in node.ports} | {one.device for one in devices}
        return Added((f"The ports of {joined(names)} are up.",))
    cause = [f"{one.message[:1].upper()}{one.message[1:]}." for one in findings]
    return Added(tuple(cause), tuple(f"{one.fix[:1].upper()}{one.fix[1:]}." for one in findings))


def _far(found: Topology) -> list[str]:
    return [gpu for gpu in found.read_gpus if found.nearest(gpu)[0] in THROUGH]


def _nearest(found: Topology) -> list[str]:
    """A sentence for the GPUs of each set of nearest devices below their PCIe switch."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for gpu in found.read_gpus:
        if gpu not in _far(found):
            groups.setdefault(found.nearest(gpu)[1], []).append(gpu)
    words = [f"{joined(nics)} with {joined(gpus)}" for nics, gpus in groups.items()]
    return [f"Below one PCIe switch are {'; '.join(words)}"] if words else []
