"""What the cluster file expects of its nodes, in a form that the single file can read."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tuner.errors import MalformedCluster


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

    def node(self, name: str) -> ExpectedNode | None:
        """The node of that name or host."""
        return next((n for n in self.nodes if name in (n.name, n.host)), None)

    def to_json(self) -> str:
        """The text that `read_expected` reads. Equal values give equal text."""
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
    )
