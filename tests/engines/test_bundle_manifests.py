"""The LeaderWorkerSet: what its schema asks, and what it means."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from bundle_cases import CAPTURES, CASES, built, example, files_of

from tuner.deploy.bundle import kubernetes
from tuner.deploy.bundle.commands import node_environments

L40S, H20, RAY = CASES


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
    ("name", "expected"),
    [("l40s-4x8", "l40s-4x8"), ("4x8_L40S.x", "c-4x8-l40s-x"), ("H20", "h20")],
)
def test_object_names(name: str, expected: str) -> None:
    assert kubernetes.object_name(name) == expected
    assert re.fullmatch(NAME, expected)
