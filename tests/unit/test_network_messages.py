"""Check lines of NCCL, Gloo, Ray and RDMA tools as people report them, and what is said of them."""

# ruff: noqa: E501 (lines of logs and rows of tables are long)

import pytest

from tuner.diagnose import Hints, diagnose_text

WARN = "node-1:88:157 [0] transport/net_ib.cc:93 NCCL WARN "
INFO = "node-1:88:157 [0] NCCL INFO "
DONE = "NET/IB: Got completion from peer 10.0.0.2<4000> with "
ACS = "\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir{0} CmpltRedir{0} UpstreamFwd{0} EgressCtrl- DirectTrans-\n"

CASES = [
    # A peer that cannot be reached.
    (WARN + "Net : Connect to 192.0.2.9<54263> failed : No route to host", ["nccl_unreachable"], "192.0.2.9<54263>: No route"),
    (INFO + "socketPollConnect: connect returned No route to host, retrying (26/34) after sleep for 2600 msec", ["nccl_unreachable"], "firewall"),
    # The status of an RDMA transfer tells the network from the memory.
    (WARN + DONE + "status=12 opcode=0 len=0 vendor err 129 (Recv)", ["rdma_timeout"], "status 12"),
    (WARN + DONE + "status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129", ["rdma_timeout"], "GID index"),
    (WARN + DONE + "status=9 opcode=0 len=0 vendor err 138 (Send)", ["rdma_access"], "GID index and cable are not the cause"),
    (WARN + "NET/IB : mlx5_0:1 async fatal event on QP (0x7f): local access violation work queue error", ["rdma_access"], "NCCL_NET_GDR_LEVEL=LOC"),
    (WARN + "NET/IB : mlx5_32:1 Got async error event: port error", ["rdma_port"], "The port is mlx5_32:1"),
    (WARN + "NET/IB : Got async event : port error\n" + WARN + DONE + "error 12, opcode 2, len 1, ven", ["rdma_port"], "cable"),
    (INFO + "NET/IB: NCCL Dev 0 IbDev 0 Port 1 qpn 1040 mtu 5 query_ece={supported=1, comp_mask=0x0} GID 0 (80FE/1A8A41FEFF21A75E) fifoRkey=0x15", ["rdma_gid_local"], "fe80"),
    # One machine.
    (INFO + "P2P is disabled between connected GPUs 0 and 1. You can repress this message", ["p2p_off"], "nvidia-smi topo -p2p r"),
    # What NCCL uses.
    (INFO + "NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>", ["nccl_rdma"], "mlx5_1:1/RoCE"),
    (INFO + "Channel 00/0 : 0[0] -> 8[0] [receive] via NET/Socket/0", ["nccl_sockets"], "many times slower"),
    (INFO + "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", ["nccl_no_gpudirect"], "nvidia_peermem"),
    # The modules are not loaded (oneflow#9115): nothing more to be found out about devices.
    ("Failed to get IB devices list: Function not implemented\nFatal error:  No devices\n" + INFO + "NET/IB : No device found.", ["rdma_modules"], "modprobe -a ib_uverbs mlx5_ib"),
    ("No IB devices found", ["rdma_none"], "modprobe -a ib_uverbs mlx5_ib"),
    # A device that is there and cannot be opened (NVIDIA/nccl#451): no unknown warning beside it.
    ("node-1:88:157 [0] misc/ibvwrap.cc:212 NCCL WARN Call to ibv_open_device failed\n" + WARN + "NET/IB : Unable to open device mlx5_1", ["nccl_ib_open"], "The device is mlx5_1."),
    ("node-1:88:157 [0] misc/ibvwrap.cc:212 NCCL WARN Call to ibv_open_device failed\n" + INFO + "NET/IB : No device found.", ["nccl_ib_open"], "--device /dev/infiniband"),
    (WARN + "NET/IB : Unable to query port_num 1", ["nccl_ib_open"], "ibv_devinfo"),
    (WARN + "Call to ibv_query_device failed with error Operation not permitted errno 1\n" + WARN + "NET/IB : Unable to query device mlx5_0", ["nccl_ib_open"], "The device is mlx5_0."),
    # Ranks that wait, and Ray.
    ("RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:133] Timed out waiting 1800000ms for send operation to complete", ["nccl_timeout"], "1800000 ms"),
    ("RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.12]:41210", ["rank_died"], "other rank's log"),
    ("ValueError: The number of required GPUs exceeds the total number of available GPUs in the placement group.", ["ray_placement"], "ray status"),
    ("ValueError: Ray does not allocate any GPUs on the driver node.", ["ray_driver"], "VLLM_HOST_IP"),
    ("[2025-03-27 10:02:11,021 E 231 231] gcs_rpc_client.h:179: Failed to connect to GCS at address 192.0.2.10:6379 within 5 seconds.", ["ray_head"], "nc -zv 192.0.2.10 6379"),
    (WARN + "Proxy Call to rank 1 failed (Connect)", ["rank_died"], "logs of all nodes"),
    (WARN + "socketProgressOpt: Call to recv from 192.0.2.53<49901> failed : Broken pipe", ["rank_died"], "other rank's log"),
    ('[rank1]:[W1229 ProcessGroupNCCL.cpp:1662] Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: Broken pipe', ["rank_died"], "other rank's log"),
    # Outputs of a node's other tools.
    (ACS.format("-") + ACS.format("+"), ["acs"], "/ACSCtl.*(ReqRedir|CmpltRedir|UpstreamFwd)[+]/ {print at}"),
    ("ibpanic: [1323906] main: stat of IB device 'mlx5_8' failed: No such file or directory", ["rdma_hidden"], "It is mlx5_8:"),
    (WARN + "NET/IB: read failed in ncclIbRoceGetVersionNum: Invalid argument", ["rdma_gid_unread"], "NCCL 2.26"),
    (WARN + "Call to ibv_query_gid failed", ["rdma_gid_unread"], "gid_attrs/types/*; do kind=$(cat $row"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "found", "phrase"), CASES)
def test_a_line_has_its_cause_and_no_other(text, found, phrase):
    diagnosis = diagnose_text(text)
    assert sorted(answer.finding.message.name for answer in diagnosis.answers) == found
    assert phrase in diagnosis.as_text()


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
