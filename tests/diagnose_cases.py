"""Messages of servers that people reported, made from the format strings of the programs' sources.

Each case names the public thread whose values it has. Nothing is copied from a thread: the text
around a value is the program's own.
"""

# ruff: noqa: E501 (lines of logs are long)

from __future__ import annotations

from dataclasses import dataclass

SGLANG = "[2025-03-10 10:00:00 TP{rank}] {text}"
VLLM = "(VllmWorker rank={rank} pid={pid}) \x1b[33mWARNING\x1b[0m 05-03 17:42:23 [x.py:668] {text}"
ENGINE_CORE = "(EngineCore_DP0 pid=17374) ERROR 09-28 15:47:24 [core.py:718] {text}"
RAY = "(RayWorkerWrapper pid=206994, ip=192.168.10.25) ERROR 03-27 10:29:13 [x.py:620] {text}"
NCCL = "node-1:5771:5771 [{rank}] misc/ibvwrap.cc:187 NCCL {text}"

MOE = "Using default MoE{} config. Performance might be sub-optimal! Config file not found at {}"
CREATE = ", you can create them with https://github.com/sgl-project/sglang/tree/main/benchmark"
BLOCK_FP8 = "Using default W8A8 Block FP8 kernel config. Performance might be sub-optimal! "
NOT_FOUND = "Config file not found at {}"
SGLANG_MOE = "/sgl-workspace/sglang/python/sglang/srt/layers/moe/fused_moe_triton/configs"
SGLANG_FP8 = "/sgl-workspace/sglang/python/sglang/srt/layers/quantization/configs"
VLLM_MOE = "/usr/local/lib/python3.12/dist-packages/vllm/model_executor/layers/fused_moe/configs"
OUT = (
    "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: {}, Hardware "
    "limit: {}. Reducing block sizes or `num_stages` may help."
)
QUANT = (
    "ValueError: The quantization method {} is not supported for the current GPU. Minimum "
    "capability: {}. Current capability: {}."
)
FP8 = (
    'ValueError("type fp8e4nv not supported in this architecture. The supported fp8 dtypes are '
    "('fp8e4b15', 'fp8e5')\")"
)
NO_IMAGE = "no kernel image is available for execution on the device"


@dataclass(frozen=True)
class Case:
    """A log, the names of the messages in it, and words that the answer has or must not have."""

    thread: str
    log: str
    found: tuple[str, ...]
    says: tuple[str, ...] = ()
    never: tuple[str, ...] = ()


def sglang(text: str, rank: int = 0) -> str:
    return SGLANG.format(rank=rank, text=text)


def vllm(text: str, rank: int = 0) -> str:
    return VLLM.format(rank=rank, pid=236 + rank, text=text)


def core(text: str) -> str:
    return ENGINE_CORE.format(text=text)


def ranks(text: str, count: int) -> str:
    return "\n".join(vllm(text, rank) for rank in range(count))


def frame(path: str, line: int, function: str) -> str:
    return f'  File "{path}", line {line}, in {function}\n    run()'


