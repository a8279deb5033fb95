"""The whole cluster as a Kubernetes LeaderWorkerSet, with a Service on its leader.

Pods use the hosts' network, since the RDMA cards are the hosts', and read the bundle from there.
Their variables are the same on every node but for its address, which Kubernetes fills in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tuner.deploy.bundle.commands import Command, one_line, ray_head, ray_worker, sglang_command
from tuner.deploy.bundle.commands import vllm_command as serve
from tuner.deploy.bundle.environment import differing, folder_variables
from tuner.deploy.bundle.scripts import CONFIGS, HUB_CACHE, MOUNTED, is_folder, uses_rdma
from tuner.deploy.bundle.yamltext import yaml_text
from tuner.deploy.cluster import Cluster
from tuner.deploy.preflight.check_network import HOST_VARIABLES

API_VERSION = "leaderworkerset.x-k8s.io/v1"
NODE_LABEL = "engine-tuner/cluster"
# Filled in by the LeaderWorkerSet controller, before the container's own variables.
_LEADER, _SIZE, _INDEX = "$(LWS_LEADER_ADDRESS)", "$(LWS_GROUP_SIZE)", "$(LWS_WORKER_INDEX)"


def no_manifest_reason(cluster: Cluster, environments: Sequence[Mapping[str, str]]) -> str:
    """Why one pod template cannot serve all nodes; empty where it can."""
    if not cluster.engine.image:
        return "engine.image is not set"
    if len({node.gpus for node in cluster.nodes}) > 1:
        return "the nodes have different numbers of GPUs"
    names = differing(environments)
    return f"{', '.join(names)} differ between nodes" if names else ""


def lws_manifest(
    cluster: Cluster, environment: Mapping[str, str], folder: str, *, attention: bool = False
) -> str:
    """The lws_manifest; `folder` is where the bundle lies on every node.

    `environment` is any node's, since `no_manifest_reason` found no difference. `attention`: whether the
    bundle holds attention files.
    """
    name = object_name(cluster.name)
    places = dict.fromkeys(folder_variables(cluster, attention=attention), MOUNTED)
    variables = {**places, **environment}
    leader, worker = _commands(cluster)
    template = {
        "size": len(cluster.nodes),
        # Ranks that lost one of them cannot go on.
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
    return yaml_text(lws, service)


def object_name(name: str) -> str:
    """A name that Kubernetes takes for a Service: lower-case letters, digits and hyphens."""
    folded = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return (folded if folded[:1].isalpha() else f"c-{folded}")[:50].rstrip("-")


def _commands(cluster: Cluster) -> tuple[list[Command], list[Command]]:
    own_address = "$(VLLM_HOST_IP)"
    if cluster.engine.name == "sglang":
        escaped = _escaped(sglang_command(cluster, "\0leader", "\0size", "\0index"))
        return [escaped], [escaped]
    if len(cluster.nodes) == 1:
        return [_escaped(serve(cluster))], [_escaped(serve(cluster))]
    head = [ray_head(cluster, own_address), _escaped(serve(cluster))]
    return head, [ray_worker(cluster, _LEADER, cluster.nodes[0].gpus, own_address)]


def _escaped(command: Command) -> Command:
    """The controller's variables put in; the cluster file's words stay as they are."""
    places = {"\0leader": _LEADER, "\0size": _SIZE, "\0index": _INDEX}
    words = []
    for word in command:
        text = _literal(word)
        for place, variable in places.items():
            text = text.replace(place, variable)
        words.append(text)
    return tuple(words)


def _literal(text: str) -> str:
    """Text in which Kubernetes finds no variable of its own."""
    return text.replace("$", "$$")


def _pod(
    cluster: Cluster,
    environment: Mapping[str, str],
    commands: list[Command],
    folder: str,
    role: str,
) -> dict[str, Any]:
    gpus = str(cluster.nodes[0].gpus)
    container: dict[str, Any] = {
        "name": "engine",
        "image": cluster.engine.image,
        "command": list(one_line(commands)),
        "env": _variables(cluster, environment),
        "resources": {"limits": {"nvidia.com/gpu": gpus}},
        "volumeMounts": [
            {"name": "configs", "mountPath": MOUNTED, "readOnly": True},
            {
                "name": "model",
                "mountPath": _model_target(cluster),
                "readOnly": _reads_only(cluster),
            },
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - a mount, not a file
        ],
    }
    if uses_rdma(cluster, environment):
        # For /dev/infiniband; a cluster with an RDMA device plugin asks for its resource instead.
        container["securityContext"] = {"privileged": True}
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
                _host_folder("configs", f"{folder}/{CONFIGS}"),
                _host_folder("model", _model_source(cluster)),
                {"name": "shm", "emptyDir": {"medium": "Memory"}},
            ],
        },
    }


def _variables(cluster: Cluster, environment: Mapping[str, str]) -> list[dict[str, Any]]:
    hosts = HOST_VARIABLES[cluster.engine.name]
    own = [{"name": n, "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}} for n in hosts]
    return own + [
        {"name": name, "value": _literal(value)}
        for name, value in environment.items()
        if name not in hosts
    ]


def _model_source(cluster: Cluster) -> str:
    return cluster.model.path if is_folder(cluster.model.path) else "/var/cache/huggingface"


def _model_target(cluster: Cluster) -> str:
    return cluster.model.path if is_folder(cluster.model.path) else HUB_CACHE


def _reads_only(cluster: Cluster) -> bool:
    return is_folder(cluster.model.path)


def _host_folder(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "hostPath": {"path": path, "type": "Directory"}}
