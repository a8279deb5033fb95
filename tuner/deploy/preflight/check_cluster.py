"""Compare nodes: values that must be equal, and parts that only some nodes have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tuner.deploy.preflight.check_rdma import NO_DRIVER, slow_rails
from tuner.deploy.preflight.devices import interface_of, rate_of, up_devices
from tuner.deploy.preflight.facts import Expected, Finding, Node, Severity, joined
from tuner.deploy.preflight.links import NodeLinks

_EQUAL = {
    "image": "pull the same image by digest on every node",
    "configs": "copy a node's config folder to all nodes",
    "sglang": "install the same version",
    "vllm": "install the same version",
    "triton": "install the same version: configs are chosen by it",
    "torch": "install the same version",
    "GPUs": "launch on nodes with equal GPUs: config files and the division of the model need them",
}
NOTHING = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # sha256 of no bytes


def check_cluster(
    nodes: Sequence[tuple[Node, NodeLinks]], expected: Expected | None
) -> Iterator[Finding]:
    """Yield every finding across nodes."""
    yield from _unequal_versions([node for node, _ in nodes])
    yield from _device_counts(nodes)
    yield from _rates([node for node, _ in nodes])
    for node, _ in nodes:
        yield from _deployed(node, expected)
    if expected:
        captured = {node.name for node, _ in nodes}
        absent = [n.name for n in expected.nodes if captured.isdisjoint((n.name, n.host))]
        others = [
            f"{name} is no node of the cluster file" for name in captured if not expected.node(name)
        ]
        if absent:
            yield Finding(
                Severity.WARNING,
                "node-not-captured",
                tuple(absent),
                "; ".join([f"nothing was captured from {joined(absent)}", *others]),
                "capture there too (preflight --capture DIR), and give each folder by that name",
            )


def _deployed(node: Node, expected: Expected | None) -> Iterator[Finding]:
    """Check that the node has the image, and the config folder of the bundle."""
    if node.versions.get("image") == "absent":
        yield node.error(
            "image-absent", "the node does not have the image", "pull it: docker pull IMAGE"
        )
    found, wanted = node.versions.get("configs", ""), expected.configs if expected else ""
    if found == NOTHING:
        yield node.error(
            "configs-differ",
            "the config folder is empty or not there: servers would load no tuned file",
            "unpack the bundle there, and give its folder (--config-dir)",
        )
    elif found and wanted and found != wanted:
        yield node.error(
            "configs-differ",
            "the config folder is not the bundle's: servers would load other files",
            "unpack this bundle there",
            (f"{found} there, {wanted} in the bundle",),
        )


def _unequal_versions(nodes: Sequence[Node]) -> Iterator[Finding]:
    told = {node.name: dict(node.versions) for node in nodes}
    for node in nodes:
        if node.gpus:
            counts = Counter(gpu.name for gpu in node.gpus)
            told[node.name]["GPUs"] = ", ".join(f"{n} x {name}" for name, n in counts.items())
    for key, fix in _EQUAL.items():
        values = {name: versions[key] for name, versions in told.items() if key in versions}
        if len(set(values.values())) > 1:
            usual = Counter(values.values()).most_common(1)[0][0]
            odd = tuple(name for name, value in values.items() if value != usual)
            yield Finding(
                Severity.ERROR,
                "versions-differ" if key != "GPUs" else "gpus-differ",
                odd,
                f"{key} differ{'s' if key != 'GPUs' else ''} between nodes",
                fix,
                tuple(f"{name}: {value}" for name, value in values.items()),
            )


def _device_counts(nodes: Sequence[tuple[Node, NodeLinks]]) -> Iterator[Finding]:
    counts = {
        node.name: len(links.compute) for node, links in nodes if links.compute or node.without_rdma
    }
    most = max(counts.values(), default=0)
    none = tuple(name for name, count in counts.items() if most and not count)
    few = tuple(name for name, count in counts.items() if 0 < count < most)
    evidence = tuple(f"{name}: {count}" for name, count in counts.items())
    if none:
        yield Finding(
            Severity.ERROR,
            "rdma-none",
            none,
            f"{joined(list(none))} has no RDMA device, and other nodes have: NCCL would use TCP "
            "sockets, or not start",
            NO_DRIVER,
            evidence,
        )
    if few:
        yield Finding(
            Severity.WARNING,
            "too-few-hcas",
            few,
            f"{joined(list(few))} has fewer RDMA devices than the other nodes",
            "look for a card that the firmware did not bring up (lspci | grep -i mellanox)",
            evidence,
        )


def _rates(nodes: Sequence[Node]) -> Iterator[Finding]:
    """Yield a finding for each node with a device that is slower than the same device of other
    nodes.
    """
    fastest: dict[str, int] = {}
    up = {node.name: up_devices(node) for node in nodes}
    for node in nodes:
        for device in up[node.name]:
            fastest[device] = max(fastest.get(device, 0), rate_of(node, device))
    for node in nodes:
        mine = [d for d in interface_of(node) if d in up[node.name]]
        slow = [d for d in mine if 0 < 2 * rate_of(node, d) < fastest[d]]
        if slow:
            most = max(fastest[device] for device in slow)
            yield slow_rails(node, slow, most, "the same devices of other nodes run")
