"""Preflight: GPUDirect RDMA, the model's files, and a machine with nothing to check."""

from dataclasses import replace
from pathlib import Path

import pytest
from draws import times
from hypothesis import given
from hypothesis import strategies as st

from tuner.deploy.preflight import run_preflight
from tuner.deploy.preflight.all_checks import PreflightResult, check_nodes
from tuner.deploy.preflight.capture import read_capture
from tuner.deploy.preflight.devices import card_of
from tuner.deploy.preflight.facts import Finding, Node, RdmaDevice, RdmaPort, Severity
from tuner.deploy.preflight.gpus import parse_kernel, redirecting_bridges

DATA = Path(__file__).parents[1] / "data" / "cluster"
ROOT_PORTS = DATA / "l40s-root-ports"
LSPCI = """\
0000:16:00.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (prog-if 00 [Normal decode])
\tCapabilities: [170 v1] Access Control Services
\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
\t\tACSCtl:\tSrcValid{} TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-

0000:17:00.0 3D controller: NVIDIA Corporation AD102GL [L40S] (rev a1)
\tCapabilities: [e00 v1] Access Control Services
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-
"""
MODULES = "nvidia 8000000 100 - Live 0x0\nmlx5_core 1 0 - Live 0x0\n"


def found(report: PreflightResult) -> dict[str, Finding]:
    return {finding.check: finding for finding in report.findings}


def kernel(**changes: str) -> PreflightResult:
    """The report on a node with RDMA and these captured texts."""
    texts = {
        "modules": MODULES + "nvidia_peermem 1 0 - Live 0x0\n",
        **{"cmdline": "quiet", "iommu": "", "lspci": LSPCI.format("-"), "driver": ""},
        "release": "5.15.0-91-generic",
        **changes,
    }
    node = read_capture("a", DATA / "h20-node01")
    return check_nodes([replace(node, kernel=parse_kernel(**texts))])


# ---- the box of the L40S author: https://yangwenbo.com, "update-bench-dsr1-int8-on-l40s" ----


def test_the_box_as_the_author_found_it_gets_the_author_s_two_corrections_alone():
    report = run_preflight({"l40s-01": ROOT_PORTS})
    errors = [f for f in report.findings if f.severity is Severity.ERROR]
    assert [f.check for f in errors] == ["ports-down", "nic-wrong-switch"]
    down, wrong = errors
    assert down.message == ("5 of 6 RDMA ports are down: mlx5_1, mlx5_2, mlx5_3, mlx5_4 and mlx5_5")
    assert wrong.fix.startswith(
        "move the card of mlx5_4 and mlx5_5 to a slot below the switch of GPU4, GPU5, GPU6 and GPU7"
    )
    assert not any("mlx5_0" in f.fix or "mlx5_1 " in f.fix for f in errors)
    assert report.nodes[0].environment["NCCL_IB_HCA"] == "mlx5_0"  # the one that works


@pytest.mark.parametrize("names", ["eth{}", "ens{}f0np0"])
def test_cards_are_told_without_the_names_of_functions(names):
    node = read_capture("a", ROOT_PORTS)
    ports = tuple(replace(p, interface=names.format(i)) for i, p in enumerate(node.ports))
    slots = tuple(
        RdmaDevice(f"mlx5_{i}", 1, "DOWN", "", "", "", slot=f"0000:{i // 2}7:00") for i in range(6)
    )
    for other in (
        replace(node, ports=ports, default_interface=names.format(0), devices=slots),
        replace(
            node,
            ports=tuple(replace(p, interface=f"eth{i}") for i, p in enumerate(ports)),
            default_interface="eth0",
        ),
    ):
        assert card_of(other, "mlx5_4") == ("mlx5_4", "mlx5_5")
        wrong = found(check_nodes([other]))["nic-wrong-switch"]
        assert wrong.fix.startswith("move the card of mlx5_4 and mlx5_5 to a slot below")


