"""The environment variables of each node's processes: addresses, interfaces, RDMA devices.

The environment tables of the cluster file override what a preflight proposes, and that overrides
what follows from other fields of the cluster file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.deploy.cluster import Cluster, ClusterNode
from tuner.deploy.preflight import PreflightReport
from tuner.deploy.preflight.check_network import HOST_VARIABLES, INTERFACE_VARIABLES
from tuner.deploy.preflight.network import is_ip
from tuner.engines.config_variables import all_config_variables
from tuner.engines.sglang.plugin.files import CONFIG_DIR_VARIABLE as ATTENTION_CONFIG_DIR
from tuner.errors import MalformedCluster


def has_attention(pointers: Sequence[str]) -> bool:
    """Whether the variables that point at the config folder tell of attention files there."""
    return ATTENTION_CONFIG_DIR in pointers


def node_environments(
    cluster: Cluster, report: PreflightReport | None = None
) -> list[dict[str, str]]:
    """The variables of each node, in the cluster's order, without those of the config folder.

    Raises MalformedCluster where the cluster file sets a variable of the config folder.
    """
    reserved = all_config_variables(cluster.engine.name)
    tables = {f"nodes[{i}].environment": n.environment for i, n in enumerate(cluster.nodes)}
    for where, variables in {"environment": cluster.environment, **tables}.items():
        for name in reserved:
            if name in variables:
                raise MalformedCluster(
                    f"{where} holds {name}, which the bundle's scripts set themselves"
                )
    proposed = {node.name: node.environment for node in report.nodes} if report else {}
    return [
        _environment(cluster, node, proposed.get(node.name) or proposed.get(node.host) or {})
        for node in cluster.nodes
    ]


def _environment(
    cluster: Cluster, node: ClusterNode, proposed: Mapping[str, str]
) -> dict[str, str]:
    found: dict[str, str] = {}
    if len(cluster.nodes) > 1:
        found["NCCL_DEBUG"] = "INFO"
    if node.interface:
        found.update(dict.fromkeys(INTERFACE_VARIABLES, node.interface))
    if node.rdma:
        # "=" makes NCCL match whole names; without it mlx5_1 also matches mlx5_10.
        found["NCCL_IB_HCA"] = "=" + ",".join(node.rdma)
    if is_ip(node.host):
        found.update(dict.fromkeys(HOST_VARIABLES[cluster.engine.name], node.host))
    merged = {**found, **proposed, **cluster.environment, **node.environment}
    return dict(sorted(merged.items()))


def differing(environments: Sequence[Mapping[str, str]]) -> list[str]:
    """Variables that differ between nodes, without host addresses, which always differ."""
    hosts = {name for names in HOST_VARIABLES.values() for name in names}
    names = sorted({name for variables in environments for name in variables} - hosts)
    return [n for n in names if len({variables.get(n) for variables in environments}) > 1]


def environment_notes(cluster: Cluster, environments: Sequence[Mapping[str, str]]) -> list[str]:
    """Notes about the variables for the operator, one sentence each."""
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
                    f"{name} is not set on {', '.join(lacking)}: set it in "
                    "cluster.toml, or capture the nodes for `tuner bundle --node NAME=DIR`"
                )
    copied = [n for n in differing(environments) if n.startswith(("NCCL_", "UCX_"))]
    if cluster.engine.name == "vllm" and copied:
        notes.append(
            f"{', '.join(copied)} differ between nodes, and later vLLM releases copy the head's "
            "to all Ray workers: list them in ~/.config/vllm/ray_non_carry_over_env_vars.json"
        )
    return notes
