"""Preflight: real captures, a miswired box, and every parser on noise."""

import ast
import json
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.deploy.preflight import build_single_file, capture, parse_nodes, render, run_preflight
from tuner.deploy.preflight.all_checks import PreflightResult, check_nodes
from tuner.deploy.preflight.capture import hash_folder, read_capture
from tuner.deploy.preflight.facts import (
    Address,
    Expected,
    ExpectedNode,
    Interface,
    Listener,
    Node,
    NodeGpu,
    PcieLink,
    RdmaPort,
    Severity,
    Topology,
    joined,
    natural,
    read_expected,
)
from tuner.deploy.preflight.gpus import parse_nvidia_smi, parse_topology
from tuner.deploy.preflight.network import (
    parse_ahosts,
    parse_environment,
    parse_ibdev2netdev,
    parse_ip_addr,
    parse_ip_route,
    parse_listeners,
    parse_show_gids,
    read_sysfs,
)
from tuner.errors import BadInput, MalformedCapture, MalformedCluster

DATA = Path(__file__).parents[1] / "data" / "cluster"
H20 = {"h20-node01": DATA / "h20-node01", "h20-node02": DATA / "h20-node02"}
RAILS = tuple(f"mlx5_{i}" for i in range(1, 9))
L40S = DATA / "l40s-miswired"


def errors(report: PreflightResult) -> list[str]:
    return [f.check for f in report.findings if f.severity is Severity.ERROR]


def checks(report: PreflightResult) -> set[str]:
    return {f.check for f in report.findings}


# ---- the two real nodes ----


def test_h20_pair_gives_rails_gid_index_and_management():
    report = run_preflight(H20)
    assert report.ok
    for node, address in zip(report.nodes, ("10.63.65.207", "10.63.65.208"), strict=True):
        assert node.links.device == "mlx5_0"
        assert node.links.interface == "xgbe0"
        assert node.links.usable == RAILS
        assert node.environment == {
            "NCCL_IB_HCA": ",".join(RAILS),
            "NCCL_IB_GID_INDEX": "3",
            "NCCL_SOCKET_IFNAME": "xgbe0",
            "GLOO_SOCKET_IFNAME": "xgbe0",
            "TP_SOCKET_IFNAME": "xgbe0",
            "SGLANG_HOST_IP": address,
            "HOST_IP": address,
        }


def test_files_saved_by_hand_are_found_by_tool_and_node(tmp_path):
    for name, folder in H20.items():
        for file in folder.iterdir():
            shutil.copy(file, tmp_path / f"{name}-{file.name}")
    report = run_preflight(dict.fromkeys(H20, tmp_path))
    assert [n.environment for n in report.nodes] == [
        n.environment for n in run_preflight(H20).nodes
    ]


def test_evenly_numbered_links_have_no_odd_one_out():
    text = (DATA / "h20-node01" / "show_gids.txt").read_text()
    node = Node("a", gids=parse_show_gids(text.replace("10.63.65.207", "33.2.159.143")))
    report = check_nodes([node])
    assert report.nodes[0].links.interface == ""
    assert "management-unknown" in checks(report)
    assert len(report.nodes[0].links.usable) == 9


def test_default_route_tells_the_management_link_too():
    node = replace(read_capture("a", H20["h20-node01"]), default_interface="xgbe3")
    assert check_nodes([node]).nodes[0].links.device == "mlx5_3"


def test_the_cluster_file_s_interface_goes_first():
    expected = one_node("a", interface="xgbe8")
    report = check_nodes([read_capture("a", H20["h20-node01"])], expected)
    assert report.nodes[0].links.device == "mlx5_8"
    assert report.nodes[0].links.compute == tuple(f"mlx5_{i}" for i in range(8))


def test_a_name_that_is_a_prefix_is_asked_for_exactly():
    ports = tuple(RdmaPort(f"mlx5_{i}", 1, f"e{i}", True, "") for i in range(12))
    expected = one_node("a", rdma=("mlx5_1", "mlx5_2"))
    report = check_nodes([Node("a", ports=ports)], expected)
    assert report.nodes[0].environment["NCCL_IB_HCA"] == "=mlx5_1,mlx5_2"


# ---- the miswired box ----


