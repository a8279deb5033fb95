"""A node's management interface, its RDMA cards and devices for collectives, and their GIDs."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

from tuner.deploy.preflight.facts import ExpectedNode, Node, RdmaPort, natural
from tuner.deploy.preflight.network import is_ip

# Predictable names end in the function: ens2f0np0 and ens2f1np1 are one card's.
_FUNCTION = re.compile(r"(.+?)f[0-7](?:np[0-9]+|d[0-9]+)?")
_SLOT = re.compile(r"([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2})\.[0-7]\s", re.IGNORECASE)


def card_of(node: Node, device: str) -> tuple[str, ...]:
    """The devices on the card of a device, itself among them.

    PCI addresses tell, else names of interfaces. Without both, two devices outside every switch
    with GPUs that share one bridge are one card; below a switch they may be two.
    """
    place = _places(node)
    found = [device]
    for other in dict.fromkeys((*place, *node.topology.nics)):
        if other == device:
            continue
        mine, theirs = place.get(device, ""), place.get(other, "")
        same = mine == theirs if mine and theirs else _share_bridge(node, device, other)
        if same:
            found.append(other)
    return tuple(sorted(found))


def _places(node: Node) -> dict[str, str]:
    """Device -> its PCI slot, or the part of its interface's name that stands for the slot."""
    found: dict[str, str] = {}
    interfaces = {d.device: d.interface for d in node.devices}
    interfaces.update({g.device: g.interface for g in node.gids if g.interface})
    interfaces.update({p.device: p.interface for p in node.ports})
    for device, interface in interfaces.items():
        named = _FUNCTION.fullmatch(interface)
        found[device] = named.group(1) if named else ""
    slots = {d.device: d.slot for d in node.devices if d.slot}
    for port in node.ports:
        address = _SLOT.match(port.line)
        if address:
            slots[port.device] = address.group(1).lower()
    # Slots and names do not mix: either all devices have a slot, or the names count.
    return slots if slots.keys() >= found.keys() else found


def _share_bridge(node: Node, device: str, other: str) -> bool:
    topology = node.topology
    apart = not any(topology.near(gpu, d) for gpu in topology.gpus for d in (device, other))
    return apart and topology.relations.get((device, other)) == "PIX"


@dataclass(frozen=True)
class NodeLinks:
    """How a node is connected."""

    interface: str  # management interface; empty: unknown
    address: str  # its IPv4 address, or empty
    device: str  # its RDMA device, or empty
    reason: str  # why this interface was chosen
    compute: tuple[str, ...]  # RDMA devices for collectives, up or down
    usable: tuple[str, ...]  # the devices of `compute` that are up


def find_links(node: Node, expected: ExpectedNode | None = None) -> NodeLinks:
    """Work out a node's links. The cluster file overrides what was captured."""
    interface, reason = _management(node, expected)
    device = next((d for d, i in interface_of(node).items() if i == interface and i), "")
    up = up_devices(node)
    known = sorted(interface_of(node), key=natural)
    if expected and expected.rdma is not None:
        compute = expected.rdma
    elif device in up and len(up) == 1:
        compute = tuple(known)  # the only working link serves management and collectives
    else:
        compute = tuple(d for d in known if d != device)
    usable = tuple(d for d in compute if d in up)
    if not (expected and expected.rdma is not None):
        # Where a node has both, InfiniBand is for collectives, and Ethernet for the rest.
        usable = tuple(d for d in usable if is_infiniband(node, d)) or usable
    return NodeLinks(interface, _ipv4(node, interface), device, reason, compute, usable)


def interface_of(node: Node) -> dict[str, str]:
    """RDMA device -> network interface, from all captured sources."""
    found = {d.device: d.interface for d in node.devices}
    found.update({g.device: g.interface for g in node.gids if g.interface})
    found.update({p.device: p.interface for p in node.ports})
    return found


def up_devices(node: Node) -> set[str]:
    """RDMA devices with a working port, as far as the capture tells."""
    active = {d.device for d in node.devices if d.state == "ACTIVE"}
    hidden = {p.device for p in node.ports if is_ipoib(p)} - {d.device for d in node.devices}
    up = {p.device for p in node.ports if p.up or (is_ipoib(p) and p.device in active | hidden)}
    if not node.ports:
        up |= active
    if not node.ports and not node.devices:
        up |= {g.device for g in node.gids if g.ipv4}
    return up


