"""The bundle: what is in it, where that comes from, and that equal stores give equal bytes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from bundle_cases import CAPTURES, CASES, build, built, config, example, files_of, fill, place
from bundle_cases import winners as stored

from tuner.deploy.bundle import kubernetes
from tuner.deploy.bundle.commands import node_environments
from tuner.deploy.cluster import parse_cluster
from tuner.deploy.preflight import run_preflight
from tuner.deploy.preflight.capture import hash_folder
from tuner.engines.engine import find_engine
from tuner.errors import ExportRefused, MalformedCluster
from tuner.families.fused_moe.engine import moe_engine
from tuner.families.fused_moe.problem import BATCH_SIZES, Gemm
from tuner.problems.points import Point
from tuner.problems.registry import parse_problem
from tuner.problems.results import Status
from tuner.store.results import ResultStore

L40S, H20, RAY = CASES
TEXT = (Path(__file__).parents[2] / "examples" / f"{H20}.toml").read_text()


@pytest.mark.parametrize("case", CASES)
def test_equal_stores_give_equal_bytes(case: str) -> None:
    assert build(case).archive == built(case).archive


@pytest.mark.parametrize("case", CASES)
def test_every_node_and_the_whole_cluster_can_be_launched(case: str) -> None:
    files = files_of(built(case))
    for node in example(case).nodes:
        for name in ("docker.sh", "bare.sh"):
            assert f"nodes/{node.name}/{name}" in files
    for name in ("kubernetes/leaderworkerset.json", "preflight.py", "README.md"):
        assert name in files
    assert {p for p, f in files.items() if f.mode == 0o755} == {
        p for p in files if p.endswith(".sh") or p in ("preflight.py", "fabric.py")
    }


def test_no_packaged_file_is_lost(tmp_path: Path) -> None:
    engine = find_engine("sglang==0.5.16")
    packaged = moe_engine(engine).package_root / "configs"
    folder = place(built(L40S), tmp_path) / "engine-configs"
    names = [path.relative_to(packaged) for path in packaged.rglob("*.json")]
    assert len(names) > 300
    for name in names:
        assert (folder / "configs" / name).read_bytes() == (packaged / name).read_bytes()
    origins = {row["path"]: row["origin"] for row in built(L40S).manifest["files"]}
    assert origins[f"engine-configs/configs/{names[0]}"] == "packaged with sglang 0.5.16"
    assert hash_folder(folder) == built(L40S).manifest["configs"]["hash"]


def test_vllm_gets_the_file_that_it_looks_for_and_none_that_it_has() -> None:
    files = files_of(built(RAY))
    name = "E=256,N=128,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128,128].json"
    held = json.loads(files[f"engine-configs/{name}"].data)
    # get_moe_configs of 0.10: {int(key): val for key, val in json.load(f).items()}
    assert {int(k): v for k, v in held.items()} == {
        size: dict(config(Point(size, Gemm.UP))) for size in BATCH_SIZES
    }
    assert [p for p in files if p.startswith("engine-configs/") and "provenance" not in p] == [
        f"engine-configs/{name}"
    ]
    assert {row["gemm"] for row in built(RAY).manifest["entries"]} == {"up"}


def test_the_winners_of_another_engine_are_not_shipped() -> None:
    with pytest.raises(ExportRefused, match="sglang's winners are not vllm's.*--engine vllm"):
        build(H20, example(RAY))
    with pytest.raises(ExportRefused, match=r"no winners for NVIDIA_H20 with vllm 0\.33\.0; "):
        build(RAY, of=[])


def test_the_readme_says_which_kernel_the_servers_run() -> None:
    said = "NVIDIA_L40S runs Triton here"
    bundle = built(L40S)
    (note,) = [note for note in bundle.notes if said in note]
    assert note.startswith("sglang ")
    assert note.endswith("; it reads tuned files")
    assert f"> {note}\n" in files_of(bundle)["README.md"].data.decode()


def test_predicted_entries_are_refused_unless_asked_for_and_marked() -> None:
    with pytest.raises(ExportRefused, match="36 of the 36 .* --allow-predicted"):
        build(L40S, allow_predicted=False)
    bundle = built(L40S)
    assert bundle.manifest["statuses"] == {"predicted": 36}
    assert any("36 entries were predicted" in note for note in bundle.notes)
    assert b"PREDICTED" in files_of(bundle)["README.md"].data
    assert {row["status"] for row in bundle.manifest["entries"]} == {"predicted"}


def test_measured_and_untuned_entries_are_told_apart() -> None:
    with ResultStore.open("sqlite://") as store:
        statuses = dict.fromkeys(BATCH_SIZES, Status.OK) | {4096: Status.INCUMBENT}
        winners = fill(store, RAY, statuses)
    ray = build(RAY, of=winners, allow_predicted=False)
    # An untuned size needs an entry too: with a file, vLLM no longer asks its heuristic.
    assert ray.manifest["statuses"] == {"incumbent": 1, "ok": 17}


def test_provenance_of_every_entry_is_in_the_manifest() -> None:
    manifest = built(L40S).manifest
    assert len(manifest["entries"]) == 2 * len(BATCH_SIZES)
    row = manifest["entries"][0]
    assert row["problem"] == CASES[L40S][1]
    environment = manifest["environments"][row["environment"]]
    assert (environment["engine_version"], environment["triton"]) == ("0.5.16", "3.6.0")
    assert (row["median_us"], row["reason"][:6]) == (12.5, "1.200x")
    assert datetime.fromisoformat(row["published_at"]).tzinfo == timezone.utc


def test_tar_unpacks_it_to_the_same_files(tmp_path: Path) -> None:
    (tmp_path / "b.tar.gz").write_bytes(built(L40S).archive)
    subprocess.run(["tar", "xzf", "b.tar.gz"], cwd=tmp_path, check=True)
    root = tmp_path / built(L40S).name
    subprocess.run(["sha256sum", "--quiet", "--check", "SHA256SUMS"], cwd=root, check=True)
    files = files_of(built(L40S))
    assert {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()} == files.keys()
    for path, file in files.items():
        assert (root / path).read_bytes() == file.data
        assert (root / path).stat().st_mode & 0o777 == file.mode


def test_the_preflight_in_the_bundle_runs_alone(tmp_path: Path) -> None:
    root = place(built(H20), tmp_path)
    captures = [f"--node={n}={CAPTURES / n}" for n in ("h20-node01", "h20-node02")]
    done = subprocess.run(
        [sys.executable, "-I", "preflight.py", "--cluster", "cluster.json", "--json", *captures],
        cwd=root,
        capture_output=True,
        check=True,
    )
    report = json.loads(done.stdout)
    assert report["nodes"][0]["environment"]["NCCL_IB_GID_INDEX"] == "3"


def test_captures_give_the_variables() -> None:
    cluster = example(RAY)
    captures = {n.name: CAPTURES / n.name for n in cluster.nodes}
    bundle = build(RAY, preflight=run_preflight(captures, cluster.expected()))
    script = files_of(bundle)["nodes/h20-node02/bare.sh"].data.decode()
    hcas = ",".join(f"mlx5_{i}" for i in range(1, 9))
    assert f"run export 'NCCL_IB_HCA={hcas}'" in script
    assert "run export NCCL_IB_GID_INDEX=3" in script
    assert "run export NCCL_SOCKET_IFNAME=xgbe0" in script
    assert "run export VLLM_HOST_IP=10.63.65.208" in script
    assert not any("is not set" in note for note in bundle.notes)


def test_without_captures_the_cluster_file_gives_them_and_the_rest_is_noted() -> None:
    script = files_of(built(H20))["nodes/h20-node01/bare.sh"].data.decode()
    # The "=" keeps NCCL from taking mlx5_1 for a prefix.
    assert "'NCCL_IB_HCA==mlx5_1,mlx5_2," in script
    assert "run export SGLANG_HOST_IP=10.63.65.207" in script
    assert "run export HOST_IP=10.63.65.207" in script
    assert [n for n in built(H20).notes if n.startswith("NCCL_IB_GID_INDEX is not set on")]


def test_no_place_of_this_machine_gets_in() -> None:
    for case in CASES:
        files = files_of(built(case))
        assert files
        for path, file in files.items():
            assert str(Path.cwd()).encode() not in file.data, path


def refused(text: str, **changes: Any) -> str:
    with pytest.raises((ExportRefused, MalformedCluster)) as caught:
        build(H20, parse_cluster(text), **changes)
    return str(caught.value)


def test_what_cannot_be_launched_is_refused_with_its_field() -> None:
    variable = '[environment]\nSGLANG_MOE_CONFIG_DIR = "/x"\n[ports]'
    assert "environment holds SGLANG_MOE_CONFIG_DIR" in refused(TEXT.replace("[ports]", variable))
    replicas, mine = TEXT.replace("tp = 16", "tp = 8\ndp = 2"), parse_problem(CASES[H20][1])
    assert "dp=2: sglang runs no replicas" in refused(replicas, wanted=[mine])
    assert "cannot mount a path with a colon" in refused(TEXT.replace("/ssd1/models", "/mnt/a:b"))


def test_winners_of_other_servers_are_told_before_predictions() -> None:
    one = TEXT.replace("gpus = 8", "gpus = 4").replace("tp = 16", "tp = 8")
    predicted = [
        replace(one, entry=replace(one.entry, status=Status.PREDICTED)) for one in stored(H20)
    ]
    with pytest.raises(ExportRefused, match="none of them are bundled") as caught:
        build(H20, parse_cluster(one), predicted, allow_predicted=False)
    assert "--allow-predicted" not in str(caught.value)


def test_an_empty_store_and_an_engine_without_an_overlay_are_refused() -> None:
    assert "the store has no winners for NVIDIA_H20" in refused(TEXT, of=[])
    theirs = [
        replace(one, environment=replace(one.environment, engine_version="0.4.4"))
        for one in stored(H20)
    ]
    assert "--into-engine" in refused(TEXT, engine="sglang==0.4.4", of=theirs)


def test_nodes_that_differ_get_no_pod_template() -> None:
    text = TEXT.replace('interface = "xgbe0"', 'interface = "bond0"', 1)
    bundle = build(H20, parse_cluster(text))
    files = files_of(bundle)
    assert "kubernetes/leaderworkerset.json" not in files
    said = "no Kubernetes manifest: GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME, TP_SOCKET_IFNAME differ"
    assert said.encode() in files["README.md"].data


def test_without_an_image_there_are_bare_scripts_alone() -> None:
    cluster = replace(example(H20), engine=replace(example(H20).engine, image=""))
    bundle = build(H20, cluster)
    files = files_of(bundle)
    assert not [path for path in files if re.search(r"docker|kubernetes/", path)]
    assert "nodes/h20-node01/bare.sh" in files


# The LeaderWorkerSet: what its schema asks, and what it means

# No package ships the schema of a LeaderWorkerSet. The file's names and kinds are those of
# leaderworkerset.x-k8s.io/v1 of the controller's release 0.9, as far as manifests use them.
SCHEMA = json.loads((CAPTURES / "leaderworkerset.schema.json").read_text())
NAME = "^[a-z]([-a-z0-9]*[a-z0-9])?$"


def lws(case: str) -> tuple[dict[str, Any], dict[str, Any]]:
    both = json.loads(files_of(built(case))["kubernetes/leaderworkerset.json"].data)
    assert (both["apiVersion"], both["kind"]) == ("v1", "List")
    found, service = both["items"]
    return found, service


@pytest.mark.parametrize("case", CASES)
def test_the_leader_worker_set_holds_the_api_s_fields(case: str) -> None:
    found, service = lws(case)
    assert list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(found)) == []
    template = found["spec"]["leaderWorkerTemplate"]
    assert template["size"] == len(example(case).nodes)
    for role in ("leader", "worker"):
        pod = template[f"{role}Template"]
        (container,) = pod["spec"]["containers"]
        assert pod["metadata"]["labels"] == {"role": role}
        assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        assert mounts == {volume["name"] for volume in pod["spec"]["volumes"]}
    assert (service["apiVersion"], service["kind"]) == ("v1", "Service")
    selector = service["spec"]["selector"]
    assert selector["leaderworkerset.sigs.k8s.io/name"] == found["metadata"]["name"]
    (port,) = service["spec"]["ports"]
    assert port["targetPort"] == example(case).ports.serve


def test_sglang_pods_ask_the_controller_for_their_place() -> None:
    found, _ = lws(L40S)
    template = found["spec"]["leaderWorkerTemplate"]
    (leader,) = template["leaderTemplate"]["spec"]["containers"]
    (worker,) = template["workerTemplate"]["spec"]["containers"]
    assert leader["command"] == worker["command"]
    joined = " ".join(leader["command"])
    assert "--dist-init-addr $(LWS_LEADER_ADDRESS):5000" in joined
    assert "--nnodes $(LWS_GROUP_SIZE) --node-rank $(LWS_WORKER_INDEX)" in joined
    env = {variable["name"]: variable for variable in worker["env"]}
    assert env["SGLANG_HOST_IP"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.hostIP"
    assert env["SGLANG_MOE_CONFIG_DIR"]["value"] == "/opt/tuner/engine-configs"
    assert env["NCCL_SOCKET_IFNAME"]["value"] == "eno1"


def test_vllm_pods_join_the_leader_s_ray() -> None:
    found, _ = lws(RAY)
    template = found["spec"]["leaderWorkerTemplate"]
    (leader,) = template["leaderTemplate"]["spec"]["containers"]
    (worker,) = template["workerTemplate"]["spec"]["containers"]
    assert leader["command"][:2] == ["/bin/bash", "-c"]
    assert re.match(r"ray start --head .* && exec vllm serve ", leader["command"][2])
    assert worker["command"][:4] == ["ray", "start", "--address", "$(LWS_LEADER_ADDRESS):8379"]
    assert worker["command"][-1] == "--block"


def test_kubernetes_leaves_dollars_alone() -> None:
    whole = example(H20)
    flags = ("$(HOME)", "$$", "a$b")
    cluster = replace(whole, engine=replace(whole.engine, flags=flags), environment={"A": "$(B)"})
    text = kubernetes.lws_manifest(cluster, node_environments(cluster)[0], "/opt/x", pointers=())
    template = json.loads(text)["items"][0]["spec"]["leaderWorkerTemplate"]
    pod = template["workerTemplate"]["spec"]
    assert pod["containers"][0]["command"][-3:] == ["$$(HOME)", "$$$$", "a$$b"]
    assert {"name": "A", "value": "$$(B)"} in pod["containers"][0]["env"]


@pytest.mark.parametrize(
    ("name", "expected"), [("l40s-4x8", "l40s-4x8"), ("4x8_L40S.x", "c-4x8-l40s-x"), ("H20", "h20")]
)
def test_object_names(name: str, expected: str) -> None:
    assert kubernetes.object_name(name) == expected
    assert re.fullmatch(NAME, expected)
