"""Describe the cluster as a Kubernetes LeaderWorkerSet, with a Service on its leader.

Pods use the host's network and RDMA cards, and read the bundle from a folder of the host. Their
variables are the same on every node, except for the node's address, which Kubernetes fills in. The
manifest is JSON, which `kubectl apply` reads as it reads YAML: then no text of the cluster file can
be taken for a number or for syntax, and no package that writes YAML is needed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tuner.deploy.bundle.commands import (
    Command,
    differing,
    one_line,
    ray_head,
    ray_worker,
    sglang_command,
    uses_rdma,
    vllm_command,
)
from tuner.deploy.bundle.manifest import CONFIGS
from tuner.deploy.bundle.scripts import HUB_CACHE, MOUNTED, is_folder
from tuner.deploy.cluster import Cluster
from tuner.deploy.preflight.check_network import HOST_VARIABLES

API_VERSION = "leaderworkerset.x-k8s.io/v1"
NODE_LABEL = "engine-tuner/cluster"
# The LeaderWorkerSet controller sets these variables.
_LEADER, _SIZE, _INDEX = "$(LWS_LEADER_ADDRESS)", "$(LWS_GROUP_SIZE)", "$(LWS_WORKER_INDEX)"


def no_manifest_reason(cluster: Cluster, environments: Sequence[Mapping[str, str]]) -> str:
    """Return the reason why the same pod template cannot serve all nodes; empty if it can."""
    if not cluster.engine.image:
        return "engine.image is not set"
    if len({node.gpus for node in cluster.nodes}) > 1:
        return "the nodes have different numbers of GPUs"
    names = differing(environments)
    return f"{', '.join(names)} differ between nodes" if names else ""


def lws_manifest(
    cluster: Cluster, environment: Mapping[str, str], folder: str, *, pointers: Sequence[str]
) -> str:
    """Return the manifest; `folder` is the bundle's path on every node.

    Any node's `environment` will do, because `no_manifest_reason` found no difference.
    `pointers`: the variables that point at the config folder.
    """
    name = object_name(cluster.name)
    variables = {**dict.fromkeys(pointers, MOUNTED), **environment}
    leader, worker = _commands(cluster)
    template = {
        "size": len(cluster.nodes),
        # When a rank is lost, the others cannot go on.
        "restartPolicy": "RecreateGroupOnPodRestart",
        "leaderTemplate": _pod(cluster, variables, leader, folder, "leader"),
        "workerTemplate": _pod(cluster, variables, worker, folder, "worker"),
    }
    lws = {
        "apiVersion": API_VERSION,
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name},
        "spec": {"replicas": 1, "leaderWorkerTemplate": template},
    }
    port = cluster.ports.serve
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": f"{name}-serve"},
        "spec": {
            "selector": {"leaderworkerset.sigs.k8s.io/name": name, "role": "leader"},
            "ports": [{"name": "http", "protocol": "TCP", "port": port, "targetPort": port}],
        },
    }
    both = {"apiVersion": "v1", "kind": "List", "items": [lws, service]}
    return json.dumps(both, indent=2, ensure_ascii=False) + "\n"


def without_variables(text: str) -> str:
    """Escape text so that Kubernetes finds no variable in it."""
    return text.replace("$", "$$")


def object_name(name: str) -> str:
    """Return a valid name of a Kubernetes Service: lower-case letters, digits and hyphens."""
    folded = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return (folded if folded[:1].isalpha() else f"c-{folded}")[:50].rstrip("-")


def _commands(cluster: Cluster) -> tuple[list[Command], list[Command]]:
    """Return (the leader's commands, a worker's commands)."""
    cluster = cluster.in_container()
    if cluster.engine.name == "sglang":
        escaped = _escaped(sglang_command(cluster, "\0leader", "\0size", "\0index"))
        return [escaped], [escaped]
    serve = _escaped(vllm_command(cluster, "\0leader", "\0size", "0"))
    if not cluster.starts_ray:
        worker = vllm_command(cluster, "\0leader", "\0size", "\0index", worker=True)
        return [serve], [_escaped(worker)]
    address = "$(VLLM_HOST_IP)"
    worker = ray_worker(cluster, _LEADER, cluster.nodes[0].gpus, address)
    return [ray_head(cluster, address), serve], [worker]


def _escaped(command: Command) -> Command:
    """Escape the words of the cluster file, and put the controller's variables in."""
    placeholders = {"\0leader": _LEADER, "\0size": _SIZE, "\0index": _INDEX}
    words = []
    for word in command:
        text = without_variables(word)
        for placeholder, variable in placeholders.items():
            text = text.replace(placeholder, variable)
        words.append(text)
    return tuple(words)


def _pod(
    cluster: Cluster,
    environment: Mapping[str, str],
    commands: list[Command],
    folder: str,
    role: str,
) -> dict[str, Any]:
    path = cluster.model.path
    model_folder = path if is_folder(path) else "/var/cache/huggingface"
    configs = MOUNTED in environment.values()  # else there is no tuned file
    container = _container(cluster, environment, commands)
    if not configs:
        del container["volumeMounts"][0]
    if role == "leader":
        port = cluster.ports.serve
        container["ports"] = [{"containerPort": port, "protocol": "TCP"}]
        container["readinessProbe"] = {"tcpSocket": {"port": port}, "periodSeconds": 10}
    return {
        "metadata": {"labels": {"role": role}},
        "spec": {
            "hostNetwork": True,
            "dnsPolicy": "ClusterFirstWithHostNet",
            "nodeSelector": {NODE_LABEL: object_name(cluster.name)},
            "containers": [container],
            "volumes": [
                *([_host_folder("configs", f"{folder}/{CONFIGS}")] if configs else []),
                _host_folder("model", model_folder),
                {"name": "shm", "emptyDir": {"medium": "Memory"}},
            ],
        },
    }


def _container(
    cluster: Cluster, environment: Mapping[str, str], commands: list[Command]
) -> dict[str, Any]:
    path = cluster.model.path
    container: dict[str, Any] = {
        "name": "engine",
        "image": cluster.engine.image,
        "command": list(one_line(commands)),
        "env": _variables(cluster, environment),
        "resources": {"limits": {"nvidia.com/gpu": str(cluster.nodes[0].gpus)}},
        "volumeMounts": [
            {"name": "configs", "mountPath": MOUNTED, "readOnly": True},
            {
                "name": "model",
                "mountPath": cluster.model.container_path if is_folder(path) else HUB_CACHE,
                "readOnly": is_folder(path),  # the hub's cache is written to
            },
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - a mount, not a file
        ],
    }
    if uses_rdma(cluster, environment):
        # For /dev/infiniband. With an RDMA device plugin, ask for its resource instead.
        container["securityContext"] = {"privileged": True}
    return container


def _variables(cluster: Cluster, environment: Mapping[str, str]) -> list[dict[str, Any]]:
    hosts = HOST_VARIABLES[cluster.engine.name]
    host_ip = {"valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}
    token = {"secretKeyRef": {"name": "hf-token", "key": "HF_TOKEN", "optional": True}}
    hub = [{"name": "HF_TOKEN", "valueFrom": token}] if not is_folder(cluster.model.path) else []
    return [*hub, *({"name": name, **host_ip} for name in hosts)] + [
        {"name": name, "value": without_variables(value)}
        for name, value in environment.items()
        if name not in hosts
    ]


def _host_folder(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "hostPath": {"path": path, "type": "Directory"}}