def test_miswired_box_has_exactly_two_errors_with_their_fix():
    report = run_preflight({"l40s-01": L40S})
    assert not report.ok
    assert errors(report) == ["ports-down", "nic-wrong-switch"]
    assert len(report.findings) == 2
    down, wrong = report.findings
    assert down.message.startswith("5 of 6 RDMA ports are down")
    assert len(down.evidence) == 5
    assert "ip link set ens11f0np0 up" in down.fix
    assert "mlx5_5 is under the switch of GPU0, GPU1, GPU2 and GPU3" in wrong.message
    assert "to a slot below the switch of GPU4, GPU5, GPU6 and GPU7" in wrong.fix
    assert wrong.evidence[0].startswith("NIC5")
    assert report.nodes[0].links.interface == "eno1"


def test_a_port_that_nobody_switched_off_has_its_cable_checked():
    node = read_capture("l40s-01", L40S)
    assert {d.phys_state for d in node.devices} == {"LinkUp", "Disabled", "Polling"}
    mixed, *_ = check_nodes([node]).findings
    assert mixed.fix.startswith("check cable, transceiver and switch port; ip link set ")
    known = {d.device for d in node.devices if d.phys_state != "Polling"}
    ports = tuple(port for port in node.ports if port.device in known)
    switched_off, *_ = check_nodes([replace(node, ports=ports)]).findings
    assert switched_off.message.startswith("4 of 5 RDMA ports are down")
    assert switched_off.fix.startswith("ip link set ")


def test_the_sysfs_tree_alone_tells_the_ports():
    node = replace(read_capture("a", L40S), ports=(), gids=())
    node = replace(node, gids=read_sysfs(L40S / "sys/class/infiniband")[1])
    report = check_nodes([node])
    assert errors(report) == ["ports-down", "nic-wrong-switch"]
    assert report.nodes[0].environment["NCCL_IB_GID_INDEX"] == "3"


def test_sysfs_and_tools_agree():
    devices, gids = read_sysfs(L40S / "sys/class/infiniband")
    told = read_capture("a", L40S)
    assert {(g.device, g.index, g.gid, g.ipv4, g.version) for g in gids} == {
        (g.device, g.index, g.gid, g.ipv4, g.version) for g in told.gids
    }
    assert {d.device: d.interface for d in devices} == {p.device: p.interface for p in told.ports}
    assert devices[5].numa_node == 0
    assert devices[0].pcie == PcieLink(4, 4, 16, 16)


def wired(node: Node, nic: int, gpus: str) -> Node:
    """The node with a NIC moved below these GPUs."""
    topology = node.topology
    relations = dict(topology.relations)
    for gpu in topology.gpus:
        relations[(gpu, f"mlx5_{nic}")] = "PXB" if gpu[3:] in gpus else "SYS"
    return replace(node, topology=replace(topology, relations=relations))


def test_a_nic_under_no_gpu_s_switch_is_out_of_place_where_one_lacks_it():
    node = wired(read_capture("a", L40S), 5, "")
    wrong = [f for f in check_nodes([node]).findings if f.check == "nic-wrong-switch"]
    assert len(wrong) == 1
    assert wrong[0].message.startswith("mlx5_5 is under no GPU's switch")


def test_an_extra_nic_is_left_out_without_an_error():
    node = read_capture("a", L40S)
    ports = tuple(replace(p, up=True) for p in node.ports)
    node = replace(wired(wired(node, 5, ""), 2, ""), ports=ports, gids=())
    report = check_nodes([node])
    assert "hca-far" in checks(report)
    assert "nic-wrong-switch" not in checks(report)
    assert report.nodes[0].environment["NCCL_IB_HCA"] == "mlx5_0,mlx5_1,mlx5_3,mlx5_4"


def test_a_switch_without_any_nic_is_a_warning():
    relations = {("GPU0", "m0"): "PIX", ("GPU1", "m0"): "SYS"}
    node = Node(
        "a",
        ports=(RdmaPort("m0", 1, "e0", True, ""),),
        topology=Topology(("GPU0", "GPU1"), ("m0",), relations),
    )
    report = check_nodes([node])
    assert "too-few-hcas" in checks(report)
    assert "too-few-hcas" not in errors(report)


# ---- single checks ----


def one_node(name: str = "a", **fields: object) -> Expected:
    values: dict[str, object] = {
        "host": name,
        "interface": "",
        "rdma": None,
        "gpus": 1,
        "environment": {},
    }
    node = ExpectedNode(name=name, **{**values, **fields})
    ports = {"serve": 30000, "rendezvous": 5000}
    return Expected("sglang", "image", "/model", (node,), 1, ports)