def _management(node: Node, expected: ExpectedNode | None) -> tuple[str, str]:
    """(interface, the reason for it)."""
    if expected and expected.interface:
        return expected.interface, "named in the cluster file"
    if expected and is_ip(expected.host):
        holder = _holder(node, expected.host)
        if holder:
            return holder, f"holds the cluster file's host address {expected.host}"
    if node.default_interface:
        return node.default_interface, "carries the default route"
    return _odd_one_out(node)


def _holder(node: Node, ip: str) -> str:
    wanted = ipaddress.ip_address(ip)
    for interface in node.interfaces:
        if any(ipaddress.ip_address(a.ip) == wanted for a in interface.addresses):
            return interface.name
    return next((g.interface for g in node.gids if g.ipv4 == ip), "")


def _odd_one_out(node: Node) -> tuple[str, str]:
    """The RDMA link whose address lies apart from all others, as (interface, reason).

    The rails of a fabric have adjacent addresses, and the management network has others. So one
    gap between sorted addresses is wider than all other gaps together, and a single address on
    one side of it is the management address. Without such a gap the interface is empty.
    """
    by_address = {int(ipaddress.ip_address(g.ipv4)): g for g in node.gids if is_ip(g.ipv4)}
    addresses = sorted(by_address)
    gaps = [b - a for a, b in zip(addresses, addresses[1:])]  # noqa: B905 - Python 3.8
    widest = max(gaps, default=0)
    split = gaps.index(widest) + 1 if gaps else 0
    apart = min(addresses[:split], addresses[split:], key=len)
    if len(gaps) < 2 or 2 * widest <= sum(gaps) or len(apart) != 1:
        return "", "nothing tells it from the other links"
    gid = by_address[apart[0]]
    rails = [a for a in addresses if a != apart[0]]
    first, last = (ipaddress.ip_address(a) for a in (rails[0], rails[-1]))
    return gid.interface, (
        f"{gid.device} holds {gid.ipv4}, apart from the {len(rails)} links of {first} to {last}"
    )


def _ipv4(node: Node, name: str) -> str:
    for interface in node.interfaces:
        if interface.name == name:
            for address in interface.addresses:
                if ipaddress.ip_address(address.ip).version == 4:
                    return address.ip
    return next((g.ipv4 for g in node.gids if g.interface == name and g.ipv4), "")


def gid_indexes(node: Node, device: str) -> tuple[int, ...]:
    """Indexes of a device's RoCE v2 entries with an IPv4 address."""
    found = {g.index for g in node.gids if g.device == device and g.version == "v2" and g.ipv4}
    return tuple(sorted(found))


def is_ipoib(port: RdmaPort) -> bool:
    """Whether ibdev2netdev's (Down) is of IP over InfiniBand: the port itself may be up."""
    return port.interface.startswith("ib")


def is_infiniband(node: Node, device: str) -> bool:
    """Whether a device's link is InfiniBand, which needs no GID index."""
    layers = {d.link_layer for d in node.devices if d.device == device} - {""}
    named = any(p.device == device and is_ipoib(p) for p in node.ports)
    return "InfiniBand" in layers or (named and not layers)


def without_gid(node: Node, links: NodeLinks) -> list[str]:
    """The usable RoCE devices that have no RoCE v2 GID with an IPv4 address, if GIDs were captured.

    NCCL could use them with a link-local GID at best, so none is proposed to it.
    """
    roce = [d for d in links.usable if not is_infiniband(node, d)]
    return [d for d in roce if not gid_indexes(node, d)] if node.gids else []


def common_gid_index(nodes: Iterable[tuple[Node, NodeLinks]]) -> int | None:
    """The lowest index that is RoCE v2 with IPv4 on every usable RoCE device; None: no such."""
    sets = [
        set(gid_indexes(node, device))
        for node, links in nodes
        for device in links.usable
        if not is_infiniband(node, device) and device not in without_gid(node, links)
    ]
    return min(set.intersection(*sets), default=None) if sets else None


def hca_list(node: Node, links: NodeLinks, leave_out: Iterable[str] = ()) -> str:
    """The value of NCCL_IB_HCA, or an empty string.

    NCCL reads each name as a prefix. A leading `=` makes it match whole names; it is added only
    where a listed name is a prefix of another device's name.
    """
    out = set(leave_out)
    chosen = sorted((d for d in links.usable if d not in out), key=natural)
    others = set(interface_of(node)) - set(chosen)
    exact = any(other.startswith(device) for device in chosen for other in others)
    return ("=" if exact else "") + ",".join(chosen)
