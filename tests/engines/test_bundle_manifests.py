"""Compose files, the LeaderWorkerSet and the SBOM: what their schemas ask, and what they mean."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import yaml
from bundle_cases import CASES, ENGINES, built, example, files_of
from check_jsonschema.builtin_schemas import get_builtin_schema
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.deploy.bundle import kubernetes
from tuner.deploy.bundle.commands import node_commands, one_line
from tuner.deploy.bundle.compose import compose_file
from tuner.deploy.bundle.environment import node_environments
from tuner.deploy.bundle.yamltext import yaml_text

L40S, H20, RAY = CASES


def composed(case: str, node: str) -> dict[str, Any]:
    text = files_of(built(case))[f"nodes/{node}/compose.yaml"].data.decode()
    found: dict[str, Any] = yaml.safe_load(text)
    return found


@pytest.mark.parametrize("case", CASES)
def test_compose_files_are_valid_by_the_specification_s_schema(case: str) -> None:
    check = jsonschema.Draft202012Validator(get_builtin_schema("vendor.compose-spec"))
    nodes = example(case).nodes
    assert nodes
    for node in nodes:
        found = composed(case, node.name)
        assert list(check.iter_errors(found)) == []
        found["services"]["engine"]["imagee"] = "x"
        assert list(check.iter_errors(found)) != []


@pytest.mark.parametrize("case", CASES)
def test_a_compose_file_means_what_the_script_does(case: str) -> None:
    cluster = example(case)
    environments = node_environments(cluster)
    assert cluster.nodes
    for rank, node in enumerate(cluster.nodes):
        engine = composed(case, node.name)["services"]["engine"]
        commands = node_commands(cluster.in_container(), rank, environments[rank])
        words = [*engine["entrypoint"], *engine["command"]]
        assert words == list(one_line(commands))
        shared = engine["environment"].items()
        assert environments[rank].items() <= shared
        assert (engine["network_mode"], engine["ipc"]) == ("host", "host")
        assert engine["devices"] == ["/dev/infiniband:/dev/infiniband"]
        assert engine["ulimits"]["memlock"] == -1
        assert engine["volumes"][1]["source"] == cluster.model.path
        assert engine["volumes"][1]["target"] == cluster.model.container_path
        assert all(mount["read_only"] for mount in engine["volumes"])


def test_compose_leaves_dollars_alone() -> None:
    whole = example(H20)
    flags = ("--x=$HOME", "${Y}", "$$")
    cluster = replace(whole, engine=replace(whole.engine, flags=flags), environment={"A": "$B"})
    environment = node_environments(cluster)[0]
    commands = node_commands(cluster, 0, environment)
    engine = yaml.safe_load(compose_file(cluster, 0, environment, commands, pointers=()))[
        "services"
    ]["engine"]
    # Compose reads "$$" as "$", and every other "$" as a variable of its own.
    words = [word.replace("$$", "\0") for word in (*engine["command"], engine["environment"]["A"])]
    assert not any("$" in word for word in words)
    assert [word.replace("\0", "$") for word in words[-4:]] == [*flags, "$B"]


def test_a_model_of_a_hub_comes_from_its_cache() -> None:
    whole = example(H20)
    cluster = replace(whole, model=replace(whole.model, path="deepseek-ai/DeepSeek-R1"))
    commands = node_commands(cluster, 0, {})
    engine = yaml.safe_load(compose_file(cluster, 0, {}, commands, pointers=()))["services"][
        "engine"
    ]
    assert engine["volumes"][1]["target"] == "/root/.cache/huggingface"
    assert not engine["volumes"][1]["read_only"]
    assert "HF_TOKEN" in engine["environment"]


# LeaderWorkerSet. No package ships its schema, so its fields are asserted here: names and kinds as
# in leaderworkerset.x-k8s.io/v1 of the controller's release 0.9.

_STRING = {"type": "string"}
_PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
_NAME = {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": required,
        "properties": properties,
        "additionalProperties": False,
    }


def _list(item: Any) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": 1}


_LABELS = {"type": "object", "additionalProperties": _STRING}
_MOUNT = _object(["name", "mountPath"], name=_NAME, mountPath=_STRING, readOnly={"type": "boolean"})
_FIELD = _object(
    ["fieldRef"], fieldRef=_object(["fieldPath"], fieldPath={"const": "status.hostIP"})
)
_CONTAINER = _object(
    ["name", "image"],
    name=_NAME,
    image=_STRING,
    command=_list(_STRING),
    env=_list(_object(["name"], name=_STRING, value=_STRING, valueFrom=_FIELD)),
    resources=_object([], limits=_LABELS),
    volumeMounts=_list(_MOUNT),
    securityContext=_object([], privileged={"type": "boolean"}),
    ports=_list(_object(["containerPort"], containerPort=_PORT, protocol={"const": "TCP"})),
    readinessProbe=_object(
        [], tcpSocket=_object(["port"], port=_PORT), periodSeconds={"type": "integer"}
    ),
)
_VOLUME = _object(
    ["name"],
    name=_NAME,
    hostPath=_object(["path"], path=_STRING, type={"const": "Directory"}),
    emptyDir=_object([], medium={"const": "Memory"}),
)
_POD = _object(
    ["spec"],
    metadata=_object([], labels=_LABELS),
    spec=_object(
        ["containers"],
        hostNetwork={"type": "boolean"},
        dnsPolicy={"const": "ClusterFirstWithHostNet"},
        nodeSelector=_LABELS,
        containers=_list(_CONTAINER),
        volumes=_list(_VOLUME),
    ),
)
_TEMPLATE = _object(
    ["workerTemplate"],
    size={"type": "integer", "minimum": 1},
    restartPolicy={
        "enum": ["Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]
    },
    leaderTemplate=_POD,
    workerTemplate=_POD,
)
_LWS = _object(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "leaderworkerset.x-k8s.io/v1"},
    kind={"const": "LeaderWorkerSet"},
    metadata=_object(["name"], name=_NAME),
    spec=_object(["leaderWorkerTemplate"], replicas={"const": 1}, leaderWorkerTemplate=_TEMPLATE),
)


def lws(case: str) -> tuple[dict[str, Any], dict[str, Any]]:
    text = files_of(built(case))["kubernetes/leaderworkerset.yaml"].data.decode()
    found, service = yaml.safe_load_all(text)
    return found, service


@pytest.mark.parametrize("case", CASES)
def test_the_leader_worker_set_holds_the_api_s_fields(case: str) -> None:
    found, service = lws(case)
    assert list(jsonschema.Draft202012Validator(_LWS).iter_errors(found)) == []
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
    pod = next(yaml.safe_load_all(text))["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
    assert pod["containers"][0]["command"][-3:] == ["$$(HOME)", "$$$$", "a$$b"]
    assert {"name": "A", "value": "$$(B)"} in pod["containers"][0]["env"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("l40s-4x8", "l40s-4x8"), ("4x8_L40S.x", "c-4x8-l40s-x"), ("H20", "h20")],
)
def test_object_names(name: str, expected: str) -> None:
    assert kubernetes.object_name(name) == expected
    assert re.fullmatch(_NAME["pattern"], expected)


# The SBOM


@pytest.mark.parametrize("case", CASES)
def test_the_sbom_names_what_is_inside(case: str) -> None:
    files = files_of(built(case))
    document = json.loads(files["sbom.cdx.json"].data)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    components = document["components"]
    references = [c["bom-ref"] for c in components]
    assert len(set(references)) == len(references)
    assert set(references) == set(document["dependencies"][0]["dependsOn"])
    named = {c["name"]: c for c in components}
    spec, triton = ENGINES[case]
    name, _, version = spec.partition("==")
    assert named[name]["purl"] == f"pkg:pypi/{name}@{version}"
    assert named["triton"]["version"] == triton
    assert named[example(case).engine.image]["type"] == "container"
    hashed = {c["name"] for c in components if c["type"] == "file"}
    assert hashed == {p for p in files if p.startswith("engine-configs/")} | {"preflight.py"}
    assert {c["type"] for c in components} == {"library", "container", "file"}


# YAML

_PLAIN = st.recursive(
    st.text(max_size=12) | st.integers() | st.booleans(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=200)
@given(_PLAIN)
def test_yaml_reads_back_as_it_was(value: object) -> None:
    assert yaml.safe_load(yaml_text(value)) == value