def gpu(**changes: object) -> NodeGpu:
    usual = NodeGpu(
        *("00000000:0F:00.0", "NVIDIA L40S", 46068 * 2**20, "P0", PcieLink(4, 4, 16, 16), 4, 2**20),
    )
    return replace(usual, **changes)


@pytest.mark.parametrize(
    ("changes", "severity"),
    [
        ({}, None),
        ({"pcie": PcieLink(4, 4, 8, 16)}, Severity.ERROR),
        ({"pcie": PcieLink(1, 4, 16, 16)}, Severity.ERROR),
        ({"pcie": PcieLink(1, 4, 16, 16), "performance_state": "P8"}, Severity.INFO),
        ({"pcie": PcieLink(4, 4, 16, 16), "device_max_generation": 5}, Severity.WARNING),
    ],
)
def test_degraded_pcie_links(changes, severity):
    report = check_nodes([Node("a", gpus=(gpu(**changes),))])
    found = [f.severity for f in report.findings if f.check == "pcie-degraded"]
    assert found == ([severity] if severity else [])


def test_a_shard_that_does_not_fit():
    expected = replace(one_node(), weight_bytes=640 * 2**30, ranks=8)
    report = check_nodes([Node("a", gpus=(gpu(),))], expected)
    assert errors(report) == ["memory-too-small"]
    assert "at least 16 GPUs" in report.findings[0].fix
    assert check_nodes([Node("a", gpus=(gpu(),))], replace(expected, ranks=32)).ok


def test_missing_gpus():
    assert errors(check_nodes([Node("a", gpus=(gpu(),))], one_node(gpus=8))) == ["gpus-missing"]


def test_gid_table_without_ipv4():
    node = read_capture("a", H20["h20-node01"])
    gids = tuple(g for g in node.gids if g.device != "mlx5_4" or not g.ipv4)
    report = check_nodes([replace(node, gids=gids)])
    assert errors(report) == ["gid-empty"]
    assert report.findings[0].fix == "give an IPv4 address to xgbe4"
    proposed = report.nodes[0].environment["NCCL_IB_HCA"].split(",")
    assert proposed == [device for device in RAILS if device != "mlx5_4"]


