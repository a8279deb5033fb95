"""Build the commands and the variables with which the engine is started on each node.

The environment tables of the cluster file override a preflight's proposals, and the proposals
override the variables that follow from other fields of the cluster file.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from tuner.bindings.sglang.plugin.files import CONFIG_DIR_VARIABLE as ATTENTION_CONFIG_DIR
from tuner.deploy.cluster import RAY_UNTIL, Cluster, ClusterNode
from tuner.deploy.preflight import PreflightResult
from tuner.deploy.preflight.check_network import HOST_VARIABLES, INTERFACE_VARIABLES
from tuner.deploy.preflight.network import is_ip
from tuner.engines.settings import all_config_variables
from tuner.errors import MalformedCluster

Command = tuple[str, ...]
CARRY_OVER = "ray_non_carry_over_env_vars.json"


def node_commands(cluster: Cluster, rank: int, environment: Mapping[str, str]) -> list[Command]:
    """Return the commands of a node, in order; the last runs until the engine stops.

    Raises MalformedCluster if the engine cannot spread the model as the cluster file says.
    """
    head, nodes = cluster.nodes[0].host, str(len(cluster.nodes))
    if cluster.engine.name == "sglang":
        return [sglang_command(cluster, head, nodes, str(rank))]
    if not cluster.starts_ray:
        return [vllm_command(cluster, head, nodes, str(rank), worker=rank > 0)]
    address = environment.get("VLLM_HOST_IP", "")
    if rank:
        return [ray_worker(cluster, head, cluster.nodes[rank].gpus, address)]
    return [ray_head(cluster, address), vllm_command(cluster, head, nodes, "0")]


def sglang_command(cluster: Cluster, head: str, nodes: str, rank: str) -> Command:
    """Return the command of sglang's server on a node."""
    parallel, several = cluster.parallel, len(cluster.nodes) > 1
    words = ["python3", "-m", "sglang.launch_server"]
    words += ["--model-path", cluster.model.path, "--served-model-name", cluster.model.name]
    words += ["--context-length", str(cluster.model.context_length)]
    words += ["--tp-size", str(parallel.tp)]
    if parallel.ep > 1:
        words += ["--ep-size", str(parallel.ep)]
    if parallel.pp > 1:
        words += ["--pp-size", str(parallel.pp)]
    if parallel.dp > 1:
        words += ["--dp-size", str(parallel.dp), *_attention_over_dp(cluster)]
    if several:
        words += ["--dist-init-addr", endpoint(head, cluster.ports.rendezvous)]
        words += ["--nnodes", nodes, "--node-rank", rank]
    words += ["--host", any_address(cluster), "--port", str(cluster.ports.serve)]
    return (*words, *cluster.engine.flags)


def any_address(cluster: Cluster) -> str:
    """Return the address on which a server listens to serve others: all addresses of the head's
    kind.
    """
    return "::" if ":" in cluster.nodes[0].host else "0.0.0.0"  # noqa: S104


def _attention_over_dp(cluster: Cluster) -> list[str]:
    replicas = cluster.parallel.ranks * cluster.parallel.dp == cluster.gpus
    if replicas and len(cluster.nodes) > 1:
        raise MalformedCluster(
            f"parallel.dp={cluster.parallel.dp}: sglang runs no replicas over several nodes; write "
            f"a cluster file for each, or tp={cluster.gpus} for data-parallel attention"
        )
    flag = "--enable-dp-attention"
    return [] if replicas or flag in cluster.engine.flags else [flag]


def vllm_command(
    cluster: Cluster, head: str, nodes: str, rank: str, *, worker: bool = False
) -> Command:
    """Return the command of vLLM's server. With Ray, the head's server starts its ranks on all
    nodes; without, each node has its own server, and workers' servers serve no requests.
    """
    parallel, several = cluster.parallel, len(cluster.nodes) > 1
    if parallel.dp > 1 and (several or parallel.ranks * parallel.dp != cluster.gpus):
        raise MalformedCluster(
            f"parallel.dp={parallel.dp}: with vLLM, replicas must fit one node; use dp=1"
        )
    if parallel.ep not in (1, parallel.tp):
        raise MalformedCluster(
            f"parallel.ep={parallel.ep}: vLLM spreads experts over all ranks or none; "
            f"nearest is {parallel.tp}"
        )
    words = ["vllm", "serve", cluster.model.path, "--served-model-name", cluster.model.name]
    words += ["--max-model-len", str(cluster.model.context_length)]
    words += ["--tensor-parallel-size", str(parallel.tp)]
    if parallel.pp > 1:
        words += ["--pipeline-parallel-size", str(parallel.pp)]
    if parallel.ep > 1:
        words.append("--enable-expert-parallel")
    if parallel.dp > 1:
        words += ["--data-parallel-size", str(parallel.dp)]
    flag = "--distributed-executor-backend"
    if cluster.starts_ray and not any(f.partition("=")[0] == flag for f in cluster.engine.flags):
        words += [flag, "ray"]
    if several and not cluster.starts_ray:
        if len({node.gpus for node in cluster.nodes}) > 1:
            raise MalformedCluster(
                "nodes.gpus differ: vLLM divides its ranks evenly over nodes, unless Ray starts "
                f"them: put {flag} ray into engine.flags, and Ray into the image"
            )
        words += ["--nnodes", nodes, "--node-rank", rank]
        words += ["--master-addr", head, "--master-port", str(cluster.ports.rendezvous)]
    if worker:
        words.append("--headless")
    else:
        words += ["--host", any_address(cluster), "--port", str(cluster.ports.serve)]
    return (*words, *cluster.engine.flags)


