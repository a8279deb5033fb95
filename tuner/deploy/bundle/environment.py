"""The variables that each node's processes get: addresses, interfaces, RDMA devices.

What the cluster file says in its environment tables goes first, then what a preflight proposes
from captures, then what follows from the cluster file's other fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.deploy.cluster import Cluster, ClusterNode
from tuner.deploy.preflight import PreflightReport
from tuner.deploy.preflight.check_network import HOST_VARIABLES
from tuner.deploy.preflight.network import is_ip
from tuner.engines.sglang.fused_moe.loader_rules import CONFIG_DIR_VARIABLE as SGLANG_CONFIG_DIR
from tuner.engines.sglang.plugin.files import CONFIG_DIR_VARIABLE as ATTENTION_CONFIG_DIR
from tuner.engines.vllm.package import CONFIG_DIR_VARIABLE as VLLM_CONFIG_DIR
from tuner.errors import MalformedCluster

CONFIG_VARIABLES = {"sglang": SGLANG_CONFIG_DIR, "vllm": VLLM_CONFIG_DIR}


def folder_variables(cluster: Cluster, *, attention: bool) -> tuple[str, ...]:
    """The variables that name the config folder: to the engine, and to its attention plugin."""
    engine = CONFIG_VARIABLES[cluster.engine.name]
    return (engine, ATTENTION_CONFIG_DIR) if attention else (engine,)


def node_environments(
    cluster: Cluster, report: PreflightReport | None = None
) -> list[dict[str, str]]:
    """Each node's variables, in the cluster's order, but for the config folder's.

    Raises MalformedCluster where the cluster file sets what the launch sets itself.
    """
    own = folder_variables(cluster, attention=cluster.engine.name == "sglang")
    for where, variables in _tables(cluster):
        for name in own:
            if name in variables:
                raise MalformedCluster(
                    f"{where} holds {name}, which the bundle's scripts set themselves"
                )
    proposed = {node.name: node.environment for node in report.nodes} if report else {}
    return [
        _environment(cluster, node, proposed.get(node.name) or proposed.get(node.host) or {})
        for node in cluster.nodes
    ]


def _tables(cluster: Cluster) -> list[tuple[str, Mapping[str, str]]]:
    nodes = [(f"nodes[{i}].environment", n.environment) for i, n in enumerate(cluster.nodes)]
    return [("environment", cluster.environment), *nodes]


def _environment(
    cluster: Cluster, node: ClusterNode, proposed: Mapping[str, str]
) -> dict[str, str]:
    found: dict[str, str] = {}
    if node.interface:
        found["NCCL_SOCKET_IFNAME"] = node.interface
        found["GLOO_SOCKET_IFNAME"] = node.interface
    if node.rdma:
        # NCCL takes names for prefixes, so that mlx5_1 would bring mlx5_10 along, without the "=".
        found["NCCL_IB_HCA"] = "=" + ",".join(node.rdma)
    if is_ip(node.host):
        found.update(dict.fromkeys(HOST_VARIABLES[cluster.engine.name], node.host))
    merged = {**found, **proposed, **cluster.environment, **node.environment}
    return dict(sorted(merged.items()))


def differing(environments: Sequence[Mapping[str, str]]) -> list[str]:
    """Variables that are not the same on every node; host addresses, which never are, left out."""
    hosts = {name for names in HOST_VARIABLES.values() for name in names}
    names = sorted({name for variables in environments for name in variables} - hosts)
    return [n for n in names if len({variables.get(n) for variables in environments}) > 1]


def environment_notes(cluster: Cluster, environments: Sequence[Mapping[str, str]]) -> list[str]:
    """What an operator should know of the variables, one sentence each."""
    notes = []
    if len(cluster.nodes) > 1:
        for name in ("NCCL_IB_HCA", "NCCL_IB_GID_INDEX"):
            lacking = [
                node.name
                for node, variables in zip(cluster.nodes, environments, strict=True)
                if name not in variables and variables.get("NCCL_IB_DISABLE") != "1"
            ]
            if lacking:
                notes.append(
                    f"{name} is not set on {', '.join(lacking)}: capture the nodes and bundle "
                    "again with --node NAME=DIR, or set it in cluster.toml"
                )
    copied = [n for n in differing(environments) if n.startswith(("NCCL_", "UCX_"))]
    if cluster.engine.name == "vllm" and copied:
        notes.append(
            f"{', '.join(copied)} differ between nodes, and later vLLM releases copy the head's "
            "to all Ray workers: list them in ~/.config/vllm/ray_non_carry_over_env_vars.json"
        )
    return notes
