"""Choose the RDMA devices of a node that carry collectives, by the evidence of the capture.

A device is left out only for a reason that is kept beside it. If the evidence does not decide
between two groups of devices, it stays open which group carries collectives.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from tuner.deploy.preflight.devices import (
    addresses_of,
    card_of,
    interface_of,
    is_efa,
    is_infiniband,
    link_layer,
    rate_of,
)
from tuner.deploy.preflight.facts import Node, natural
from tuner.deploy.preflight.switches import find_switches

# systemd names a virtual function after its parent: ens1f0v3, eth1v0.
_VIRTUAL = re.compile(r"(.+?)v[0-9]+")
# The reasons.
MANAGEMENT, SUBNET = "it carries the management link", "it is in the management subnet"
VIRTUAL = "it is a virtual function, and its port is a device here too"
EFA = "it is an EFA device, which NCCL reaches by libfabric"
FAR = "it is far from the GPUs, or on the card of the management link"
OTHER_LINK, SLOWER = "the others have another link layer", "the others are faster"


@dataclass
class Choice:
    """The devices for collectives, up or down, and the left-out devices with the reason."""

    chosen: list[str]
    left_out: dict[str, str] = field(default_factory=dict)
    open: tuple[tuple[str, ...], ...] = ()  # groups, any of which may be for collectives

    def leave_out(self, devices: Iterable[str], reason: str, up: Collection[str]) -> None:
        """Leave devices out, unless no working device would be left."""
        out = set(devices)
        rest = [device for device in self.chosen if device not in out]
        if any(device in up for device in rest):
            found = (device for device in self.chosen if device in out)
            self.left_out.update(dict.fromkeys(found, reason))
            self.chosen = rest


def of_the_fabric(
    node: Node, known: Iterable[str], managing: Collection[str], up: Collection[str]
) -> Choice:
    """Return the devices that may carry collectives: no EFA, no virtual function beside its port,
    and not the management link, unless it is a GPU's only device.
    """
    devices = list(known)
    efa = [device for device in devices if is_efa(node, device)]
    choice = Choice([d for d in devices if d not in efa], dict.fromkeys(efa, EFA))
    choice.leave_out(_virtual(node, choice.chosen), VIRTUAL, up)
    rails = _sole_near(node, managing, [d for d in choice.chosen if d not in managing])
    choice.leave_out([d for d in managing if d not in rails], MANAGEMENT, up)
    return choice


def of_one_network(
    node: Node, choice: Choice, interface: str, managing: Collection[str], up: Collection[str]
) -> Choice:
    """Leave out the devices of other networks, by subnet, topology, link layer and rate."""
    found = Choice(list(choice.chosen), dict(choice.left_out))
    found.leave_out(_in_subnet(node, found.chosen, interface, managing), SUBNET, up)
    found.leave_out(_far(node, found.chosen, managing, up), FAR, up)
    _by_link(node, found, up)
    return found


def _virtual(node: Node, devices: Collection[str]) -> list[str]:
    """Return the virtual functions, if a port that is no virtual function is a device too."""
    interfaces = {device: name for device, name in interface_of(node).items() if device in devices}
    found = {d.device for d in node.devices if d.virtual}
    for device, name in interfaces.items():
        parent = _VIRTUAL.fullmatch(name)
        others = (other for d, other in interfaces.items() if d != device)
        if parent and any(other.startswith(parent.group(1)) for other in others):
            found.add(device)
    virtual = [device for device in devices if device in found]
    return virtual if len(virtual) < len(devices) else []


def _in_subnet(
    node: Node, devices: Iterable[str], interface: str, managing: Collection[str]
) -> list[str]:
    """Return devices all of whose addresses are in the subnets of the management interface."""
    networks = [
        ipaddress.ip_network(f"{address.ip}/{address.prefix}", strict=False)
        for one in node.interfaces
        if one.name == interface
        for address in one.addresses
        if ":" not in address.ip and 0 < address.prefix <= 32
    ]
    found = []
    for device in devices:
        held = [ipaddress.ip_address(ip) for ip in addresses_of(node, device)]
        if held and device not in managing and all(any(ip in n for n in networks) for ip in held):
            found.append(device)
    return found


def _far(
    node: Node, devices: Collection[str], managing: Collection[str], up: Collection[str]
) -> list[str]:
    """Return devices under no GPU's switch, if every GPU's switch has other devices; and the other
    ports of the management link's card, if other devices work.
    """
    cards = {port for device in managing for port in card_of(node, device)}
    elsewhere = [d for d in devices if d not in cards and d in up]
    ports = [d for d in devices if d in cards and d not in managing and elsewhere]
    switches = find_switches(node.topology, tuple(devices))
    if not switches or not all(s.nics for s in switches):
        return ports
    placed = {n for s in switches for n in s.nics}
    return [d for d in devices if d in ports or (d in node.topology.nics and d not in placed)]


def _by_link(node: Node, choice: Choice, up: Collection[str]) -> None:
    """Choose the group of a link layer and rate that has the most devices, if no other group is
    faster; of equal groups InfiniBand, because Ethernet also serves management and storage.
    """
    working = [device for device in choice.chosen if device in up]
    rates = {device: rate_of(node, device) for device in working}
    known = all(rates.values())
    groups: dict[tuple[bool, int], list[str]] = {}
    for device in working:
        key = is_infiniband(node, device), rates[device] if known else 0
        groups.setdefault(key, []).append(device)
    if len(groups) < 2:
        return
    order = sorted(groups, key=lambda key: (len(groups[key]), key[1], key[0]), reverse=True)
    best = order[0]
    faster = [key for key in order[1:] if key[1] > best[1]]
    if faster:
        choice.open = tuple(tuple(sorted(groups[key], key=natural)) for key in (best, *faster))
        return
    for key in order[1:]:
        rails = _sole_near(node, groups[key], groups[best])
        reason = SLOWER if key[0] == best[0] else OTHER_LINK
        choice.leave_out([d for d in groups[key] if d not in rails], reason, up)
    layer = "InfiniBand" if best[0] else "Ethernet"
    others = [d for d in choice.chosen if d not in up and link_layer(node, d) not in ("", layer)]
    choice.leave_out(others, OTHER_LINK, up)


def _sole_near(node: Node, devices: Iterable[str], others: Collection[str]) -> list[str]:
    """Return devices near a GPU that has none of the others near: these are rails, whatever they
    carry.
    """
    near = node.topology.near
    bare = [gpu for gpu in node.topology.gpus if not any(near(gpu, other) for other in others)]
    return [device for device in devices if any(near(gpu, device) for gpu in bare)]
