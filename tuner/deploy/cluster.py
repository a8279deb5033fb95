"""Read a cluster from cluster.toml: its machines and the engine to run on them.

Every error names the field, and the nearest valid value if there is one.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.deploy.preflight.facts import Expected, ExpectedNode
from tuner.errors import MalformedCluster, did_you_mean
from tuner.files import Table, parse_toml, read_limited

# vLLM's requirements, and so its images, have no Ray from this release on.
RAY_UNTIL, RAY_UNTIL_NUMBERS = "0.19", (0, 19)
_VERSION = re.compile(r":v?([0-9]+\.[0-9]+\.[0-9]+(?:\.?(?:post|rc)[0-9]+)?)")


@dataclass(frozen=True)
class ClusterEngine:
    """The engine and how it is installed."""

    name: str  # sglang or vllm
    image: str  # container image; empty for a bare install
    version: str  # empty if the image's tag has it
    flags: tuple[str, ...]  # of the server; passed on unchanged
    ray_flags: tuple[str, ...] = ()  # of the head's `ray start`; passed on unchanged

    @property
    def release(self) -> str:
        """Return the engine's version: as given, else as the image's tag has it, else empty."""
        tag = _VERSION.search(self.image)
        return self.version or (tag.group(1) if tag else "")

    @property
    def spec(self) -> str:
        """Return the engine, with its version if it is known: sglang==0.5.16."""
        return f"{self.name}=={self.release}" if self.release else self.name


@dataclass(frozen=True)
class ServedModel:
    """The model that is served."""

    name: str  # the name that clients ask for
    path: str  # folder on every node, or a name on the hub
    container_path: str  # the same folder as a container sees it; a name on the hub stays
    context_length: int  # tokens
    weight_bytes: int | None  # of the whole model; None: not given
    config: Path | None = None  # its config.json on this machine; None: known by name


@dataclass(frozen=True)
class Parallel:
    """The sizes by which the model is spread over GPUs."""

    tp: int
    ep: int
    dp: int
    pp: int = 1  # stages, each with a part of the layers

    @property
    def ranks(self) -> int:
        """Return the number of ranks of a server that has a whole model."""
        return self.tp * self.pp


@dataclass(frozen=True)
class Ports:
    """TCP ports. `rendezvous` and `ray` are used on the head only."""

    serve: int
    rendezvous: int
    ray: int


@dataclass(frozen=True)
class ClusterNode:
    """A machine. The first machine is the head."""

    name: str
    host: str
    interface: str  # management interface; empty: the preflight finds it
    rdma: tuple[str, ...] | None  # RDMA devices; None: `auto`
    gpus: int
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Cluster:
    """The contents of a cluster.toml."""

    name: str
    engine: ClusterEngine
    model: ServedModel
    parallel: Parallel
    ports: Ports
    nodes: tuple[ClusterNode, ...]
    environment: Mapping[str, str]  # on every node; a node's own variables override these

    @property
    def gpus(self) -> int:
        return sum(node.gpus for node in self.nodes)

    @property
    def ray_is_there(self) -> bool:
        """Say whether images of the engine's release have Ray. Without a release, the newest
        counts.
        """
        name, release = self.engine.name, self.engine.release
        numbers = tuple(map(int, release.split(".")[:2])) if release else RAY_UNTIL_NUMBERS
        return name == "vllm" and numbers < RAY_UNTIL_NUMBERS

    @property
    def starts_ray(self) -> bool:
        """Say whether Ray starts the ranks: of vLLM on several nodes, if Ray is there or asked
        for.
        """
        flags = self.engine.flags
        asked = "--distributed-executor-backend=ray" in flags or any(
            pair == ("--distributed-executor-backend", "ray")
            for pair in zip(flags, flags[1:], strict=False)
        )
        several = self.engine.name == "vllm" and len(self.nodes) > 1
        return several and bool(asked or self.engine.ray_flags or self.ray_is_there)

    def in_container(self) -> Cluster:
        """Return the cluster as a container sees it: the model's folder may have another path
        there.
        """
        return replace(self, model=replace(self.model, path=self.model.container_path))

    def expected(self, gpu: str = "", configs: str = "") -> Expected:
        """Return the values against which the preflight checks the nodes.

        `gpu`: the card's name in names of config files. `configs`: the hash of the config folder.
        """
        ports = {"serve": self.ports.serve, "rendezvous": self.ports.rendezvous}
        if self.starts_ray:
            ports["ray"] = self.ports.ray
        nodes = tuple(
            ExpectedNode(
                n.name, n.host, n.interface, n.rdma, n.gpus, {**self.environment, **n.environment}
            )
            for n in self.nodes
        )
        return Expected(
            self.engine.name,
            self.engine.image,
            self.model.path,
            nodes,
            # A replica holds a whole model, and data-parallel attention keeps tp over all ranks.
            self.parallel.ranks,
            ports,
            self.model.weight_bytes,
            gpu,
            configs,
        )


ENGINES = ("sglang", "vllm")
GIB = 2**30
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_INTERFACE = re.compile(r"[A-Za-z0-9_.@-]{1,15}")  # the kernel's IFNAMSIZ, less the closing zero
_RDMA_DEVICE = re.compile(r"[A-Za-z0-9_.-]{1,63}")
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._:/@-]{0,254}")
# Flags that a launch derives from fields of the file, and the field to set instead.
RESERVED_FLAGS: dict[str, str] = {
    **dict.fromkeys(("--model", "--model-path"), "model.path"),
    "--served-model-name": "model.name",
    **dict.fromkeys(("--context-length", "--max-model-len"), "model.context_length"),
    **dict.fromkeys(("--tp", "-tp", "--tp-size", "--tensor-parallel-size"), "parallel.tp"),
    **dict.fromkeys(("--ep", "--ep-size", "--expert-parallel-size"), "parallel.ep"),
    **dict.fromkeys(("--dp", "-dp", "--dp-size", "--data-parallel-size"), "parallel.dp"),
    **dict.fromkeys(("-pp", "--pp-size", "--pipeline-parallel-size"), "parallel.pp"),
    "--port": "ports.serve",
    "--dist-init-addr": "ports.rendezvous",
    **dict.fromkeys(("--nnodes", "--node-rank", "--host", "--master-addr", "--headless"), "nodes"),
    "--master-port": "ports.rendezvous",
}
_RAY_FLAGS = {
    "--port": "ports.ray",
    "--num-gpus": "nodes.gpus",
    **dict.fromkeys(("--node-ip-address", "--address"), "nodes.host"),
}


def read_cluster(path: Path) -> Cluster:
    """Read a cluster.toml. Relative paths in it start at its folder. Raises MalformedCluster."""
    text = read_limited(path, 1 << 20, "cluster.toml", MalformedCluster)
    cluster = parse_cluster(text, str(path))
    config = cluster.model.config
    if config is None:
        return cluster
    return replace(cluster, model=replace(cluster.model, config=path.parent / config))


def parse_cluster(text: str | bytes, source: str = "cluster.toml") -> Cluster:
    """Read the text of a cluster.toml. Raises MalformedCluster."""
    value = parse_toml(text, source, MalformedCluster)
    try:
        return _cluster(Table(value, "", MalformedCluster))
    except MalformedCluster as error:
        raise MalformedCluster(f"{source}: {error}") from None


def _cluster(table: Table) -> Cluster:
    cluster = Cluster(
        table.text("name", _NAME),
        _engine(table.table("engine")),
        _model(table.table("model")),
        _parallel(table.table("parallel")),
        _ports(table.table("ports", {})),
        _nodes(table),
        table.variables("environment"),
    )
    table.done()
    _check_ranks(cluster)
    return cluster


def _engine(table: Table) -> ClusterEngine:
    name = table.text("name", None)
    if name not in ENGINES:
        near = did_you_mean(name, ENGINES)
        raise MalformedCluster(f"engine.name must be sglang or vllm, not {name!r}{near}")
    image = table.text("image", _IMAGE, "")
    version = table.text("version", re.compile(r"[0-9][A-Za-z0-9.+-]*"), "")
    flags = table.strings("flags", ())
    ray_flags = table.strings("ray_flags", ())
    table.done()
    if ray_flags and name != "vllm":
        raise MalformedCluster("engine.ray_flags are for vllm: sglang starts no Ray")
    for flag in flags:
        field = reserved_field(flag)
        if field:
            raise MalformedCluster(f"engine.flags holds {flag}: set {field} instead")
    for flag in ray_flags:
        if of_ray := _RAY_FLAGS.get(flag.partition("=")[0]):
            raise MalformedCluster(f"engine.ray_flags holds {flag}: set {of_ray} instead")
    return ClusterEngine(name, image, version, tuple(flags), tuple(ray_flags))


def reserved_field(flag: str) -> str:
    """Return the field to set instead of a flag, or an empty string.

    argparse also takes the beginning of a flag, and vLLM takes underscores for hyphens.
    """
    name = flag.partition("=")[0].replace("_", "-")
    if name in RESERVED_FLAGS or not re.fullmatch(r"--[a-z-]{2,}", name):
        return RESERVED_FLAGS.get(name, "")
    return next((field for full, field in RESERVED_FLAGS.items() if full.startswith(name)), "")


def _model(table: Table) -> ServedModel:
    path = table.text("path", None)
    if path.startswith((".", "~")):
        raise MalformedCluster(
            f"model.path {path!r} is relative: write the folder's whole path on the nodes, which "
            "begins with /, or a name on the hub"
        )
    name = table.text("name", None, path.rstrip("/").rpartition("/")[2] or path)
    inside = table.text("container_path", None, path)
    if inside != path and not (inside.startswith("/") and path.startswith("/")):
        raise MalformedCluster(
            f"model.container_path is for a folder on the nodes: {path!r} and {inside!r} must both "
            "start with /"
        )
    config = table.text("config", None, "")
    context = table.whole("context_length", 1, 2**24)
    gib = table.take("weight_gib", 0)
    if isinstance(gib, bool) or not isinstance(gib, int | float) or not 0 <= gib < 2**20:
        raise MalformedCluster(f"model.weight_gib must be a number of GiB, not {gib!r}")
    table.done()
    weights = int(gib * GIB) or None
    return ServedModel(name, path, inside, context, weights, Path(config) if config else None)


def _parallel(table: Table) -> Parallel:
    parallel = Parallel(
        table.whole("tp", 1, 4096),
        *(table.whole(size, 1, 4096, 1) for size in ("ep", "dp", "pp")),
    )
    table.done()
    if parallel.tp % parallel.ep:
        divisors = [d for d in range(1, parallel.tp + 1) if parallel.tp % d == 0]
        nearest = min(divisors, key=lambda d: abs(d - parallel.ep))
        raise MalformedCluster(
            f"parallel.ep must divide tp={parallel.tp}, not {parallel.ep}; nearest is {nearest}"
        )
    return parallel


def _ports(table: Table) -> Ports:
    ports = Ports(
        table.whole("serve", 1, 65535, 30000),
        table.whole("rendezvous", 1, 65535, 5000),
        table.whole("ray", 1, 65535, 6379),
    )
    table.done()
    if len({ports.serve, ports.rendezvous, ports.ray}) < 3:
        raise MalformedCluster(
            f"ports must differ: serve {ports.serve}, rendezvous {ports.rendezvous}, "
            f"ray {ports.ray}"
        )
    return ports


def _nodes(table: Table) -> tuple[ClusterNode, ...]:
    value = table.take("nodes")
    if not isinstance(value, list) or not value:
        raise MalformedCluster("nodes must be a list of tables: write [[nodes]] before each")
    nodes = tuple(_node(Table(v, f"nodes[{i}]", MalformedCluster), i) for i, v in enumerate(value))
    for field in ("name", "host"):
        seen: dict[str, int] = {}
        for i, node in enumerate(nodes):
            first = seen.setdefault(getattr(node, field), i)
            if first != i:
                raise MalformedCluster(
                    f"nodes[{i}].{field} is {getattr(node, field)!r}, as nodes[{first}].{field} is"
                )
    return nodes


def _node(table: Table, rank: int) -> ClusterNode:
    host = table.text("host", None)
    if not _is_host(host):
        raise MalformedCluster(f"{table.field('host')} is no address or host name: {host!r}")
    node = ClusterNode(
        table.text("name", _NAME, f"node{rank + 1:02d}"),
        host,
        table.text("interface", _INTERFACE, ""),
        _rdma(table),
        table.whole("gpus", 1, 64, 8),
        table.variables("environment"),
    )
    table.done()
    return node


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        # Only digits and dots are a mistyped address, not a name.
        return bool(_HOST.fullmatch(text)) and not re.fullmatch(r"[0-9.]+", text)
    return True


def _rdma(table: Table) -> tuple[str, ...] | None:
    value = table.values.get("rdma", "auto")
    if isinstance(value, str):
        table.take("rdma", "auto")
        if value != "auto":
            near = did_you_mean(value, ["auto"]) or f'; write ["{value}"] for one device'
            raise MalformedCluster(
                f'{table.field("rdma")} must be "auto" or a list of devices, not {value!r}{near}'
            )
        return None
    devices = table.strings("rdma", ())
    for device in devices:
        if not _RDMA_DEVICE.fullmatch(device):
            raise MalformedCluster(f"{table.field('rdma')} holds {device!r}, no RDMA device's name")
    if not devices or len(set(devices)) < len(devices):
        raise MalformedCluster(f"{table.field('rdma')} must name at least one device, each once")
    return tuple(devices)


def _check_ranks(cluster: Cluster) -> None:
    """Check that tp * pp uses every GPU, or tp * pp * dp if the GPUs are divided among dp
    replicas.
    """
    tp, dp, pp = cluster.parallel.tp, cluster.parallel.dp, cluster.parallel.pp
    gpus, uneven = divmod(cluster.gpus, pp)
    if uneven:
        raise MalformedCluster(f"parallel.pp={pp} does not divide the {cluster.gpus} GPUs")
    if tp == gpus and tp % dp == 0:
        return
    if tp * dp == gpus:
        return
    if tp == gpus:
        nearest = min((d for d in range(1, tp + 1) if tp % d == 0), key=lambda d: abs(d - dp))
        raise MalformedCluster(f"parallel.dp must divide tp={tp}, not {dp}; nearest is {nearest}")
    choices = [gpus] + ([gpus // dp] if gpus % dp == 0 else [])
    nearest = min(choices, key=lambda c: abs(c - tp))
    raise MalformedCluster(
        f"parallel.tp={tp} with dp={dp} and pp={pp} does not fill the {cluster.gpus} GPUs of "
        f"{len(cluster.nodes)} nodes; nearest is {nearest}"
    )
