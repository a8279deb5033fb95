"""Checks of addresses, interfaces and ports that the engine's processes use, and of RDMA."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping

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
    Expected,
    ExpectedNode,
    Finding,
    Node,
    RdmaDevice,
    joined,
    natural,
)
from tuner.deploy.preflight.links import NodeLinks, gid_index, speaks_ipv6, without_gid
from tuner.deploy.preflight.network import is_ip
from tuner.errors import did_you_mean

_WAITING = ("INIT", "ARMED")  # of an InfiniBand port that no subnet manager has made active
_LINK_UP = ("LINKUP", "LINK_UP")
NO_DRIVER = "look for the card (lspci | grep -i -e mellanox -e nvidia) and load its driver"
_DISABLED = "Disabled"  # phys_state of a port that was switched off on this node


def check_rdma(node: Node, links: NodeLinks, expected: ExpectedNode | None) -> Iterator[Finding]:
    """Every finding about the node's RDMA devices."""
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
    """Say which devices are left out, because they are of other networks."""
    by_reason: dict[str, list[str]] = {}
    for device, reason in links.left_out.items():
        if reason not in (EFA, FAR, MANAGEMENT):
            by_reason.setdefault(reason, []).append(device)
    for reason, devices in by_reason.items():
        # With 6 fast devices for 8 GPUs, two slow ones are rails rather than another network.
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
    """Say that it is not known which devices are for collectives."""
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
    """One finding for all ports that are down, because they often share a cause."""
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
    # A card with two ports and one cable works: DGX Spark is sold so.
    spare = all(d not in named and set(card_of(node, d)) & up for d in wanted)
    yield (node.info if spare or wanted == of_others else node.error)(
        "ports-down",
        f"{len(wanted)} of {total} RDMA ports are down: {joined(wanted)}"
        + ("; another port of each card is up" if spare else ""),
        ("if a cable is meant to be there: " if spare else "") + _fix_down(node, wanted),
        tuple(lines[d] for d in sorted(wanted, key=natural)),
    )


def _linked(device: RdmaDevice) -> bool:
    """Tell whether an InfiniBand port has a link: if so, its cable and its switch port work."""
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
            "no GID index is RoCE v2 on every device: one NCCL_IB_GID_INDEX cannot serve",
            "add the addresses in the same order everywhere (take the interface down and up), or "
            "leave NCCL_IB_GID_INDEX unset and set NCCL_IB_ROCE_VERSION_NUM=2 with NCCL 2.21 or "
            "later",
            tuple(f"{d}: index {', '.join(map(str, one))}" for d, one in found.items()),
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


def _slow_rails(node: Node, links: NodeLinks) -> Iterator[Finding]:
    """The slowest device sets the pace of all: each rail waits for the others."""
    rates = {device: rate for device in links.usable if (rate := rate_of(node, device))}
    fastest = max(rates.values(), default=0)
    slow = [device for device, rate in rates.items() if rate < fastest]
    if slow:
        yield slow_rails(node, slow, fastest, "the other devices for collectives run")


