"""Checks of a node's RDMA ports and their GIDs."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.deploy.preflight.expected import ExpectedNode
from tuner.deploy.preflight.facts import Finding, Node, joined, natural
from tuner.deploy.preflight.links import Links, gid_indexes, interface_of, is_infiniband

_DISABLED = "Disabled"  # phys_state of a port that was switched off on this node


def check_rdma(node: Node, links: Links, expected: ExpectedNode | None) -> Iterator[Finding]:
    """Every finding about the node's RDMA devices."""
    yield from _absent_devices(node, links, expected)
    yield from _down_ports(node, links, expected)
    yield from _gids(node, links)
    yield from _slow_cards(node, links)


def _absent_devices(node: Node, links: Links, expected: ExpectedNode | None) -> Iterator[Finding]:
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


def _down_ports(node: Node, links: Links, expected: ExpectedNode | None) -> Iterator[Finding]:
    """One finding for all ports that are down, because they often share a cause."""
    if node.ports:
        lines = {p.device: p.line for p in node.ports if not p.up}
        total = len(node.ports)
    else:
        down = [d for d in node.devices if d.state != "ACTIVE"]
        lines = {d.device: f"{d.device}: {d.state}, {d.phys_state}" for d in down}
        total = len(node.devices)
    wanted = [d for d in lines if d in links.compute or d == links.device]
    if wanted:
        yield node.error(
            "ports-down",
            f"{len(wanted)} of {total} RDMA ports are down: {joined(wanted)}",
            _fix_down(node, wanted),
            tuple(lines[d] for d in sorted(wanted, key=natural)),
        )


def _fix_down(node: Node, devices: list[str]) -> str:
    interfaces = interface_of(node)
    disabled = {d.device for d in node.devices if d.phys_state == _DISABLED}
    steps = "".join(f"ip link set {interfaces[d]} up; " for d in sorted(devices, key=natural))
    cause = "" if disabled.issuperset(devices) else "check cable, transceiver and switch port; "
    return (
        f"{cause}{steps}then look at ibdev2netdev again, or name only the devices to use "
        "in the cluster file (rdma = [...])"
    )


def _gids(node: Node, links: Links) -> Iterator[Finding]:
    """Check that each RoCE device that is up has a RoCE v2 GID with an IPv4 address."""
    if not node.gids:
        return
    bare = [d for d in links.usable if not is_infiniband(node, d) and not gid_indexes(node, d)]
    if bare:
        interfaces = interface_of(node)
        evidence = [g.line for g in node.gids if g.device in bare]
        yield node.error(
            "gid-empty",
            f"{joined(bare)} has no RoCE v2 GID with an IPv4 address",
            "give an IPv4 address to " + joined([interfaces.get(d) or d for d in bare]),
            tuple(evidence) or ("show_gids lists no entry of " + joined(bare),),
        )


def _slow_cards(node: Node, links: Links) -> Iterator[Finding]:
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
