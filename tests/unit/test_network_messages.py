"""Lines of NCCL, NVSHMEM, Gloo, Ray and nccl-tests as people report them, and what is said of them."""

# ruff: noqa: E501 (lines of logs and rows of tables are long)

import pytest

from tuner.diagnose import diagnose_text

WARN = "node-1:88:157 [0] transport/net_ib.cc:93 NCCL WARN "
INFO = "node-1:88:157 [0] NCCL INFO "
DONE = "NET/IB: Got completion from peer 10.0.0.2<4000> with "
TABLE = """#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
           8             2     float     sum      -1    42.56    0.00    0.00      0    40.00    0.00    0.00      0
    33554432       8388608     float     sum      -1[0]    2180.1   15.39   29.50      0[0]    2285.2   14.68   28.14      0
   268435456      67108864     float     sum      -1[0]    125807    2.13    4.09      {}[0]    121575    2.21    4.23      0
"""

# NVIDIA/nccl-tests#78, of a release without a root and with the size of errors, and ROCm's of halves.
OLD = """#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
   268435456      67108864     float     sum   122131    2.20    4.33  2e-06   122165    2.20    4.33  2e-06
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 4.32178
#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
   268435456       1048576     float           520935    0.52    0.51  0e+00   519562    0.52    0.51  1e+00
# Out of bounds values : {}
"""
HALF = "  4294967296    2147483648      half    none      -1   140.10   23.22   20.31      0   141.94   23.36   20.63    N/A\n"
AMD = """=============================== Link Type between two GPUs ===============================
       GPU0         GPU1         GPU2         GPU3
GPU0   0            PCIE         XGMI         PCIE
GPU1   PCIE         0            PCIE         XGMI
GPU2   XGMI         PCIE         0            PCIE
GPU3   PCIE         XGMI         PCIE         0
================================== End of ROCm SMI Log ===================================
"""
ACS = "\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir{0} CmpltRedir{0} UpstreamFwd{0} EgressCtrl- DirectTrans-\n"
XID = "kernel: NVRM: Xid (PCI:0000:dc:00): {}"

