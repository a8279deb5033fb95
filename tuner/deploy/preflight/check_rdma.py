"""Check a node's RDMA devices: their presence, ports, GIDs and rates."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.deploy.preflight.collectives import EFA, FAR, MANAGEMENT, SLOWER
from tuner.deploy.preflight.devices import (
    card_of,
    gid_indexes,
    interface_of,
    is_infiniband,
    rate_of,
    up_devices,
)
from tuner.deploy.preflight.facts import (
    ExpectedNode,
    Finding,
    Node,
    RdmaDevice,
    joined,
    natural,
)
from tuner.deploy.preflight.links import NodeLinks, gid_index, speaks_ipv6, without_gid

_WAITING = ("INIT", "ARMED")  # of an InfiniBand port that no subnet manager has made active
_LINK_UP = ("LINKUP", "LINK_UP")
NO_DRIVER = "look for the card (lspci | grep -i -e mellanox -e nvidia) and load its driver"
_DISABLED = "Disabled"  # phys_state of a port that was switched off on this node


def check_rdma(node: Node, links: NodeLinks, expected: ExpectedNode | None) -> Iterator[Finding]:
    """Yield every finding about the node's RDMA devices."""
    yield from _absent_devices(node, links, expected)
    yield from _open(node, links)
    yield from _down_ports(node, links, expected)
    yield from _gids(node, links)
    yield from _slow_rails(node, links)
    yield from _slow_cards(node, links)


def _absent_devices(
    node: Node, links: NodeLinks, expected: ExpectedNode | None
) -> Iterator[Finding]:
    known = interface_of(node)
    if (known or node.without_rdma) and expected and expected.rdma:
        absent = [d for d in expected.rdma if d not in known]
        if absent:
            yield node.error(
                "rdma-absent",
                f"the cluster file names {joined(absent)}, which this node does not have",
                f'choose among {joined(set(known))}, or set rdma = "auto"' if known else NO_DRIVER,
            )
    efa = [device for device, reason in links.left_out.items() if reason == EFA]
    if efa:
        yield node.info(
            "efa",
            f"{joined(efa)} {'are EFA devices' if efa[1:] else 'is an EFA device'}: NCCL reaches "
            "them by libfabric, so NCCL_IB_HCA and NCCL_IB_GID_INDEX do not count",
            "the image needs aws-ofi-nccl: with it, NCCL writes NET/OFI or NET/Libfabric",
        )
    elif known and not links.usable and not links.open:
        yield node.error(
            "rdma-none",
            "no RDMA device is usable: NCCL would fall back to TCP sockets",
            "bring up at least one RDMA port",
        )
    elif node.without_rdma:
        yield node.info(
            "rdma-none",
            "the node has no RDMA device: NCCL uses TCP sockets",
            f"nothing to do if it has no RDMA card; else {NO_DRIVER}",
        )


def check_other_networks(node: Node, links: NodeLinks) -> Iterator[Finding]:
    """Yield findings on devices that are left out, because they belong to other networks."""
    by_reason: dict[str, list[str]] = {}
    for device, reason in links.left_out.items():
        if reason not in (EFA, FAR, MANAGEMENT):
            by_reason.setdefault(reason, []).append(device)
    for reason, devices in by_reason.items():
        # With 6 fast devices for 8 GPUs, two slow devices are rails rather than another network.
        rails = len(links.usable) + len(devices)
        odd = reason == SLOWER and rails == len(node.gpus or node.topology.gpus)
        rates = "".join(f", {d} {rate_of(node, d)} Gb/s" for d in devices if reason == SLOWER)
        yield (node.warning if odd else node.info)(
            "hca-left-out",
            f"left out of NCCL_IB_HCA: {joined(devices)}: {reason}{rates}",
            "check cable, transceiver and switch port, if they are rails of the GPUs"
            if odd
            else "nothing to do, unless it was meant for collectives: then name the devices in "
            "the cluster file (rdma = [...])",
        )


def _open(node: Node, links: NodeLinks) -> Iterator[Finding]:
    """Yield a finding if it is not known which devices are for collectives."""
    if links.open:
        groups = "; or ".join(
            f"{joined(group)} ({'InfiniBand' if is_infiniband(node, group[0]) else 'Ethernet'}"
            f"{f', {rate} Gb/s' if (rate := rate_of(node, group[0])) else ''})"
            for group in links.open
        )
        yield node.warning(
            "collectives-unknown",
            f"it is not known which RDMA devices are for collectives: {groups}",
            "name them in the cluster file (rdma = [...]), or capture `nvidia-smi topo -m` too",
        )