# fmt: off
CASES = (
    # Files of kernels.
    Case("sgl-project/sglang#4028", found=("block_gemm_config_missing",),
         says=("block_gemm:N=7168,K=2048,dtype=fp8_w8a8", "--device H20-3e"),
         log=sglang(BLOCK_FP8 + NOT_FOUND.format(f"{SGLANG_FP8}/N=7168,K=2048,device_name=NVIDIA_H20-3e,dtype=fp8_w8a8,block_shape=[128, 128].json"))),
    Case("sgl-project/sglang#4028", found=("moe_config_missing",),
         says=("fused_moe:E=256,N=256,K=7168,top_k=8", "before sglang 0.4.7"),
         log=MOE.format("", f"{SGLANG_MOE}/E=256,N=256,device_name=NVIDIA_H20-3e,dtype=fp8_w8a8,block_shape=[128, 128].json")),
    Case("vllm-project/vllm#17619", found=("moe_config_missing",),
         says=("E=16,N=1536,device_name=NVIDIA_H100_80GB_HBM3", "VLLM_TUNED_CONFIG_FOLDER"),
         log=vllm(MOE.format("", f"{VLLM_MOE}/E=16,N=1536,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8,block_shape=[128,128].json"), 1)),
    Case("vllm-project/vllm#14447", found=("moe_config_missing",), says=("5 times",),
         log=ranks(MOE.format("", f"{VLLM_MOE}/E=256,N=14336,device_name=NVIDIA_GeForce_RTX_3090.json"), 5)),
    Case("vllm-project/vllm#28709", found=("moe_config_missing",),
         says=("is E=128,N=1024,device_name=AMD_Instinct_MI325X,dtype=fp8_w8a8.json.",),
         log=MOE.format("", f"['{VLLM_MOE}/E=128,N=1024,device_name=AMD_Instinct_MI325X,dtype=fp8_w8a8.json']").replace("! ", "!\n")),
    Case("kvcache-ai/ktransformers#2008", found=("moe_config_missing",),
         says=("NVIDIA_RTX_PRO_6000_Blackwell_Max-Q_Workstation_Edition.json",),
         log=sglang(MOE.format(" kernel", f"{SGLANG_MOE}/triton_3_5_1/E=384,N=14336,device_name=NVIDIA_\nRTX_PRO_6000_Blackwell_Max-Q_Workstation_Edition.json" + CREATE))),
    Case("MiniMax-AI/MiniMax-M2#50", found=("moe_config_missing", "moe_config_missing"),
         says=("2 times, on TP0, TP1", "block_shape=[128, 128]_down.json"),
         log="\n".join(sglang(MOE.format(" kernel", f"{SGLANG_MOE}/triton_3_4_0/E=256,N=768,device_name=NVIDIA_H200_NVL,dtype=fp8_w8a8,block_shape=[128, 128]{down}.json{CREATE}"), rank) for rank in (0, 1) for down in ("", "_down"))),
    Case("sgl-project/sglang#5390", found=("moe_config_missing",), says=("DP4 TP4", "--device B200"),
         log="[2025-05-13 23:29:46 DP4 TP4] " + MOE.format(" kernel", f"{SGLANG_MOE}/E=264,N=256,device_name=NVIDIA_B200,dtype=fp8_w8a8,block_shape=[128, 128].json{CREATE}")),
    Case("sgl-project/sglang#19003", found=("moe_config_of_other_triton",),
         says=("Triton 3.2.0", "config.json, which lies in", "qwen3"),
         log=sglang(NOT_FOUND.format(f"{SGLANG_MOE}/triton_3_5_1/E=128,N=192,device_name=NVIDIA_H200.json") + ". Fallback to triton version 3.2.0 and use MoE kernel config from " + f"{SGLANG_MOE}/triton_3_2_0/E=128,N=192,device_name=NVIDIA_H200.json. Performance might be sub-optimal!", 2)),
    Case("sgl-project/sglang#19003", found=("moe_down_config_missing",),
         says=("E=128,N=192,device_name=NVIDIA_H200_down.json",),
         log=sglang("Using MoE kernel config with down_moe=False. Performance might be sub-optimal! " + NOT_FOUND.format(f"{SGLANG_MOE}/triton_3_5_1/E=128,N=192,device_name=NVIDIA_H200_down.json{CREATE}"), 3)),
    Case("sgl-project/sglang#17494", found=("block_gemm_config_missing",),
         says=("block_gemm:N=2112,K=7168", "no figures for NVIDIA_RTX_6000D"),
         log=sglang(BLOCK_FP8 + NOT_FOUND.format("/opt/app/.venv/lib/python3.12/site-packages/sglang/srt/layers/quantization/configs/N=2112,K=7168,device_name=NVIDIA_RTX_6000D,dtype=fp8_w8a8,block_shape=[128, 128].json"), 7)),
    # Shared memory.
    Case("sgl-project/sglang#2384", found=("shared_memory",),
         says=("131072 bytes of shared memory",), never=("102,400", "--write-patch"),
         log=sglang("Scheduler hit an exception: Traceback (most recent call last):", 3) + "\n" + OUT.format(131072, 65536)),
    Case("vllm-project/vllm#12498", found=("shared_memory",), says=("66560",),
         log=core(OUT.format(66560, 65536))),
    Case("vllm-project/vllm#17744", found=("shared_memory",),
         says=("fused_moe.py, line 520, in invoke_fused_moe_kernel", "give that file to `tuner check`"), never=("attention",),
         log=frame(f"{VLLM_MOE[:-8]}/fused_moe.py", 520, "invoke_fused_moe_kernel") + "\n" + frame("/usr/lib/python3/dist-packages/triton/runtime/jit.py", 330, "<lambda>") + "\n" + OUT.format(73728, 65536)),
    Case("triton-lang/triton#8182", found=("shared_memory",),
         says=("matmul_ogs.py, line 477",), never=("tuner check", "attention"),
         log=frame("/x/triton_kernels/triton_kernels/matmul_ogs.py", 477, "matmul_ogs") + "\n" + OUT.format(131072, 101376)),
    Case("state-spaces/mamba#387", found=("shared_memory",), says=("663808",), never=("--write-patch",),
         log=OUT.replace("errors", "autotuner").format(663808, 101376)),
    Case("sgl-project/sglang#4418", found=("cutlass_tile",), says=("0.4.4.post2", "122,880"),
         log=sglang("RuntimeError: gemm executioin failed, error: Error Internal") + "\ndevice_name=NVIDIA_L40S,"),
    Case("sgl-project/sglang#28137", found=("int8_unserved",), says=("Blackwell",),
         log=sglang("NotImplementedError: No implemented int8_scaled_mm for current compute capability: 120")),
    Case("vllm-project/vllm#28856", found=("int8_unserved",), says=("FP8",),
         log=core("RuntimeError: Int8 not supported for this architecture")),
    Case("vllm-project/vllm#9419", found=("vllm_scaled_mm_unserved",), says=("75",),
         log="NotImplementedError: No compiled cutlass_scaled_mm for a compute capability less than CUDA device capability: 75"),
    Case("vllm-project/vllm#18182", found=("fp8_unsupported",), says=("sm_89",), log=core(FP8)),
    Case("sgl-project/sglang#7715", found=("fp8_unsupported",), says=("--kv-cache-dtype",),
         log=f"`{FP8}`"),
    Case("vllm-project/vllm#18995", found=("no_kernel_image",),
         log=f"RuntimeError: CUDA error: {NO_IMAGE}"),
    Case("sgl-project/sglang#24302", found=("no_kernel_image",), says=("get_arch_list",),
         log=f"RuntimeError: GemmaRMSNorm failed with error code {NO_IMAGE}"),
    Case("vllm-project/vllm#4202", found=("quantization_unsupported",), says=("75",),
         log=QUANT.format("awq", 75, 70)),
    Case("vllm-project/vllm#4327", found=("quantization_unsupported",),
         says=("capability 90, and the GPU has 86",),
         log=RAY.format(text=QUANT.format("fp8", 90, 86))),
    Case("vllm-project/vllm#17569", found=("block_shape",), says=("a multiple of 128",),
         log="ValueError: The output_size of gate's and up's weight = 192 is not divisible by weight quantization block_n = 128."),
    Case("vllm-project/vllm#31936", found=("attention_backend_none",),
         says=("TRITON_MLA: [sparse not supported]", "Worker_TP4"),
         log="(Worker_TP4_EP4 pid=2532) ERROR 12-29 15:21:11 [multiproc_executor.py:751] ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=576, dtype=torch.bfloat16, use_mla=True, use_sparse=True). Reasons: {TRITON_MLA: [sparse not supported], FLASHMLA_SPARSE: [compute capability not supported]}."),
    # Networks.
    Case("pytorch/pytorch#111424", found=("nccl_no_ib",), says=("tuner preflight",),
         log="node013:37715:38896 [0] NCCL INFO NET/IB : No device found."),
    Case("vllm-project/vllm#5360", found=("nccl_no_verbs", "nccl_sockets"), says=("libibverbs1",),
         log="gpu:150030:150215 [0] NCCL INFO Failed to open libibverbs.so[.1]\ngpu:150030:150215 [0] NCCL INFO NET/Socket : Using [0]ens5:10.0.48.206<0>\ngpu:150030:150215 [0] NCCL INFO Using network Socket"),
    Case("EvolvingLMMs-Lab/open-r1-multimodal#7", found=("nccl_interface",),
         says=("NCCL_SOCKET_IFNAME",),
         log="[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:2588, internal error - please report this issue to the NCCL developers, NCCL version 2.21.5\n[rank0]: ncclInternalError: Internal check failed.\n[rank0]: Last error:\n[rank0]: Bootstrap : no socket interface found"),
    Case("sgl-project/sglang#3226", found=("gloo_mesh",), says=("GLOO_SOCKET_IFNAME",),
         log=sglang("RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error")),
    Case("NVIDIA/nccl-tests#227", found=("rdma_connect",), says=("GID",),
         log=NCCL.format(rank=0, text="WARN Call to ibv_modify_qp failed with error Connection timed out")),
    Case("NVIDIA/nccl#2013", found=("rdma_connect",), says=("NCCL_CROSS_NIC=0",),
         log=NCCL.format(rank=5, text="WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx_5:1, curr state INIT, next state RTR, local GID index 3, local GID ::ffff:10.0.0.1, remote GID ::ffff:10.0.0.2")),
    Case("NVIDIA/nccl#426", found=("rdma_timeout",), says=("status 12",),
         log="worker-1:946:988 [0] transport/net_ib.cc:839 NCCL WARN NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129"),
    Case("vllm-project/vllm#19613", found=("rdma_register",), says=("NCCL_BUFFSIZE", "memlock"),
         log="[2025-06-16 17:17:39] node:318:3584 [5] misc/ibvwrap.cc:183 NCCL WARN Call to ibv_reg_dmabuf_mr failed with error Cannot allocate memory\nERROR 06-13 07:35:59 [core.py:517] cupy_backends.cuda.libs.nccl.NcclError: NCCL_ERROR_SYSTEM_ERROR: unhandled system error (run with NCCL_DEBUG=INFO for details)"),
    Case("sgl-project/sglang#6017", found=("nccl_unreachable",), says=("169.254", "NCCL_SOCKET_IFNAME"),
         log=NCCL.format(rank=0, text="WARN socketStartConnect: Connect to 169.254.20.10<43369> failed : Software caused connection abort")),
    Case("triton-lang/triton#8539", found=("ptxas_architecture",), says=("TRITON_PTXAS_PATH", "sm_121a"),
         log="triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error\n`ptxas` stderr:\nptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'"),
    Case("opendatalab/MinerU#4350", found=("ptxas_failed",), says=("Give the lines below",),
         log="(EngineCore_DP0 pid=60) ERROR 01-12 01:09:14 [core.py:708] triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error\n(EngineCore_DP0 pid=60) ERROR 01-12 01:09:14 [core.py:708] `ptxas` stderr:\n(EngineCore_DP0 pi"),
    Case("vllm-project/vllm#48732", found=("config_cut",),
         says=("tuner tune qwen3-30b-a3b --tp 4 --device 5090 --engine vllm==0.11.2",),
         log="**Setup**: 8x RTX 5090 32GB, driver 570.124, vLLM 0.11.2 (cu12x wheels), Qwen/Qwen3-30B-A3B, TP=4\nUsing default MoE config. Performance might be sub-optimal! Config file not found at ..."),
    Case("verl-project/verl#161", found=("nccl_usage",), says=("CUDA_VISIBLE_DEVICES",),
         log="ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 10"),
    Case("vllm-project/vllm#6732", found=("nccl_cuda",), says=("NCCL_DEBUG=INFO",),
         log="RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)"),
    Case("sgl-project/sglang#3784", found=("nccl_first_timeout",), says=("ALLREDUCE", "rank8"),
         log="[rank8]:[E222 08:52:08.1 ProcessGroupNCCL.cpp:616] [Rank 8] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600009 milliseconds before timing out."),
    Case("vllm-project/vllm#19670", found=("head_unreachable",), says=("nc -zv 172.17.0.9 46229",),
         log=core("torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (172.17.0.9, 46229).")),
    Case("vllm-project/vllm#16334", found=("ranks_missing",), says=("1 of 4",),
         log="torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/4 clients joined."),
    Case("vllm-project/aibrix#927", found=("ray_placement",), says=("ray status",),
         log="INFO 04-01 02:46:00 ray_utils.py:214] Waiting for creating a placement group of specs for 10 seconds. specs=[{'node:10.163.194.101': 0.001, 'GPU': 1.0}, {'GPU': 1.0}]. Check `ray status`"),
    # Packages and checkpoints.
    Case("triton-lang/triton#8096", found=("ptxas_failed",), says=("sm_110a", "TRITON_PTXAS_PATH"),
         log="subprocess.CalledProcessError: Command '['/v/triton/bin/ptxas', '-lineinfo', '-v', '--gpu-name=sm_110a', '/tmp/tmp1.ptx', '-o', '/tmp/tmp1.ptx.o']' returned non-zero exit status 255."),
    Case("vllm-project/vllm#15511", found=("ptxas_line",),
         says=("'.evict_last' cannot be combined", "in this release of Triton"), never=("not in this text",),
         log=core("RuntimeError: Internal Triton PTX codegen error") + "\n" + core("`ptxas` stderr:") + "\n" + core("ptxas /tmp/tmp1.ptx, line 601; error   : Modifier '.evict_last' cannot be combined with modifier '.cg'")),
    Case("vllm-project/vllm#41477", found=("ptxas_feature",),
         says=("sm_121a does not have", "another backend"), never=("TRITON_PTXAS_PATH",),
         log="`ptxas error: Feature '.tile::scatter4' not supported on .target 'sm_121a'`"),
    Case("triton-lang/triton#10327", found=("triton_dominance",),
         says=("RemoveLayoutConversions", "passes over"),
         log="fused_moe.py:574:24: error: operand #0 does not dominate this use\nRuntimeError: PassManager::run failed"),
    Case("pytorch/pytorch#180908", found=("triton_pass",), says=("release of Triton",),
         log=core("RuntimeError: PassManager::run failed")),
    Case("sgl-project/sglang#4857", found=("rdma_timeout",), says=("did not answer (status 12",),
         log="[Node-A]:[PID]:[Thread] [0] NCCL WARN NET/IB : Got completion from peer [PRIVATE_IP] with error 12, opcode 0, len 0, vendor err 129 (Recv)"),
    Case("sgl-project/sglang#4978", found=("gid_table",), says=("RoCE v2", "NCCL_IB_GID_INDEX"),
         log="DEV     PORT    INDEX   GID         IPv4            VER     DEV\n---     ----    -----   ---         ------------    ---     ---\nmlx5_0  1       3       0000:ffff   10.63.65.208    v2      xgbe0"),
    Case("sgl-project/sglang#33273", found=("moe_config_missing",),
         says=("fused_moe:E=512,N=128,K=2048,top_k=10", "fused_moe:E=512,N=128,K=4096,top_k=10"),
         log="Using default MoE kernel config. Performance might be sub-optimal!\n    Config file not found at .../E=512,N=128,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128, 128].json"),
    Case("sgl-project/sglang#21752", found=("moe_down_config_missing",),
         says=("kimi-linear-48b-a3b at tp=2", "K=2304,top_k=8", "before sglang 0.5.11"),
         log=sglang("Using MoE kernel config with down_moe=False. Performance might be sub-optimal! " + NOT_FOUND.format(f"{SGLANG_MOE}/triton_3_5_1/E=256,N=512,device_name=NVIDIA_B200_down") + f".json{CREATE}")),
    Case("vllm-project/vllm#25022", found=("quantization_unsupported",),
         says=("0.15.1 and later for 75",),
         log="RuntimeError: ('Quantization scheme is not supported for ', 'the current GPU. Min capability: 80. ', 'Current capability: 75.')"),
    # Programs beside sglang and vLLM, and what else people of 2025 and 2026 met.
    Case("InternLM/lmdeploy#3992", found=("shared_memory",),
         says=("The kernel is lmdeploy's", "a newer release of lmdeploy"), never=("--engine", "tuner tune", "config file"),
         log='  File "/opt/lib/python3.10/site-packages/lmdeploy/pytorch/kernels/cuda/pagedattention.py", line 700, in flash_attention_fwd\n  File "/opt/lib/python3.10/site-packages/triton/runtime/jit.py", line 347, in <lambda>\n' + OUT.format(131088, 101376)),
    Case("sgl-project/sglang#8513", found=("shared_memory",),
         says=("It is a kernel of a fused-MoE layer.",), never=("this tuner has kernels of sglang and vLLM alone",),
         log='  File "/x/site-packages/sglang/srt/layers/moe/fused_moe_triton/x.py", line 603, in invoke_fused_moe_kernel\n' + OUT.format(147456, 101376)),
    Case("vllm-project/vllm#45101", found=("dot_types",),
         says=("Triton multiplies fp8 by fp8 alone", "The GPU is not the cause", "--quantization"),
         log='File "/x/site-packages/triton/language/semantic.py", line 1488, in dot\nAssertionError: Unsupported lhs dtype fp8e4nv'),
    Case("sgl-project/sglang#3820", found=("nccl_unreachable",),
         says=("10.0.0.4<56849>", "No route to host", "firewall"),
         log="node5:240:240 [6] misc/socket.cc:533 NCCL WARN socketPollConnect: Connect to 10.0.0.4<56849> returned 113(No route to host) errno 115(Operation now in progress)"),
    Case("kvcache-ai/ktransformers#1692", found=("fp8_unsupported",), says=("RTX 3090 have not",),
         log="python -m sglang.launch_server --model /m/v3-2 --tensor-parallel-size 1 --attention-backend triton --kt-method AMXINT4\n" + FP8),
    # A kernel's sizes, a compiler and a network, each in people's own words.
    Case("vllm-project/vllm#57712", found=("shared_memory",),
         says=("triton_unified_attention.py, which launches attention", "vLLM reads no file"), never=("nothing shows which kernel", "tuner tune"),
         log="- **GPUs:** 2x NVIDIA Quadro RTX 6000 (Turing, SM75)\n- **vLLM:** 0.26.0\ntriton.runtime.errors.OutOfResources: out of resource: shared memory,\nRequired: 98304, Hardware limit: 65536.\n\nIn `vllm/v1/attention/ops/triton_unified_attention.py`, the kernel launch parameters are"),
    Case("sgl-project/sglang#5995", found=("shared_memory",),
         says=("--device, the GPU as nvidia-smi -L names it; --tp,",), never=("--engine sglang or --engine vllm",),
         log="When running sglang with RedHatAI/Qwen3-30B-A3B-FP8-dynamic, sglang exits with error 'triton out of resource: shared memory, Required: 163840, Hardware limit: 101376'"),
    Case("sgl-project/sglang#2794", found=("triton_pass",),
         log="sglang serve --model-path /m --nnodes 1 --disable-cuda-graph-padding --tp 8\nRuntimeError: PassManager::run failed"),
    Case("vllm-project/llm-compressor#1489", found=("linear_kernel_none",),
         says=("--dtype float16", "the checkpoint's own config.json"), never=("start the server with --quantization",),
         log=core("ValueError: Failed to find a kernel that can implement the WNA16 linear layer.") + "\n" + core(" MarlinLinearKernel cannot implement due to: Weight input_size_per_partition = 8256 is not divisible by min_thread_k = 128. Consider reducing tensor_parallel_size or running with --quantization gptq.")),
    Case("vllm-project/vllm#25241", found=("moe_scheme_none",),
         says=("weights are num_bits=4 type='int' symmetric=True group_size=128", "newer release"),
         log=core("RuntimeError: Unsupported FusedMoe scheme: num_bits=4 type='int' symmetric=True group_size=128 strategy='group' block_structure=None, num_bits=8 type='float'")),
    Case("vllm-project/vllm#9913", found=("marlin_shape",),
         says=("takes multiples of 128", "hold 10944 rows", "--quantization awq"),
         log="ValueError: Weight input_size_per_partition = 10944 is not divisible by min_thread_k = 128. Consider reducing tensor_parallel_size or running with --quantization gptq."),
    Case("vllm-project/vllm#50711", found=("triton_dominance",),
         says=("passes over each candidate that does not compile",),
         log="vllm/model_executor/layers/fused_moe/fused_moe.py:295:0: error: Failures have\nbeen detected while processing an MLIR pass pipeline\nnote: Pipeline failed while executing [`TritonGPURemoveLayoutConversions` on\n'builtin.module' operation]"),
    Case("vllm-project/vllm#16336", found=("ptxas_failed",),
         says=("code for sm_100", "knows no Blackwell", "Triton 3.3 or later"),
         log="subprocess.CalledProcessError: Command '['/opt/vllm_env/lib/python3.12/site-packages/triton/backends/nvidia/bin/ptxas', '-lineinfo', '-v', '--gpu-name=sm_100', '/tmp/tmpat8x27d5.ptx', '-o', '/tmp/tmpat8x27d5.ptx.o']' returned non-zero exit status 255."),
    Case("NVIDIA/nccl#1591", found=("nccl_ib_disabled",),
         says=("over TCP sockets between nodes", "take it out of the command", "tuner preflight"),
         log="docker run --gpus all --network host --privileged -e NCCL_IB_DISABLE=1 --device=/dev/infiniband vllm/vllm-openai -c 'ray start --block --head --port=6379'"),
    Case("AI-Hypercomputer/gpu-recipes#5", found=("nccl_net_missing",),
         says=("asks for the network gIB", "NCCL_DEBUG=INFO if there is none"),
         log="pod:562:562 [5] net.cc:579 NCCL WARN Error: network gIB not found."),
)

# Messages that the table does not have: nothing may be said of them. Most are of another subject
# than kernels and the network: memory, models, faults of the program, people's words.
UNKNOWN = (
    Case("sgl-project/sglang#4330", found=(),
         log=sglang("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.")),
    Case("sgl-project/sglang#4856", found=(),
         log=sglang("RuntimeError: CUDA error: an illegal memory access was encountered")),
    Case("vllm-project/vllm#22231", found=(),
         log="ValueError: Model architectures ['Qwen3ForCausalLM'] are not supported for now. Supported architectures: ['AquilaModel']"),
    Case("made up", found=(),
         log="AttributeError: 'Qwen3_5MoeTextConfig' object has no attribute 'num_local_experts'"),
    Case("made up", found=(),
         log="[7/0] No valid triton configs. " + OUT.format(131072, 101376)),
    Case("sgl-project/sglang#17494", found=(),
         log=sglang("RuntimeError: cutlass_w4a8_moe_mm GEMM initialization failed")),
    Case("sgl-project/sglang#165", found=(),
         log="AttributeError: 'NoneType' object has no attribute 'cpu'"),
)
# fmt: on
