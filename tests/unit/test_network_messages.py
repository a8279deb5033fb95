"""Check lines of NCCL, Gloo, Ray and RDMA tools as people report them, and what is said of them."""

# ruff: noqa: E501 (lines of logs and rows of tables are long)

import pytest

from tuner.diagnose import Hints, diagnose_text

INFO = "node-1:88:157 [0] NCCL INFO "


@pytest.mark.parametrize("number", [1, 12])
def test_a_first_collective_that_times_out_is_no_late_rank_alone(number):
    text = f"[rank0]:[E ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600013 milliseconds before timing out."
    (answer,) = diagnose_text(text).answers
    first = answer.finding.message.name == "nccl_first_timeout"
    assert first is (number == 1)
    assert ("ALLREDUCE" in answer.cause[0]) is not first


def test_sockets_are_no_fault_on_one_node():
    sockets = INFO + "Using network Socket\n"
    one = INFO + "comm 0x1 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0 - Init START"
    assert "NCCL_IB_DISABLE=1" in diagnose_text(sockets).as_text()
    (answer,) = diagnose_text(sockets + one).answers
    assert answer.finding.message.name == "nccl_one_node"


REGISTER = "spark:1:1 [0] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"
NO_GDR = INFO + "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"


@pytest.mark.parametrize(("device", "unified"), [("GB10", True), ("H100", False), ("", False)])
def test_a_gpu_that_shares_the_hosts_memory_gets_answers_of_its_own(device, unified):
    register = diagnose_text(REGISTER, Hints(device=device)).as_text()
    assert ("kho=off" in register) is unified
    assert ("NCCL_BUFFSIZE), or" in register) is not unified
    direct = diagnose_text(NO_GDR, Hints(device=device)).as_text()
    assert ("has no GPUDirect RDMA" in direct) is unified
    assert ("nvidia_peermem" in direct) is not unified


@pytest.mark.parametrize(("state", "value"), [("Up", "mlx5_0,mlx5_3"), ("Down", "mlx5_3")])
def test_the_ports_that_are_up_give_the_value_of_nccl_ib_hca(state, value):
    text = f"mlx5_0 port 1 ==> ens1f0 ({state})\nmlx5_3  port  1  ==>  ens2f0  (Up)  # rail\n"
    assert f"export NCCL_IB_HCA={value}\n" in diagnose_text(text).as_text()


def test_ip_over_infiniband_says_nothing_of_the_port():
    text = "mlx5_0 port 1 ==> ibp26s0 (Down)\nmlx5_1 port 1 ==> enp27s0f0np0 (Up)\n"
    answer = diagnose_text(text).as_text()
    assert "says nothing of the InfiniBand port" in answer
    assert "ports are down" not in answer
    assert "export NCCL_IB_HCA=mlx5_0\n" in answer


SHOWN = """DEV     PORT    INDEX   GID                                     IPv4            VER     DEV
mlx5_0  1       5       fe80:0000:0000:0000:c025:a1ff:fe31:2e81                 v2      net1
mlx5_0  1       7       0000:0000:0000:0000:0000:ffff:0a9c:8184 10.156.129.132  v2      net1
mlx5_1  1       {0}       0000:0000:0000:0000:0000:ffff:0a9c:8584 10.156.133.132  v2      net2
"""
LISTED = "\t\tGID[  1]:\t\tfe80::ac0:ebff:feda:1cfb, RoCE v2\n\t\tGID[  3]:\t\t::ffff:10.0.0.6, RoCE v2\n"


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        (SHOWN.format(7), "export NCCL_IB_GID_INDEX=7\n"),
        (SHOWN.format(9), "index differs between devices"),
        (LISTED, "export NCCL_IB_GID_INDEX=3\n"),
    ],
)
def test_a_table_of_gids_says_the_index(text, phrase):
    assert phrase in diagnose_text(text).as_text()
