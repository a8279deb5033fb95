"""Messages of servers that people reported, made from the format strings of the programs' sources.

Each case names the public thread whose values it has. Nothing is copied from a thread: the text
around a value is the program's own.
"""

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
FREE = (
    "ValueError: Free memory on device{} ({}/{} GiB) on startup is less than desired GPU memory "
    "utilization ({}, {} GiB). Decrease GPU memory utilization or reduce GPU memory used by other "
    "processes."
)
STORED = (
    "ValueError: The model's max seq len ({}) is larger than the maximum number of tokens that can "
    "be stored in KV cache ({}). Try increasing `gpu_memory_utilization` or decreasing "
    "`max_model_len` when initializing the engine."
)
SERVE = (
    "ValueError: To serve at least one request with the {} max seq len ({}), ({} GiB KV cache is "
    "needed, which is larger than the available KV cache memory ({} GiB). Based on the available "
    "memory, the estimated maximum model length is {}."
)
HEADS = (
    "ValueError: Total number of attention heads ({}) must be divisible by tensor parallel "
    "size ({})."
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
LISTEN = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on "
    "any local network "
    "address. port: {}, useIpv6: false, code: -98, name: EADDRINUSE, message: "
    "address already in use"
)


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


CASES = (
    # Files of kernels.
    Case(
        "sgl-project/sglang#4028",
        sglang(
            BLOCK_FP8
            + NOT_FOUND.format(
                f"{SGLANG_FP8}/N=7168,K=2048,device_name=NVIDIA_H20-3e,dtype=fp8_w8a8,"
                "block_shape=[128, 128].json"
            )
        ),
        ("block_gemm_config_missing",),
        ("block_gemm:N=7168,K=2048,dtype=fp8_w8a8", "--device H20-3e"),
    ),
    Case(
        "sgl-project/sglang#4028",
        MOE.format(
            "",
            f"{SGLANG_MOE}/E=256,N=256,device_name=NVIDIA_H20-3e,dtype=fp8_w8a8,"
            "block_shape=[128, 128].json",
        ),
        ("moe_config_missing",),
        ("fused_moe:E=256,N=256,K=7168,top_k=8", "before sglang 0.4.7"),
    ),
    Case(
        "vllm-project/vllm#17619",
        vllm(
            MOE.format(
                "",
                f"{VLLM_MOE}/E=16,N=1536,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8,"
                "block_shape=[128,128].json",
            ),
            1,
        ),
        ("moe_config_missing",),
        ("E=16,N=1536,device_name=NVIDIA_H100_80GB_HBM3", "VLLM_TUNED_CONFIG_FOLDER"),
    ),
    Case(
        "vllm-project/vllm#17768",
        vllm(
            MOE.format(
                "", f"{VLLM_MOE}/E=128,N=8192,device_name=NVIDIA_RTX_6000_Ada_Generation.json"
            )
        ),
        ("moe_config_missing",),
        ("E=128,N=8192,device_name=NVIDIA_RTX_6000_Ada_Generation.json",),
    ),
    Case(
        "vllm-project/vllm#14447",
        ranks(
            MOE.format("", f"{VLLM_MOE}/E=256,N=14336,device_name=NVIDIA_GeForce_RTX_3090.json"), 5
        ),
        ("moe_config_missing",),
        ("5 times",),
    ),
    Case(
        "vllm-project/vllm#32347",
        "(Worker_TP0 pid=1013) WARNING 01-14 18:56:27 [fused_moe.py:888] "
        + MOE.format("", f"{VLLM_MOE}/E=128,N=384,device_name=Tesla_T4.json"),
        ("moe_config_missing",),
        ("E=128,N=384,device_name=Tesla_T4.json", "Worker_TP0"),
    ),
    Case(
        "vllm-project/vllm#28709",
        MOE.format(
            "", f"['{VLLM_MOE}/E=128,N=1024,device_name=AMD_Instinct_MI325X,dtype=fp8_w8a8.json']"
        ).replace("! ", "!\n"),
        ("moe_config_missing",),
        ("is E=128,N=1024,device_name=AMD_Instinct_MI325X,dtype=fp8_w8a8.json.",),
    ),
    Case(
        "kvcache-ai/ktransformers#2008",
        sglang(
            MOE.format(
                " kernel",
                f"{SGLANG_MOE}/triton_3_5_1/E=384,N=14336,device_name=NVIDIA_\n"
                "RTX_PRO_6000_Blackwell_Max-Q_Workstation_Edition.json" + CREATE,
            )
        ),
        ("moe_config_missing",),
        ("NVIDIA_RTX_PRO_6000_Blackwell_Max-Q_Workstation_Edition.json",),
    ),
    Case(
        "MiniMax-AI/MiniMax-M2#50",
        "\n".join(
            sglang(
                MOE.format(
                    " kernel",
                    f"{SGLANG_MOE}/triton_3_4_0/E=256,N=768,device_name=NVIDIA_H200_NVL,"
                    f"dtype=fp8_w8a8,block_shape=[128, 128]{down}.json{CREATE}",
                ),
                rank,
            )
            for rank in (0, 1)
            for down in ("", "_down")
        ),
        ("moe_config_missing", "moe_config_missing"),
        ("2 times, on TP0, TP1", "block_shape=[128, 128]_down.json"),
    ),
    Case(
        "sgl-project/sglang#5390",
        "[2025-05-13 23:29:46 DP4 TP4] "
        + MOE.format(
            " kernel",
            f"{SGLANG_MOE}/E=264,N=256,device_name=NVIDIA_B200,dtype=fp8_w8a8,"
            f"block_shape=[128, 128].json{CREATE}",
        ),
        ("moe_config_missing",),
        ("DP4 TP4", "--device B200"),
    ),
    Case(
        "sgl-project/sglang#19003",
        sglang(
            NOT_FOUND.format(f"{SGLANG_MOE}/triton_3_5_1/E=128,N=192,device_name=NVIDIA_H200.json")
            + ". Fallback to triton version 3.2.0 and use MoE kernel config from "
            + f"{SGLANG_MOE}/triton_3_2_0/E=128,N=192,device_name=NVIDIA_H200.json. Performance "
            "might be sub-optimal!",
            2,
        ),
        ("moe_config_of_other_triton",),
        ("Triton 3.2.0", "config.json, which lies in", "qwen3"),
    ),
    Case(
        "sgl-project/sglang#19003",
        sglang(
            "Using MoE kernel config with down_moe=False. Performance might be sub-optimal! "
            + NOT_FOUND.format(
                f"{SGLANG_MOE}/triton_3_5_1/E=128,N=192,device_name=NVIDIA_H200_down.json{CREATE}"
            ),
            3,
        ),
        ("moe_down_config_missing",),
        ("E=128,N=192,device_name=NVIDIA_H200_down.json",),
    ),
    Case(
        "sgl-project/sglang#17494",
        sglang(
            BLOCK_FP8
            + NOT_FOUND.format(
                ""
                "/opt/app/.venv/lib/python3.12/site-packages/sglang/srt/layers/quantization/configs/"
                "N=2112,K=7168,device_name=NVIDIA_RTX_6000D,dtype=fp8_w8a8,block_shape=[128, "
                "128].json"
            ),
            7,
        ),
        ("block_gemm_config_missing",),
        ("block_gemm:N=2112,K=7168", "no figures for NVIDIA_RTX_6000D"),
    ),
    Case(
        "vllm-project/vllm#26319",
        vllm("Using default LoRA kernel configs"),
        ("lora_config_missing",),
        ("VLLM_TUNED_CONFIG_FOLDER",),
    ),
    # Shared memory.
    Case(
        "sgl-project/sglang#2384",
        sglang("Scheduler hit an exception: Traceback (most recent call last):", 3)
        + "\n"
        + OUT.format(131072, 65536),
        ("shared_memory", "process_ended"),
        ("131072 bytes of shared memory",),
        ("102,400", "--write-patch"),
    ),
    Case("vllm-project/vllm#12498", core(OUT.format(66560, 65536)), ("shared_memory",), ("66560",)),
    Case("vllm-project/vllm#36802", core(OUT.format(81920, 65536)), ("shared_memory",)),
    Case(
        "vllm-project/vllm#17744",
        frame(f"{VLLM_MOE[:-8]}/fused_moe.py", 520, "invoke_fused_moe_kernel")
        + "\n"
        + frame("/usr/lib/python3/dist-packages/triton/runtime/jit.py", 330, "<lambda>")
        + "\n"
        + OUT.format(73728, 65536),
        ("shared_memory",),
        ("fused_moe.py, line 520, in invoke_fused_moe_kernel", "give that file to `tuner check`"),
        ("attention",),
    ),
    Case(
        "triton-lang/triton#8182",
        frame("/x/triton_kernels/triton_kernels/matmul_ogs.py", 477, "matmul_ogs")
        + "\n"
        + OUT.format(131072, 101376),
        ("shared_memory",),
        ("matmul_ogs.py, line 477",),
        ("tuner check", "attention"),
    ),
    Case(
        "state-spaces/mamba#387",
        OUT.replace("errors", "autotuner").format(663808, 101376),
        ("shared_memory",),
        ("663808",),
        ("--write-patch",),
    ),
    Case(
        "sgl-project/sglang#4418",
        sglang(
            "RuntimeError: gemm executioin failed, error: Error Internal",
        )
        + "\ndevice_name=NVIDIA_L40S,",
        ("cutlass_tile",),
        ("0.4.4.post2", "122,880"),
    ),
    Case(
        "sgl-project/sglang#28137",
        sglang(
            "NotImplementedError: No implemented int8_scaled_mm for current compute capability: 120"
        ),
        ("scaled_mm_unserved",),
        ("Blackwell",),
    ),
    Case(
        "vllm-project/vllm#28856",
        core("RuntimeError: Int8 not supported for this architecture"),
        ("vllm_int8_unserved",),
        ("FP8",),
    ),
    Case(
        "vllm-project/vllm#9419",
        "NotImplementedError: No compiled cutlass_scaled_mm for a compute capability "
        "less than CUDA "
        "device capability: 75",
        ("vllm_scaled_mm_unserved",),
        ("75",),
    ),
    Case("vllm-project/vllm#18182", core(FP8), ("fp8_unsupported",), ("sm_89",)),
    Case("sgl-project/sglang#7715", f"`{FP8}`", ("fp8_unsupported",), ("--kv-cache-dtype",)),
    Case("vllm-project/vllm#18995", f"RuntimeError: CUDA error: {NO_IMAGE}", ("no_kernel_image",)),
    Case(
        "sgl-project/sglang#24302",
        f"RuntimeError: GemmaRMSNorm failed with error code {NO_IMAGE}",
        ("no_kernel_image",),
        ("get_arch_list",),
    ),
    Case(
        "sgl-project/sglang#4856",
        sglang("RuntimeError: CUDA error: an illegal memory access was encountered"),
        ("illegal_memory",),
        ("CUDA_LAUNCH_BLOCKING=1",),
    ),
    Case(
        "vllm-project/vllm#4202",
        QUANT.format("awq", 75, 70),
        ("quantization_unsupported",),
        ("75",),
    ),
    Case(
        "vllm-project/vllm#14154",
        QUANT.format("bitsandbytes", 70, 52),
        ("quantization_unsupported",),
    ),
    Case(
        "vllm-project/vllm#4327",
        RAY.format(text=QUANT.format("fp8", 90, 86)),
        ("quantization_unsupported",),
        ("capability 90, and the GPU has 86",),
    ),
    Case(
        "vllm-project/vllm#14040",
        core(
            "RuntimeError: ('Quantization scheme is not supported for ', 'the current GPU. Min "
            "capability: 80. ', 'Current capability: 75.')"
        ),
        ("quantization_unsupported",),
        ("capability 80, and the GPU has 75",),
    ),
    Case(
        "vllm-project/vllm#17569",
        "ValueError: The output_size of gate's and up's weight = 192 is not divisible by weight "
        "quantization block_n = 128.",
        ("block_shape",),
        ("a multiple of 128",),
    ),
    Case(
        "sgl-project/sglang#26107",
        "server_args=ServerArgs(model_path='/m/Step-3.5-Flash', tokenizer_path='/m', tp_size=4, )\n"
        "ValueError: Weight output_partition_size = 320 is not divisible by weight quantization "
        "block_n = 128.",
        ("block_shape",),
        ("Use --tp 2",),
    ),
    Case(
        "sgl-project/sglang#19045",
        "ValueError: Weight output_partition_size = 8 is not divisible by weight quantization "
        "block_n = 128.",
        ("block_shape",),
    ),
    Case("vllm-project/vllm#2652", HEADS.format(52, 8), ("heads",), ("size 4.",)),
    Case("vllm-project/vllm#4232", HEADS.format(40, 6), ("heads",), ("size 5.",)),
    Case("vllm-project/vllm#52435", HEADS.format(64, 3), ("heads",), ("size 2.",)),
    Case(
        "vllm-project/vllm#31936",
        "(Worker_TP4_EP4 pid=2532) ERROR 12-29 15:21:11 [multiproc_executor.py:751] ValueError: No "
        "valid attention backend found for cuda with AttentionSelectorConfig(head_size=576, "
        "dtype=torch.bfloat16, use_mla=True, use_sparse=True). Reasons: {TRITON_MLA: [sparse not "
        "supported], FLASHMLA_SPARSE: [compute capability not supported]}.",
        ("attention_backend_none",),
        ("TRITON_MLA: [sparse not supported]", "Worker_TP4"),
    ),
    Case(
        "Dao-AILab/flash-attention#2336",
        "ValueError: Selected backend AttentionBackendEnum.FLASHINFER is not valid for this "
        "configuration. Reason: ['attention sinks not supported']",
        ("attention_backend_refused",),
        ("attention sinks not supported",),
    ),
    # Memory.
    Case(
        "sgl-project/sglang#4330",
        sglang("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."),
        ("kv_cache_no_memory",),
        ("Raise --mem-fraction-static",),
    ),
    Case(
        "sgl-project/sglang#5285",
        "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate "
        "448.00 MiB. GPU "
        "7 has a total capacity of 95.00 GiB of which 300.00 MiB is free.",
        ("graph_memory",),
        ("Lower --mem-fraction-static",),
        ("Raise",),
    ),
    Case(
        "vllm-project/vllm#15598",
        RAY.format(
            text="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB. GPU 6 "
            "has a "
            "total capacity of 44.53 GiB of which 448.00 KiB is free."
        ),
        ("gpu_memory",),
        ("2.00 MiB",),
    ),
    Case(
        "vllm-project/vllm#20305",
        "ERROR 06-30 13:53:19 [core.py:515] EngineCore failed to start.\n"
        + FREE.format("", 31.44, 47.38, 0.95, 45.01),
        ("gpu_memory_taken", "process_ended"),
        ("--gpu-memory-utilization 0.66",),
    ),
    Case(
        "pytorch/pytorch#175666",
        core(FREE.format(" cuda:0", 19.77, 22.05, 0.9, 19.84)),
        ("gpu_memory_taken",),
        ("--gpu-memory-utilization 0.89",),
    ),
    Case(
        "vllm-project/vllm-omni#276",
        FREE.format("", 0.49, 79.32, 0.6, 47.59),
        ("gpu_memory_taken",),
        ("nvidia-smi",),
        ("--gpu-memory-utilization 0",),
    ),
    Case(
        "vllm-project/vllm#25837",
        core(FREE.format("", 3.22, "4.0", 0.9, 3.6)),
        ("gpu_memory_taken",),
        ("--gpu-memory-utilization 0.80",),
    ),
    Case(
        "vllm-project/vllm#34076",
        core(SERVE.format("models's", 262144, "24.0", 3.18, 34736)),
        ("context_too_long",),
        ("--max-model-len 34736", "24.0 GiB"),
    ),
    Case(
        "SergiioB/intel-arc-pro-b70-inference-cookbook#4",
        core(
            SERVE.format("model's", 100000, 4.26, 4.25, 99000).replace(
                "KV cache is", "KV cach\ne is"
            )
        ),
        ("context_too_long",),
        ("4.26 GiB", "--max-model-len 99000"),
    ),
    Case(
        "vllm-project/vllm#2418",
        STORED.format(4096, 3664),
        ("context_too_long",),
        ("--max-model-len 3664",),
    ),
    Case("QwenLM/Qwen3#295", STORED.format(32768, 7344), ("context_too_long",), ("7344",)),
    Case("deepseek-ai/DeepSeek-V2#83", STORED.format(163840, 13360), ("context_too_long",)),
    Case(
        "vllm-project/vllm#17431",
        "ERROR 04-30 10:20:36 [core.py:396] ValueError: No available memory for the "
        "cache blocks. Try "
        "increasing `gpu_memory_utilization` when initializing the engine.",
        ("vllm_no_kv_cache",),
    ),
    Case(
        "vllm-project/vllm#18831",
        NCCL.format(
            rank=0,
            text="WARN Error while attaching to shared memory segment /dev/shm/nccl- (size "
            "192814336), error: No such file or directory (2)",
        ),
        ("shared_memory_attach",),
        ("boot ID", "is not the cause"),
    ),
    # Networks.
    Case(
        "pytorch/pytorch#111424",
        "node013:37715:38896 [0] NCCL INFO NET/IB : No device found.",
        ("nccl_no_ib",),
        ("tuner preflight",),
    ),
    Case(
        "vllm-project/vllm#5360",
        "gpu:150030:150215 [0] NCCL INFO Failed to open libibverbs.so[.1]\n"
        "gpu:150030:150215 [0] NCCL INFO NET/Socket : Using [0]ens5:10.0.48.206<0>\n"
        "gpu:150030:150215 [0] NCCL INFO Using network Socket",
        ("nccl_no_verbs", "nccl_sockets"),
        ("libibverbs1",),
    ),
    Case(
        "EvolvingLMMs-Lab/open-r1-multimodal#7",
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:2588, internal "
        "error - please report this issue to the NCCL developers, NCCL version 2.21.5\n"
        "[rank0]: ncclInternalError: Internal check failed.\n[rank0]: Last error:\n"
        "[rank0]: Bootstrap : no socket interface found",
        ("nccl_interface",),
        ("NCCL_SOCKET_IFNAME",),
    ),
    Case(
        "sgl-project/sglang#3226",
        sglang(
            "RuntimeError: Gloo connectFullMesh failed with "
            "[../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error"
        ),
        ("gloo_mesh",),
        ("GLOO_SOCKET_IFNAME",),
    ),
    Case(
        "NVIDIA/nccl-tests#227",
        NCCL.format(
            rank=0, text="WARN Call to ibv_modify_qp failed with error Connection timed out"
        ),
        ("rdma_connect",),
        ("GID",),
    ),
    Case(
        "NVIDIA/nccl#2013",
        NCCL.format(
            rank=5,
            text="WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx_5:1, "
            "curr state INIT, next state RTR, local GID index 3, local GID ::ffff:10.0.0.1, remote "
            "GID ::ffff:10.0.0.2",
        ),
        ("rdma_connect",),
        ("NCCL_CROSS_NIC=0",),
    ),
    Case(
        "NVIDIA/nccl#426",
        "worker-1:946:988 [0] transport/net_ib.cc:839 NCCL WARN NET/IB : Got completion with error "
        "12, opcode 1, len 0, vendor err 129",
        ("rdma_timeout",),
        ("status 12",),
    ),
    Case(
        "NVIDIA/nccl#1737",
        "host-a:7038:7053 [0] ib_plugin.c:1007 NCCL WARN NET/IB : Got completion from peer "
        "192.0.2.3<42519> with error 5, opcode 0, len 0, vendor err 249",
        ("rdma_flush",),
        ("status 5", "peer's log"),
    ),
    Case(
        "vllm-project/vllm#19613",
        "[2025-06-16 17:17:39] node:318:3584 [5] misc/ibvwrap.cc:183 NCCL WARN Call to "
        "ibv_reg_dmabuf_mr failed with error Cannot allocate memory\n"
        "ERROR 06-13 07:35:59 [core.py:517] cupy_backends.cuda.libs.nccl.NcclError: "
        "NCCL_ERROR_SYSTEM_ERROR: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        ("rdma_register",),
        ("NCCL_BUFFSIZE", "memlock"),
    ),
    Case(
        "sgl-project/sglang#6894",
        "E0605 10:48:27.885119 10136 rdma_context.cpp:203] Failed to register memory "
        "0x7b375b400000: Invalid argument [22]",
        ("mooncake_register",),
        ("nvidia_peermem", "Invalid argument"),
    ),
    Case(
        "sgl-project/sglang#6017",
        NCCL.format(
            rank=0,
            text="WARN socketStartConnect: Connect to 169.254.20.10<43369> failed : Software "
            "caused connection abort",
        ),
        ("nccl_unreachable",),
        ("169.254", "NCCL_SOCKET_IFNAME"),
    ),
    Case(
        "made up",
        NCCL.format(rank=3, text="WARN Could not find the flux capacitor")
        + "\nRuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for "
        "details)",
        ("nccl_warning",),
        ("flux capacitor",),
    ),
    Case(
        "triton-lang/triton#8539",
        "triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error\n"
        "`ptxas` stderr:\n"
        "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'",
        ("ptxas_architecture",),
        ("TRITON_PTXAS_PATH", "sm_121a"),
    ),
    Case(
        "opendatalab/MinerU#4350",
        "(EngineCore_DP0 pid=60) ERROR 01-12 01:09:14 [core.py:708] "
        "triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error\n"
        "(EngineCore_DP0 pid=60) ERROR 01-12 01:09:14 [core.py:708] `ptxas` stderr:\n"
        "(EngineCore_DP0 pi",
        ("ptxas_failed",),
        ("Give the lines below",),
    ),
    Case(
        "vllm-project/vllm#48732",
        "**Setup**: 8x RTX 5090 32GB, driver 570.124, vLLM 0.11.2 (cu12x wheels), "
        "Qwen/Qwen3-30B-A3B, TP=4\nUsing default MoE config. Performance might be sub-optimal! "
        "Config file not found at ...",
        ("config_unnamed",),
        ("tuner tune qwen3-30b-a3b --tp 4 --device 5090 --engine vllm==0.11.2",),
    ),
    Case(
        "verl-project/verl#161",
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 10",
        ("duplicate_gpu",),
        ("CUDA_VISIBLE_DEVICES",),
    ),
    Case(
        "vllm-project/vllm#6732",
        "RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        ("nccl_silent",),
        ("NCCL_DEBUG=INFO",),
    ),
    Case(
        "sgl-project/sglang#3784",
        "[rank8]:[E222 08:52:08.1 ProcessGroupNCCL.cpp:616] [Rank 8] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
        "Timeout(ms)=600000) ran for 600009 milliseconds before timing out.",
        ("nccl_timeout",),
        ("ALLREDUCE", "rank8"),
    ),
    Case(
        "vllm-project/vllm#11617",
        "RuntimeError: The server socket has failed to listen on any local network "
        "address. useIpv6: "
        "0, code: -98, name: EADDRINUSE, message: address already in use",
        ("port_taken",),
        ("ss -ltnp",),
    ),
    Case("vllm-project/vllm#39015", LISTEN.format(29500), ("port_taken",), ("port 29500",)),
    Case(
        "verl-project/verl#5889",
        f"(vLLMHttpServer pid=1835067) ERROR 04-07 12:12:08 [x.py:597] {LISTEN.format(18071)}",
        ("port_taken",),
        ("port 18071",),
    ),
    Case(
        "vllm-project/vllm#19670",
        core(
            "torch.distributed.DistNetworkError: The client socket has timed out after "
            "600000ms while "
            "trying to connect to (172.17.0.9, 46229)."
        ),
        ("head_unreachable",),
        ("nc -zv 172.17.0.9 46229",),
    ),
    Case(
        "vllm-project/vllm#16334",
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/4 "
        "clients joined.",
        ("ranks_missing",),
        ("1 of 4",),
    ),
    Case(
        "vllm-project/aibrix#927",
        "INFO 04-01 02:46:00 ray_utils.py:214] Waiting for creating a placement group of "
        "specs for 10 "
        "seconds. specs=[{'node:10.163.194.101': 0.001, 'GPU': 1.0}, {'GPU': 1.0}]. "
        "Check `ray status`",
        ("ray_placement",),
        ("ray status",),
    ),
    Case(
        "gpustack/gpustack#5056",
        "(EngineCore_DP0 pid=34) WARNING 03-30 14:11:45 [ray_utils.py:352] Tensor "
        "parallel size (16) "
        "exceeds available GPUs (8). This may result in Ray placement group allocation failures.",
        ("ray_gpus",),
        ("16", "8 GPUs"),
    ),
    Case(
        "Unakar/Logic-RL#30",
        "RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.12.0\n"
        "    Python: 3.11.11\nThis process on node 10.123.3.87 was started with:\n"
        "    Ray: 2.42.0\n    Python: 3.9.21",
        ("ray_versions",),
        ("Ray 2.12.0 on Python 3.11.11", "Ray 2.42.0 on Python 3.9.21"),
    ),
    # Packages and checkpoints.
    Case(
        "sgl-project/sglang#6160",
        "Exception: flashinfer_python with minimum required version 0.2.5 is not installed. ",
        ("package_missing",),
        ("flashinfer_python",),
    ),
    Case(
        "redai-studio/Relax#8",
        "Exception: flashinfer_python is installed with version 0.6.3, which is less "
        "than the minimum "
        "required version 0.6.4. Please uninstall the old version and reinstall",
        ("package_old",),
        ("pip install 'flashinfer_python==0.6.4'",),
    ),
    Case(
        "xorbitsai/inference#3249",
        "ModuleNotFoundError: No module named 'deep_gemm'",
        ("deep_gemm_missing",),
    ),
    Case(
        "sgl-project/sglang#29738",
        "NameError: name 'deep_gemm' is not defined",
        ("deep_gemm_missing",),
        ("SGLANG_ENABLE_JIT_DEEPGEMM=0",),
    ),
    Case(
        "sgl-project/sglang#15891",
        "[2025-12-26 08:51:31 DP0 TP0 EP0] Entering DeepGEMM JIT Pre-Compile session. It "
        "may take a "
        "long time (typically 10-20 mins) if you have not run `sglang.compile_deep_gemm`.",
        ("deep_gemm_compiles",),
        ("10 to 20 minutes",),
    ),
    Case(
        "vllm-project/vllm#22231",
        "ValueError: Model architectures ['Qwen3ForCausalLM'] are not supported for now. Supported "
        "architectures: ['AquilaModel', 'AquilaForCausalLM']",
        ("architecture_unknown",),
        ("Qwen3ForCausalLM", "newer release"),
    ),
    Case(
        "vllm-project/vllm#10974",
        "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or "
        "'namespace/repo_name': '/models/'. Use `repo_type` argument if needed.",
        ("model_path",),
        ("/models/ is no folder",),
    ),
    Case(
        "vllm-project/vllm#8262",
        "OSError: Incorrect path_or_model_id: '/data1/models/deepseek'. Please provide either the "
        "path to a local folder or the repo_id of a model on the Hub.",
        ("model_path",),
        ("/data1/models/deepseek",),
    ),
    Case(
        "sgl-project/sglang#8232",
        sglang("Watchdog timeout (self.watchdog_timeout=300)", 5),
        ("sglang_watchdog",),
        ("300 s",),
    ),
    Case(
        "triton-lang/triton#8096",
        "subprocess.CalledProcessError: Command '['/v/triton/bin/ptxas', '-lineinfo', "
        "'-v', '--gpu-name=sm_110a', '/tmp/tmp1.ptx', '-o', '/tmp/tmp1.ptx.o']' returned non-zero "
        "exit status 255.",
        ("ptxas_failed",),
        ("sm_110a", "TRITON_PTXAS_PATH"),
    ),
    Case(
        "vllm-project/vllm#15511",
        core("RuntimeError: Internal Triton PTX codegen error")
        + "\n"
        + core("`ptxas` stderr:")
        + "\n"
        + core(
            "ptxas /tmp/tmp1.ptx, line 601; error   : Modifier '.evict_last' cannot be combined "
            "with modifier '.cg'"
        ),
        ("ptxas_line",),
        ("'.evict_last' cannot be combined", "in this release of Triton"),
        ("not in this text",),
    ),
    Case(
        "vllm-project/vllm#41477",
        "`ptxas error: Feature '.tile::scatter4' not supported on .target 'sm_121a'`",
        ("ptxas_feature",),
        ("sm_121a does not have", "another backend"),
        ("TRITON_PTXAS_PATH",),
    ),
    Case(
        "triton-lang/triton#10327",
        "fused_moe.py:574:24: error: operand #0 does not dominate this use\n"
        "RuntimeError: PassManager::run failed",
        ("triton_dominance",),
        ("RemoveLayoutConversions", "passes over"),
    ),
    Case(
        "pytorch/pytorch#180908",
        core("RuntimeError: PassManager::run failed"),
        ("triton_pass",),
        ("release of Triton",),
    ),
    Case(
        "sgl-project/sglang#4857",
        "[Node-A]:[PID]:[Thread] [0] NCCL WARN NET/IB : Got completion from peer [PRIVATE_IP] with "
        "error 12, opcode 0, len 0, vendor err 129 (Recv)",
        ("rdma_timeout",),
        ("did not answer (status 12",),
    ),
    Case(
        "sgl-project/sglang#4978",
        "DEV     PORT    INDEX   GID         IPv4            VER     DEV\n"
        "---     ----    -----   ---         ------------    ---     ---\n"
        "mlx5_0  1       3       0000:ffff   10.63.65.208    v2      xgbe0",
        ("gid_table",),
        ("RoCE v2", "NCCL_IB_GID_INDEX"),
    ),
    Case(
        "sgl-project/sglang#33273",
        "Using default MoE kernel config. Performance might be sub-optimal!\n    Config file not "
        "found at .../E=512,N=128,device_name=NVIDIA_H20,dtype=fp8_w8a8,"
        "block_shape=[128, 128].json",
        ("moe_config_missing",),
        ("fused_moe:E=512,N=128,K=2048,top_k=10", "fused_moe:E=512,N=128,K=4096,top_k=10"),
    ),
    Case(
        "sgl-project/sglang#21752",
        sglang(
            "Using MoE kernel config with down_moe=False. Performance might be sub-optimal! "
            + NOT_FOUND.format(
                f"{SGLANG_MOE}/triton_3_5_1/E=256,N=512,device_name=NVIDIA_B200_down"
            )
            + f".json{CREATE}"
        ),
        ("moe_down_config_missing",),
        ("kimi-linear-48b-a3b at tp=2", "K=2304,top_k=8", "before sglang 0.5.11"),
    ),
    Case(
        "NVIDIA/nccl#1788",
        "node004:27907:27907 [1] transport/nvls.cc:254 NCCL WARN Cuda failure 401 'the operation "
        "cannot be performed in the present state'",
        ("nvls",),
        ("NCCL_NVLS_ENABLE=0", "Fabric Manager"),
    ),
    Case(
        "pytorch/pytorch#177472",
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:93, unhandled cuda error "
        "(run with NCCL_DEBUG=INFO for details), NCCL version 2.29.3\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
        "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401",
        ("nvls",),
        ("NCCL_NVLS_ENABLE=0",),
        ("does not stand in this text",),
    ),
    Case(
        "pytorch/pytorch#177472",
        "RuntimeError: NCCL error in: NCCLUtils.cpp:93, unhandled system error (run with "
        "NCCL_DEBUG=INFO for details), NCCL version 2.29.3\n"
        "ncclSystemError: System call (e.g. socket, malloc) failed.\nLast error:\n"
        "socketPollConnect 10.0.0.2 failed: no route",
        ("nccl_last_error",),
        ("socketPollConnect 10.0.0.2",),
        ("does not stand in this text",),
    ),
    Case(
        "sgl-project/sglang#4205",
        "Exception: Capture cuda graph failed: "
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection cl",
        ("graph_capture_peer",),
        ("other rank's log",),
        ("--disable-cuda-graph", "A kernel failed"),
    ),
    Case(
        "vllm-project/vllm#25022",
        "RuntimeError: ('Quantization scheme is not supported for ', 'the current GPU. Min "
        "capability: 80. ', 'Current capability: 75.')",
        ("quantization_unsupported",),
        ("0.15.1 and later for 75",),
    ),
    Case(
        "inclusionAI/humming#69",
        "server_args=ServerArgs(model_path='/m/x', tp_size=16)\nValueError: Weight "
        "output_partition_size = 2112 is not divisible by weight quantization block_n = 128.",
        ("block_shape",),
        ("--tp 8",),
        ("expert parallelism",),
    ),
    # Programs beside sglang and vLLM, and what else people of 2025 and 2026 met.
    Case(
        "InternLM/lmdeploy#3992",
        '  File "/opt/lib/python3.10/site-packages/lmdeploy/pytorch/kernels/cuda/pagedattention.py"'
        ", line 700, in flash_attention_fwd\n"
        '  File "/opt/lib/python3.10/site-packages/triton/runtime/jit.py", line 347, in <lambda>\n'
        + OUT.format(131088, 101376),
        ("shared_memory",),
        ("The kernel is lmdeploy's", "a newer release of lmdeploy"),
        ("--engine", "tuner tune", "config file"),
    ),
    Case(
        "InternLM/lmdeploy#4385",
        "lmdeploy serve api_server /models/Qwen/Qwen3.5-35B-A3B --tp 8\n"
        + OUT.format(81920, 65536),
        ("shared_memory",),
        ("The text is of lmdeploy",),
        ("--engine", "tuner tune"),
    ),
    Case(
        "sgl-project/sglang#8513",
        '  File "/x/site-packages/sglang/srt/layers/moe/fused_moe_triton/x.py", line 603, in '
        "invoke_fused_moe_kernel\n" + OUT.format(147456, 101376),
        ("shared_memory",),
        ("It is a kernel of a fused-MoE layer.",),
        ("this tuner has kernels of sglang and vLLM alone",),
    ),
    Case(
        "vllm-project/vllm#45101",
        'File "/x/site-packages/triton/language/semantic.py", line 1488, in dot\n'
        "AssertionError: Unsupported lhs dtype fp8e4nv",
        ("dot_types",),
        ("Triton multiplies fp8 by fp8 alone", "The GPU is not the cause", "--quantization"),
    ),
    Case(
        "sgl-project/sglang#3820",
        "node5:240:240 [6] misc/socket.cc:533 NCCL WARN socketPollConnect: Connect to "
        "10.0.0.4<56849> returned 113(No route to host) errno 115(Operation now in progress)",
        ("nccl_unreachable",),
        ("10.0.0.4<56849>", "No route to host", "firewall"),
    ),
    Case(
        "sgl-project/sglang#4857",
        "node:1:1 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.2<40001> with error 12, "
        "opcode 0, len 0, vendor err 129 (Recv)",
        ("rdma_timeout",),
        ("did not answer (status 12",),
    ),
    Case(
        "kvcache-ai/ktransformers#1692",
        "python -m sglang.launch_server --model /m/v3-2 --tensor-parallel-size 1 "
        "--attention-backend triton --kt-method AMXINT4\n" + FP8,
        ("fp8_unsupported",),
        ("RTX 3090 have not",),
    ),
    # A kernel's sizes, a compiler and a network, each in people's own words.
    Case(
        "vllm-project/vllm#57712",
        "- **GPUs:** 2x NVIDIA Quadro RTX 6000 (Turing, SM75)\n- **vLLM:** 0.26.0\n"
        "triton.runtime.errors.OutOfResources: out of resource: shared memory,\n"
        "Required: 98304, Hardware limit: 65536.\n\n"
        "In `vllm/v1/attention/ops/triton_unified_attention.py`, the kernel launch parameters are",
        ("shared_memory",),
        ("triton_unified_attention.py, which launches attention", "vLLM reads no file"),
        ("nothing shows which kernel", "tuner tune"),
    ),
    Case(
        "sgl-project/sglang#5995",
        "When running sglang with RedHatAI/Qwen3-30B-A3B-FP8-dynamic, sglang exits with error "
        "'triton out of resource: shared memory, Required: 163840, Hardware limit: 101376'",
        ("shared_memory",),
        ("--device, the GPU as nvidia-smi -L names it; --tp,",),
        ("--engine sglang or --engine vllm",),
    ),
    Case(
        "sgl-project/sglang#2794",
        "python3 -m sglang.launch_server --model-path /mnt/blob/deepseek/ --tp 16 --nnodes 16 "
        "--disable-cuda-graph --trust-remote-code",
        ("cuda_graph_off", "several_nodes"),
        ("take the flag out", "`NET/IB` in its lines is RDMA"),
    ),
    Case(
        "sgl-project/sglang#2794",
        "sglang serve --model-path /m --nnodes 1 --disable-cuda-graph-padding --tp 8\n"
        "RuntimeError: PassManager::run failed",
        ("triton_pass",),
    ),
    Case(
        "vllm-project/llm-compressor#1489",
        core("ValueError: Failed to find a kernel that can implement the WNA16 linear layer.")
        + "\n"
        + core(
            " MarlinLinearKernel cannot implement due to: Weight input_size_per_partition = 8256 "
            "is not divisible by min_thread_k = 128. Consider reducing tensor_parallel_size or "
            "running with --quantization gptq."
        ),
        ("linear_kernel_none",),
        ("--dtype float16", "the checkpoint's own config.json"),
        ("start the server with --quantization",),
    ),
    Case(
        "vllm-project/vllm#25241",
        core(
            "RuntimeError: Unsupported FusedMoe scheme: num_bits=4 type='int' symmetric=True "
            "group_size=128 strategy='group' block_structure=None, num_bits=8 type='float'"
        ),
        ("moe_scheme_none",),
        ("weights are num_bits=4 type='int' symmetric=True group_size=128", "newer release"),
    ),
    Case(
        "sgl-project/sglang#10852",
        "When using tp=8 to launch `Qwen/Qwen3-Next-80B-A3B-Instruct-FP8`, this error occurs:\n"
        "ValueError: The output_size of gate's and up's weight = 64 is not divisible by weight "
        "quantization block_n = 128.",
        ("block_shape",),
        (
            "If it failed with --tp 8, the whole weight has 512: 4 ranks hold 128 each.",
            "Use --tp 4",
            "still cuts a shared",
        ),
    ),
    Case(
        "vllm-project/vllm#9913",
        "ValueError: Weight input_size_per_partition = 10944 is not divisible by min_thread_k = "
        "128. Consider reducing tensor_parallel_size or running with --quantization gptq.",
        ("marlin_shape",),
        ("takes multiples of 128", "hold 10944 rows", "--quantization awq"),
    ),
    Case(
        "vllm-project/vllm#50711",
        "vllm/model_executor/layers/fused_moe/fused_moe.py:295:0: error: Failures have\n"
        "been detected while processing an MLIR pass pipeline\n"
        "note: Pipeline failed while executing [`TritonGPURemoveLayoutConversions` on\n"
        "'builtin.module' operation]",
        ("triton_dominance",),
        ("passes over each candidate that does not compile",),
    ),
    Case(
        "vllm-project/vllm#16336",
        "subprocess.CalledProcessError: Command '['/opt/vllm_env/lib/python3.12/site-packages/"
        "triton/backends/nvidia/bin/ptxas', '-lineinfo', '-v', '--gpu-name=sm_100', "
        "'/tmp/tmpat8x27d5.ptx', '-o', '/tmp/tmpat8x27d5.ptx.o']' returned non-zero exit "
        "status 255.",
        ("ptxas_failed",),
        ("code for sm_100", "knows no Blackwell", "Triton 3.3 or later"),
    ),
    Case(
        "NVIDIA/nccl#1591",
        "docker run --gpus all --network host --privileged -e NCCL_IB_DISABLE=1 "
        "--device=/dev/infiniband vllm/vllm-openai -c 'ray start --block --head --port=6379'",
        ("nccl_ib_disabled",),
        ("over TCP sockets between nodes", "take it out of the command", "tuner preflight"),
    ),
    Case(
        "AI-Hypercomputer/gpu-recipes#5",
        "pod:562:562 [5] net.cc:579 NCCL WARN Error: network gIB not found.\n"
        "pod:565:565 [7] NCCL INFO NET/Plugin: Plugin load returned 2 : "
        "/lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.32' not found (required by "
        "/usr/local/nvidia/lib64/libnccl-net.so) : when loading libnccl-net.so",
        ("nccl_plugin",),
        ("needs GLIBC_2.32", "whose C library has GLIBC_2.32"),
    ),
    Case(
        "AI-Hypercomputer/gpu-recipes#5",
        "pod:562:562 [5] net.cc:579 NCCL WARN Error: network gIB not found.",
        ("nccl_net_missing",),
        ("asks for the network gIB", "NCCL_DEBUG=INFO if there is none"),
    ),
)

# Messages that the table does not have: nothing may be said of them.
UNKNOWN = (
    Case(
        "sgl-project/sglang#1404",
        "ImportError: cannot import name 'gemma_fused_add_rmsnorm' from 'flashinfer.norm' (/x.py)",
        (),
    ),
    Case(
        "sgl-project/sglang#17494",
        sglang("RuntimeError: cutlass_w4a8_moe_mm GEMM initialization failed"),
        (),
    ),
    Case(
        "sgl-project/sglang#165",
        "AttributeError: 'NoneType' object has no attribute 'cpu'",
        (),
    ),
)
