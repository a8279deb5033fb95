"""Hold facts about a node, and findings about it, as plain data.

Parsers make the facts, and checks turn them into findings.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from tuner.errors import MalformedCluster


class Severity(str, Enum):
    """The weight of a finding. An error stops a launch or costs most of the speed."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True)
class Finding:
    """A fact that the operator should know before a launch."""

    severity: Severity
    check: str  # the check's name, e.g. "ports-down"
    nodes: tuple[str, ...]
    message: str
    fix: str
    evidence: tuple[str, ...] = ()  # captured lines


@dataclass(frozen=True)
class RdmaPort:
    """A port of an RDMA device, and its network interface."""

    device: str  # mlx5_1
    port: int
    interface: str  # xgbe1
    up: bool
    line: str


@dataclass(frozen=True)
class Gid:
    """An entry of a port's GID table."""

    device: str
    port: int
    index: int
    gid: str  # eight groups of four hex digits
    ipv4: str  # empty for an entry with no IPv4 address
    version: str  # "v1" or "v2": the RoCE version
    interface: str
    line: str


@dataclass(frozen=True)
class PcieLink:
    """The generation and width of a link, and the most that both of its ends support."""

    generation: int
    max_generation: int
    width: int
    max_width: int


@dataclass(frozen=True)
class RdmaDevice:
    """A port of an RDMA device as /sys/class/infiniband shows it."""

    device: str
    port: int
    state: str  # ACTIVE, DOWN, INIT, ARMED
    phys_state: str  # LinkUp, Disabled, Polling, ...
    link_layer: str  # Ethernet or InfiniBand
    rate: str  # "200 Gb/sec (4X HDR)"
    interface: str = ""
    numa_node: int | None = None
    pcie: PcieLink | None = None
    slot: str = ""  # PCI address without the function: 0000:17:00
    virtual: bool = False  # an SR-IOV virtual function


@dataclass(frozen=True)
class Topology:
    """The matrix of `nvidia-smi topo -m`: how each GPU reaches each GPU and each NIC."""

    gpus: tuple[str, ...] = ()  # GPU0, GPU1, ...
    nics: tuple[str, ...] = ()  # RDMA device names
    relations: dict[tuple[str, str], str] = field(default_factory=dict)  # PIX, PXB, PHB, NODE, SYS
    numa: dict[str, str] = field(default_factory=dict)  # GPU -> NUMA node
    lines: dict[str, str] = field(default_factory=dict)  # GPU or NIC -> its row

    def near(self, gpu: str, other: str, kinds: tuple[str, ...] = ("PIX", "PXB")) -> bool:
        """Say whether the two have one of these relations; by default, they share a PCIe switch."""
        return self.relations.get((gpu, other)) in kinds

    @property
    def read_gpus(self) -> tuple[str, ...]:
        """Return the GPUs whose rows were read; the text may be cut."""
        return tuple(gpu for gpu in self.gpus if gpu in self.lines or not self.lines)

    def nearest(self, gpu: str) -> tuple[str, tuple[str, ...]]:
        """Return the nearest relation of a GPU to any NIC, and the NICs that have it."""
        kinds = [(self.relations.get((gpu, nic), ""), nic) for nic in self.nics]
        for kind in ("PIX", "PXB", "PHB", "NODE", "SYS", "SOC"):
            if some := tuple(nic for found, nic in kinds if found == kind):
                return kind, some
        return "", ()


@dataclass(frozen=True)
class NodeGpu:
    """A GPU as `nvidia-smi -q` shows it. None marks values that it did not show."""

    bus_id: str
    name: str = ""
    memory_bytes: int | None = None
    performance_state: str = ""  # P0 is busy, P8 is idle
    pcie: PcieLink | None = None
    device_max_generation: int | None = None  # PCIe generation that the card supports
    used_bytes: int | None = None


@dataclass(frozen=True)
class Address:
    """An address of an interface."""

    ip: str
    prefix: int
    scope: str  # global, link, host


@dataclass(frozen=True)
class Interface:
    """A network interface as `ip -j addr` shows it."""

    name: str
    up: bool
    addresses: tuple[Address, ...] = ()
    link: str = ""  # the interface below, e.g. of a VLAN
    master: str = ""  # the bridge or bond that it is a part of


@dataclass(frozen=True)
class Listener:
    """A TCP port that some process listens on."""

    ip: str
    port: int


@dataclass(frozen=True)
class KernelFacts:
    """The facts that matter to GPUDirect RDMA."""

    modules: tuple[str, ...] = ()  # loaded; empty: not captured
    cmdline: tuple[str, ...] = ()  # words of the boot command line
    iommu: tuple[str, ...] = ()  # IOMMUs that are on
    redirecting_bridges: tuple[str, ...] = ()  # PCI addresses of bridges with ACS on
    hidden_bridges: bool = False  # lspci ran and showed no ACS: it was not run as root
    open_modules: bool = False  # NVIDIA's open kernel modules
    release: tuple[int, int] | None = None  # of Linux


