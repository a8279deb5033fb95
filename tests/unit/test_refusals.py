"""Messages by which engines and compilers refuse, by cause; the words are the sources' own."""

from __future__ import annotations

import pytest

from tuner.diagnose import diagnose_text

SAID = {
    "output_garbled": ["this results in completely gibberish output"],
    "swap_full": ["RuntimeError: Aborted due to the lack of CPU swap space. Please increase"],
    "driver_old": [
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4, please update",
    ],
    "deepep_tokens": [
        "Failed: Assertion error /x/DeepEP/csrc/deep_ep.cpp:1025 'x.size(0) == topk_idx.size(0) "
        "and x.size(0) <= num_max_dispatch_tokens_per_rank'",
    ],
    "router_workers": [
        "No available decode workers (all circuits open or unhealthy)",
        "Timeout 300s waiting for workers to become healthy",
        "INFO - Worker http://0.0.0.0:31000 health check is pending with error: error sending",
        'proxy.go:268] "waiting for vLLM to be ready" err="dial tcp: connection refused"',
    ],
    "hip_fault": [
        "Callback: Queue 0x7f aborting with error : HSA_STATUS_ERROR_EXCEPTION: An HSAIL"
    ],
    "weight_unknown": [
        "KeyError: 'layers.35.mlp.gate.g_idx'",
        "KeyError: 'midlayer.self_attn.qkv_proj.weight'",
        "KeyError: 'lm_head.weight'",
    ],
    "vllm_no_kv_cache": ["INFO 06-05 [gpu_worker.py:300] Available KV cache memory: -19.08 GiB"],
    "reset_required": [
        "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x",
        "    GPU Recovery Action               : Drain and Reset",
    ],
    "link_below": [
        "0xb88303ffff7f61c4  6  1[  ] ==( 1X  25.78125 Gbps Active/  LinkUp)==>  3  3[  ] "
        '"MF0;switch:MQM8700/U1" ( Could be 4X)'
    ],
    "context_too_long": [
        "ValueError: To serve at least one request with the model's max seq len (1048576),\n"
        "22.5 GiB KV cache is needed, which is larger than the available KV cache memory "
        "(17.39 GiB).\nBased on the available memory, the estimated maximum model length is 8102."
    ],
    "first_requests": [
        "vLLM 0.24 on 2x L40S: the first request takes very long, the others are quick",
        "The throughput of the first chat was low when deploying a model using vLLM on RTX5090",
    ],
    "port_of_service": [
        "ValueError: VLLM_PORT 'tcp://10.43.154.30:8000' appears to be a URI. This may be caused "
        "by a Kubernetes service discovery issue,check the warning in: https://docs.vllm.ai",
    ],
    "storage_refused": [
        "botocore.exceptions.ClientError: An error occurred (InvalidAccessKeyId) when calling the",
    ],
    "deep_gemm_drafts": [
        "RuntimeError: Worker failed with error 'Assertion error (/w/deepgemm-src/csrc/apis/../jit_"
        "kernels/impls/smxx_fp8_fp4_paged_mqa_logits.hpp:233): next_n == 1 or next_n == 2'",
    ],
    "shm_default": ["shm              64M   12K   64M   1% /dev/shm"],
    "node_without_gpus": ["Allocatable:\n  cpu: 64\n  nvidia.com/gpu:     0"],
    "nic_refuses": [
        "mlx5_core 0000:5e:00.0: mlx5_cmd_out_err:834:(pid 7): CREATE_MKEY(0x200) op_mod(0x0) "
        "failed, status limits exceeded(0x8), syndrome (0x59c8a4), err(-12)",
    ],
    "nvswitch_fault": [
        "nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
    ],
    "hami": [
        "[HAMI-core ERROR (pid:565 thread=140 multiprocess_memory_limit.c:831)]: Illegal device id",
        '!!!!!!! Segfault encountered !!!!!!!\n  File "/libvgpu/src/cuda/memory.c", line 582, in c',
    ],
    "model_type_unknown": [
        '    config_class = CONFIG_MAPPING[config_dict["model_type"]]\n    raise KeyError(key)\n'
        "KeyError: 'qwen3_moe'",
    ],
    "linear_attention_shape": [
        "UserWarning: Input tensor shape suggests potential format mismatch: seq_len (19) < num_he"
    ],
    "package_of_other_release": [
        "ImportError: cannot import name 'launch_server_cmd' from 'sglang.utils' (/x/utils.py)",
        "ImportError: cannot import name 'gemma_fused_add_rmsnorm' from 'flashinfer.norm' (/x.py)",
        "AttributeError: module 'sglang.srt.layers.deep_gemm_wrapper' has no attribute 'masked'",
    ],
    "transformers_new": [
        "AttributeError: Qwen2Tokenizer has no attribute all_special_tokens_extended. Did you",
    ],
    "health_silent": [
        "Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.",
    ],
    "tool_parser": [
        "ERROR [hermes_tool_parser.py:157] Error in extracting tool call from response.",
        "Error trying to handle streaming tool call.",
    ],
    "tool_choice_alone": [
        "Error in chat_completion_full_generator - cannot determine if tools should be extracted.",
    ],
    "moe_width": [
        "    assert M % 128 == 0\nAssertionError",
        "Check failed: args->intermediate_size % 128 == 0 (96 vs. 0) : intermediate_size must be a "
        "multiple of 128.",
        "RuntimeError: Worker failed with error 'Check failed: args->intermediate_size % 128 == 0 "
        "(64 vs. 0) : the second dimension of weights must be a multiple of 128.'",
    ],
    "lora_rank": ["Worker failed with error 'LoRA rank 32 is greater than max_lora_rank 16.'"],
    "lora_path": ['ValueError: Loading lora ["a failed: No adapter found for /x/checkpoint-57"]'],
    "lora_weight": ["ValueError: base_model.model.lm_head.weight is unsupported LoRA weight"],
    "media_tokens": [
        "ValueError: Attempted to assign 25 + 25 = 50 multimodal tokens to 147 placeholders",
        "ValueError: Attempted to assign 50 multimodal tokens to 147 placeholders",
    ],
    "media_tokens_differ": [
        "Number of tokens in multimodal embedding does not match those in the input text. "
        "Got 279 tokens in the text but 260 tokens from multimodal embeddings.",
    ],
    "answer_no_json": ["requests.exceptions.JSONDecodeError: Expecting value: line 1 column 1"],
    "told_to_end": ["INFO [launcher.py:80] Shutting down FastAPI HTTP server."],
    "probe_failed": ["Startup probe failed: Get x: connect: connection refused"],
    "serve_waits": [
        "1 replicas that have taken more than 30s to be scheduled. Resources required for each "
        "replica: [{'a': 0.01}], total resources available: {}. Use `ray status` for more details.",
    ],
    "model_class": ["AttributeError: 'EagleLlama4ForCausalLM' object has no attribute 'lm_head'"],
    "state_slots": ["AssertionError: Can not alloc mamba cache"],
    "device_assert": [
        "x.py:37: unknown: block: [9,0,0], thread: [81,0,0] Assertion `0 <= tmp10 < 2048` failed.",
    ],
    "settings_refused": ["  Value error, an option is missing [type=value_error, input_value=x]"],
    "flag_unknown": [
        "TypeError: EngineArgs.__init__() got an unexpected keyword argument 'num_scheduler_steps'",
        "vllm: error: unrecognized arguments: --moe-backend marlin",
        "launch_server.py: error: argument --tp: invalid choice: 'x' (choose from 'a', 'b')",
    ],
    "pod_memory": [
        "[四 3月 20 21:01:25] Out of memory: Killed process 91000 (python) total-vm:4kB"
    ],
    "gpu_xid": ["NVRM: Xid (PCI:0000:3b:00): 62, pid=1234, name=python"],
    "logits_nan": [
        "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
    ],
    "media_cache": ["AssertionError: Expected a cached item for mm_hash='77f8d1a2'"],
    "process_killed": ["Exit code: -9", "Rank 0 scheduler died (exit code: -9). Check"],
    "native_crash": [
        "*** SIGSEGV received at time=1722289279 on cpu 61 ***\nPC: @ 0x7f0c (unknown) addOp()",
        "the pod is dying with status code 139",
        "EngineCore crashes with SIGSEGV (`realloc(): invalid pointer` / `EngineCore: -11`)",
        "traps: VLLM::Worker_TP[12] trap divide error ip:7f sp:7f error:0 in prefill.so[7f10+200]",
        "VLLM::EngineCor[4]: segfault at 7f ip 00007f sp 00007f error 4 in libcuda.so.535[7f+4a]",
        '!!!!!!! Segfault encountered !!!!!!!\n  File "<unknown>", line 0, in cuMemcpyBatchAsync',
    ],
    "numa_refused": ["setting membind: Invalid argument"],
    "worker_timeout": ["TimeoutError: RPC call to execute_model timed out."],
    "request_slots": [
        "RuntimeError: alloc_req_slots runs out of memory. Please set a smaller number for "
        "`--max-running-requests`. self.req_to_token_pool.available_size()=1, num_reqs=2, ",
    ],
    "lora_slots": ["    assert len(cur_uids) <= self.max_loras_per_batch\nAssertionError"],
    "grammar_rejected": [
        "ERROR [backend_xgrammar.py:167] Failed to advance FSM for request r for tokens 198.",
        "grammar_matcher.cc:612: Warning: The matcher has terminated after accepting the stop "
        "token, but is trying to accept new token with id 128825.",
        "ValueError: Tokens not accepted: 198",
    ],
    "flashinfer_compiles": [
        "INFO - flashinfer.jit: Loading JIT ops: batch_prefill_with_kv_cache_dtype_q_bf16",
        'sh -c -- "$CICC_PATH/cicc" --orig_src_file_name "/x/flashinfer/data/csrc/cascade.cu"',
    ],
    "flashinfer_architecture": [
        "RuntimeError: FlashInfer requires GPUs with sm75 or higher",
        "RuntimeError: FlashInfer requires sm75+",
    ],
    "vllm_on_cpu": ["WARNING 01-17 07:57:05 _logger.py:72] Pin memory is not supported on CPU."],
    "ops_missing": [
        "AttributeError: '_OpNamespace' '_C' object has no attribute 'cutlass_moe_mm'",
        "ModuleNotFoundError: No module named 'vllm._C'",
    ],
    "rank_devices": ["RuntimeError: CUDA error: invalid device ordinal"],
    "launch_refused": [
        "RuntimeError: CUDA error: invalid configuration argument",
        "RuntimeError: Triton Error [CUDA]: invalid argument",
    ],
    "capture_forbidden": [
        "RuntimeError: CUDA error: operation not permitted when stream is capturing",
    ],
    "triton_cpu_tensor": [
        "ValueError: Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)",
    ],
    "triton_constants": ["AssertionError: Input shapes should have M >= 1, N >= 1 and K >= 16"],
    "ptxas_missing": ["RuntimeError: Cannot find ptxas"],
    "ptxas_failed": ["triton.runtime.errors.PTXASError: PTXAS error: `ptxas` raised SIGSEGV"],
    "inductor_tool": ["torch._inductor.exc.InvalidCxxCompiler: No working C++ compiler found in x"],
    "compile_cache": ["AssertionError: Inductor cache lookup failed. Please remove the cache"],
    "flashinfer_workspace": [
        "RuntimeError: Buffer overflow when allocating memory for batch_prefill_tmp_v with size "
        "470286336 and alignment 16, but only 402653184 bytes available",
    ],
    "moe_backend_refused": [
        "ValueError: NvFp4 MoE backend 'FLASHINFER_TRTLLM' does not support the deployment "
        "configuration since kernel does not support current device cuda.",
        "ValueError: moe_backend='machete' is not supported for FP8 MoE. Expected one of ['a'].",
    ],
    "moe_backend_none": [
        "NotImplementedError: No NvFp4 MoE backend supports the deployment configuration.",
    ],
    "linear_backend_refused": [
        "ValueError: --linear-backend=cutlass was requested but no 'cutlass' kernel exists for x.",
        "RuntimeError: CUTLASS block FP8 requested via --fp8-gemm-backend=cutlass, but hardware "
        "does not support it.",
    ],
    "type_needs_gpu": [
        "ValueError: Current platform does not support NVFP4 quantization. Please use Blackwell",
        "RuntimeError: MXFP8 dense linear requires Blackwell GPUs (SM100/SM120).",
    ],
    "kv_fp8_refused": [
        "NotImplementedError: FlashAttention does not support fp8 kv-cache on this device.",
        "NotImplementedError: TritonMLA with FP8 KV cache not yet supported",
    ],
    "attention_gpu": [
        "ValueError: TRTLLM MHA backend is only supported on Blackwell GPUs (SM100). Please",
        "ValueError: Head size 80 is not supported by FlashAttention. Supported head sizes are: x",
    ],
    "quant_shape": [
        "ValueError: The input size is not aligned with the quantized weight shape. This can be",
        "AssertionError: intermediate_size_per_partition=352 must be divisible by 256",
    ],
    "tp_divides": ["AssertionError: 40 is not divisible by 3"],
    "aiter_gpu": ["AssertionError: One of GPU archs of ['gfx1151'] is invalid or not supported"],
    "quant_mismatch": [
        "ValueError: Quantization method specified in the model config (fp8) does not match the "
        "quantization method specified in the `quantization` argument (awq).",
        "ValueError: torch.bfloat16 is not supported for quantization method awq. Supported "
        "dtypes: [torch.float16]",
    ],
    "quant_scheme": [
        "NotImplementedError: No compressed-tensors compatible scheme was found.",
        "ValueError: WNA16MoE is not supported with actorder=group/dynamic.",
    ],
    "state_cache": [
        "ValueError: max_num_seqs (256) exceeds available Mamba cache blocks (101). Each decode",
    ],
    "pool_small": ["AssertionError: Memory pool size is too small"],
    "batched_tokens": ["max_num_batched_tokens (2048) is smaller than max_model_len (8192)"],
    "kernel_package": ["AssertionError: DeepEP kernels not found. Please follow the guide"],
    "nvcc_failed": ["RuntimeError: Error compiling objects for extension"],
    "context_above_model": [
        "ValueError: Warning: User-specified context_length (9000) is greater than the derived "
        "context_length (4096). This may lead to errors. To allow overriding this maximum, set "
        "the env var SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1",
    ],
    "cublas_failed": ["RuntimeError: bmm_fp8_internal_cublaslt failed: an error"],
    "kernel_for_other_gpus": [
        "AssertionError: Only SM 10.x and 11.x are supported",
        "ValueError: cutedsl_bf16_gemm requires an SM10x GPU",
    ],
    "jit_build": ["RuntimeError: ninja exited with status 139"],
    "json_broken": ["  Value error, Expecting value: line 1 column 1 (char 0) [type=value_error"],
    "weights_shape": ["    assert param_data.shape == loaded_weight.shape"],
    "deep_gemm_failed": [
        "RuntimeError: CUDA driver error (/w/jit/handle.hpp:141): 200 (CUDA_ERROR_INVALID_IMAGE, "
        "device kernel image is invalid)",
    ],
    "deep_gemm_toolkit": [
        "RuntimeError: Assertion error (/w/jit/compiler.hpp:187): (major > 12) and x",
    ],
    "triton_cache_broken": ["KeyError: \"Unknown key: 'cubin'\""],
    "rank_not_loaded": [
        "ValueError: TP rank 1 could finish the model loading, but there are other ranks that "
        "didn't finish loading.",
    ],
    "worker_follow": [
        "Exception: WorkerProc initialization failed due to an exception in a background "
        "process. See stack trace for root cause.",
        "Worker VllmWorkerProcess pid 3283517 died, exit code: -15",
    ],
    "chat_template": [
        "ChatTemplateResolutionError: As of transformers v4.44, default chat template is no "
        "longer allowed, so you must provide a chat template if the tokenizer does not define one.",
        "ValueError: Cannot use chat template functions because tokenizer.chat_template is not "
        "set and no template argument was passed! For information about writing templates",
    ],
    "symbol_of_its_own": [
        "ImportError: /x/vllm/_C.abi3.so: undefined symbol: "
        "_Z24silu_and_mul_nvfp4_quantRN2at6TensorES1_S1_S1_",
    ],
    "undefined_symbol": [
        "ImportError: /x/vllm/_C.abi3.so: undefined symbol: _ZN5torch3jit17parseSchemaOrNameERKSsb",
    ],
    "cpu_instruction": [
        "KIMI-K2, Fatal Python error: Illegal instruction",
        "traps: python3[9] trap invalid opcode ip:7f sp:7f error:0 in _C.abi3.so[7f00+1000]",
        "run.sh: line 3: 12 Illegal instruction (core dumped) python -m sglang.launch_server",
    ],
    "input_too_long": [
        "ValueError: Prompt length of 2048 is longer than the maximum model length of 2048.",
    ],
    "platform_none": [
        "INFO 05-20 20:12:25 [__init__.py:252] No platform detected, vLLM is running on "
        "UnspecifiedPlatform",
    ],
}
CASES = [(name, text) for name, texts in SAID.items() for text in texts]


