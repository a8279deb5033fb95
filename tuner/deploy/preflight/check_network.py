"""Check the addresses, interfaces and ports that the engine's processes use."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping

from tuner.deploy.preflight.devices import (
    gid_indexes,
    interface_of,
)
from tuner.deploy.preflight.facts import (
    Expected,
    ExpectedNode,
    Finding,
    Node,
    joined,
)
from tuner.deploy.preflight.links import NodeLinks, speaks_ipv6
from tuner.deploy.preflight.network import is_ip
from tuner.errors import did_you_mean

# The variables with the address that each engine announces to the other ranks; the first that is
# set counts.
HOST_VARIABLES = {
    "sglang": ("SGLANG_HOST_IP", "HOST_IP"),
    # vLLM reads only the first; the second is for other programs.
    "vllm": ("VLLM_HOST_IP", "HOST_IP"),
}
# The variables with the management interface: of NCCL, of Gloo and of PyTorch's TensorPipe.
INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_ON_HEAD = ("rendezvous", "ray")
# The variable that names an engine's plugins (unset: all), and this program's plugin.
PLUGINS = {
    "sglang": ("SGLANG_PLUGINS", "tuner_attention"),
    "vllm": ("VLLM_PLUGINS", "tuner_kernels"),
}


def merged_environment(node: Node, expected: ExpectedNode | None) -> dict[str, str]:
    """Return the variables of a launch: values of the cluster file override captured values."""
    return {**node.environment, **(expected.environment if expected else {})}


def check_network(node: Node, links: NodeLinks, expected: Expected | None) -> Iterator[Finding]:
    """Yield every finding about the node's addresses and ports."""
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
        # sglang takes an empty list as unset, vLLM as a list that leaves out all.
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
            + ", unless the other devices have another use, such as storage",
        )


def _is_named(device: str, value: str) -> bool:
    """Say whether NCCL uses a device by NCCL_IB_HCA: names are prefixes, except after `=`; `^`
    excludes.
    """
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
    """Check the address that the engine would announce without a variable, from its name and
    routes.
    """
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
            f"the node has {v4[0]} and {v6[0]}, and nothing says which address to announce",
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
            f"stop the process that listens there (ss -ltnp 'sport = :{port}'), or "
            "choose another port in the cluster file",
            (f"listening on {taken[port].ip} port {port}",),
        )