CASES = [
    # A peer that cannot be reached.
    (WARN + "Net : Connect to 192.0.2.9<54263> failed : No route to host", ["nccl_unreachable"], "192.0.2.9<54263>: No route"),
    (INFO + "socketPollConnect: connect returned No route to host, retrying (26/34) after sleep for 2600 msec", ["nccl_unreachable"], "firewall"),
    ("include/socket.h:344 WARN Socket creation failed : Address family not supported by protocol", ["nccl_family"], "NCCL_SOCKET_FAMILY=AF_INET"),
    # The status of an RDMA transfer tells the network from the memory.
    (WARN + DONE + "status=12 opcode=0 len=0 vendor err 129 (Recv)", ["rdma_timeout"], "status 12"),
    (WARN + DONE + "status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129", ["rdma_timeout"], "GID index"),
    (WARN + DONE + "status=IBV_WC_WR_FLUSH_ERR(5) opcode=IBV_WC_SEND(0) vendor_err=249", ["rdma_flush"], "first error"),
    (WARN + DONE + "status=9 opcode=0 len=0 vendor err 138 (Send)", ["rdma_access"], "GID index and cable are not the cause"),
    (WARN + "NET/IB : mlx5_0:1 async fatal event on QP (0x7f): local access violation work queue error", ["rdma_access"], "NCCL_NET_GDR_LEVEL=LOC"),
    (WARN + "NET/IB : mlx5_32:1 Got async error event: port error", ["rdma_port"], "The port is mlx5_32:1"),
    (WARN + "NET/IB : Got async event : port error\n" + WARN + DONE + "error 12, opcode 2, len 1, ven", ["rdma_port"], "cable"),
    (WARN + "NET/IB : Got async event : local catastrophic error", ["rdma_broken"], "firmware"),
    (INFO + "NET/IB: NCCL Dev 0 IbDev 0 Port 1 qpn 1040 mtu 5 query_ece={supported=1, comp_mask=0x0} GID 0 (80FE/1A8A41FEFF21A75E) fifoRkey=0x15", ["rdma_gid_local"], "fe80"),
    # NVSHMEM has variables of its own.
    ("nvshmem/src/modules/transport/ibrc/ibrc.cpp:418: non-zero status: 22 ibv_modify_qp failed\ninit.cu:63: NVSHMEM API called before NVSHMEM initialization has completed", ["nvshmem_connect"], "NVSHMEM_IB_GID_INDEX"),
    ("transport.cpp:nvshmemi_transport_init:275: init failed for transport: IBGDA\ninit.cu:1080: nvshmem initialization failed, exiting", ["nvshmem_transport"], "nvidia-peermem"),
    # One machine.
    (WARN + "Call to posix_fallocate failed : No space left on device", ["shared_memory_segment"], "--shm-size"),
    ("Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:307 'peer access is not supported between these two devices'", ["custom_all_reduce_failed"], "--disable-custom-all-reduce"),
    ("Cuda failure 'peer access is not supported between these two devices'", ["peer_access"], "NCCL_P2P_DISABLE=1"),
    (INFO + "P2P is disabled between connected GPUs 0 and 1. You can repress this message", ["p2p_off"], "nvidia-smi topo -p2p r"),
    # What NCCL uses.
    (INFO + "NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>", ["nccl_rdma"], "mlx5_1:1/RoCE"),
    (INFO + "Channel 00/0 : 0[0] -> 8[0] [receive] via NET/Socket/0", ["nccl_sockets"], "many times slower"),
    (INFO + "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", ["nccl_no_gpudirect"], "nvidia_peermem"),
    # The modules are not loaded (oneflow#9115): nothing more to be found out about devices.
    ("Failed to get IB devices list: Function not implemented\nFatal error:  No devices\n" + INFO + "NET/IB : No device found.", ["rdma_modules"], "modprobe -a ib_uverbs mlx5_ib"),
    ("No IB devices found", ["rdma_none"], "modprobe -a ib_uverbs mlx5_ib"),
    ("IB device mlx5_9 not found", ["rdma_named"], "mlx5_9 is not a device of this node"),
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
    ("AssertionError: local_world_size (16) must be less than or equal to the number of visible devices (8).", ["local_ranks"], "16 ranks"),
    ("[2025-03-27 10:02:11,021 E 231 231] gcs_rpc_client.h:179: Failed to connect to GCS at address 192.0.2.10:6379 within 5 seconds.", ["ray_head"], "nc -zv 192.0.2.10 6379"),
    ("The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR", ["ray_worker_died"], "dmesg -T"),
    # Prefill and decode on servers of their own.
    ("source_addr: 0x7f, local_nic: mlx5_9, peer_nic: 192.0.2.7:15867@mlx5_9, dest_rkey: 2491916, retry_cnt: 0): transport retry counter exceeded", ["kv_unreachable"], "MC_GID_INDEX"),
    ("local_nic: mlx5_2, peer_nic: 192.0.2.98:15992@mlx5_1, dest_rkey: 2146656, retry_cnt: 0): local protection error\nToo many errors found in local RNIC 192.0.2.69:15858@mlx5_2, mark it inactive", ["kv_access"], "nvidia_peermem"),
    ("nixl._bindings.nixlBackendError: NIXL_ERR_BACKEND", ["nixl_backend"], "UCX_LOG_LEVEL=info"),
    ("Losing connection with prefill instance (bootstrap_addr: g0002:8998), affected 581 requests", ["kv_failed"], "both servers"),
    ("NET/OFI Request 0x7f45 completed with error. RC: 103. Error: 4126 (Unresponsive receiver", ["efa_transfer"], "security group"),
    ("NCCL INFO NET/IB : Using [0]mlx5_3:1/IB [1]mlx5_0:1/IB [2]mlx5_2:1/RoCE [RO]; OOB eth0", ["nccl_mixed"], "NCCL_IB_HCA=mlx5_3,mlx5_0"),
    ("llm-worker-bp7pn   0/1     Init:0/1   0          6m23s", ["pod_waits"], "kubectl describe pod"),
    ("llm-worker-bp7pn   0/1     ImagePullBackOff   0   6m23s", ["pod_waits"], "cannot be fetched"),
    ("ActorUnavailableError: The actor is temporarily unavailable: RpcError: RPC error: Socket closed", ["ray_worker_died"], "dmesg -T"),
    (WARN + "Proxy Call to rank 1 failed (Connect)", ["rank_died"], "logs of all nodes"),
    ("ERROR: Failed to bind to address 0.0.0.0:8000: Address already in use", ["port_taken"], "ss -ltnp"),
    ("KV router's EventSubscriber requires NATS.", ["dynamo_events"], "DYN_EVENT_PLANE=zmq"),
    ("Warning FailedMount MountVolume.SetUp failed for volume \"model-cache\" : rpc error", ["pod_volume"], "The volume model-cache could not be mounted"),
    ("pods \"nim-0\" is forbidden: unable to validate against any security context constraint: [", ["pod_forbidden"], "IPC_LOCK"),
    ("Data processing error: CAS service error : IO Error: No space left on device", ["disk_full"], "df -h"),
    ("Error 524: A timeout occurred", ["proxy_gave_up"], "stream"),
    ("FP8 reduction support begins with sm90 capable devices.", ["nccl_fp8"], "uint8"),
    ("NCCL error in ProcessGroupNCCL.cpp HIP failure: 'the operation cannot be performed", ["rccl_hip"], "--ipc=host"),
    ("Aicpu kernel execute failed, device_id=0, kernelName=IndexPut, errorCode=0x2a", ["ascend_kernel"], "ASCEND_LAUNCH_BLOCKING=1"),
    ("Worker failed with error 'ACL stream synchronize failed, error code:507018'", ["ascend_kernel"], "plog"),
    ("KVTransferError: Failed to get kvcache from prefill instance, it might be dead", ["kv_failed"], "both servers"),
    # NVLink and NVSwitches.
    ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized", ["fabric_manager"], "nvidia-fabricmanager"),
    ("    Fabric\n        State                 : In Progress\n", ["fabric_manager"], "State: Completed"),
    (INFO + "dlvsym failed on mlx5dv_get_data_direct_sysfs_path - /lib/libmlx5.so: undefined symbol: mlx5dv_get_data_direct_sysfs_path, version MLX5_1.25", ["verbs_old"], "harmless"),
    (WARN + "Cuda failure 'out of memory'\n" + WARN + "Cuda failure 'invalid resource handle'", ["nccl_cuda_memory"], "nvidia-smi"),
    ("[2] [FATAL ERROR]: HIP failure: 'out of memory' (in ncclCommInitRank)", ["nccl_cuda_memory"], "nvidia-smi"),
    ("preflight: Cuda failure 802 'system not yet initialized'", ["fabric_manager"], "nvidia-fabricmanager"),
    (WARN + "Cuda failure 802 'system not yet initialized'", ["fabric_manager"], "nvidia-fabricmanager"),
    (WARN + "Cuda failure 'operation not supported'\nRuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)", ["nccl_cuda"], "NCCL_CUMEM_ENABLE=0"),
    (WARN + "NET/OFI Only EFA provider is supported", ["nccl_efa"], "fi_info -p efa"),
    (WARN + "socketProgressOpt: Call to recv from 192.0.2.53<49901> failed : Broken pipe", ["rank_died"], "other rank's log"),
    ('[rank1]:[W1229 ProcessGroupNCCL.cpp:1662] Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early), with error: Broken pipe', ["rank_died"], "other rank's log"),
    # Lines that are known are not unknown warnings too; others stay.
    (WARN + "[Proxy Service 11] Failed to execute operation Connect from rank 11, retcode 2\n" + WARN + "Something new", ["nccl_warning", "rank_died"], "Something new"),
    # A start within one node that does not end.
    (INFO + "Bootstrap : Using eno1:10.0.0.1<0>\n" + INFO + "cudaDriverVersion 12020", ["nccl_start"], "NCCL_P2P_DISABLE=1"),
    (INFO + "comm 0x1 rank 0 nranks 2 - Init START\n" + INFO + "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", ["nccl_p2p", "nccl_start"], "nvidia-smi topo -p2p r"),
    (INFO + "Bootstrap: Using eno1:10.0.0.1<0>\n" + INFO + "Init COMPLETE\n" + INFO + "Channel 00/0 : 0[0] -> 1[1] via P2P/IPC", ["nccl_p2p"], "--disable-custom-all-reduce"),
    (INFO + "Bootstrap: Using eno1:10.0.0.1<0>\n" + INFO + "0[0] -> 1[1] via P2P/IPC\n" + INFO + "Connected all rings\n" + INFO + "Init COMPLETE", [], ""),
    # One node: sockets are not what it waits for.
    (INFO + "Using network Socket\n" + INFO + "comm 0x1 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0 - Init START", ["nccl_start"], "NCCL_P2P_DISABLE=1"),
    ("|ERR!  ERR! ERR!    ERR! / ERR! |      0MiB / 81920MiB |    ERR!      Default |", ["gpu_lost"], "dmesg"),
    # Tables of nccl-tests.
    (TABLE.format(0), ["nccl_tests"], "268,435,456 bytes, the bus bandwidth (busbw) is 4.09 GB/s"),
    (TABLE.format(0), ["nccl_tests"], "29.5 GB/s at 33,554,432 bytes"),
    (TABLE.format(7), ["nccl_tests"], "Results are wrong"),
    (OLD.format("0 OK"), ["nccl_tests"], "table 1, 268,435,456 bytes, the bus bandwidth (busbw) is 4.33 GB/s"),
    (OLD.format("0 OK"), ["nccl_tests"], "table 2, 268,435,456 bytes, the bus bandwidth (busbw) is 0.51 GB/s"),
    (OLD.format("2 FAILED"), ["nccl_tests"], "Results are wrong"),
    (HALF, ["nccl_tests"], "(busbw) is 20.31 GB/s"),
    # Outputs of a node's other tools.
    (AMD, ["amd_topology"], "XGMI joins GPU0 and GPU2; and GPU1 and GPU3."),
    (AMD, ["amd_topology"], "export HIP_VISIBLE_DEVICES=0,2"),
    (AMD.replace("PCIE", "XGMI"), ["amd_topology"], "each of the 4 GPUs"),
    (AMD.partition("GPU3   ")[0], ["amd_topology"], "Its rows are cut"),
    (ACS.format("-") + ACS.format("+"), ["acs"], "/ACSCtl.*(ReqRedir|CmpltRedir|UpstreamFwd)[+]/ {print at}"),
    (ACS.format("-"), ["acs_off"], "No bridge of these lines"),
    ("\tSpeed: Unknown!\n\tLink detected: no", ["no_carrier"], "ip -br link"),
    ("ibpanic: [1323906] main: stat of IB device 'mlx5_8' failed: No such file or directory", ["rdma_hidden"], "It is mlx5_8:"),
    (WARN + "NET/IB: read failed in ncclIbRoceGetVersionNum: Invalid argument", ["rdma_gid_unread"], "NCCL 2.26"),
    (WARN + "Call to ibv_query_gid failed", ["rdma_gid_unread"], "gid_attrs/types/*; do kind=$(cat $row"),
    (XID.format("45, pid=18, name=python3, Ch 00000001 caused by previous Xid 149"), ["nvlink_fault"], "nvidia-smi nvlink -e"),
    (XID.format("145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)"), ["nvlink_mended"], "went on"),
    ("[ 1843.3] NVRM: The NVIDIA GPU 0000:b3:00.0\n               NVRM: fallen off the bus and is not responding to commands.", ["gpu_lost"], "Restart the node"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "found", "phrase"), CASES)
