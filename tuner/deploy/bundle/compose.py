"""The compose file of a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.deploy.bundle.commands import Command, one_line
from tuner.deploy.bundle.manifest import CONFIGS
from tuner.deploy.bundle.scripts import (
    HUB_CACHE,
    MOUNTED,
    container_name,
    container_variables,
    is_folder,
    uses_rdma,
)
from tuner.deploy.bundle.yamltext import without_variables, yaml_text
from tuner.deploy.cluster import Cluster

_GPUS = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


def compose_file(
    cluster: Cluster,
    rank: int,
    environment: Mapping[str, str],
    commands: list[Command],
    *,
    pointers: Sequence[str],
) -> str:
    """compose.yaml of one node, which starts the same container as the node's docker script."""
    program, *arguments = one_line(commands)
    variables = container_variables(environment, pointers)
    service: dict[str, Any] = {
        "image": without_variables(cluster.engine.image),
        "container_name": container_name(cluster, rank),
        "init": True,
        "network_mode": "host",
        "ipc": "host",
        "cap_add": ["IPC_LOCK"],
        "ulimits": {"memlock": -1, "stack": 67108864, "nofile": 1048576},
        "environment": {name: without_variables(value) for name, value in variables.items()},
        "volumes": [_mount(f"../../{CONFIGS}", MOUNTED), *_model_mounts(cluster)],
        "entrypoint": [without_variables(program)],
        "command": [without_variables(word) for word in arguments],
        "deploy": {"resources": {"reservations": {"devices": [_GPUS]}}},
    }
    if uses_rdma(cluster, environment):
        service["devices"] = ["/dev/infiniband:/dev/infiniband"]
    if not is_folder(cluster.model.path):
        service["environment"]["HF_TOKEN"] = "${HF_TOKEN-}"  # noqa: S105 - its name
    return yaml_text({"services": {"engine": service}})


def _model_mounts(cluster: Cluster) -> list[dict[str, Any]]:
    path, inside = cluster.model.path, cluster.model.container_path
    if is_folder(path):
        return [_mount(without_variables(path), without_variables(inside))]
    cache = _mount("${HF_HOME:-${HOME}/.cache/huggingface}", HUB_CACHE)
    return [{**cache, "read_only": False}]


def _mount(source: str, target: str) -> dict[str, Any]:
    return {"type": "bind", "source": source, "target": target, "read_only": True}
