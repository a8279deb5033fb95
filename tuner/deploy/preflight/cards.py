"""Which RDMA devices are ports of one card: they move together."""

from __future__ import annotations

import re

from tuner.deploy.preflight.facts import Node

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
