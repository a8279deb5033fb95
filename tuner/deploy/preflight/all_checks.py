"""Run all checks, and print the findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tuner.deploy.preflight.capture import read_capture
from tuner.deploy.preflight.check_cluster import check_cluster
from tuner.deploy.preflight.check_gpus import (
    check_gpudirect,
    check_gpus,
    check_topology,
    misplaced,
)
from tuner.deploy.preflight.check_network import (
    HOST_VARIABLES,
    INTERFACE_VARIABLES,
    check_left_out,
    check_network,
)
from tuner.deploy.preflight.check_rdma import check_other_networks, check_rdma
from tuner.deploy.preflight.collectives import EFA
from tuner.deploy.preflight.facts import Expected, Finding, Node, Severity
from tuner.deploy.preflight.links import (
    NodeLinks,
    find_links,
    gid_index,
    hca_list,
    speaks_ipv6,
    without_gid,
)
from tuner.errors import BadInput
from tuner.shell import export_line

_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}


@dataclass(frozen=True)
class NodeResult:
    """A node's links, and the environment proposed for it."""

    name: str
    links: NodeLinks
    environment: dict[str, str]  # proposed variables, if the capture is sufficient
    topology_nics: tuple[str, ...] = ()  # the RDMA devices that `nvidia-smi topo -m` names