def test_entries_of_roce_v1_need_no_other_address(tmp_path):
    """As on a ConnectX-3 beside a ConnectX-5: the old card has addresses, and RoCE v1 alone."""
    mapped = "0000:0000:0000:0000:0000:ffff:c612"
    (tmp_path / "show_gids.txt").write_text(
        f"mlx4_0\t1\t1\t{mapped}:0c0c\t198.18.12.12\tv1\teth2\n"
        f"mlx5_0\t1\t2\t{mapped}:0b0c\t198.18.11.12\tv1\teth4\n"
        f"mlx5_0\t1\t3\t{mapped}:0b0c\t198.18.11.12\tv2\teth4\n"
    )
    report = check_nodes([read_capture("a", tmp_path)])
    (finding,) = [f for f in report.findings if f.check == "gid-empty"]
    assert finding.message.startswith("mlx4_0 has no RoCE v2 GID")
    assert "let mlx4_0 speak RoCE v2" in finding.fix
    assert "give an IPv4 address" not in finding.fix
    assert report.nodes[0].environment["NCCL_IB_HCA"] == "mlx5_0"
    assert report.nodes[0].environment["NCCL_IB_GID_INDEX"] == "3"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "ibstat.txt",
            "CA 'mlx5_0'\n\tCA type: MT4125\n\tPort 1:\n\t\tState: Down\n"
            "\t\tPhysical state: Disabled\n\t\tRate: 40\n\t\tLink layer: Ethernet\n"
            "CA 'mlx5_10'\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n"
            "\t\tRate: 400\n\t\tLink layer: InfiniBand\n",
        ),
        (
            "ibv_devinfo.txt",
            "hca_id:\tmlx5_0\n\ttransport:\t\tInfiniBand (0)\n\t\tport:\t1\n"
            "\t\t\tstate:\t\t\tPORT_DOWN (1)\n\t\t\tlink_layer:\t\tEthernet\n\n"
            "hca_id:\tmlx5_10\n\t\tport:\t1\n\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n"
            "\t\t\tlink_layer:\t\tInfiniBand\n",
        ),
    ],
)
def test_what_people_paste_of_their_devices_is_read(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    node = read_capture("a", tmp_path)
    assert [(d.device, d.port, d.state, d.link_layer) for d in node.devices] == [
        ("mlx5_0", 1, "DOWN", "Ethernet"),
        ("mlx5_10", 1, "ACTIVE", "InfiniBand"),
    ]
    report = check_nodes([node])
    assert report.nodes[0].environment == {"NCCL_IB_HCA": "mlx5_10"}
    (down,) = [f for f in report.findings if f.check == "ports-down"]
    assert "ip link set" not in down.fix  # nothing names the interface


def test_a_card_with_two_ports_and_one_cable_works():
    """As every DGX Spark with one cable to the other."""
    ports = [
        RdmaPort(f"rocep1s0f{n}", 1, f"enp1s0f{n}np{n}", n == 0, f"rocep1s0f{n} port 1")
        for n in (0, 1)
    ]
    ports += [
        RdmaPort(f"roceP2p1s0f{n}", 1, f"enP2p1s0f{n}np{n}", n == 0, f"roceP2p1s0f{n} port 1")
        for n in (0, 1)
    ]
    report = check_nodes([Node("spark", ports=tuple(ports))])
    assert "ports-down" not in errors(report)
    (spare,) = [f for f in report.findings if f.check == "ports-down"]
    assert spare.severity is Severity.INFO
    named = one_node("spark", rdma=("rocep1s0f1",))
    assert "ports-down" in errors(check_nodes([Node("spark", ports=tuple(ports))], named))


def test_topology_alone_says_that_no_device_was_captured(tmp_path):
    (tmp_path / "nvidia-smi-topo.txt").write_text(
        "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-55\nGPU1\tNV18\t X \t0-55\n"
    )
    text = render(check_nodes([read_capture("a", tmp_path)]))
    assert "no RDMA device was captured" in text
    assert "0 of 0" not in text


def test_each_node_has_its_own_gid_index():
    nodes = [read_capture(name, folder) for name, folder in H20.items()]
    moved = tuple(replace(g, index=g.index + 2) if g.ipv4 else g for g in nodes[1].gids)
    report = check_nodes([nodes[0], replace(nodes[1], gids=moved)])
    assert errors(report) == []
    assert [node.environment["NCCL_IB_GID_INDEX"] for node in report.nodes] == ["3", "5"]
    one = tuple(replace(g, index=g.index + 2) if g.device == "mlx5_3" else g for g in nodes[0].gids)
    report = check_nodes([replace(nodes[0], gids=one)])
    assert errors(report) == ["gid-differs"]
    assert "NCCL_IB_GID_INDEX" not in report.nodes[0].environment


@pytest.mark.parametrize(
    ("name", "value", "check"),
    [
        ("NCCL_IB_GID_INDEX", "0", "gid-index"),
        ("NCCL_IB_HCA", "mlx5_9", "rdma-absent"),
        ("NCCL_IB_HCA", "=mlx5", "rdma-absent"),
        ("NCCL_SOCKET_IFNAME", "bond0", "interface-missing"),
        ("GLOO_SOCKET_IFNAME", "eno", "interface-missing"),
        ("SGLANG_HOST_IP", "10.9.9.9", "address-unreachable"),
        ("SGLANG_HOST_IP", "127.0.0.1", "address-unreachable"),
        ("HOST_IP", "head.example", "address-unreachable"),
    ],
)
def test_variables_that_cannot_work(name, value, check):
    node = replace(read_capture("a", L40S), environment={name: value})
    assert check in errors(check_nodes([node]))
    expected = one_node(environment={name: value})
    assert check in errors(check_nodes([read_capture("a", L40S)], expected))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_IB_GID_INDEX", "3"),
        ("NCCL_IB_HCA", "mlx5"),
        ("NCCL_IB_HCA", "^mlx5_9"),
        ("NCCL_IB_HCA", "=mlx5_0:1"),
        ("NCCL_SOCKET_IFNAME", "eno"),
        ("NCCL_SOCKET_IFNAME", "^docker,lo"),
        ("GLOO_SOCKET_IFNAME", "eno1"),
        ("SGLANG_HOST_IP", "192.168.20.11"),
    ],
)
def test_variables_that_work(name, value):
    node = replace(read_capture("a", L40S), environment={name: value})
    assert errors(check_nodes([node])) == ["ports-down", "nic-wrong-switch"]