@pytest.mark.parametrize(("name", "text"), CASES)
def test_a_refusal_is_named_by_its_cause(name: str, text: str):
    answers = diagnose_text(f'  File "/x/vllm/a.py", line 3, in f\n{text}\n').answers
    assert [one.finding.message.name for one in answers] == [name]
    assert answers[0].cause
    assert answers[0].fix


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("sglang/srt/server_args.py", "checking its settings"),
        ("vllm/model_executor/layers/quantization/fp8.py", "quantised weights"),
        ("vllm/v1/attention/backends/triton_attn.py", "attention backend"),
        ("sglang/srt/mem_cache/hiradix_cache.py", "--enable-hierarchical-cache"),
        ("sglang/srt/mem_cache/storage/lmcache/lmc_radix_cache.py", "sglang --enable-lmcache"),
    ],
)
def test_the_place_of_an_unknown_exception_tells_what_stopped(file: str, said: str):
    text = f'  File "/x/{file}", line 3, in f\n    raise\nValueError: what nobody knows\n'
    assert said in diagnose_text(text).as_text()


@pytest.mark.parametrize(
    ("size", "said"),
    [(25, "divide 25: 1, 5, 25. It is odd"), (20, "divide 20: 1, 2, 4, 5, 10, 20.\n")],
)
def test_the_sizes_that_divide_are_told(size: int, said: str):
    text = diagnose_text(f"AssertionError: {size} is not divisible by 8").as_text()
    assert said in text
    assert "vision tower" in text
    assert "vLLM 0.10.2 and later" in text


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("*** SIGSEGV received at time=1 ***\nPC: @     0x7f0c  (unknown)  addOp()", "addOp"),
        ('!!!!!!! Segfault encountered !!!!!!!\n  File "<unknown>", line 0, in cuMem', "cuMem"),
    ],
)
def test_the_function_in_which_compiled_code_ended_is_named(text: str, name: str):
    assert f"function that is named is {name}." in diagnose_text(text).as_text()


def test_an_assertion_without_words_is_told_by_its_source():
    text = '  File "/x/sglang/srt/layers/moe/a.py", line 3, in f\n    assert m == 3\nAssertionError'
    marked = text.replace("\nAssertionError", "\n           ^^^^^^\nAssertionError")
    assert [*diagnose_text(marked).unknown] == ["AssertionError: assert m == 3"]
    found = diagnose_text(text)
    assert [*found.unknown] == ["AssertionError: assert m == 3"]
    assert "stopped in the experts" in found.as_text()