@dataclass(frozen=True)
class PreflightResult:
    """The outcome of a preflight."""

    nodes: tuple[NodeResult, ...]
    findings: tuple[Finding, ...]  # errors first

    @property
    def ok(self) -> bool:
        """Say whether no error was found."""
        return not any(f.severity is Severity.ERROR for f in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return values for JSON."""
        return {"ok": self.ok, **asdict(self)}


def run_preflight(
    captures: Mapping[str, Path], expected: Expected | None = None
) -> PreflightResult:
    """Check captured nodes (name -> folder), each alone and all together. Raises BadInput."""
    if not captures:
        raise BadInput("no node was given: use --node NAME=DIR, or run on a node without it")
    return check_nodes([read_capture(name, folder) for name, folder in captures.items()], expected)


def check_nodes(nodes: list[Node], expected: Expected | None = None) -> PreflightResult:
    """Check nodes that are already read."""
    for node in nodes:
        if expected:
            node.name = expected.name_of(node)
    findings: list[Finding] = []
    linked: list[tuple[Node, NodeLinks]] = []
    for node in nodes:
        expected_node = expected.node(node.name) if expected else None
        links = find_links(node, expected_node)
        linked.append((node, links))
        findings += check_rdma(node, links, expected_node)
        findings += check_other_networks(node, links)
        findings += check_topology(node, links)
        findings += check_gpus(node, expected, expected_node)
        findings += check_gpudirect(node, links)
        findings += check_network(node, links, expected)
        findings += _unread(node)
    findings += check_cluster(linked, expected)
    sockets = all(node.without_rdma for node in nodes)
    results = tuple(
        NodeResult(
            node.name,
            links,
            _propose(node, links, expected, sockets=sockets),
            tuple(node.topology.nics),
        )
        for node, links in linked
    )
    for (node, _), proposal in zip(linked, results):  # noqa: B905 - Python 3.8
        expected_node = expected.node(node.name) if expected else None
        findings += check_left_out(node, expected_node, proposal.environment)
    return PreflightResult(results, tuple(_unique(findings)))


def _unique(findings: list[Finding]) -> list[Finding]:
    """Return the findings, errors first, without repeats."""
    kept: dict[tuple[str, tuple[str, ...], str], Finding] = {}
    for finding in sorted(findings, key=lambda f: _ORDER[f.severity]):
        subject = finding.message
        if finding.check in ("nic-wrong-switch", "rail-slow"):  # two checks may find a device
            subject = finding.message.split(" ")[0]
        kept.setdefault((finding.check, finding.nodes, subject), finding)
    return list(kept.values())


def _unread(node: Node) -> Iterator[Finding]:
    if node.nothing_found:
        yield node.error(
            "nothing-to-check",
            "neither a GPU nor an RDMA device was found, so nothing says that a launch works",
            "run it on a GPU node with NVIDIA's driver (nvidia-smi must answer), or give the "
            "outputs captured there: --node NAME=DIR",
        )
    for source in node.unread:
        yield node.warning(
            "not-understood",
            f"the output in {source} was not understood: nothing in it was checked",
            "capture it again; without colours or a pager",
        )
    if node.missing:
        names = ", ".join(source.rpartition(".")[0] for source in node.missing)
        yield node.info(
            "not-captured",
            f"not captured, so not checked: {names}",
            "install the tools, or run as root, and capture again",
        )


def _propose(
    node: Node, links: NodeLinks, expected: Expected | None, *, sockets: bool
) -> dict[str, str]:
    """Return the environment that follows from the capture. `sockets`: no node has an RDMA
    device.
    """
    proposed = {}
    expected_node = expected.node(node.name) if expected else None
    leave_out: list[str] = []
    if expected_node is None or expected_node.rdma is None:  # none named in the cluster file
        leave_out = [device for card, _, _ in misplaced(node, links) for device in card]
    # An empty table of GIDs may not have been captured; its device is told as an error.
    listed = {gid.device for gid in node.gids}
    leave_out += [device for device in without_gid(node, links) if device in listed]
    hcas = hca_list(node, links, leave_out)
    if hcas.strip("="):
        proposed["NCCL_IB_HCA"] = hcas
        index = gid_index(node, links)
        if index is not None:
            proposed["NCCL_IB_GID_INDEX"] = str(index)
            if speaks_ipv6(node, links):
                proposed["NCCL_IB_ADDR_FAMILY"] = "AF_INET6"
    if EFA in links.left_out.values():
        proposed["FI_PROVIDER"] = "efa"
    if sockets and not (expected_node and expected_node.rdma):
        proposed["NCCL_IB_DISABLE"] = "1"
    if links.interface:
        proposed.update(dict.fromkeys(INTERFACE_VARIABLES, links.interface))
    if links.address:
        engine = expected.engine if expected else "sglang"
        proposed.update(dict.fromkeys(HOST_VARIABLES.get(engine, ()), links.address))
    return proposed


def _collectives(node: NodeResult) -> str:
    """Return how many RDMA devices a node can use, as far as they were captured."""
    compute, named = node.links.compute, node.topology_nics
    efa = [device for device, reason in node.links.left_out.items() if reason == EFA]
    if efa and not compute:
        return f"{len(efa)} EFA devices, by libfabric"
    if node.links.open:
        return "not known: name them in the cluster file (rdma = [...])"
    if compute:
        return f"{len(node.links.usable)} of {len(compute)} RDMA devices usable"
    if named:
        return (
            f"the topology names {len(named)} RDMA devices; whether they are up is not known: "
            "capture ibdev2netdev too"
        )
    return "no RDMA device was captured"


def render(result: PreflightResult) -> str:
    """Return the result as text for a terminal, without colours."""
    lines: list[str] = []
    for node in result.nodes:
        links = node.links
        device = f" ({links.device})" if links.device else ""
        lines.append(f"node {node.name}")
        lines.append(f"  management  {links.interface or 'unknown'}{device}: {links.reason}")
        lines.append(f"  collectives {_collectives(node)}")
        lines += [f"  {export_line(name, value)}" for name, value in node.environment.items()]
    for finding in result.findings:
        lines.append("")
        lines.append(f"{finding.severity.value}: {', '.join(finding.nodes)}: {finding.message}")
        lines += [f"    | {line}" for line in finding.evidence]
        lines.append(f"  fix: {finding.fix}")
    lines += ["", ", ".join(_count(result, severity) for severity in _ORDER)]
    return "\n".join(_printable(line) for line in lines) + "\n"


def _count(result: PreflightResult, severity: Severity) -> str:
    count = sum(f.severity is severity for f in result.findings)
    plural = "" if count == 1 or severity is Severity.INFO else "s"
    return f"{count} {severity.value}{plural}"


def _printable(line: str) -> str:
    """Replace control characters, which captured text could send to the terminal."""
    return "".join(c if c.isprintable() else " " for c in line)
