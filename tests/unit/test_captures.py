"""Outputs of a node's tools in texts: what the topology's matrix and RDMA ports show, and no more."""

# ruff: noqa: E501 (rows of a matrix are long)

import pytest

from tuner.deploy.preflight import run_preflight
from tuner.diagnose import diagnose_text

TAIL = "CPU Affinity\tNUMA Affinity"
# NVIDIA/nccl#595: two cards for four GPUs, on four NUMA nodes.
FOUR = f"""\tGPU0\tGPU1\tGPU2\tGPU3\tmlx5_0\tmlx5_1\t{TAIL}
GPU0\t X \tNV4\tNV4\tNV4\tSYS\tSYS\t16-31,80-95\t1
GPU1\tNV4\t X \tNV4\tNV4\tPIX\tSYS\t0-15,64-79\t0
GPU2\tNV4\tNV4\t X \tNV4\tSYS\tPIX\t48-63,112-127\t3
GPU3\tNV4\tNV4\tNV4\t X \tSYS\tSYS\t32-47,96-111\t2
mlx5_0\tSYS\tPIX\tSYS\tSYS\t X \tSYS
mlx5_1\tSYS\tSYS\tPIX\tSYS\tSYS\t X
"""
# Each GPU has a card, and one more card is far from all of them.
SPARE = f"""\tGPU0\tGPU1\tNIC0\tNIC1\tNIC2\t{TAIL}\tGPU NUMA ID
GPU0\t X \tNV18\tPIX\tNODE\tSYS\t0-31\t0\t\tN/A
GPU1\tNV18\t X \tNODE\tPXB\tSYS\t0-31\t0\t\tN/A
NIC0\tPIX\tNODE\t X \tNODE\tSYS
NIC1\tNODE\tPXB\tNODE\t X \tSYS
NIC2\tSYS\tSYS\tSYS\tSYS\t X

NIC Legend:

  NIC0: mlx5_2
  NIC1: mlx5_3
  NIC2: mlx5_bond_0
"""
HALF = f"""\tGPU0\tGPU1\tNIC0\t{TAIL}
GPU0\t X \tSYS\tNODE\t0-15\t0
GPU1\tSYS\t X \tSYS\t16-31\t1
NIC0\tNODE\tSYS\t X
"""
BOARD = f"""\tGPU0\tGPU1\tNIC0\t{TAIL}
GPU0\t X \tPHB\tPHB\t0-15\t0
GPU1\tPHB\t X \tPHB\t0-15\t0
NIC0\tPHB\tPHB\t X
"""
NO_NIC = f"\tGPU0\tGPU1\t{TAIL}\nGPU0\t X \tNV4\t0-15\t0\nGPU1\tNV4\t X \t0-15\t0\n"

# As NVIDIA/nccl#1453 has it, with two GPUs: the first NIC is far from all of them.
EIGHT = """\tGPU0\tGPU1\tNIC0\tNIC1\tNIC2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tSYS\tNODE\tPIX\t0-79\t0\t\tN/A
GPU1\tNV18\t X \tSYS\tPIX\tNODE\t0-79\t0\t\tN/A
NIC0\tSYS\tSYS\t X \tSYS\tSYS
NIC1\tNODE\tPIX\tSYS\t X \tNODE
NIC2\tPIX\tNODE\tSYS\tNODE\t X
"""
# As NVIDIA/nccl#1405 has it: several cards below each socket's only switch.
SHARED = """\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity
GPU0\t X \tSYS\tSYS\tPIX\t0-37\t0
GPU1\tSYS\t X \tPIX\tSYS\t38-75\t1
NIC0\tSYS\tPIX\t X \tSYS
NIC1\tPIX\tSYS\tSYS\t X
"""

# NVIDIA/nccl#1591: the rows of the other socket's GPUs are cut, and so is what NIC2 is near.
CUT = """        GPU0    GPU1    GPU2    GPU3    NIC0    NIC1    NIC2    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV18    NV18    NV18    PIX     NODE    SYS     0-31,64-95      0               N/A
GPU1    NV18     X      NV18    NV18    NODE    NODE    SYS     0-31,64-95      0               N/A
GPU2    NV18    NV18     X      NV18    NODE    PIX     SYS     0-31,64-95      0               N/A
"""

