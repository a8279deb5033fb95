"""Bundles of other clusters than the examples: without Ray, without RDMA, on IPv6, on a VLAN."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bundle_cases import CASES, build, example, files_of, place, printed
from cluster_shapes import captured, clean, found_by, of_release, on_a_vlan, on_ipv6
from node_shapes import lay, read_shape

from tuner.deploy.bundle.build import write_bundle
from tuner.deploy.bundle.commands import node_commands
from tuner.deploy.cluster import parse_cluster
from tuner.deploy.preflight import run_preflight
from tuner.errors import MalformedCluster, UnwritableOutput

L40S, H20, RAY = CASES
VLLM = Path(sys.prefix, "share/tuner/engines/vllm-0.33.0/vllm")
TEXT = (Path(__file__).parents[2] / "examples" / f"{H20}.toml").read_text()


# vLLM with and without Ray


def test_a_release_without_ray_starts_by_its_own_way(tmp_path: Path) -> None:
    bundle = build(RAY, of_release("v0.33.0"))
    root = place(bundle, tmp_path)
    clean(root)
    *_, head = printed(root / "nodes/h20-node01/bare.sh")
    *_, worker = printed(root / "nodes/h20-node02/bare.sh")
    shared = "--nnodes 2 --node-rank {} --master-addr 10.63.65.207 --master-port 29500"
    assert f"{shared.format(0)} --host 0.0.0.0 --port 8000" in shlex.join(head)
    assert f"{shared.format(1)} --headless" in shlex.join(worker)
    assert not {"ray", "--distributed-executor-backend"} & {*head, *worker}
    assert "--host" not in worker
    (container,) = printed(root / "nodes/h20-node02/docker.sh")
    assert container[container.index("--entrypoint") + 1] == "vllm"
    source = "".join(p.read_text() for p in (VLLM / "engine").rglob("arg_utils.py"))
    source += "".join(p.read_text() for p in (VLLM / "entrypoints").rglob("*.py"))
    ours = {word for word in (*head, *worker) if word.startswith("--")}
    assert len(ours) > 10
    for flag in ours:
        named = f'"{flag}"' in source or re.search(rf"\b{flag[2:].replace('-', '_')}: ", source)
        assert named, flag
    expected = json.loads(files_of(bundle)["cluster.json"].data)
    assert expected["ports"] == {"serve": 8000, "rendezvous": 29500}
    manifest = json.loads(files_of(bundle)["kubernetes/leaderworkerset.json"].data)
    template = manifest["items"][0]["spec"]["leaderWorkerTemplate"]
    (pod,) = template["workerTemplate"]["spec"]["containers"]
    assert "--node-rank $(LWS_WORKER_INDEX) --master-addr $(LWS_LEADER_ADDRESS)" in " ".join(
        pod["command"]
    )


@pytest.mark.parametrize(
    ("version", "flags", "ray", "noted"),
    [
        ("v0.15.1", (), True, False),
        ("v0.19.0", (), False, False),
        ("latest", (), False, False),
        ("v0.33.0", ("--distributed-executor-backend", "ray"), True, True),
    ],
)
def test_ray_is_started_where_it_is(
    version: str, flags: tuple[str, ...], ray: bool, noted: bool
) -> None:
    cluster = of_release(version)
    cluster = replace(cluster, engine=replace(cluster.engine, flags=flags))
    assert cluster.starts_ray is ray
    assert ("ray" in node_commands(cluster, 1, {})[0]) is ray
    notes = build(RAY, cluster).notes
    assert any("images have no Ray" in note for note in notes) is noted


def test_ranks_without_ray_are_divided_evenly() -> None:
    cluster = of_release("v0.33.0")
    nodes = tuple(replace(node, gpus=n) for node, n in zip(cluster.nodes, (8, 4), strict=True))
    with pytest.raises(MalformedCluster, match=r"nodes\.gpus differ"):
        node_commands(replace(cluster, nodes=nodes), 0, {})


def test_ray_stops_with_the_server_that_it_serves(tmp_path: Path) -> None:
    root = place(build(RAY, of_release("v0.15.1")), tmp_path)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("ray", "vllm"):
        (tools / name).write_text(f'#!/bin/sh\nprintf "%s\\n" "{name} $1"\n')
        (tools / name).chmod(0o755)
    done = subprocess.run(
        ["bash", root / "nodes/h20-node01/bare.sh"],
        env={"PATH": f"{tools}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n") == ["ray start", "vllm serve", "ray stop", ""]


def test_what_ray_must_not_copy_is_mounted(tmp_path: Path) -> None:
    whole = of_release("v0.15.1")
    own = tuple(
        replace(node, environment={"NCCL_IB_HCA": f"mlx5_{i}"})
        for i, node in enumerate(whole.nodes)
    )
    bundle = build(RAY, replace(whole, nodes=own))
    assert json.loads(files_of(bundle)["ray_non_carry_over_env_vars.json"].data) == ["NCCL_IB_HCA"]
    root = place(bundle, tmp_path)
    clean(root)
    place_inside = "/root/.config/vllm/ray_non_carry_over_env_vars.json:ro"
    (head,) = printed(root / "nodes/h20-node01/docker.sh")
    (worker,) = printed(root / "nodes/h20-node02/docker.sh")
    assert any(word.endswith(place_inside) for word in head)
    assert not any(word.endswith(place_inside) for word in worker)
    (note,) = [note for note in bundle.notes if "ray_non_carry_over" in note]
    assert "docker.sh mounts the bundle's" in note


# Networks


def test_nodes_without_rdma_get_no_device_and_no_privilege(tmp_path: Path) -> None:
    bundle = captured(found_by(example(L40S)), "no-rdma", tmp_path / "captures")
    assert "NCCL_IB_DISABLE=1: traffic between nodes goes over TCP sockets, without RDMA" in (
        bundle.notes
    )
    assert not [note for note in bundle.notes if "is not set" in note]
    root = place(bundle, tmp_path)
    for script in clean(root):
        assert "/dev/infiniband" not in script.read_text()
    (words,) = printed(root / "nodes/l40s-01/docker.sh")
    assert "NCCL_IB_DISABLE=1" in words
    assert "privileged" not in (root / "kubernetes/leaderworkerset.json").read_text()
    assert "privileged" not in (root / "README.md").read_text()


def test_without_captures_the_device_is_looked_for(tmp_path: Path) -> None:
    root = place(build(L40S, found_by(example(L40S))), tmp_path)
    clean(root)
    (words,) = printed(root / "nodes/l40s-01/docker.sh")
    assert ("/dev/infiniband" in words) is Path("/dev/infiniband").exists()


def test_without_rdma_the_interface_of_gloo_is_asked_for_too() -> None:
    whole = found_by(example(L40S))
    bundle = build(L40S, replace(whole, environment={"NCCL_IB_DISABLE": "1"}))
    (note,) = [note for note in bundle.notes if "is not set on" in note]
    assert note.startswith("GLOO_SOCKET_IFNAME is not set on l40s-01, l40s-02, l40s-03, l40s-04")


def test_efa_is_asked_for_without_devices(tmp_path: Path) -> None:
    bundle = captured(found_by(example(L40S)), "efa", tmp_path / "captures")
    (words,) = printed(place(bundle, tmp_path) / "nodes/l40s-01/docker.sh")
    assert "FI_PROVIDER=efa" in words
    assert not [word for word in words if word.startswith(("NCCL_IB_HCA", "NCCL_IB_GID"))]
    assert "--device /dev/infiniband" in " ".join(words)
    assert not [note for note in bundle.notes if "is not set" in note]


def test_the_cluster_file_s_address_is_announced(tmp_path: Path) -> None:
    """The interface holds 172.16.0.1 first, which other nodes do not reach."""
    bundle = captured(found_by(example(L40S)), "roce-rails", tmp_path / "captures")
    (words,) = printed(place(bundle, tmp_path) / "nodes/l40s-02/docker.sh")
    assert {"SGLANG_HOST_IP=192.168.20.12", "HOST_IP=192.168.20.12"} <= {*words}


def test_each_node_has_the_gid_index_of_its_own_table(tmp_path: Path) -> None:
    cluster = found_by(example(H20))
    captures = {}
    for node, gid in zip(cluster.nodes, (3, 5), strict=True):
        shape = read_shape("roce-rails")
        rails = [{**group, "gid": gid} for group in shape["rdma"]]
        captures[node.name] = lay({**shape, "rdma": rails}, tmp_path / node.name)
    report = run_preflight(captures, cluster.expected())
    root = place(build(H20, cluster, preflight=report), tmp_path)
    for node, index in (("h20-node01", 3), ("h20-node02", 5)):
        (words,) = printed(root / f"nodes/{node}/docker.sh")
        assert f"NCCL_IB_GID_INDEX={index}" in words


def test_management_on_a_vlan_leaves_its_card_out(tmp_path: Path) -> None:
    root = place(on_a_vlan(tmp_path / "captures"), tmp_path)
    clean(root)
    (words,) = printed(root / "nodes/l40s-01/docker.sh")
    assert "NCCL_IB_HCA=" + ",".join(f"mlx5_{i}" for i in range(1, 9)) in words
    assert {"NCCL_IB_GID_INDEX=3", "NCCL_SOCKET_IFNAME=bond0.100"} <= {*words}


@pytest.mark.parametrize("case", [H20, RAY])
def test_servers_of_a_head_on_ipv6_listen_on_ipv6(case: str, tmp_path: Path) -> None:
    root = place(build(case, on_ipv6(example(case))), tmp_path)
    clean(root)
    *_, serve = printed(root / "nodes/h20-node01/bare.sh")
    assert serve[serve.index("--host") + 1] == "::"
    assert "curl 'http://[fd00::11]:8000/v1/models'" in (root / "README.md").read_text()


# What a cluster file may not say


@pytest.mark.parametrize("path", ["./models/X", "~/models/X", "../X"])
def test_a_relative_path_of_the_model_is_refused(path: str) -> None:
    text = re.sub(r"^path = .*$", f'path = "{path}"', TEXT, flags=re.M)
    text = re.sub(r"^container_path = .*$", "", text, flags=re.M)
    with pytest.raises(MalformedCluster, match=r"model\.path .* is relative"):
        parse_cluster(text)


@pytest.mark.parametrize(
    "flag", ["--tensor-parallel", "--tensor_parallel_size", "--served", "--dp"]
)
def test_a_flag_that_argparse_would_complete_is_refused(flag: str) -> None:
    text = TEXT.replace("flags = [", f'flags = ["{flag}", "8", ', 1)
    assert text != TEXT
    with pytest.raises(MalformedCluster, match=f"holds {flag}: set "):
        parse_cluster(text)


# Where it is written


def test_a_bundle_replaces_no_pipe_and_no_link(tmp_path: Path) -> None:
    bundle = replace(build(H20), archive=b"archive")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(UnwritableOutput, match="no regular file"):
            write_bundle(bundle, path)
        assert not path.is_file()
    (tmp_path / "old.tar.gz").write_bytes(b"before")
    (tmp_path / "link").symlink_to("old.tar.gz")
    write_bundle(bundle, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "old.tar.gz").read_bytes() == b"archive"
    assert len(list(tmp_path.iterdir())) == 3