def test_a_variable_that_leaves_devices_out_is_judged_against_the_proposal(subtests):
    """A DGX Spark shows each port as two devices, and each of them has half of its rate."""
    spark = read_capture("spark1", DATA / "sparks" / "spark1")
    (found,) = [f for f in check_nodes([spark]).findings if f.check == "rdma-left-out"]
    assert found.severity is Severity.WARNING
    assert "NCCL_IB_HCA=rocep1s0f1 uses 1 of 2 RDMA devices" in found.message
    assert "the bandwidth of roceP2p1s0f1 is lost" in found.message
    assert found.fix.startswith("set NCCL_IB_HCA=roceP2p1s0f1,rocep1s0f1,")
    for name, value, used in (
        ("NCCL_IB_HCA", "^roceP2p1s0f1", 1),
        ("NCCL_IB_HCA", "=rocep1s0f1:1", 1),
        ("NCCL_IB_HCA", "rocep", 1),
        ("NCCL_IB_HCA", "roce", None),
        ("NCCL_IB_HCA", "^=roce", None),
        ("NCCL_IB_HCA", "", None),
        ("NCCL_IB_HCA", "=rocep1s0f1,roceP2p1s0f1", None),
        ("NCCL_IB_DISABLE", "1", 0),
        ("NCCL_IB_DISABLE", "0", None),
    ):
        with subtests.test(f"{name}={value}"):
            report = check_nodes([replace(spark, environment={name: value})])
            said = [f.message for f in report.findings if f.check == "rdma-left-out"]
            assert bool(said) is (used is not None)
            assert used is None or f"{name}={value} uses {used} of 2 " in said[0]
    for said in ({"environment": {"NCCL_IB_HCA": "rocep1s0f1"}}, {"rdma": ("rocep1s0f1",)}):
        with subtests.test(said):  # the cluster file's own choice
            report = check_nodes([spark], one_node("spark1", **said))
            assert "rdma-left-out" not in checks(report)


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("VLLM_PLUGINS", "lora_filesystem_resolver", True),
        ("VLLM_PLUGINS", "", True),  # a list that names none
        ("VLLM_PLUGINS", "other, tuner_kernels", False),
        ("SGLANG_PLUGINS", "other", True),
        ("SGLANG_PLUGINS", "", False),
    ],
)
def test_plugins_that_are_left_out(name, value, found):
    node = replace(read_capture("a", L40S), environment={name: value})
    assert ("plugin-left-out" in checks(check_nodes([node]))) is found


def test_dual_stack_host_must_say_which_address_it_announces():
    both = (Address("10.0.0.1", 24, "global"), Address("2001:db8::1", 64, "global"))
    node = Node("a", interfaces=(Interface("eth0", True, both),), default_interface="eth0")
    found = [f for f in check_nodes([node]).findings if f.check == "dual-stack"]
    assert found[0].fix.startswith("set SGLANG_HOST_IP and HOST_IP")
    assert "10.0.0.1" in found[0].fix
    named = replace(node, environment={"SGLANG_HOST_IP": "10.0.0.1"})
    assert "dual-stack" not in checks(check_nodes([named]))


def test_a_name_that_resolves_to_loopback():
    node = replace(read_capture("a", L40S), hostname_addresses=("127.0.1.1",))
    assert "address-unreachable" in checks(check_nodes([node]))


def test_a_port_in_use():
    node = Node("a", listeners=(Listener("0.0.0.0", 30000), Listener("0.0.0.0", 22)))  # noqa: S104
    assert errors(check_nodes([node], one_node())) == ["port-in-use"]


def test_versions_that_differ_name_the_odd_node():
    nodes = [Node(n, versions={"image": "sha256:1", "triton": "3.6.0"}) for n in "abc"]
    nodes[2].versions["triton"] = "3.5.1"
    report = check_nodes(nodes)
    assert [(f.check, f.nodes) for f in report.findings if f.severity is Severity.ERROR] == [
        ("versions-differ", ("c",))
    ]


def test_a_node_that_was_not_captured():
    (said,) = (
        finding.message
        for finding in run_preflight({"a": L40S}, one_node("b")).findings
        if finding.check == "node-not-captured"
    )
    assert said == "nothing was captured from b; a is no node of the cluster file"


def test_output_that_is_not_understood_is_said(tmp_path):
    shutil.copytree(L40S, tmp_path / "a")
    (tmp_path / "a" / "nvidia-smi-topo.txt").write_text("Failed to initialize NVML\n")
    report = run_preflight({"a": tmp_path / "a"})
    assert any(f.check == "not-understood" and "topo" in f.message for f in report.findings)