def test_the_box_as_it_was_mended_passes():
    node = read_capture("a", ROOT_PORTS)
    relations = dict(node.topology.relations)
    for gpu in node.topology.gpus:
        for nic in ("mlx5_4", "mlx5_5"):
            relations[gpu, nic] = "PXB" if gpu in ("GPU4", "GPU5", "GPU6", "GPU7") else "SYS"
    topology = replace(node.topology, relations=relations)
    ports = tuple(replace(p, up=True) for p in node.ports)
    report = check_nodes([replace(node, topology=topology, ports=ports)])
    assert report.ok
    assert report.nodes[0].environment["NCCL_IB_HCA"] == "mlx5_2,mlx5_3,mlx5_4,mlx5_5"


def test_verbose_output_of_ibdev2netdev_tells_the_cards():
    line = "0000:{}:00.{} mlx5_{} (MT4129) ConnectX-7 fw 28.39 port 1 (ACTIVE) ==> eth{} (Up)"
    ports = tuple(
        RdmaPort(f"mlx5_{i}", 1, f"eth{i}", True, line.format(17 + i // 2, i % 2, i, i))
        for i in range(4)
    )
    assert card_of(Node("a", ports=ports), "mlx5_2") == ("mlx5_2", "mlx5_3")


# ---- a machine with nothing to check ----


def test_a_machine_with_neither_gpus_nor_rdma_is_no_machine_to_launch_on(tmp_path):
    (tmp_path / "ip-route.json").write_text('[{"dst": "default", "dev": "eth0"}]')
    report = run_preflight({"laptop": tmp_path})
    assert not report.ok
    assert "nvidia-smi must answer" in found(report)["nothing-to-check"].fix
    (tmp_path / "nvidia-smi-q.txt").write_text("NVIDIA-SMI has failed\n")
    assert "nothing-to-check" in found(run_preflight({"laptop": tmp_path}))


@pytest.mark.parametrize("node", ["h20-node01", "l40s-miswired", "l40s-root-ports"])
def test_a_node_that_shows_something_is_checked(node):
    assert "nothing-to-check" not in found(run_preflight({node: DATA / node}))


# ---- GPUDirect RDMA ----


def test_a_node_that_can_do_gpudirect_gets_no_finding():
    assert not {c for c in found(kernel()) if c.startswith(("gpudirect", "acs", "iommu"))}


def test_the_module_is_missed_unless_dma_buf_serves():
    assert "modprobe nvidia-peermem" in found(kernel(modules=MODULES))["gpudirect-module"].fix
    driver = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54"
    assert "gpudirect-module" not in found(kernel(modules=MODULES, driver=driver))
    old = kernel(modules=MODULES, driver=driver, release="5.4.0")
    assert "gpudirect-module" in found(old)
    assert "gpudirect-module" not in found(kernel(modules=""))  # not captured


def test_access_control_at_bridges():
    finding = found(kernel(lspci=LSPCI.format("+")))["acs-enabled"]
    assert finding.message.startswith("ACS is on at 1 PCI bridges")
    assert finding.evidence == ("ACSCtl: SrcValid+ at 0000:16:00.0",)
    assert redirecting_bridges(LSPCI.format("-")) == ()  # a GPU's own is no bridge's
    hidden = kernel(lspci="0000:16:00.0 PCI bridge: x\n\tCapabilities: <access denied>\n")
    assert found(hidden)["acs-unknown"].severity is Severity.INFO


@pytest.mark.parametrize(
    ("iommu", "cmdline", "said"),
    [
        ("dmar0 dmar1", "quiet intel_iommu=on", True),
        ("dmar0", "intel_iommu=on iommu=pt", False),
        ("ivhd0", "iommu.passthrough=1", False),
        ("", "intel_iommu=on", False),
    ],
)
def test_an_iommu_that_translates(iommu, cmdline, said):
    assert ("iommu-enabled" in found(kernel(iommu=iommu, cmdline=cmdline))) is said


def test_a_node_without_rdma_needs_none_of_it():
    facts = parse_kernel(MODULES, "", "dmar0", LSPCI.format("+"), "", "5.15")
    assert not check_nodes([Node("a", kernel=facts)]).findings[1:]


@times(2)
@given(st.text(max_size=40))
def test_noise_is_read(text):
    parse_kernel(text, text, text, text, text, text)