def _down_ports(node: Node, links: NodeLinks, expected: ExpectedNode | None) -> Iterator[Finding]:
    """Yield a single finding for all ports that are down, because they often share a cause."""
    up, total = up_devices(node), len(node.ports or node.devices)
    lines = {p.device: p.line for p in node.ports} or {
        d.device: f"{d.device}: {d.state}, {d.phys_state}" for d in node.devices
    }
    unknown = {p.device for p in node.ports if not p.up} & up - {d.device for d in node.devices}
    if unknown:
        yield node.info(
            "ports-hidden",
            f"(Down) at {joined(unknown)} is of IP over InfiniBand, and says nothing of the "
            "InfiniBand port, which NCCL needs",
            "look at the ports: ibstat, or rdma link",
            tuple(lines[d] for d in sorted(unknown, key=natural)),
        )
    wanted = [d for d in lines if d not in up and (d in links.compute or d == links.device)]
    of_others = [d for d in wanted if d in links.left_out and d != links.device]
    wanted = [d for d in wanted if d not in of_others] or of_others
    if not wanted:
        return
    named = set(expected.rdma or ()) if expected else set()
    # A card with two ports and a single cable works: DGX Spark is sold so.
    spare = all(d not in named and set(card_of(node, d)) & up for d in wanted)
    yield (node.info if spare or wanted == of_others else node.error)(
        "ports-down",
        f"{len(wanted)} of {total} RDMA ports are down: {joined(wanted)}"
        + ("; another port of each card is up" if spare else ""),
        ("if a cable is meant to be there: " if spare else "") + _fix_down(node, wanted),
        tuple(lines[d] for d in sorted(wanted, key=natural)),
    )


def _linked(device: RdmaDevice) -> bool:
    """Say whether an InfiniBand port has a link: if so, its cable and its switch port work."""
    return device.link_layer == "InfiniBand" and device.phys_state.upper() in _LINK_UP


def _fix_down(node: Node, devices: list[str]) -> str:
    interfaces = interface_of(node)
    disabled = {d.device for d in node.devices if d.phys_state == _DISABLED}
    names = [interfaces[d] for d in sorted(devices, key=natural) if interfaces[d]]
    steps = "".join(f"ip link set {name} up; " for name in names)
    linked = {d.device for d in node.devices if _linked(d)}
    waiting = {d.device for d in node.devices if d.state.startswith(_WAITING)} | linked
    if waiting.issuperset(devices):
        cause = "start a subnet manager, on the switch or as opensm: the link itself is up; "
    else:
        cause = "" if disabled.issuperset(devices) else "check cable, transceiver and switch port; "
    if any(not interfaces[d] for d in disabled.intersection(devices)):
        steps += (
            "switch on what is Disabled (ibportstate -C DEVICE -D 0 PORT enable, or mlxlink "
            "-d DEVICE -a UP); "
        )
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
            f"{joined(bare)} {'have' if bare[1:] else 'has'} no RoCE v2 GID with an IPv4 address",
            _fix_gids(node, bare),
            tuple(evidence) or ("show_gids lists no entry of " + joined(bare),),
        )
    family = speaks_ipv6(node, links)
    seen = {d: gid_indexes(node, d, ipv6=family) for d in links.usable if d not in bare}
    found = {device: indexes for device, indexes in seen.items() if indexes}
    if found and gid_index(node, links) is None:
        yield node.error(
            "gid-differs",
            "no GID index is RoCE v2 on every device: a single NCCL_IB_GID_INDEX cannot serve",
            "add the addresses in the same order everywhere (take the interface down and up), or "
            "leave NCCL_IB_GID_INDEX unset and set NCCL_IB_ROCE_VERSION_NUM=2 with NCCL 2.21 or "
            "later",
            tuple(f"{d}: index {', '.join(map(str, one))}" for d, one in found.items()),
        )


def _fix_gids(node: Node, bare: list[str]) -> str:
    """Return the steps: an address is missing, or the card speaks only RoCE v1."""
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


def _slow_rails(node: Node, links: NodeLinks) -> Iterator[Finding]:
    """Yield a finding on slow devices. The slowest sets the pace of all: each rail waits for the
    others.
    """
    rates = {device: rate for device in links.usable if (rate := rate_of(node, device))}
    fastest = max(rates.values(), default=0)
    slow = [device for device, rate in rates.items() if rate < fastest]
    if slow:
        yield slow_rails(node, slow, fastest, "the other devices for collectives run")


def slow_rails(node: Node, slow: list[str], fastest: int, others: str) -> Finding:
    """Return an error for devices at less than half of the others' rate, else a warning."""
    rates = {device: rate_of(node, device) for device in slow}
    finding = node.error if 2 * min(rates.values()) < fastest else node.warning
    return finding(
        "rail-slow",
        f"{', '.join(f'{device} runs at {rate} Gb/s' for device, rate in rates.items())}, and "
        f"{others} at {fastest}: the slowest sets the pace of all",
        "check cable, transceiver and the switch port's speed, or leave it out in the cluster file "
        "(rdma = [...])",
    )


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
