"""Find a node's management interface, its RDMA devices for collectives, and the GIDs that they
use.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field

from tuner.deploy.preflight.collectives import of_one_network, of_the_fabric
from tuner.deploy.preflight.devices import (
    gid_indexes,
    interface_of,
    is_infiniband,
    up_devices,
)
from tuner.deploy.preflight.facts import ExpectedNode, Node, natural
from tuner.deploy.preflight.network import is_ip


@dataclass(frozen=True)
class NodeLinks:
    """The connections of a node."""

    interface: str  # management interface; empty: unknown
    address: str  # its address, IPv4 if it has one, or empty
    device: str  # its RDMA device, or empty
    reason: str  # why this interface was chosen
    compute: tuple[str, ...]  # RDMA devices that may carry collectives, up or down
    usable: tuple[str, ...]  # the devices for collectives that are up
    left_out: dict[str, str] = field(default_factory=dict)  # other devices, each with the reason
    open: tuple[tuple[str, ...], ...] = ()  # groups of devices: it is not known which to use


def find_links(node: Node, expected: ExpectedNode | None = None) -> NodeLinks:
    """Find a node's links. The cluster file overrides the capture."""
    interface, reason = _management(node, expected)
    managing = _devices_below(node, interface)
    address = _address(node, interface)
    if expected and is_ip(expected.host) and _holder(node, expected.host):
        address = expected.host
    up = up_devices(node)
    first = (interface, address, managing[0] if managing else "", reason)
    if expected and expected.rdma is not None:
        return NodeLinks(*first, expected.rdma, tuple(d for d in expected.rdma if d in up))
    known = sorted(interface_of(node), key=natural)
    named = known or node.topology.nics  # of these it is not known whether they are up
    fabric = of_the_fabric(node, named, managing, up if known else named)
    choice = of_one_network(node, fabric, interface, managing, up if known else named)
    compute = tuple(fabric.chosen) if known else ()
    usable = () if choice.open else tuple(d for d in choice.chosen if d in up)
    return NodeLinks(*first, compute, usable, choice.left_out, choice.open)


def _devices_below(node: Node, interface: str) -> list[str]:
    """Return the RDMA devices that carry an interface, also as a VLAN, a bridge or a bond of
    theirs.

    A device whose other port has an address carries more than this interface, and is left out.
    """
    below: set[str] = set()
    names = [interface]
    while names:
        name = names.pop()
        if not name or name in below:
            continue
        below.add(name)
        names += [i.link for i in node.interfaces if i.name == name]
        names += [i.name for i in node.interfaces if i.master == name]
        names.append(name.rpartition(".")[0])  # bond0.100
    found = {device for device, name in interface_of(node).items() if name in below}
    ports = {(g.device, g.port) for g in node.gids if g.interface in below}
    found |= {device for device, _ in ports}
    others = {g.device for g in node.gids if ports and g.ipv4 and (g.device, g.port) not in ports}
    return sorted(found - others, key=natural)


def _management(node: Node, expected: ExpectedNode | None) -> tuple[str, str]:
    """Return (interface, the reason for it)."""
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
    """Return the RDMA link whose address lies apart from all others, as (interface, reason).

    The rails of a fabric have adjacent addresses, and the management network has others. So a gap
    between sorted addresses is wider than all other gaps together, and a single address on one side
    of it is the management address. Without such a gap the interface is empty.
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


def _address(node: Node, name: str) -> str:
    """Return the first IPv4 address of an interface, else its first global IPv6 address."""
    held = [a for i in node.interfaces if i.name == name for a in i.addresses]
    of_gids = [g.ipv4 for g in node.gids if g.interface == name and g.ipv4]
    first = [a.ip for a in held if ":" not in a.ip] + of_gids
    return next(iter(first + [a.ip for a in held if a.scope == "global"]), "")


def without_gid(node: Node, links: NodeLinks) -> list[str]:
    """Return the RoCE devices for collectives that have no RoCE v2 GID with an address that reaches
    other nodes, if GIDs were captured.

    NCCL could use them with a link-local GID at best, so none is proposed to it.
    """
    roce = [d for d in links.usable if not is_infiniband(node, d)] if node.gids else []
    family = speaks_ipv6(node, links)
    return [d for d in roce if not gid_indexes(node, d, ipv6=family)]


def speaks_ipv6(node: Node, links: NodeLinks) -> bool:
    """Say whether the devices for collectives have global IPv6 addresses, and none has IPv4."""
    if any(gid_indexes(node, d) for d in links.usable):
        return False
    return any(gid_indexes(node, d, ipv6=True) for d in links.usable)


def gid_index(node: Node, links: NodeLinks) -> int | None:
    """Return the lowest RoCE v2 index that all devices for collectives have; None: there is none.

    An index counts on its own node alone: each node has its own environment.
    """
    bare, family = without_gid(node, links), speaks_ipv6(node, links)
    roce = (d for d in links.usable if not is_infiniband(node, d) and d not in bare)
    sets = [set(gid_indexes(node, device, ipv6=family)) for device in roce]
    return min(set.intersection(*sets), default=None) if sets else None


def hca_list(node: Node, links: NodeLinks, leave_out: Iterable[str] = ()) -> str:
    """Return the value of NCCL_IB_HCA, or an empty string.

    NCCL reads each name as a prefix. A leading `=` makes it match whole names; it is added only if
    a listed name is a prefix of another device's name.
    """
    out = set(leave_out)
    chosen = sorted((d for d in links.usable if d not in out), key=natural)
    others = set(interface_of(node)) - set(chosen)
    exact = any(other.startswith(device) for device in chosen for other in others)
    return ("=" if exact else "") + ",".join(chosen)