# NVIDIA/nccl#428: an older driver has no column of NUMA nodes, and people leave the legend out.
OLD = """        GPU0    GPU1    CPU Affinity
GPU0     X      PHB     0-11
GPU1    PHB      X      0-11
"""
PAIRS = """\tGPU0\tGPU1\tGPU2\tGPU3
GPU0\t X \tPIX\tSYS\tSYS
GPU1\tPIX\t X \tSYS\tSYS
GPU2\tSYS\tSYS\t X \tPIX
GPU3\tSYS\tSYS\tPIX\t X
"""

SAYS = [
    (OLD, ["names no RDMA device"], ["GPUDirect"]),
    (PAIRS, ["names no RDMA device"], ["GPUDirect"]),
    (PAIRS.partition("\n")[2], ["Its header or its rows are cut"], ["names no RDMA device", "NVLink to", "GPUDirect"]),
    ("\tGPU0\tNIC0\tCPU Affinity\nGPU0\t X \tPIX\t0-11\nNIC0\tPIX\t X\n", ["NIC0 with GPU0"], ["names no RDMA device"]),
    (FOUR, ["mlx5_0 with GPU1; mlx5_1 with GPU2", "none under the switch of GPU0; the switch of GPU3", "GPU0 and GPU3 reach one through the link between NUMA nodes (SYS)"], ["mlx5_0, under no"]),
    (SPARE, ["mlx5_2 with GPU0; mlx5_3 with GPU1", "mlx5_bond_0, under no GPU's PCIe switch"], ["none under", "SYS)"]),
    (HALF, ["no RDMA device shares a PCIe switch with a GPU", "GPU0 reaches one through host bridges of its NUMA node (NODE)", "GPU1 reaches one through the link between NUMA nodes (SYS)"], ["Below one PCIe switch"]),
    (BOARD, ["GPU0 and GPU1 reach one through the PCIe host bridge (PHB)"], ["NODE)", "SYS)"]),
    (NO_NIC, ["names no RDMA device"], ["no RDMA device shares", "GPUDirect"]),
    (SHARED.replace("NIC1\tCPU", "NIC1CPU"), ["NIC1 with GPU0; NIC0 with GPU1"], ["are cut"]),
    (FOUR.replace("GPU3\tNV4\tNV4\tNV4\t X \tSYS\tSYS", "GPU3\tNV4\tNV4\tNV4 X\tSYSSYS"), ["rows of GPU3 are cut", "under the switch of GPU0;"], ["GPU0 and GPU3", "switch of GPU3"]),
    (CUT, ["rows of GPU3 are cut", "NIC0 with GPU0; NIC1 with GPU2"], ["under no", "move NIC", "share"]),
    (EIGHT, ["NIC2 with GPU0; NIC1 with GPU1", "NIC0, under no GPU's PCIe switch"], ["none under"]),
    (SHARED, ["NIC1 with GPU0; NIC0 with GPU1"], ["under no", "none under", "SYS)"]),
    (f"> {FOUR}".replace("\n", "\n> "), ["mlx5_0 with GPU1", "GPU0 and GPU3 reach one"], []),
]  # fmt: skip


def said(text: str) -> str:
    found = diagnose_text(text)
    return "\n".join(line for answer in found.answers for line in answer.lines())


def folded(text: str) -> str:
    return text.casefold()


def test_a_matrix_says_which_gpus_have_no_device_near_and_no_more(subtests):
    for text, expected, never in SAYS:
        with subtests.test(expected[0]):
            answer = folded(said(f"We see 3 GB/s.\n{text}\nAny idea?"))
            for phrase in expected:
                assert folded(phrase) in answer
            for phrase in never:
                assert folded(phrase) not in answer.partition("lead through the processor")[2]


def test_tables_of_two_hosts_get_no_common_index():
    head = "DEV\tPORT\tINDEX\tGID\tIPv4\tVER\tDEV\n"
    row = "mlx5_4\t1\t{}\t0000:0000:0000:0000:0000:ffff:ac14:0101\t172.20.1.1\tv2\tnet1\n"
    answer = said(f"pod 1\n{head}{row.format(5)}pod 2\n{head}{row.format(7)}")
    assert "the table of each to `tuner diagnose` by itself" in answer
    assert "export NCCL_IB_GID_INDEX" not in answer
    assert "export NCCL_IB_GID_INDEX=5" in said(f"pod 1\n{head}{row.format(5)}")


def test_far_gpus_are_named_for_programs():
    (row,) = diagnose_text(FOUR).as_json()["found"]
    assert row["details"]["far_gpus"] == ["GPU0", "GPU3"]