def slow_rails(node: Node, slow: list[str], fastest: int, others: str) -> Finding:
    """An error for devices at less than half of the rate that others have, else a warning."""
    rates = {device: rate_of(node, device) for device in slow}
    report = node.error if 2 * min(rates.values()) < fastest else node.warning
    return report(
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


# The variables with the address that each engine announces to the other ranks; the first one set
# counts.
HOST_VARIABLES = {
    "sglang": ("SGLANG_HOST_IP", "HOST_IP"),
    # vLLM reads the first alone; the second is for what else runs there.
    "vllm": ("VLLM_HOST_IP", "HOST_IP"),
}
# The variables with the management interface: of NCCL, of Gloo and of PyTorch's TensorPipe.
INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_ON_HEAD = ("rendezvous", "ray")
# What names the plugins that an engine loads, all where it is not set, and this program's plugin.
PLUGINS = {
    "sglang": ("SGLANG_PLUGINS", "tuner_attention"),
    "vllm": ("VLLM_PLUGINS", "tuner_kernels"),
}


def merged_environment(node: Node, expected: ExpectedNode | None) -> dict[str, str]:
    """The variables of a launch: those of the cluster file override captured ones."""
    return {**node.environment, **(expected.environment if expected else {})}


def check_network(node: Node, links: NodeLinks, expected: Expected | None) -> Iterator[Finding]:
    """Every finding about the node's addresses and ports."""
    expected_node = expected.node(node.name) if expected else None
    if not links.interface:
        yield node.warning(
            "management-unknown",
            f"the management interface is not known: {links.reason}",
            "capture `ip -j addr` and `ip -j route` too, or name the interface in the cluster file",
        )
    environment = merged_environment(node, expected_node)
    yield from _named_interfaces(node, links, expected_node, environment)
    yield from _named_devices(node, environment)
    yield from _gid_index(node, links, environment)
    yield from _announced(node, links, expected, environment)
    yield from _plugins(node, environment)
    if expected:
        yield from _ports(node, expected)


def _named_interfaces(
    node: Node, links: NodeLinks, expected_node: ExpectedNode | None, environment: dict[str, str]
) -> Iterator[Finding]:
    if not node.interfaces:
        return
    names = [i.name for i in node.interfaces]
    asked = [(v, environment[v]) for v in INTERFACE_VARIABLES if environment.get(v)]
    if expected_node and expected_node.interface:
        asked.append(("interface", expected_node.interface))
    for variable, value in asked:
        exact = variable != "NCCL_SOCKET_IFNAME" or value.startswith("=")
        if value.startswith("^"):
            continue  # a list of interfaces to avoid
        for wanted in filter(None, value.lstrip("=").split(",")):
            if any(n == wanted or (not exact and n.startswith(wanted)) for n in names):
                continue
            known = links.interface or joined(names)
            yield node.error(
                "interface-missing",
                f"{variable}={value} names {wanted!r}, which this node does not have"
                + did_you_mean(wanted, names),
                f"set {variable} to {known}",
                (f"interfaces: {' '.join(names)}",),
            )


def _plugins(node: Node, environment: dict[str, str]) -> Iterator[Finding]:
    for engine, (variable, plugin) in PLUGINS.items():
        value = environment.get(variable)
        # sglang takes an empty list as none, vLLM as one that leaves out all.
        if value is None or (engine == "sglang" and not value.strip(", ")):
            continue
        if plugin not in (name.strip() for name in value.split(",")):
            yield node.info(
                "plugin-left-out",
                f"{variable} leaves out {plugin}: servers use no tuned files that need a plugin",
                f"add {plugin} to {variable}, or unset it",
            )


def _named_devices(node: Node, environment: dict[str, str]) -> Iterator[Finding]:
    value = environment.get("NCCL_IB_HCA", "")
    known = sorted(interface_of(node))
    if not known or value.startswith("^"):
        return
    exact = value.startswith("=")
    for item in filter(None, value.lstrip("=").split(",")):
        wanted = item.partition(":")[0]
        if not any(d == wanted or (not exact and d.startswith(wanted)) for d in known):
            yield node.error(
                "rdma-absent",
                f"NCCL_IB_HCA names {wanted!r}, which this node does not have"
                + did_you_mean(wanted, known),
                f"choose among {joined(known)}",
            )


def check_left_out(
    node: Node, expected: ExpectedNode | None, proposed: Mapping[str, str]
) -> Iterator[Finding]:
    """Check that the shell's variables use all RDMA devices that are proposed for collectives."""
    offered = proposed.get("NCCL_IB_HCA", "")
    devices = offered.lstrip("=").split(",") if offered else []
    chosen = expected.environment if expected else {}
    shell = {name: v for name, v in node.environment.items() if name not in chosen}
    off = shell.get("NCCL_IB_DISABLE") == "1"
    value = "" if off else shell.get("NCCL_IB_HCA", "")
    left = [d for d in devices if off or (value and not _is_named(d, value))]
    if left:
        setting = "NCCL_IB_DISABLE=1" if off else f"NCCL_IB_HCA={value}"
        yield node.warning(
            "rdma-left-out",
            f"{setting} uses {len(devices) - len(left)} of {len(devices)} RDMA devices that "
            f"collectives can use: the bandwidth of {joined(left)} is lost to them",
            ("unset NCCL_IB_DISABLE" if off else f"set NCCL_IB_HCA={offered}")
            + ", unless what is left out is for something else, such as storage",
        )


def _is_named(device: str, value: str) -> bool:
    """Whether NCCL uses a device by NCCL_IB_HCA: names are prefixes, but for `=`; `^` excludes."""
    names = [item.partition(":")[0] for item in value.lstrip("^=").split(",") if item]
    exact = value.lstrip("^").startswith("=")
    found = any(device == name if exact else device.startswith(name) for name in names)
    return found != value.startswith("^")


def _gid_index(node: Node, links: NodeLinks, environment: dict[str, str]) -> Iterator[Finding]:
    value = environment.get("NCCL_IB_GID_INDEX", "")
    if not value or not node.gids:
        return
    indexes = {d: gid_indexes(node, d, ipv6=speaks_ipv6(node, links)) for d in links.usable}
    wrong = [d for d, good in indexes.items() if good and value not in map(str, good)]
    if wrong:
        good = indexes[wrong[0]][0]
        yield node.error(
            "gid-index",
            f"NCCL_IB_GID_INDEX={value} is not RoCE v2 with an address on {joined(wrong)}",
            f"set NCCL_IB_GID_INDEX={good}",
            tuple(g.line for g in node.gids if g.device == wrong[0]),
        )


def _announced(
    node: Node, links: NodeLinks, expected: Expected | None, environment: dict[str, str]
) -> Iterator[Finding]:
    """Check that the address that this node announces can be reached by the others."""
    held = {ipaddress.ip_address(a.ip): i.name for i in node.interfaces for a in i.addresses}
    if not held:
        return
    engine = expected.engine if expected else ""
    variables = HOST_VARIABLES.get(engine) or tuple(
        dict.fromkeys(v for some in HOST_VARIABLES.values() for v in some)
    )
    given = [(v, environment[v]) for v in variables if environment.get(v)]
    fix = f"set {' and '.join(variables)} to {links.address or 'the management address'}"
    for variable, value in given:
        fault = _fault(value, held)
        if fault:
            yield node.error(
                "address-unreachable",
                f"{variable}={value} {fault}",
                fix,
                tuple(f"{name}: {ip}" for ip, name in held.items()),
            )
    if not given:
        yield from _implicit(node, links, fix)


def _fault(value: str, held: dict[ipaddress.IPv4Address | ipaddress.IPv6Address, str]) -> str:
    if not is_ip(value):
        return "is not an address"
    address = ipaddress.ip_address(value)
    if address.is_loopback or address.is_link_local or address.is_unspecified:
        return "is not reachable from other nodes"
    return "" if address in held else "is held by no interface of this node"


def _implicit(node: Node, links: NodeLinks, fix: str) -> Iterator[Finding]:
    """Check what the engine would announce without a variable, from its name and routes."""
    first = node.hostname_addresses[0] if node.hostname_addresses else ""
    if first and ipaddress.ip_address(first).is_loopback:
        yield node.warning(
            "address-unreachable",
            f"the node's own name resolves to {first}, which other nodes cannot reach",
            fix + ", or correct /etc/hosts",
            (first,),
        )
    scope = [i for i in node.interfaces if i.name == links.interface] or list(node.interfaces)
    v6 = [a.ip for i in scope for a in i.addresses if a.scope == "global" and ":" in a.ip]
    v4 = [a.ip for i in scope for a in i.addresses if a.scope == "global" and ":" not in a.ip]
    if v6 and v4:
        yield node.warning(
            "dual-stack",
            f"the node has {v4[0]} and {v6[0]}, and nothing says which one to announce",
            fix,
            (*v4[:1], *v6[:1]),
        )


def _ports(node: Node, expected: Expected) -> Iterator[Finding]:
    head = bool(expected.nodes) and expected.node(node.name) == expected.nodes[0]
    taken = {listener.port: listener for listener in node.listeners}
    for name, port in sorted(expected.ports.items()):
        if port not in taken or (name in _ON_HEAD and not head):
            continue
        yield node.error(
            "port-in-use",
            f"the {name} port {port} is taken",
            f"stop what listens there (ss -ltnp 'sport = :{port}'), or choose another port in the "
            "cluster file",
            (f"listening on {taken[port].ip} port {port}",),
        )
