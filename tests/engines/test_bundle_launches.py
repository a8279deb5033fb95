"""Scripts of bundles really run: what they start is held against the release's own flags."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundle_cases import CASES, build, built, example, files_of, place, printed
from cluster_shapes import (
    H20,
    L40S,
    RAY,
    captured,
    clean,
    found_by,
    of_release,
    on_a_vlan,
    on_ipv6,
)
from tiers import only

from tuner.deploy.bundle.build import Bundle
from tuner.deploy.cluster import Cluster, Parallel
from tuner.problems.registry import parse_problem

ON_DISK = Path(sys.prefix, "share/tuner/engines")
PROGRAMS = Path(__file__).parents[1] / "stand_ins/launch/programs.py"
SGLANG, OLD_VLLM, NEW_VLLM = "sglang-0.5.16", "vllm-0.15.1", "vllm-0.33.0"
# Name -> (its bundle, the release whose flags count). 0.11.0 is not on disk; 0.15.1 has Ray too.
CLUSTERS: dict[str, tuple[Callable[[Path], Bundle], str]] = {
    "sglang on four nodes": (lambda folder: built(L40S), SGLANG),
    "sglang on two nodes": (lambda folder: built(H20), SGLANG),
    "the newest sglang": (lambda folder: built(H20), "sglang-0.5.23"),
    "vLLM with Ray": (lambda folder: built(RAY), OLD_VLLM),
    "vLLM 0.33.0": (lambda folder: build(RAY, of_release("v0.33.0")), NEW_VLLM),
    "sglang in stages": (lambda folder: in_stages(H20, example(H20)), SGLANG),
    "vLLM in stages": (lambda folder: in_stages(RAY, of_release("v0.33.0")), NEW_VLLM),
    "no RDMA": (lambda folder: captured(found_by(example(L40S)), "no-rdma", folder), SGLANG),
    "sglang on IPv6": (lambda folder: build(H20, on_ipv6(example(H20))), SGLANG),
    "vLLM on IPv6": (lambda folder: build(RAY, on_ipv6(of_release("v0.33.0"))), NEW_VLLM),
    "Ray on IPv6": (lambda folder: build(RAY, on_ipv6(example(RAY))), OLD_VLLM),
    "management on a VLAN": (on_a_vlan, SGLANG),
}

LIKE_OTHERS = {"vLLM on IPv6", "Ray on IPv6", "sglang in stages"}


def in_stages(case: str, cluster: Cluster) -> Bundle:
    staged = replace(cluster, parallel=Parallel(tp=8, ep=1, dp=1, pp=2))
    bundle = build(case, staged, allow_missing=True, wanted=[parse_problem(CASES[case][1])])
    scripts = [file.data for path, file in files_of(bundle).items() if path.endswith("bare.sh")]
    flags = (b"--tp-size 8", b"--pp-size 2"), (b"--pipeline-parallel-size 2",)
    assert all(flag in script for script in scripts for flag in flags[case == RAY])
    return bundle


class Node:
    """A machine with docker, ray, vllm and python3 that read their command lines and end."""

    def __init__(self, folder: Path, release: str) -> None:
        self.started = folder / "started.jsonl"
        tools = folder / "tools"
        tools.mkdir()
        for name in ("docker", "ray", "vllm", "python3"):
            (tools / name).write_text(f'#!/bin/sh\nexec {sys.executable} {PROGRAMS} {name} "$@"\n')
            (tools / name).chmod(0o755)
        self.environment = {
            "PATH": f"{tools}:/usr/bin:/bin",
            "HOME": str(folder),
            "STARTED": str(self.started),
            "ENGINE": release.partition("-")[0],
            "RELEASE": str(ON_DISK / release),
        }

    def run(self, *command: object, **variables: str) -> subprocess.CompletedProcess[str]:
        self.started.unlink(missing_ok=True)
        return subprocess.run(
            [*map(str, command)],
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
        )

    def programs(self) -> list[list[str]]:
        """The command lines of the programs that were started, in order."""
        return [json.loads(line) for line in self.started.read_text().splitlines()]


@pytest.mark.parametrize("name", only(CLUSTERS.keys() - LIKE_OTHERS, CLUSTERS))
def test_every_script_starts_what_the_release_understands(name: str, tmp_path: Path) -> None:
    make, release = CLUSTERS[name]
    bundle = make(tmp_path / "captures")
    root, node = place(bundle, tmp_path), Node(tmp_path, release)
    servers = []
    first, *_, last = sorted((root / "nodes").iterdir())
    for script in clean(root):
        subprocess.run(["bash", "-n", script], check=True)
        if script.name == "fabric.sh" or script.parent not in (first, last):
            continue
        shown = printed(script)
        done = node.run("bash", script)
        assert (done.returncode, done.stderr) == (0, ""), f"{script}: {done.stderr}"
        started = node.programs()
        plan = [words for words in shown if words[0] != "export"]
        assert started[: len(plan)] == plan if script.name == "bare.sh" else started[0] == plan[0]
        servers += [words for words in started if words[0] in ("vllm", "python3", "ray")]
    assert len(servers) >= 4  # of two nodes, with and without a container
    manifest = root / "kubernetes/leaderworkerset.json"
    for container in containers(manifest) if manifest.is_file() else ():
        given = {one["name"]: one.get("value", "10.0.0.1") for one in container["env"]}
        done = node.run(*map(in_pod, container["command"]), **given)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr


def containers(manifest: Path) -> list[dict[str, Any]]:
    group = json.loads(manifest.read_text())["items"][0]["spec"]["leaderWorkerTemplate"]
    return [
        container
        for template in ("leaderTemplate", "workerTemplate")
        for container in group[template]["spec"]["containers"]
    ]


def in_pod(word: str) -> str:
    """A word of a container's command, as Kubernetes passes it to a pod's program."""
    for name, value in {
        "LEADER_ADDRESS": "10.0.0.1",
        "GROUP_SIZE": "2",
        "WORKER_INDEX": "1",
    }.items():
        word = word.replace(f"$(LWS_{name})", value)
    return word.replace("$$", "$")


@pytest.mark.parametrize("script", ["bare.sh", "docker.sh"])
@pytest.mark.parametrize(
    ("cluster", "release", "flags", "says"),
    [
        (example(H20), SGLANG, ("--no-such-flag",), "unrecognized arguments: --no-such-flag"),
        (example(H20), SGLANG, ("--mem-fraction-static",), "expected one argument"),
        (of_release("v0.33.0"), NEW_VLLM, ("--no-such-flag",), "unrecognized arguments"),
        (of_release("v0.33.0"), NEW_VLLM, ("--max-num-seqs", "many"), "invalid int value"),
    ],
)
def test_a_flag_that_the_release_does_not_know_stops_the_script(
    script: str, cluster: Cluster, release: str, flags: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    wrong = replace(cluster, engine=replace(cluster.engine, flags=flags))
    case = H20 if cluster.engine.name == "sglang" else RAY
    root, node = place(build(case, wrong), tmp_path), Node(tmp_path, release)
    done = node.run("bash", root / f"nodes/h20-node01/{script}")
    assert done.returncode == 2
    assert says in done.stderr


@pytest.mark.parametrize("line", ["docker run --gpu all image", "ray start --heads", "ray start"])
def test_docker_and_ray_refuse_what_they_do_not_know(line: str, tmp_path: Path) -> None:
    done = Node(tmp_path, SGLANG).run(*line.split())
    assert done.returncode != 0 and done.stderr