def test_a_capture_of_the_topology_alone_is_checked_too(tmp_path):
    for name, text, check in (("a", FOUR, "too-few-hcas"), ("b", SPARE, "hca-far"), ("c", HALF, "no-near-hca")):  # fmt: skip
        (tmp_path / name).mkdir()
        (tmp_path / name / "nvidia-smi-topo.txt").write_text(text)
        report = run_preflight({name: tmp_path / name})
        assert check in {finding.check for finding in report.findings}
        assert report.ok


DEVINFO = """hca_id:\tmlx5_0
\ttransport:\t\t\tInfiniBand (0)
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tlink_layer:\t\tEthernet

hca_id:\tmlx5_1
\ttransport:\t\t\tInfiniBand (0)
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_{} (1)
\t\t\tlink_layer:\t\tInfiniBand
"""
IBSTAT = """CA 'mlx5_0'
\tCA type: MT4123
\tNumber of ports: 1
\tFirmware version: 20.31.1014
\tPort 1:
\t\tState: Initializing
\t\tPhysical state: LinkUp
\t\tLink layer: InfiniBand
"""
IBSTATUS = "".join(f"""Infiniband device 'mlx5_{i}' port 1 status:
\tdefault gid:\t fe80:0000:0000:0000:0000:0000:0000:0001
\tstate:\t\t {state}
\tphys state:\t {{}}
\tlink_layer:\t InfiniBand

""" for i, state in enumerate(("4: ACTIVE", "{}")))  # fmt: skip
LINKS = """link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ens1f0
link mlx5_1/1 subnet_prefix fe80:0000:0000:0000 lid 1 sm_lid 1 lmc 0 state DOWN physical_state DISABLED
"""
NETDEV = "mlx5_0 port 1 ==> ens1f0 ({})\nmlx5_3 port 1 ==> ens2f0 (Up)\n"


@pytest.mark.parametrize(
    ("text", "expected", "never"),
    [
        (DEVINFO.format("DOWN"), "1 of 2 RDMA ports are down: mlx5_1", "mlx5_0 are up"),
        (DEVINFO.format("ACTIVE"), "ports of mlx5_0 and mlx5_1 are up", "down:"),
        (DEVINFO.format("INIT"), "start a subnet manager", "check cable"),
        (IBSTAT, "Start a subnet manager", "check cable"),
        (IBSTAT.replace("Initializing", "Down"), "Start a subnet manager", "check cable"),
        (IBSTAT.replace("Initializing", "Down").replace("LinkUp", "Polling"), "Check cable", "subnet manager"),
        (IBSTATUS.format("5: LinkUp", "1: DOWN", "3: Disabled"), "1 of 2 RDMA ports are down: mlx5_1", "cable"),
        (IBSTATUS.format("5: LinkUp", "1: DOWN", "3: Disabled"), "Switch on what is Disabled", "are up"),
        (IBSTATUS.format("5: LinkUp", "2: INIT", "5: LinkUp"), "Start a subnet manager", "cable"),
        (IBSTATUS.format("5: LinkUp", "4: ACTIVE", "5: LinkUp"), "ports of mlx5_0 and mlx5_1 are up", "down:"),
        (LINKS, "1 of 2 RDMA ports are down: mlx5_1", "are up"),
        (NETDEV.format("Down"), "1 of 2 RDMA ports are down: mlx5_0", "are up"),
        (NETDEV.format("Up"), "ports of mlx5_0 and mlx5_3 are up", "down:"),
    ],
)  # fmt: skip
def test_ports_of_rdma_devices_are_told_as_up_or_down(text, expected, never):
    answer = folded(said(text))
    assert folded(expected) in answer
    assert folded(never) not in answer


def test_a_capture_of_ibstatus_in_place_of_ibstat_is_checked(tmp_path):
    (tmp_path / "ibstat.txt").write_text(IBSTATUS.format("5: LinkUp", "1: DOWN", "3: Disabled"))
    checks = {finding.check for finding in run_preflight({"a": tmp_path}).findings}
    assert "ports-down" in checks
    assert "rdma-none" not in checks


def test_other_tools_say_nothing_wrong():
    tree = "+-[0000:a0]-+-00.0  Intel Corporation Ice Lake Memory Map/VT-d\n |  +-01.0-[a1]----00.0  Mellanox Technologies MT28908 Family [ConnectX-6]\n"
    assert not diagnose_text(tree).answers
    port = "Settings for ens1f0:\n\tSpeed: 200000Mb/s\n\tDuplex: Full\n\tLink detected: yes\n"
    assert not diagnose_text(port).answers
