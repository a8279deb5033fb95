"""Bundles of clusters beside the examples: of other releases, networks and addresses."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from bundle_cases import CASES, build, example
from node_shapes import lay, read_shape

from tuner.deploy.bundle.build import Bundle
from tuner.deploy.cluster import Cluster
from tuner.deploy.preflight import run_preflight

L40S, H20, RAY = CASES
SHELLCHECK = Path(sys.executable).with_name("shellcheck")


def of_release(version: str) -> Cluster:
    whole = example(RAY)
    flags = tuple(
        f for f in whole.engine.flags if f not in ("--distributed-executor-backend", "ray")
    )
    image = f"vllm/vllm-openai:{version}"
    engine = replace(whole.engine, image=image, flags=flags, ray_flags=())
    return replace(whole, engine=engine)


def captured(cluster: Cluster, shape: str, folder: Path, **changes: object) -> Bundle:
    """The bundle of a cluster whose nodes are all of one shape."""
    captures = {
        node.name: lay(
            {
                **read_shape(shape),
                "interface": [{"name": "eno1", "ips": ["172.16.0.1/16", f"{node.host}/24"]}],
                **changes,
            },
            folder / node.name,
        )
        for node in cluster.nodes
    }
    return build(
        cluster_case(cluster), cluster, preflight=run_preflight(captures, cluster.expected())
    )


def cluster_case(cluster: Cluster) -> str:
    return next(case for case in CASES if example(case).name == cluster.name)


def found_by(cluster: Cluster) -> Cluster:
    """The cluster without what the file says of links, so that the preflight finds it."""
    nodes = tuple(replace(node, interface="", rdma=None) for node in cluster.nodes)
    return replace(cluster, nodes=nodes)


def clean(root: Path) -> list[Path]:
    scripts = sorted(root.rglob("*.sh"))
    done = subprocess.run([SHELLCHECK, *scripts], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("", 0)
    return scripts


def on_ipv6(cluster: Cluster) -> Cluster:
    nodes = tuple(replace(node, host=f"fd00::{i}") for i, node in enumerate(cluster.nodes, 11))
    return replace(cluster, nodes=nodes)


def on_a_vlan(folder: Path) -> Bundle:
    """Four nodes whose management address is on a VLAN of a bond of two RDMA ports."""
    shape = "management-vlan-of-bond"
    vlan = read_shape(shape)["interface"]
    return captured(found_by(example(L40S)), shape, folder, interface=vlan)
