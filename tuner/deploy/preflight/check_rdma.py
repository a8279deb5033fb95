"""Checks of a node's RDMA ports and their GIDs."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.deploy.preflight.cards import card_of
from tuner.deploy.preflight.expected import ExpectedNode
from tuner.deploy.preflight.facts import Finding, Node, joined, natural
from tuner.deploy.preflight.links import (
    NodeLinks,
    interface_of,
    up_devices,
    without_gid,
)

_WAITING = ("INIT", "ARMED")  # of an InfiniBand port that no subnet manager has made active
_DISABLED = "Disabled"  # phys_state of a port that was switched off on this node


def check_rdma(node: Node, links: NodeLinks, expected: ExpectedNode | None) -> Iterator[Finding]:
    """Every finding about the node's RDMA devices."""
    yield from _absent_devices(node, links, expected)
    yield from _down_ports(node, links, expected)
    yield from _gids(node, links)
    yield from _slow_cards(node, links)


def _absent_devices(
    node: Node, links: NodeLinks, expected: ExpectedNode | None
) -> Iterator[Finding]:
    known = interface_of(node)
    if known and expected and expected.rdma:
        absent = [d for d in expected.rdma if d not in known]
        if absent:
            yield node.error(
                "rdma-absent",
                f"the cluster file names {joined(absent)}, which this node does not have",
                f'choose among {joined(set(known))}, or set rdma = "auto"',
            )
    if known and not links.usable:
        yield node.error(
            "rdma-none",
            "no RDMA device is usable: NCCL would fall back to TCP sockets",
            "bring up at least one RDMA port",
        )


def _down_ports(node: Node, links: NodeLinks, expected: ExpectedNode | None) -> Iterator[Finding]:
    """One finding for all ports that are down, because they often share a cause."""
    if node.ports:
        lines = {p.device: p.line for p in node.ports if not p.up}
        total = len(node.ports)
    else:
        down = [d for d in node.devices if d.state != "ACTIVE"]
        lines = {d.device: f"{d.device}: {d.state}, {d.phys_state}" for d in down}
        total = len(node.devices)
    wanted = [d for d in lines if d in links.compute or d == links.device]
    if not wanted:
        return
    named, up = set(expected.rdma or ()) if expected else set(), up_devices(node)
    # A card with two ports and one cable works: DGX Spark is sold so.
    spare = all(d not in named and set(card_of(node, d)) & up for d in wanted)
    yield (node.info if spare else node.error)(
        "ports-down",
        f"{len(wanted)} of {total} RDMA ports are down: {joined(wanted)}"
        + ("; another port of each card is up" if spare else ""),
        ("if a cable is meant to be there: " if spare else "") + _fix_down(node, wanted),
        tuple(lines[d] for d in sorted(wanted, key=natural)),
    )


def _fix_down(node: Node, devices: list[str]) -> str:
    interfaces = interface_of(node)
    disabled = {d.device for d in node.devices if d.phys_state == _DISABLED}
    names = [interfaces[d] for d in sorted(devices, key=natural) if interfaces[d]]
    steps = "".join(f"ip link set {name} up; " for name in names)
    waiting = {d.device for d in node.devices if d.state.startswith(_WAITING)}
    if waiting.issuperset(devices):
        cause = "start a subnet manager, on the switch or as opensm: the link itself is up; "
    else:
        cause = "" if disabled.issuperset(devices) else "check cable, transceiver and switch port; "
    return (
        f"{cause}{steps}then look at ibdev2netdev again, or name only the devices to use "
        "in the cluster file (rdma = [...])"
    )


def _gids(node: Node, links: NodeLinks) -> Iterator[Finding]:
    """Check that each RoCE device that is up has a RoCE v2 GID with an IPv4 address."""
    bare = without_gid(node, links)
    if bare:
        evidence = [g.line for g in node.gids if g.device in bare]
        yield node.error(
            "gid-empty",
            f"{joined(bare)} has no RoCE v2 GID with an IPv4 address",
            _fix_gids(node, bare),
            tuple(evidence) or ("show_gids lists no entry of " + joined(bare),),
        )


def _fix_gids(node: Node, bare: list[str]) -> str:
    """What to do: an address is missing, or the card speaks RoCE v1 alone."""
    interfaces = interface_of(node)
    addressed = {g.device for g in node.gids if g.ipv4}
    without = [interfaces.get(d) or d for d in bare if d not in addressed]
    old = [d for d in bare if d in addressed]
    steps = ["give an IPv4 address to " + joined(without)] if without else []
    if old:
        steps.append(
            f"let {joined(old)} speak RoCE v2 (cma_roce_mode -d DEVICE -p PORT -m 2), or name only "
            "other devices in the cluster file: its entries with an IPv4 address are RoCE v1"
        )
    return "; ".join(steps)


def _slow_cards(node: Node, links: NodeLinks) -> Iterator[Finding]:
    for device in node.devices:
        link = device.pcie
        if device.device not in links.compute or link is None:
            continue
        if link.width < link.max_width or link.generation < link.max_generation:
            yield node.warning(
                "pcie-degraded",
                f"{device.device} runs at PCIe gen {link.generation} x{link.width}, "
                f"its card could do gen {link.max_generation} x{link.max_width}",
                "reseat the card, or move it to a slot of full width",
            )
