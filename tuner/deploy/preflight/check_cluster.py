"""Checks that compare nodes: settings that must be equal, and counts that must fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tuner.deploy.preflight.check_gpus import PcieSwitch, misplaced_finding
from tuner.deploy.preflight.facts import Expected, Finding, Node, Severity, joined
from tuner.deploy.preflight.links import NodeLinks, common_gid_index, gid_indexes, is_infiniband

_EQUAL = {
    "image": "pull the same image by digest on every node",
    "configs": "copy one node's config folder to all of them",
    "sglang": "install one version",
    "vllm": "install one version",
    "triton": "install one version: configs are chosen by it",
    "torch": "install one version",
}


def check_cluster(
    nodes: Sequence[tuple[Node, NodeLinks]], expected: Expected | None
) -> Iterator[Finding]:
    """Every finding across nodes."""
    yield from _gid_indexes(nodes)
    yield from _unequal_versions([node for node, _ in nodes])
    if len(nodes) > 1:
        yield from _device_counts(nodes)
        yield from _placements(nodes)
    if expected:
        captured = {node.name for node, _ in nodes}
        absent = [n.name for n in expected.nodes if captured.isdisjoint((n.name, n.host))]
        if absent:
            yield Finding(
                Severity.WARNING,
                "node-not-captured",
                tuple(absent),
                f"nothing was captured from {joined(absent)}",
                "capture there too (preflight --capture DIR) and give each folder",
            )


def _gid_indexes(nodes: Sequence[tuple[Node, NodeLinks]]) -> Iterator[Finding]:
    seen = {
        (node.name, device): gid_indexes(node, device)
        for node, links in nodes
        for device in links.usable
        if not is_infiniband(node, device) and gid_indexes(node, device)
    }
    if not seen or common_gid_index(nodes) is not None:
        return
    usual = Counter(seen.values()).most_common(1)[0][0]
    odd = {key: value for key, value in seen.items() if value != usual}
    if not odd:
        return  # check_rdma reports devices without such an entry
    yield Finding(
        Severity.ERROR,
        "gid-differs",
        tuple(dict.fromkeys(name for name, _ in odd)),
        "no GID index is RoCE v2 with IPv4 on every device: one NCCL_IB_GID_INDEX cannot serve",
        "add the addresses in the same order everywhere (take the interface down and up), or "
        "leave NCCL_IB_GID_INDEX unset and set NCCL_IB_ROCE_VERSION_NUM=2 with NCCL 2.21 or later",
        tuple(f"{name} {device}: index {_list(v)}" for (name, device), v in odd.items())
        + (f"elsewhere: index {_list(usual)}",),
    )


def _list(indexes: tuple[int, ...]) -> str:
    return ", ".join(str(i) for i in indexes)


def _unequal_versions(nodes: Sequence[Node]) -> Iterator[Finding]:
    for key, fix in _EQUAL.items():
        values = {node.name: node.versions[key] for node in nodes if key in node.versions}
        if len(set(values.values())) > 1:
            usual = Counter(values.values()).most_common(1)[0][0]
            odd = tuple(name for name, value in values.items() if value != usual)
            yield Finding(
                Severity.ERROR,
                "versions-differ",
                odd,
                f"{key} differs between nodes",
                fix,
                tuple(f"{name}: {value}" for name, value in values.items()),
            )


def _device_counts(nodes: Sequence[tuple[Node, NodeLinks]]) -> Iterator[Finding]:
    counts = {node.name: len(links.compute) for node, links in nodes if links.compute}
    if len(set(counts.values())) > 1:
        most = max(counts.values())
        few = tuple(name for name, count in counts.items() if count < most)
        yield Finding(
            Severity.WARNING,
            "too-few-hcas",
            few,
            f"{joined(list(few))} has fewer RDMA devices than the other nodes",
            "look for a card that the firmware did not bring up (lspci | grep -i mellanox)",
            tuple(f"{name}: {count}" for name, count in counts.items()),
        )


def _placements(nodes: Sequence[tuple[Node, NodeLinks]]) -> Iterator[Finding]:
    """A finding for each device that is near other GPUs than on the majority of nodes."""
    by_device: dict[str, dict[str, tuple[str, ...]]] = {}
    for node, links in nodes:
        topology = node.topology
        for device in links.compute:
            if device in topology.nics:
                near = tuple(g for g in topology.gpus if topology.near(g, device))
                by_device.setdefault(device, {})[node.name] = near
    captured = {node.name: node for node, _ in nodes}
    for device, near_gpus in by_device.items():
        usual, count = Counter(near_gpus.values()).most_common(1)[0]
        if count * 2 <= len(near_gpus) or not usual:
            continue
        for name, near in near_gpus.items():
            if near != usual:
                origin = PcieSwitch(list(near), [device])
                yield misplaced_finding(
                    captured[name], (device,), origin, PcieSwitch(list(usual), [])
                )
