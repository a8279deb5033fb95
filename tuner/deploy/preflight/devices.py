"""Read single RDMA devices from a capture: card, port, link, rate, addresses."""

from __future__ import annotations

import ipaddress
import re

from tuner.deploy.preflight.facts import Gid, Node, RdmaPort
from tuner.deploy.preflight.network import is_ip

# Predictable names end in the function: ens2f0np0 and ens2f1np1 are of the same card.
_FUNCTION = re.compile(r"(.+?)f[0-7](?:np[0-9]+|d[0-9]+)?")
_SLOT = re.compile(r"([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2})\.[0-7]\s", re.IGNORECASE)


def card_of(node: Node, device: str) -> tuple[str, ...]:
    """Return the devices on the card of a device, itself among them.

    PCI addresses tell, else names of interfaces. Without both, two devices outside every switch
    with GPUs that share a bridge are the same card; below a switch they may be two.
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
    """Return each device's PCI slot, or the part of its interface's name that stands for the
    slot.
    """
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


def interface_of(node: Node) -> dict[str, str]:
    """Return each RDMA device's network interface, from all captured sources."""
    found = {d.device: d.interface for d in node.devices}
    # The first entry's interface is the port's own; later interfaces may be of VLANs.
    found.update({g.device: g.interface for g in reversed(node.gids) if g.interface})
    found.update({p.device: p.interface for p in node.ports if p.interface})
    return {**dict.fromkeys((p.device for p in node.ports), ""), **found}


def up_devices(node: Node) -> set[str]:
    """Return the RDMA devices with a working port, as far as the capture tells.

    ibdev2netdev goes through network interfaces: it says nothing of a port without an interface,
    and of InfiniBand below an interface that is down.
    """
    if not node.ports and not node.devices:
        return {g.device for g in node.gids if g.ipv4 or is_global_ipv6(g)}
    active = {d.device for d in node.devices if d.state == "ACTIVE"}
    silent = {p.device for p in node.ports if is_ipoib(p)}
    up = {p.device for p in node.ports if p.up}
    down = {p.device for p in node.ports} - silent - up
    return up | (active - down) | (silent - {d.device for d in node.devices})


def is_ipoib(port: RdmaPort) -> bool:
    """Say whether ibdev2netdev's (Down) says nothing of the port: it is of IP over InfiniBand, or
    no interface is there.
    """
    return not port.interface or port.interface.startswith("ib")


def link_layer(node: Node, device: str) -> str:
    """Return Ethernet, InfiniBand, Unspecified, or an empty string if no source says it."""
    return next((d.link_layer for d in node.devices if d.device == device and d.link_layer), "")


def is_infiniband(node: Node, device: str) -> bool:
    """Say whether a device's link is InfiniBand, which needs no GID index."""
    layer = link_layer(node, device)
    named = any(p.device == device and is_ipoib(p) for p in node.ports)
    return layer == "InfiniBand" or (named and not layer)


def is_efa(node: Node, device: str) -> bool:
    """Say whether a device is an Elastic Fabric Adapter: its link layer has no name."""
    return link_layer(node, device) == "Unspecified"


def rate_of(node: Node, device: str) -> int:
    """Return the Gb/s of a device's port; 0 if it is not known, as for a port that is down."""
    for one in node.devices:
        found = re.match(r"\s*([0-9]{1,5})", one.rate)
        if one.device == device and one.state == "ACTIVE" and found:
            return int(found.group(1))
    return 0


def addresses_of(node: Node, device: str) -> list[str]:
    """Return the IPv4 addresses of a device, by its GIDs and by its interface."""
    interface = interface_of(node).get(device, "")
    found = [g.ipv4 for g in node.gids if g.device == device and g.ipv4]
    if interface:
        of = (i for i in node.interfaces if i.name == interface)
        found += [a.ip for i in of for a in i.addresses if ":" not in a.ip]
    return [ip for ip in dict.fromkeys(found) if is_ip(ip)]


def is_global_ipv6(gid: Gid) -> bool:
    """Say whether an entry's address is IPv6 and reaches further than the link."""
    if gid.ipv4 or not is_ip(gid.gid):
        return False
    address = ipaddress.ip_address(gid.gid)
    return not (address.is_link_local or address.is_unspecified or address.is_multicast)


def gid_indexes(node: Node, device: str, *, ipv6: bool = False) -> tuple[int, ...]:
    """Return the indexes of a device's RoCE v2 entries with an IPv4 address, or a global IPv6
    address.
    """
    mine = (g for g in node.gids if g.device == device and g.version == "v2")
    return tuple(sorted({g.index for g in mine if (is_global_ipv6(g) if ipv6 else g.ipv4)}))
