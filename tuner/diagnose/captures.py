"""Read outputs of a node's own tools, and judge each alone by the preflight's rules."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from tuner.deploy.preflight.check_gpus import THROUGH, check_topology
from tuner.deploy.preflight.check_rdma import check_rdma
from tuner.deploy.preflight.devices import gid_indexes, up_devices
from tuner.deploy.preflight.facts import Finding, Gid, Node, Topology, joined
from tuner.deploy.preflight.gpus import parse_topology
from tuner.deploy.preflight.links import find_links, hca_list
from tuner.deploy.preflight.network import (
    parse_devinfo_gids,
    parse_ibdev2netdev,
    parse_ibstat,
    parse_ibv_devinfo,
    parse_rdma_link,
    parse_show_gids,
)
from tuner.deploy.preflight.switches import SWITCH
from tuner.diagnose.computed_answer import ComputedAnswer
from tuner.diagnose.context import Context
from tuner.diagnose.findings import LogFinding
from tuner.shell import export_line

_NODE = "the node"
_GID_HEAD = re.compile(r"(?m)^\W*DEV\s+PORT\s+INDEX\b.*$")
_SEVERAL = (
    "Here are several tables, of several hosts or pods, whose indexes may differ: give the table "
    "of each to `tuner diagnose` by itself."
)
_UNSET = (
    "NCCL 2.21 and later choose the row themselves: leave NCCL_IB_GID_INDEX unset, for the index "
    "moves when interfaces change. Older releases need it, if it is the same on all ports "
    "and nodes:"
)
_NO_DEVICE = "No RDMA device is usable"


def topology(finding: LogFinding, context: Context) -> ComputedAnswer:
    """Say which GPUs have an RDMA device near them, as far as the matrix shows it."""
    found = parse_topology(finding.around)
    if not found.relations:
        return ComputedAnswer(("Its header or its rows are cut or not readable here.",))
    cut = [gpu for gpu in found.gpus if gpu not in found.lines]
    cause = [f"The rows of {joined(cut)} are cut or not readable here."] if cut else []
    if not found.nics:
        none = "It names no RDMA device (NIC), so it says nothing of the network between nodes."
        return ComputedAnswer((*cause, none))
    cause += [f"{words}." for words in _nearest(found)]
    node = Node(_NODE, topology=found)
    # A device that is far from the GPUs of these rows may be near a GPU whose row is cut.
    near = {nic for gpu in found.read_gpus for nic in found.nics if found.near(gpu, nic, SWITCH)}
    whole = not cut or near == {*found.nics}
    told = _told(check_topology(node, find_links(node)) if whole else ())
    return ComputedAnswer((*cause, *told.cause), told.fix, {"far_gpus": _far(found)})


def rdma_ports(finding: LogFinding, context: Context) -> ComputedAnswer:
    """Say which ports are down, and the value of NCCL_IB_HCA that follows from the ports that are
    up.
    """
    text = finding.around
    devices = parse_ibv_devinfo(text) or parse_ibstat(text) or parse_rdma_link(text)
    node = Node(_NODE, ports=parse_ibdev2netdev(text), devices=devices)
    links = find_links(node)
    told = _told(check_rdma(node, links, None))
    if len(up_devices(node)) < 1 == len(devices):  # the command may have named this device
        told = replace(told, cause=tuple(one for one in told.cause if _NO_DEVICE not in one))
    cause = told.cause or (f"The ports of {joined(up_devices(node))} are up.",)
    if not (value := hca_list(node, links)):
        return told
    step = (
        "For transfers between nodes, by this output alone; leave out a device of the management "
        "or storage network (`ip route` names the interface of the default route):",
        f"$ {export_line('NCCL_IB_HCA', value)}",
    )
    return ComputedAnswer(cause, (*told.fix, *step), {"hca": value})


def gid_table(finding: LogFinding, context: Context) -> ComputedAnswer:
    """Say the index of RoCE v2 with IPv4, as far as the table stands here."""
    if len(_GID_HEAD.findall(finding.around)) > 1:
        return ComputedAnswer((_SEVERAL,), (_UNSET,))
    gids = parse_show_gids(finding.around) or parse_devinfo_gids(finding.around)
    rows = _v2_rows(gids)
    bare = [one for one, indexes in rows.items() if one and not indexes]
    cause = [f"{joined(bare)} has no such row here."] if bare else []
    some = [indexes for indexes in rows.values() if indexes]
    shared = set.intersection(*some) if some else set()
    if not shared:
        apart = ["The index differs between devices, so no single NCCL_IB_GID_INDEX fits."]
        return ComputedAnswer((*cause, *(apart if some else ())), (_UNSET,))
    cause.append(f"Here that is index {min(shared)}.")
    return ComputedAnswer(
        tuple(cause), (_UNSET, f"$ {export_line('NCCL_IB_GID_INDEX', str(min(shared)))}")
    )


def _v2_rows(gids: tuple[Gid, ...]) -> dict[str, set[int]]:
    """List each device's indexes of RoCE v2 with IPv4."""
    node = Node(_NODE, gids=gids)
    return {gid.device: set(gid_indexes(node, gid.device)) for gid in gids}


def _told(findings: Iterable[Finding]) -> ComputedAnswer:
    """Turn findings into sentences."""
    told = [*findings]
    return ComputedAnswer(
        tuple(f"{one.message[:1].upper()}{one.message[1:]}." for one in told),
        tuple(f"{one.fix[:1].upper()}{one.fix[1:]}." for one in told),
    )


def _far(found: Topology) -> list[str]:
    return [gpu for gpu in found.read_gpus if found.nearest(gpu)[0] in THROUGH]


def _nearest(found: Topology) -> list[str]:
    """Return a sentence for the GPUs of each set of nearest devices below their PCIe switch."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for gpu in found.read_gpus:
        if gpu not in _far(found) and found.nearest(gpu)[1]:
            groups.setdefault(found.nearest(gpu)[1], []).append(gpu)
    words = [f"{joined(nics)} with {joined(gpus)}" for nics, gpus in groups.items()]
    return [f"Below one PCIe switch are {'; '.join(words)}"] if words else []