# ---- parsers ----


def test_verbose_ibdev2netdev():
    line = (
        "0000:19:00.0 mlx5_0 (MT4129 - MCX75310AAS-NEAT) ConnectX-7 HHHL Adapter card, 400GbE "
        "fw 28.39.1002 port 1 (ACTIVE) ==> ens1np0 (Up)"
    )
    (port,) = parse_ibdev2netdev(line)
    assert (port.device, port.port, port.interface, port.up) == ("mlx5_0", 1, "ens1np0", True)


def test_topology_reads_numa_names_and_relations():
    topology = read_capture("a", L40S).topology
    assert topology.gpus == tuple(f"GPU{i}" for i in range(8))
    assert topology.nics == tuple(f"mlx5_{i}" for i in range(6))
    assert topology.numa["GPU3"] == "0"
    assert topology.numa["GPU4"] == "1"
    assert topology.relations[("GPU0", "mlx5_0")] == "PIX"
    assert topology.relations[("mlx5_3", "GPU0")] == "SYS"


def test_topology_of_nvlink_gpus_groups_by_their_nics():
    text = (
        "        GPU0    GPU1    mlx5_0  mlx5_1  CPU Affinity    NUMA Affinity\n"
        "GPU0     X      NV8     PXB     SYS     0-23    0\n"
        "GPU1    NV8      X      SYS     PXB     24-47   1\n"
    )
    topology = parse_topology(text)
    assert topology.nics == ("mlx5_0", "mlx5_1")
    assert topology.near("GPU1", "mlx5_1")
    assert not topology.near("GPU0", "GPU1")


def test_nvidia_smi_reads_links_and_memory():
    gpus = read_capture("a", L40S).gpus
    assert len(gpus) == 8
    assert gpus[0] == gpu()


def test_listeners_read_both_families():
    node = read_capture("a", L40S)
    assert [(x.ip, x.port) for x in node.listeners] == [("0.0.0.0", 22), ("::", 22)]  # noqa: S104


def test_natural_order():
    assert sorted(["mlx5_10", "mlx5_9", "mlx5_00"], key=natural) == ["mlx5_00", "mlx5_9", "mlx5_10"]
    assert joined({"b", "a", "c"}) == "a, b and c"
    assert joined([]) == ""


PARSERS: dict[str, tuple[Callable[[str], object], str]] = {
    "ibdev2netdev": (parse_ibdev2netdev, "ibdev2netdev.txt"),
    "show_gids": (parse_show_gids, "show_gids.txt"),
    "topology": (parse_topology, "nvidia-smi-topo.txt"),
    "nvidia_smi": (parse_nvidia_smi, "nvidia-smi-q.txt"),
    "ip_addr": (parse_ip_addr, "ip-addr.json"),
    "ip_route": (parse_ip_route, "ip-route.json"),
    "listeners": (parse_listeners, "tcp6.txt"),
    "ahosts": (parse_ahosts, "hostname-addresses.txt"),
    "environment": (parse_environment, "versions.json"),
}