@dataclass
class Node:
    """Everything captured from a node. A field that was not captured is empty."""

    name: str
    ports: tuple[RdmaPort, ...] = ()
    gids: tuple[Gid, ...] = ()
    devices: tuple[RdmaDevice, ...] = ()
    topology: Topology = field(default_factory=Topology)
    gpus: tuple[NodeGpu, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    default_interface: str = ""  # of the default route
    listeners: tuple[Listener, ...] = ()
    hostname_addresses: tuple[str, ...] = ()  # addresses that the node's hostname resolves to
    environment: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)  # image, engine, triton, config hashes
    kernel: KernelFacts = field(default_factory=KernelFacts)
    without_rdma: bool = False  # the capture says that there is no RDMA device
    missing: tuple[str, ...] = ()  # sources that were not captured
    nothing_found: bool = False  # neither a GPU nor an RDMA device was seen
    unread: tuple[str, ...] = ()  # sources that were captured but not understood

    def error(self, check: str, message: str, fix: str, evidence: tuple[str, ...] = ()) -> Finding:
        return Finding(Severity.ERROR, check, (self.name,), message, fix, evidence)

    def warning(
        self, check: str, message: str, fix: str, evidence: tuple[str, ...] = ()
    ) -> Finding:
        return Finding(Severity.WARNING, check, (self.name,), message, fix, evidence)

    def info(self, check: str, message: str, fix: str, evidence: tuple[str, ...] = ()) -> Finding:
        return Finding(Severity.INFO, check, (self.name,), message, fix, evidence)


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key under which mlx5_10 comes after mlx5_9."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    # Numbers are compared by length first, because int() refuses very long numbers.
    return tuple(
        (len(p.lstrip("0")) if p[0] in "0123456789" else 0, p.lstrip("0") or p) for p in parts
    )


def joined(names: tuple[str, ...] | list[str] | set[str]) -> str:
    """Return `mlx5_1, mlx5_2 and mlx5_10`, in natural order."""
    ordered = sorted(names, key=natural)
    return " and ".join(filter(None, [", ".join(ordered[:-1]), *ordered[-1:]]))


@dataclass(frozen=True)
class ExpectedNode:
    """A node of the cluster. The first node is the head."""

    name: str
    host: str  # the address or name that other nodes use
    interface: str  # the management interface; empty: the preflight finds it
    rdma: tuple[str, ...] | None  # RDMA devices; None: the preflight finds them
    gpus: int
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Expected:
    """The requirements of a launch."""

    engine: str  # sglang or vllm
    image: str
    model_path: str
    nodes: tuple[ExpectedNode, ...]
    ranks: int  # GPUs that the weights are spread over
    ports: dict[str, int]  # serve, rendezvous, ray
    weight_bytes: int | None = None  # of the whole model
    gpu: str = ""  # its name in config files' names; empty: any
    configs: str = ""  # the hash of the bundle's config folder; empty: not known

    def node(self, name: str) -> ExpectedNode | None:
        """Return the node of that name or host."""
        return next((n for n in self.nodes if name in (n.name, n.host)), None)

    def name_of(self, node: Node) -> str:
        """Return the cluster's name of a captured node: by the node's own name, by an address that
        it holds, or by the first label of its host's name; else its own name.
        """
        held = {a.ip for i in node.interfaces for a in i.addresses} | set(node.hostname_addresses)
        short = node.name.partition(".")[0]
        labels = [{n.name.partition(".")[0], n.host.partition(".")[0]} for n in self.nodes]
        mine = self.node(node.name) or next((n for n in self.nodes if n.host in held), None)
        named = [n for n, some in zip(self.nodes, labels) if short in some]  # noqa: B905 - 3.8
        return mine.name if mine else named[0].name if len(named) == 1 else node.name

    def to_json(self) -> str:
        """Return the text that `read_expected` reads. Equal values give equal text."""
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"


def read_expected(path: Path) -> Expected:
    """Read a file that `Expected.to_json` wrote. Raises MalformedCluster."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MalformedCluster(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise MalformedCluster(f"{path} is not JSON") from None
    try:
        return _expected(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MalformedCluster(f"{path} lacks or misstates a field: {error}") from None


def _expected(value: dict[str, Any]) -> Expected:
    nodes = tuple(
        ExpectedNode(
            str(n["name"]),
            str(n["host"]),
            str(n["interface"]),
            None if n["rdma"] is None else tuple(str(d) for d in n["rdma"]),
            int(n["gpus"]),
            {str(k): str(v) for k, v in n["environment"].items()},
        )
        for n in value["nodes"]
    )
    weight = value["weight_bytes"]
    return Expected(
        str(value["engine"]),
        str(value["image"]),
        str(value["model_path"]),
        nodes,
        int(value["ranks"]),
        {str(k): int(v) for k, v in value["ports"].items()},
        None if weight is None else int(weight),
        str(value.get("gpu", "")),
        str(value.get("configs", "")),
    )
