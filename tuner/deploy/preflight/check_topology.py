"""Checks of where NICs sit: each should share a PCIe switch with the GPUs that it serves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tuner.deploy.preflight.facts import Finding, Node, Severity, Topology, joined, natural
from tuner.deploy.preflight.links import Links

# What joins two devices: a PCIe switch, or at least a processor socket.
SWITCH = ("PIX", "PXB")
SOCKET = ("PIX", "PXB", "PHB", "NODE")


@dataclass
class Switch:
    """GPUs that share a PCIe switch (or a socket), and the RDMA devices beneath it."""

    gpus: list[str]
    nics: list[str]
    kind: str = "switch"

    def __str__(self) -> str:
        return f"the {self.kind} of {joined(self.gpus)}" if self.gpus else f"no GPU's {self.kind}"


def find_switches(
    topology: Topology, devices: tuple[str, ...], kinds: tuple[str, ...] = SWITCH
) -> list[Switch]:
    """Switches with a GPU; one may have no device. Empty where no NIC is near any GPU.

    NVLink hides how two GPUs are wired, so GPUs that are near the same NIC are on one switch too.
    """
    nics = [n for n in topology.nics if n in devices]
    if not any(topology.near(g, n, kinds) for g in topology.gpus for n in nics):
        return []
    switches: list[Switch] = []
    for gpu in topology.gpus:
        near = [n for n in nics if topology.near(gpu, n, kinds)]
        same = [
            s
            for s in switches
            if any(topology.near(gpu, g, kinds) for g in s.gpus) or any(n in s.nics for n in near)
        ]
        merged = Switch([gpu], near, "switch" if kinds == SWITCH else "socket")
        for switch in same:
            merged.gpus += switch.gpus
            merged.nics += [n for n in switch.nics if n not in merged.nics]
            switches.remove(switch)
        switches.append(merged)
    return switches


def misplaced(node: Node, links: Links) -> list[tuple[str, Switch, Switch]]:
    """(device, switch it is under, switch that lacks it).

    A switch's fair share is in proportion to its GPUs. A device is out of place when one switch
    has less than its share while the device is under another one that has more, or under none.
    Where there are fewer devices than switches, sockets are compared instead.
    """
    switches = find_switches(node.topology, links.compute)
    present = sum(d in node.topology.nics for d in links.compute)
    if present < len(switches):
        switches = find_switches(node.topology, links.compute, SOCKET)
    if len({len(s.nics) / len(s.gpus) for s in switches}) < 2:
        return []  # evenly spread: a device under no GPU's switch is for something else
    gpus = sum(len(s.gpus) for s in switches)
    placed = {n for s in switches for n in s.nics}
    nowhere = [d for d in links.compute if d in node.topology.nics and d not in placed]
    total = len(placed) + len(nowhere)
    found = []
    for lacking in switches:
        while len(lacking.nics) < total * len(lacking.gpus) // gpus:
            taken = _surplus(switches, nowhere, total, gpus)
            if taken is None:
                break
            device, origin = taken
            before = Switch(list(origin.gpus), list(origin.nics), lacking.kind)
            found.append((device, before, lacking))
            origin.nics.remove(device)
            lacking.nics.append(device)
    return found


def _surplus(
    switches: list[Switch], nowhere: list[str], total: int, gpus: int
) -> tuple[str, Switch] | None:
    """A device under no GPU's switch, else the last of the switch most above its share."""
    if nowhere:
        return nowhere[0], Switch([], nowhere)
    full = max(switches, key=lambda s: len(s.nics) / len(s.gpus))
    if len(full.nics) <= -(-total * len(full.gpus) // gpus):  # its share, rounded up
        return None
    return max(full.nics, key=natural), full


def check_topology(node: Node, links: Links) -> Iterator[Finding]:
    """Devices out of place, and switches without any."""
    wrong = misplaced(node, links)
    for device, origin, lacking in wrong:
        yield misplaced_finding(node, device, origin, lacking)
    if wrong:
        return
    yield from _unused(node, links)
    switches = find_switches(node.topology, links.compute)
    bare = [s for s in switches if not s.nics]
    if bare:
        yield Finding(
            Severity.WARNING,
            "too-few-hcas",
            (node.name,),
            f"{sum(len(s.nics) for s in switches)} RDMA devices for {len(switches)} PCIe switches "
            "with GPUs: none under " + "; ".join(str(s) for s in bare),
            "add an RDMA card below each such switch, or expect these GPUs' traffic to cross the "
            "CPU and share another GPU's card",
            tuple(node.topology.lines.get(g, g) for s in bare for g in s.gpus),
        )
    yield from _uneven(node, switches)


def far_devices(node: Node, links: Links) -> list[str]:
    """Devices under no GPU's switch, while each of those has devices of its own."""
    switches = find_switches(node.topology, links.compute)
    if not switches or not all(s.nics for s in switches):
        return []
    placed = {n for s in switches for n in s.nics}
    return [d for d in links.compute if d in node.topology.nics and d not in placed]


def _unused(node: Node, links: Links) -> Iterator[Finding]:
    far = far_devices(node, links)
    if far:
        yield Finding(
            Severity.INFO,
            "hca-far",
            (node.name,),
            f"{joined(far)} shares no PCIe switch with a GPU and is left out of NCCL_IB_HCA",
            "nothing to do, unless it was meant for collectives",
            tuple(node.topology.lines[d] for d in far if d in node.topology.lines),
        )


def _uneven(node: Node, switches: list[Switch]) -> Iterator[Finding]:
    ratios = {len(s.nics) / len(s.gpus) for s in switches if s.nics}
    if len(ratios) > 1:
        fewest = min((s for s in switches if s.nics), key=lambda s: len(s.nics) / len(s.gpus))
        yield Finding(
            Severity.WARNING,
            "too-few-hcas",
            (node.name,),
            f"{fewest} has {len(fewest.nics)} RDMA devices, others have more for each GPU",
            "the slowest switch sets the pace: spread the cards evenly",
            tuple(node.topology.lines.get(g, g) for g in fewest.gpus),
        )


def misplaced_finding(node: Node, device: str, origin: Switch, lacking: Switch) -> Finding:
    numa = node.topology.numa.get(lacking.gpus[0], "")
    place = f"{lacking}{f' (NUMA node {numa})' if numa else ''}"
    others = [n for n in origin.nics if n != device] if origin.gpus else []
    either = f" (or one of {joined(others)}, which share it)" if others else ""
    rows = [device, *sorted(lacking.gpus, key=natural)]
    return Finding(
        Severity.ERROR,
        "nic-wrong-switch",
        (node.name,),
        f"{device} is under {origin}, while {lacking} has fewer RDMA devices than its share",
        f"move {device}{either} to a slot below {place}; until then leave {device} out of "
        "NCCL_IB_HCA",
        tuple(node.topology.lines[r] for r in rows if r in node.topology.lines),
    )