def ray_head(cluster: Cluster, address: str) -> Command:
    """Return the command of Ray's head. It returns at once; vLLM then waits for the workers'
    GPUs.
    """
    words = ["ray", "start", "--head", "--port", str(cluster.ports.ray)]
    words += _ray_node(cluster.nodes[0].gpus, address)
    return (*words, "--disable-usage-stats", *cluster.engine.ray_flags)


def ray_worker(cluster: Cluster, head: str, gpus: int, address: str) -> Command:
    """Return the command of a Ray worker, which joins the head and runs until it is stopped."""
    words = ["ray", "start", "--address", endpoint(head, cluster.ports.ray)]
    return (*words, *_ray_node(gpus, address), "--block")


def _ray_node(gpus: int, address: str) -> list[str]:
    node_address = ["--node-ip-address", address] if address else []
    return [*node_address, "--num-gpus", str(gpus)]


def endpoint(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def one_line(commands: list[Command]) -> Command:
    """Join commands into a bash command; the last command replaces bash."""
    if len(commands) == 1:
        return commands[0]
    first = " && ".join(shlex.join(command) for command in commands[:-1])
    return ("/bin/bash", "-c", f"{first} && exec {shlex.join(commands[-1])}")


def has_attention(pointers: Sequence[str]) -> bool:
    """Say whether the variables that point at the config folder tell of attention files there."""
    return ATTENTION_CONFIG_DIR in pointers


def node_environments(
    cluster: Cluster, preflight: PreflightResult | None = None
) -> list[dict[str, str]]:
    """Return the variables of each node, in the cluster's order, without the config folder's
    variables.

    Raises MalformedCluster if the cluster file sets a variable of the config folder.
    """
    reserved = all_config_variables(cluster.engine.name)
    tables = {f"nodes[{i}].environment": n.environment for i, n in enumerate(cluster.nodes)}
    for where, variables in {"environment": cluster.environment, **tables}.items():
        for name in reserved:
            if name in variables:
                raise MalformedCluster(
                    f"{where} holds {name}, which the bundle's scripts set themselves"
                )
    proposed = {node.name: node.environment for node in preflight.nodes} if preflight else {}
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
    """Return the variables that differ between nodes, without host addresses, which always
    differ.
    """
    hosts = {name for names in HOST_VARIABLES.values() for name in names}
    names = sorted({name for variables in environments for name in variables} - hosts)
    return [n for n in names if len({variables.get(n) for variables in environments}) > 1]


def environment_notes(
    cluster: Cluster,
    environments: Sequence[Mapping[str, str]],
    preflight: PreflightResult | None = None,
) -> Iterator[str]:
    """Yield notes about the variables for the operator, a sentence each."""
    if len(cluster.nodes) == 1:
        return
    captured = {node.name for node in preflight.nodes} if preflight else set()
    nodes = [
        (node.name, variables)
        for node, variables in zip(cluster.nodes, environments, strict=True)
        if captured.isdisjoint((node.name, node.host))
    ]
    over_rdma = [one for one in nodes if uses_rdma(cluster, one[1])]
    asked = {"NCCL_IB_HCA": over_rdma, "NCCL_IB_GID_INDEX": over_rdma, "GLOO_SOCKET_IFNAME": nodes}
    for name, those in asked.items():
        if lacking := [node for node, variables in those if name not in variables]:
            yield (
                f"{name} is not set on {', '.join(lacking)}: set it in "
                "cluster.toml, or capture the nodes for `tuner bundle --node NAME=DIR`"
            )
    if not any(uses_rdma(cluster, variables) for variables in environments):
        yield "NCCL_IB_DISABLE=1: traffic between nodes goes over TCP sockets, without RDMA"
    if copied := not_carried_over(cluster, environments):
        yield (
            f"{', '.join(copied)} differ between nodes, and vLLM copies the head's to all Ray "
            f"workers unless {CARRY_OVER} names them: docker.sh mounts the bundle's; for bare.sh "
            "copy it to ~/.config/vllm/ on the head"
        )
    if cluster.starts_ray and not cluster.ray_is_there:
        yield (
            f"vLLM's images have no Ray from {RAY_UNTIL} on: engine.image must hold it, or "
            "leave engine.ray_flags and --distributed-executor-backend ray out"
        )


def not_carried_over(cluster: Cluster, environments: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the variables of a head that vLLM would copy to Ray workers whose own differ."""
    names = [n for n in differing(environments) if n.startswith(("NCCL_", "UCX_"))]
    return names if cluster.starts_ray else []


def uses_rdma(cluster: Cluster, environment: Mapping[str, str]) -> bool:
    """Say whether ranks use RDMA: there are several nodes, and NCCL_IB_DISABLE is not 1."""
    return len(cluster.nodes) > 1 and environment.get("NCCL_IB_DISABLE") != "1"