def test_a_line_has_its_cause_and_no_other(text, found, phrase):
    diagnosis = diagnose_text(text)
    assert sorted(answer.finding.message.name for answer in diagnosis.answers) == found
    assert phrase in diagnosis.as_text()


@pytest.mark.parametrize(
    "old", [OLD.format("0 OK"), OLD.format("0 OK").replace("    4.33", "    0.43")]
)
def test_errors_of_rounding_are_no_wrong_results(old):
    assert "Results are wrong" not in diagnose_text(old).as_text()


@pytest.mark.parametrize(
    ("number", "made", "told"),
    [(1, True, True), (12, True, False), (1, False, True), (12, False, False)],
)
def test_a_first_collective_that_times_out_is_no_late_rank_alone(number, made, told):
    text = f"[rank0]:[E ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600005 milliseconds"
    answer = diagnose_text((INFO + "comm 0x1 - Init COMPLETE\n" if made else "") + text).as_text()
    assert "ALLREDUCE" in answer
    assert ("first collective of its group" in answer) == told
    assert ("NCCL_P2P_DISABLE=1" in answer) == told


@pytest.mark.parametrize(
    "line",
    [
        INFO + "NCCL_P2P_DISABLE set by environment to 1.",
        "export NCCL_P2P_DISABLE=1",
        "docker run -e NCCL_P2P_DISABLE=1 image",
    ],
)
def test_p2p_is_not_to_be_switched_off_twice(line):
    answer = diagnose_text(
        f"{line}\n{INFO}comm 0x1 rank 0 nranks 2 - Init START\n{INFO}Channel 00/0 : 0[0] -> 1[1] via P2P/IPC"
    ).as_text()
    assert "with NCCL_P2P_DISABLE=1" not in answer
    assert "py-spy dump" in answer


