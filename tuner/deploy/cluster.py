"""A cluster: its machines and what to run on them, as cluster.toml describes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.deploy.preflight.expected import Expected, ExpectedNode

_VERSION = re.compile(r":v?([0-9]+\.[0-9]+\.[0-9]+(?:\.?(?:post|rc)[0-9]+)?)")


@dataclass(frozen=True)
class ClusterEngine:
    """The engine and how it is installed."""

    name: str  # sglang or vllm
    image: str  # container image; empty for a bare install
    version: str  # empty where the image's tag has it
    flags: tuple[str, ...]  # of the server; passed on unchanged
    ray_flags: tuple[str, ...] = ()  # of the head's `ray start`; passed on unchanged

    @property
    def release(self) -> str:
        """The engine's version: as given, else as the image's tag has it, else empty."""
        tag = _VERSION.search(self.image)
        return self.version or (tag.group(1) if tag else "")

    @property
    def spec(self) -> str:
        """The engine, with its version if it is known: sglang==0.5.16."""
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
    """How the model is spread over GPUs."""

    tp: int
    ep: int
    dp: int


@dataclass(frozen=True)
class Ports:
    """TCP ports. `rendezvous` and `ray` are used on the head only."""

    serve: int
    rendezvous: int
    ray: int


@dataclass(frozen=True)
class ClusterNode:
    """A machine. The first one is the head."""

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

    def in_container(self) -> Cluster:
        """The cluster as a container sees it: the model's folder may have another path there."""
        return replace(self, model=replace(self.model, path=self.model.container_path))

    def expected(self) -> Expected:
        """What the preflight checks the nodes against."""
        ports = {"serve": self.ports.serve, "rendezvous": self.ports.rendezvous}
        if self.engine.name == "vllm":
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
            # Weights are spread over tp ranks: a replica holds a whole model, and data-parallel
            # attention keeps tp over all ranks.
            self.parallel.tp,
            ports,
            self.model.weight_bytes,
        )