@st.composite
def damaged(draw: st.DrawFn, text: str) -> str:
    """A real output with pieces cut, doubled, swapped for noise; or noise alone."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.text(max_size=200))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 200)))
        middle = draw(
            st.one_of(
                st.just(""),
                st.just(text[start:end] * 2),
                st.text(max_size=8),
                st.sampled_from(["9" * 5000, "-1", "null", "[]", "{}", "NaN", "\x00", "GPU0"]),
            )
        )
        text = text[:start] + middle + text[end:]
    return text


@pytest.mark.parametrize("name", PARSERS)
def test_a_parser_never_fails(name):
    parse, file = PARSERS[name]
    original = (L40S / file).read_text()

    @settings(database=None)
    @given(damaged(original))
    def run(text: str) -> None:
        parse(text)

    run()


@given(st.data())
def test_damaged_captures_give_findings_or_bad_input(data):
    """Every check on what damaged outputs parse to."""
    texts = {}
    for name, (_, file) in PARSERS.items():
        original = (L40S / file).read_text()
        texts[name] = data.draw(damaged(original)) if data.draw(st.booleans()) else original
    node = Node(
        "a",
        ports=parse_ibdev2netdev(texts["ibdev2netdev"]),
        gids=parse_show_gids(texts["show_gids"]),
        topology=parse_topology(texts["topology"]),
        gpus=parse_nvidia_smi(texts["nvidia_smi"]),
        interfaces=parse_ip_addr(texts["ip_addr"]),
        default_interface=parse_ip_route(texts["ip_route"]),
        listeners=parse_listeners(texts["listeners"]),
        hostname_addresses=parse_ahosts(texts["ahosts"]),
    )
    good = read_capture("b", L40S)
    report = check_nodes([node, good], replace(one_node(), weight_bytes=2**40))
    assert render(report).endswith("info\n")
    json.dumps(report.as_dict())


@given(content=st.dictionaries(st.sampled_from(range(8)), st.binary(max_size=40), max_size=8))
def test_a_damaged_sysfs_tree_never_fails(tmp_path_factory, content):
    root = tmp_path_factory.mktemp("sysfs")
    names = ("state", "phys_state", "link_layer", "rate", "gids/0", "gids/x", "gid_attrs/types/0")
    for index, value in content.items():
        relative = f"mlx5_0/ports/1/{names[index]}" if index < 7 else "mlx5_0/device/numa_node"
        path = root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value)
    devices, gids = read_sysfs(root)
    assert len(devices) <= 1
    assert len(gids) <= 1


@pytest.mark.parametrize("text", ["", "[]", "{", '{"nodes": 3}', '{"nodes": [{}]}', "\x00"])
def test_a_damaged_expectation_is_bad_input(tmp_path, text):
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(MalformedCluster, match="cluster.json"):
        read_expected(tmp_path / "cluster.json")


# ---- capturing ----


def test_hashes_follow_names_and_contents(tmp_path):
    (tmp_path / "a").write_text("1")
    first = hash_folder(tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    second = hash_folder(tmp_path)
    (tmp_path / "b").write_text("2")
    assert len({first, second, hash_folder(tmp_path)}) == 3


def test_bad_input(tmp_path):
    with pytest.raises(MalformedCapture, match="is not a folder"):
        run_preflight({"a": tmp_path / "absent"})
    with pytest.raises(MalformedCapture, match="holds no captured output"):
        run_preflight({"a": tmp_path})
    with pytest.raises(BadInput, match="no node"):
        run_preflight({})
    with pytest.raises(BadInput, match="NAME=DIR"):
        parse_nodes(["node01"])
    with pytest.raises(BadInput, match="given twice"):
        parse_nodes(["a=x", "a=y"])
    (tmp_path / "file").write_text("")
    with pytest.raises(MalformedCapture, match="cannot capture"):
        capture(tmp_path / "file")


def test_captured_control_characters_do_not_reach_the_terminal():
    node = Node("a", ports=(RdmaPort("mlx5_0", 1, "e0", False, "\x1b[31mred"),))
    assert "\x1b" not in render(check_nodes([node]))


# ---- the single file ----


@pytest.fixture(scope="module")
def single_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("single") / "preflight.py"
    build_single_file(path)
    return path


def test_single_file_is_the_same_every_time(single_file, tmp_path):
    build_single_file(tmp_path / "again.py")
    assert (tmp_path / "again.py").read_bytes() == single_file.read_bytes()


def test_single_file_is_python_3_8_and_standard_library_alone(single_file):
    """What no Python 3.8 is needed for: tests/cli/test_preflight_programs.py runs one."""
    with zipfile.ZipFile(single_file) as archive:
        names = archive.namelist()
        trees = {n: ast.parse(archive.read(n), n, feature_version=(3, 8)) for n in names}
    packaged = {n.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for n in names}
    for name, tree in trees.items():
        annotations = {id(inner) for one in ast.walk(tree) for inner in annotated(one)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                module = node.module or ""
                assert module in packaged or module.partition(".")[0] in sys.stdlib_module_names
            elif isinstance(node, ast.Import):
                assert {a.name.partition(".")[0] for a in node.names} <= sys.stdlib_module_names
            elif isinstance(node, ast.Subscript) and id(node) not in annotations:
                assert ast.unparse(node.value) not in ("tuple", "list", "dict", "set"), name
            elif isinstance(node, ast.Attribute):
                assert node.attr not in ("removeprefix", "removesuffix"), name


def annotated(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function's or a variable's annotations, which are not evaluated."""
    for value in (getattr(node, "annotation", None), getattr(node, "returns", None)):
        yield from ast.walk(value) if isinstance(value, ast.AST) else ()