SOCKETS = INFO + "Using network Socket\n"
BOTH, DISABLE, NET = (
    "Unset NCCL_IB_DISABLE=1 and NCCL_NET=Socket, if",
    "Unset NCCL_IB_DISABLE=1, if",
    "Unset NCCL_NET=Socket, if",
)


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("", BOTH),
        (INFO + "NCCL_IB_DISABLE set by environment to 0.\n", NET),
        ("export NCCL_IB_DISABLE=0\n", NET),
        ('NCCL_IB_DISABLE: "0"\n', NET),
        (INFO + "NCCL_IB_DISABLE set by environment to 1.\n", BOTH),
        ("mpirun -x NCCL_IB_DISABLE=0 -x NCCL_NET=IB\n", "- Let NCCL_IB_HCA name"),
        (INFO + "NCCL_NET set by environment to IB.\n", DISABLE),
        ("NCCL_NET_GDR_LEVEL=2\n", BOTH),
        # Another node may have the other value.
        ("export NCCL_IB_DISABLE=0\nexport NCCL_IB_DISABLE=1\n", BOTH),
    ],
)
def test_a_variable_is_to_be_unset_unless_the_text_shows_another_value(text, phrase):
    answer = diagnose_text(text + SOCKETS).as_text()
    assert {one for one in (BOTH, DISABLE, NET) if one in answer} == {phrase} & {BOTH, DISABLE, NET}
    assert phrase in answer


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
