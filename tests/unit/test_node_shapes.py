"""The preflight on nodes of many shapes: each has its right answer beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from node_shapes import NODES, lay, read_shape, shapes

from tuner.deploy.preflight import run_preflight
from tuner.deploy.preflight.all_checks import PreflightResult
from tuner.deploy.preflight.capture import hash_folder
from tuner.deploy.preflight.check_cluster import NOTHING
from tuner.deploy.preflight.facts import Expected, ExpectedNode, Severity

# Of a node's environment; interfaces and addresses follow from the management link.
OF_NCCL = (
    *("NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_DISABLE", "FI_PROVIDER"),
)


def checks(report: PreflightResult, severity: Severity) -> list[str]:
    return [f.check for f in report.findings if f.severity is severity]


@pytest.mark.parametrize("name", shapes())
def test_a_node_gets_its_right_answer(name: str, tmp_path: Path) -> None:
    shape = read_shape(name)
    recorded = shape.get("capture")
    folder = NODES.parent / recorded if recorded else lay(shape, tmp_path / name)
    report = run_preflight({name: folder})
    (node,) = report.nodes
    wanted = shape["answer"]
    assert {key: node.environment[key] for key in OF_NCCL if key in node.environment} == {
        key: wanted[key] for key in OF_NCCL if key in wanted
    }
    assert node.links.interface == wanted["management"]
    assert checks(report, Severity.ERROR) == wanted["errors"]
    assert checks(report, Severity.WARNING) == wanted["warnings"]


def nodes(tmp_path: Path, *changes: dict[str, object], name: str = "roce-rails") -> dict[str, Path]:
    """Captures of nodes n1, n2 ... of one shape, each with its changes."""
    shape = read_shape(name)
    return {f"n{i}": lay({**shape, **one}, tmp_path / f"n{i}") for i, one in enumerate(changes, 1)}


def found(report: PreflightResult) -> list[tuple[str, tuple[str, ...]]]:
    """The errors, each with its nodes."""
    return [(f.check, f.nodes) for f in report.findings if f.severity is Severity.ERROR]


def expect(*of: ExpectedNode, **values: Any) -> Expected:
    return replace(Expected("sglang", "", "/model", of, 8, {}), **values)


NO_RDMA = {"rdma": [], "no_rdma_module": True, "without": ["sysfs", "nvidia-smi-topo"]}


def test_a_node_without_rdma_beside_one_with_it_is_an_error(tmp_path: Path) -> None:
    report = run_preflight(nodes(tmp_path, {}, NO_RDMA))
    assert found(report) == [("rdma-none", ("n2",))]
    assert "NCCL_IB_DISABLE" not in report.nodes[1].environment


def test_a_node_without_the_rdma_that_the_cluster_file_names_is_an_error(tmp_path: Path) -> None:
    node = ExpectedNode("n1", "10.0.0.11", "", ("mlx5_0", "mlx5_1"), 8)
    report = run_preflight(nodes(tmp_path, NO_RDMA), expect(node))
    assert found(report) == [("rdma-absent", ("n1",))]
    assert "NCCL_IB_DISABLE" not in report.nodes[0].environment


def test_nodes_with_other_gpus_and_slower_rails_are_errors(tmp_path: Path) -> None:
    slow = read_shape("slow-rails-no-topology")
    mixed = ["NVIDIA H20-3e"] * 4 + ["NVIDIA H100 80GB HBM3"] * 4
    other = {"gpu": mixed, "rdma": slow["rdma"], "topology": False}
    report = run_preflight(nodes(tmp_path, {"gpu": "NVIDIA H20"}, other))
    assert ("gpus-differ", ("n2",)) in found(report)
    assert ("rail-slow", ("n2",)) in found(report)
    fewer = nodes(tmp_path / "fewer", {}, {"gpus": 4, "topology": False})
    assert ("gpus-differ", ("n2",)) in found(run_preflight(fewer))


@pytest.mark.parametrize(
    ("engine", "gpu", "wanted", "right"),
    [
        ("sglang", "NVIDIA H20", "NVIDIA_H20", True),
        ("sglang", "NVIDIA H20-3e", "NVIDIA_H20", False),
        ("sglang", "NVIDIA H200 NVL", "NVIDIA_H200", False),
        ("vllm", "NVIDIA H200 NVL", "NVIDIA_H200", True),
    ],
)
def test_the_gpus_are_the_bundle_s(
    engine: str, gpu: str, wanted: str, right: bool, tmp_path: Path
) -> None:
    node = ExpectedNode("n1", "10.0.0.11", "", None, 8)
    expected = expect(node, engine=engine, gpu=wanted)
    report = run_preflight(nodes(tmp_path, {"gpu": gpu}), expected)
    assert found(report) == ([] if right else [("gpus-differ", ("n1",))])


@pytest.mark.parametrize(
    ("versions", "check"),
    [
        ({"configs": NOTHING}, "configs-differ"),
        ({"configs": "another"}, "configs-differ"),
        ({"image": "absent"}, "image-absent"),
        ({"configs": "the bundle's", "image": "sha256:1"}, ""),
    ],
)
def test_what_is_missing_on_all_nodes_is_missed(
    versions: dict[str, str], check: str, tmp_path: Path
) -> None:
    pair = tuple(ExpectedNode(f"n{i}", f"10.0.0.1{i}", "", None, 8) for i in (1, 2))
    captures = nodes(tmp_path, {"versions": versions}, {"versions": versions})
    report = run_preflight(captures, expect(*pair, configs="the bundle's"))
    assert found(report) == ([(check, (n,)) for n in captures] if check else [])


def test_the_hash_of_nothing_is_the_one_of_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert hash_folder(tmp_path / "nowhere") == NOTHING


@pytest.mark.parametrize("name", ["n1", "h20-node01.example.com", "10.0.0.11"])
def test_a_node_is_known_by_name_address_or_first_label(name: str, tmp_path: Path) -> None:
    """As on the node itself, where its host name is all that is known."""
    mine = ExpectedNode("head", "h20-node01" if "example" in name else "10.0.0.11", "", None, 16)
    other = ExpectedNode("other", "10.0.0.12", "", None, 8)
    (capture,) = nodes(tmp_path, {}).values()
    report = run_preflight({name: capture}, expect(mine, other))
    assert found(report) == [("gpus-missing", ("head",))]
    absent = [f.nodes for f in report.findings if f.check == "node-not-captured"]
    assert absent == [("other",)]


def test_the_cluster_file_s_address_is_announced_if_the_node_holds_it(tmp_path: Path) -> None:
    both = [{"name": "eno1", "ips": ["172.16.0.1/16", "10.0.0.11/24"]}]
    (capture,) = nodes(tmp_path, {"interface": both}).values()
    for host, address in (("10.0.0.11", "10.0.0.11"), ("10.0.0.99", "172.16.0.1")):
        report = run_preflight({"n1": capture}, expect(ExpectedNode("n1", host, "", None, 8)))
        assert report.nodes[0].environment["SGLANG_HOST_IP"] == address
