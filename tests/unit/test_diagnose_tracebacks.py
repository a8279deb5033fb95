"""Tracebacks that end in the code of plugins, forks and libraries."""

import pytest

from tuner.diagnose import diagnose_text

LIB = "/x/python3.12/site-packages/"
ENGINE = f"{LIB}vllm/model_executor/layers/fused_moe/layer.py"
MEMORY = (
    "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 163840, "
    "Hardware limit: 65536. Reducing block sizes or `num_stages` may help."
)
SCHEDULER = "/w/sglang/srt/managers/scheduler.py"
BROKE = "RuntimeError: it broke"
TUNES = ("which this tuner tunes", "tuner tune", "tuner check")


def told(*places, error, first="Traceback (most recent call last):"):
    frames = (f'  File "{path}", line 7, in {function}' for path, function in places)
    return diagnose_text("\n".join([first, *frames, error])).as_text()


@pytest.mark.parametrize(
    ("path", "package"),
    [
        (f"{LIB}aiter/fused_moe.py", "aiter"),
        ("/opt/vllm/lib/site-packages/aiter/fused_moe.py", "aiter"),  # an environment named vllm
        ("/w/vllm-metax/vllm_metax/ops/fused_moe.py", "metax"),
        ("/src/lmdeploy/lmdeploy/kernels/fused_moe.py", "lmdeploy"),
    ],
)
@pytest.mark.parametrize("error", [BROKE, MEMORY])
def test_another_package_s_kernels_are_not_tuned(path, package, error):
    text = told((ENGINE, "forward"), (path, "fused_experts"), error=error)
    assert package in text.replace(path, "").lower()
    assert not [words for words in TUNES if words in text]


@pytest.mark.parametrize("error", [BROKE, MEMORY])
def test_the_engine_s_own_are(error):
    text = told((ENGINE, "fused_experts"), error=error)
    assert [words for words in TUNES if words in text]


def test_a_clone_in_a_folder_named_after_the_engine_is_the_engine():
    text = told(("/x/sglang_main/python/sglang/srt/models/llama_eagle3.py", "forward"), error=BROKE)
    assert "package sglang_main" not in text
    assert "It stopped in speculative decoding" in text


@pytest.mark.parametrize("last", ["", "KeyboardInterrupt"])
def test_a_cut_traceback_is_told_beside_an_error_of_the_title(last):
    first = f"[Bug] {BROKE}\nTraceback (most recent call last):"
    text = told((SCHEDULER, "run_event_loop"), error=last, first=first)
    assert BROKE in text
    assert ("Cut off: the traceback ends at" in text) == (not last)


def test_who_called_it_and_when():
    text = told(
        (f"{LIB}vllm/v1/worker/gpu_worker.py", "determine_available_memory"),
        (ENGINE, "forward"),
        (f"{LIB}aiter/jit/core.py", "build_module"),
        error="SystemError: build failed",
    )
    assert f"vLLM called it at {ENGINE}, line 7, forward." in text
    assert "measuring its memory, before the KV cache (determine_available_memory)" in text
    assert "It stopped in the experts" in text  # an advice for what vLLM called


@pytest.mark.parametrize(
    ("places", "error", "says"),
    [
        (
            [(SCHEDULER, "event_loop_overlap"), ("/w/sglang/srt/x.py", "move")],
            "AttributeError: 'list' object has no attribute 'tolist'",
            "a request, or a mix of requests, brings it",
        ),
        ([("/w/sglang/srt/x.py", "move")], "AttributeError: none", "different releases are mixed"),
        (
            [(ENGINE, "forward"), ("/w/flashinfer/flashinfer/fused_moe/core.py", "__init__")],
            "AttributeError: FusedMoeRunner does not exist",
            "a name that its compiled part lacks",
        ),
        (
            [(f"{LIB}vllm/v1/core/sched/scheduler.py", "schedule")],
            "AssertionError",
            "The scheduler's own count does not hold",
        ),
        (
            [(SCHEDULER, "event_loop_overlap"), ("/w/sglang/srt/speculative/u.py", "traverse")],
            "TypeError: 'NoneType' object is not subscriptable",
            "It stopped in speculative decoding",
        ),
        (
            [(f"{LIB}vllm/model_executor/models/qwen3_moe.py", "load_weights")],
            "KeyError: 'layers.35.mlp.gate.g_idx'",
            "the checkpoint has a weight for which the engine's code",
        ),
        (
            [(f"{LIB}vllm/model_executor/models/qwen3.py", "load_weights")],
            "ValueError: x",
            "files and release most often do not fit",
        ),
        (
            [(f"{LIB}vllm/v1/structured_output/request.py", "grammar"), ("/u/lib/x.py", "result")],
            "RuntimeError: x",
            "It stopped in the library for structured output",
        ),
        *(
            ([(SCHEDULER, "event_loop_overlap"), (f"/w/{file}", "f")], "IndexError: x", says)
            for file, says in (
                ("sglang/srt/disaggregation/decode.py", "hand requests over"),
                ("sglang/srt/function_call/hermes_detector.py", "the parser of tool calls"),
                ("sglang/srt/sampling/penaltylib/frequency.py", "options of sampling"),
                ("vllm/v1/sample/sampler.py", "below the size of the model's vocabulary"),
                ("sglang/srt/eplb/eplb_manager.py", "without --enable-eplb"),
                ("vllm/v1/worker/gpu_ubatch_wrapper.py", "--enable-dbo"),
                ("vllm/distributed/device_communicators/custom_all_reduce.py", "topo -p2p r"),
                ("vllm/device_allocator/cumem.py", "--enable-sleep-mode"),
                ("sglang/srt/weight_sync/utils.py", "a trainer gives"),
                ("sglang/srt/managers/scheduler_pp_mixin.py", "--pp-size"),
                ("vllm/compilation/backends.py", "--enforce-eager"),
                ("sglang/srt/mem_cache/radix_cache.py", "--disable-radix-cache"),
                ("vllm/tokenizers/hf.py", "the installed Transformers"),
            )
        ),
        (
            [("/w/sglang/srt/managers/detokenizer_manager.py", "event_loop")],
            "AssertionError",
            "broke off while it served",
        ),
        ([("/w/sglang/srt/x.py", "move")], "AssertionError: a == b", "check of the engine's own"),
        # The library of grammars, called for drafts (sglang#24283).
        (
            [
                ("/w/sglang/srt/speculative/v2.py", "verify"),
                ("/w/sglang/srt/constrained/b.py", "f"),
            ],
            "TypeError: Mismatched type on argument #2 when calling: `f`. Expected `int`",
            "send such requests to a server without speculative decoding",
        ),
        (
            [("cache_controller.py", "_page_transfer"), ("mooncake_store.py", "batch_get_v1")],
            "AssertionError",
            "without the hierarchical cache",
        ),
        (
            [("/w/sglang/srt/mem_cache/storage/hf3fs/storage.py", "put")],
            "KeyError: 1",
            "without the hierarchical cache",
        ),
        (
            [(f"{LIB}vllm/v1/worker/kv_connector_model_runner_mixin.py", "get")],
            "AssertionError",
            "without the connector",
        ),
        (
            [("/root/.cache/vllm/torch_compile_cache/a/inductor_cache/qc/cq.py", "call")],
            "RuntimeError: x",
            "code that torch.compile wrote",
        ),
        (
            [("/w/vllm/v1/sample/a.py", "f"), (f"{LIB}flashinfer/sampling.py", "top_k")],
            "RuntimeError: x",
            "options of sampling",
        ),
        ([(f"{LIB}flashinfer/sampling.py", "top_k")], BROKE, "VLLM_USE_FLASHINFER_SAMPLER=0"),
        ([(f"{LIB}flashinfer/prefill.py", "module")], BROKE, "flashinfer-jit-cache"),
        ([("/w/vllm/third_party/flashmla/interface.py", "fwd")], BROKE, "an attention backend"),
        (
            [
                ("/var/torchinductor_root/ir/cq.py", "<module>"),
                (f"{LIB}torch/_inductor/async_compile.py", "triton"),
            ],
            "RuntimeError: x",
            "was building a Triton kernel of its own",
        ),
        (
            [
                (SCHEDULER, "event_loop_overlap"),
                ("/w/sglang/srt/layers/quantization/a.py", "apply"),
            ],
            "RuntimeError: x",
            "where quantised weights are multiplied",
        ),
        # What the words tell.
        (
            [(f"{LIB}lmcache/integration/vllm/vllm_v1_adapter.py", "wait_for_save")],
            "AssertionError: assert len(slot_mapping) == len(token_ids)",
            "could not load it",
        ),
        (
            [("/w/vllm/distributed/kv_transfer/nixl_connector.py", "add_remote_agent")],
            "AssertionError: assert self.dst_num_blocks[engine_id] == nixl_agent_meta.num_blocks",
            "--num-gpu-blocks-override",
        ),
        (
            [("/w/sglang/srt/disaggregation/prefill.py", "process")],
            "AssertionError: Unexpected polling state poll=1",
            "the same bootstrap_room",
        ),
        (
            [],
            "AssertionError: Key CacheEngineKey(fmt='vllm') not found in local data.",
            "could not load it",
        ),
        (
            [("/w/flashinfer/jit/attention/modules.py", "gen_batch_prefill_module")],
            "AssertionError: fp8 tensor core is not supported in fa2 backend",
            "before any compiler ran",
        ),
        (
            [],
            "AttributeError: '_TorchTensorAcceleratorChannel' object has no attribute '_group'",
            "VLLM_USE_RAY_COMPILED_DAG_CHANNEL_TYPE=shm",
        ),
        (
            [],
            "RuntimeError: captures_underway.empty() INTERNAL ASSERT FAILED at '/p/Caching.cpp':2967",
            "without the memory saver",
        ),
        (
            [],
            "RuntimeError: false INTERNAL ASSERT FAILED at '/pytorch/torch/csrc/a.cpp':29, please",
            "A check within torch itself failed",
        ),
        (
            [("/w/sglang/srt/model_executor/model_runner.py", "_forward_raw")],
            "RuntimeError: cannot reshape tensor of 0 elements into shape [0, -1, 64] because the",
            "a request with an empty prompt",
        ),
        (
            [("/w/vllm/model_executor/layers/odd.py", "check")],
            "ValueError: This layer requires a head size of 128",
            "refused a combination of settings",
        ),
        (
            [("/w/vllm/engine/async_llm_engine.py", "step_async")],
            "RuntimeError: Set changed size during iteration",
            "by chance under load",
        ),
        (
            [],
            'RuntimeError: [09:44:28] /p/cpp/json_schema_converter.cc:902: Unsupported type "xml"',
            "the JSON schema of a request",
        ),
        (
            [],
            "NotImplementedError: _C_cache_ops::x: attempted to run this operator with Meta tensors,",
            "sleep level 2",
        ),
        (
            [("/w/vllm/core/scheduler.py", "_get_num_new_tokens")],
            "AssertionError: assert num_new_tokens > 0",
            "its prompt is empty",
        ),
        (
            [("/w/sglang/srt/models/deepseek_v2.py", "__init__")],
            "AttributeError: 'ReplicatedLinear' object has no attribute 'weight'",
            "Quantised layers keep theirs under other names",
        ),
        (
            [],
            "RuntimeError: The size of tensor a (3072) must match the size of tensor b (6144) at",
            "Two tensors that belong together have different sizes",
        ),
        (
            [(f"{LIB}vllm/entrypoints/openai/protocol.py", "check")],
            "ValueError: label_token_ids has duplicates",
            "in front of the engine",
        ),
        (
            [("/w/sglang/kernels/ops/gemm/dense.py", "run")],
            "ValueError: unsupported b_loader_warps=7",
            "where a kernel is started",
        ),
        (
            [(f"{LIB}vllm/models/step5/nvidia/model.py", "forward")],
            "ValueError: Invalid layer_type 7",
            "the code of the model or of its loading",
        ),
        (
            [("/w/sglang/srt/utils/network.py", "connect")],
            "ValueError: Unknown socket type: 7",
            "its words are all that is known",
        ),
        (
            [(f"{LIB}vllm/v1/engine/core_client.py", "make_async_mp_client")],
            "RuntimeError: x",
            "only waited for the engine's processes",
        ),
        (
            [("/w/sglang/srt/models/gemma4_vision.py", "_patch_projection")],
            "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2520x256 and 768x1152)",
            "a picture in RGB",
        ),
    ],
)
def test_what_breaks_off_while_requests_are_served(places, error, says):
    text = told(*places, error=error, first="Scheduler hit an exception: Traceback (most recent")
    assert says in text
    assert "The cause stands above" not in text


@pytest.mark.parametrize(
    "flag", ["--moe-runner-backend cutlass", "--attention-backend fa3", "--enable-dp-attention"]
)
def test_backends_that_the_text_chooses_are_named(flag):
    place = [("/w/sglang/srt/layers/quantization/fp8.py", "apply")]
    text = told(*place, error="AttributeError: x", first=f"sglang serve m {flag} --tp 8")
    assert f"The text sets {flag}: see whether it comes without" in text
    assert "The text sets" not in told(*place, error="AttributeError: x")


def test_a_traceback_that_is_cut_off_is_told_beside_a_line_that_follows():
    told_too = f"the traceback ends at {ENGINE}, line 7, in forward, above the line that names"
    first = "EngineCore failed to start.\nTraceback (most recent call last):"
    assert told_too in told((ENGINE, "forward"), error="    x()", first=first)
    named = "RuntimeError: Engine core initialization failed. See root cause above."
    assert told_too not in told((ENGINE, "forward"), error=named, first=first)


def test_what_holds_for_the_engine_s_code_is_not_said_of_a_plugin_s():
    text = told(("/w/vllm_kunlun/ops/fused_moe/layer.py", "forward"), error="RuntimeError: x")
    assert "is of Kunlunxin" in text and "--moe-backend" not in text


def test_frames_above_a_traceback_are_another_exception_s():
    text = told(
        (f"{LIB}aiter/jit/core.py", "build_module"),
        error="Traceback (most recent call last):\nKeyError: 'x'",
    )
    assert "aiter" not in text


HUB = 'transformers/integrations/hub_kernels.py", line 89, in <module>\n    LayerRepository('
HUB += '\nkernels/layer/layer.py", line 76, in __init__\n    raise ValueError("No revision.")'


def test_a_pasted_traceback_without_its_beginnings_and_its_error_still_tells_who_raised():
    text = diagnose_text(f"vLLM serve crashes\n{HUB}").as_text()  # odysseus#191
    assert "ValueError: No revision." in text
    assert "code of the package kernels" in text
    assert "transformers called it at transformers/integrations/hub_kernels.py, line 89" in text
    assert "releases do not fit each other" in text
    assert "$ pip" not in text and "     pip list | grep -iE 'kernels|transformers'" in text


def test_releases_that_do_not_fit_are_told_only_where_a_library_refuses_another_s_arguments():
    library = (f"{LIB}xgrammar/grammar.py", "compile")
    refused = "TypeError: compile() got an odd argument"
    assert "If xgrammar refuses what vLLM gives it" in told((ENGINE, "f"), library, error=refused)
    for places, error in (
        ([(ENGINE, "f"), library], BROKE),
        ([(ENGINE, "f"), library], "ValueError: x"),
        ([library], "ValueError: x"),
        ([("tests/run.py", "f"), library], "ValueError: x"),
    ):
        assert "do not fit each other" not in told(*places, error=error)


def test_an_error_that_is_written_out_is_not_told_by_its_source_too():
    source = '    raise KeyError(f"no {x}")\nKeyError: no 3'
    text = told((ENGINE, "f"), error=source)
    assert "KeyError: no 3" in text and "{x}" not in text


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("<template>", "the model's chat template"),
        ("/usr/lib/python3.12/multiprocessing/connection.py", f"vLLM called it at {ENGINE}"),
        (f"{LIB}ray/_private/worker.py", "Ray passes on here what another process raised"),
        (f"{LIB}habana_frameworks/torch/hpu/graphs.py", "code of the package habana_frameworks"),
        ("/home/me/prime-rl/src/prime_rl/vllm/sampler.py", "code of the package prime_rl"),
    ],
)
def test_frames_of_no_package_and_of_other_makers(path, says):
    assert says in told((ENGINE, "forward"), (path, "recv"), error="RuntimeError: x")


# ruff: noqa: E501 (lines of logs are long)
PROCESS = """(EngineCore pid=114) ERROR 06-23 06:27:21 [core.py:1229]   File "/x/vllm/v1/core/pages.py", line 1096, in unify
(EngineCore pid=114) ERROR 06-23 06:27:21 [core.py:1229]     assert one.size == most
(EngineCore pid=114) ERROR 06-23 06:27:21 [core.py:1229] AssertionError
(EngineCore pid=114) Process EngineCore:
(EngineCore pid=114) Traceback (most recent call last):
(EngineCore pid=114)   File "/x/vllm/v1/core/pages.py", line 1096, in unify
(EngineCore pid=114)     assert one.size == most
(EngineCore pid=114)            ^^^^^^^^^^^^^^^^
"""


def test_the_source_of_an_assertion_stands_above_it_without_the_name_of_its_process():
    text = diagnose_text(PROCESS + "(EngineCore pid=114) AssertionError\n").as_text()
    assert "AssertionError: assert one.size == most" in text
    assert "^" not in text
    assert "(EngineCore" not in text.partition("\n   - ")[0]


@pytest.mark.parametrize(
    ("before", "source"),
    [
        ("ERROR 08-18 06:39:05 [x.py:527] ", "assert self.blocks[one] == other.blocks"),
        ("déc. 19 02:07:16 a6000 bash[22]: (EngineCore pid=22) ", "assert len(a) == len(b)"),
        ("(EngineCore_DP0 pid=923) ", "assert x"),
        ("ERROR 12-05 20:24:46 engine.py:366] ", "assert x"),
        ("", "assert x[0] or y[a:3] == 1"),
        ("2023-10-26 18:11:35 | ERROR | stderr | ", "assert output == other_output"),
    ],
)
@pytest.mark.parametrize("marks", ["", "    ^^^^^^^^~~~ ^^^"])
def test_the_source_of_an_assertion_is_whole(before, source, marks):
    lines = ['  File "/x/vllm/a.py", line 7, in f', f"    {source}", marks, "AssertionError"]
    text = diagnose_text("\n".join(before + line for line in lines if line)).as_text()
    assert f"AssertionError: {source}\n" in text


def test_an_exception_of_no_class_of_its_own_is_one():
    assert (
        "Exception: it broke\n" in diagnose_text("(EngineCore pid=1) Exception: it broke").as_text()
    )


def test_a_server_that_is_the_client_is_told_apart(subtests):
    error = "ConnectionRefusedError: [Errno 111] Connection refused"
    for path, says in (
        (f"{LIB}lmcache/v1/storage_backend/connector/lm_connector.py", "LMCACHE_REMOTE_URL"),
        ("/w/sglang/srt/disaggregation/mooncake/conn.py", "asks another server of the cluster"),
    ):
        with subtests.test(path=path):
            text = told((path, "connect"), error=error)
            assert says in text and "Servers for other machines need" not in text
    text = told((f"{LIB}httpx/_client.py", "send"), error=error)
    assert "Servers for other machines need" in text and "server itself" not in text


HIP = ":0:rocdevice.cpp :3675: Callback: Queue 0x7ee7 aborting with error : HSA_STATUS_ERROR_{}\n"


def test_the_kernel_that_rocm_names_is_told(subtests):
    for kernel, says in (
        ("_ZN5aiter50fmoe_bf16_blockscaleFp8_g1u1", "VLLM_ROCM_USE_AITER_MOE=0"),  # ROCm/aiter#1143
        ("_ZN5aiter12mla_a16w16_qh16", "VLLM_ROCM_USE_AITER_MLA=0"),
        ("_ZN5aiter4else", "vLLM: VLLM_ROCM_USE_AITER=0 leaves all out"),
    ):
        with subtests.test(kernel=kernel):
            text = diagnose_text(f"{HIP.format('EXCEPTION')}Kernel Name: {kernel}").as_text()
            assert f"a kernel that was in the queue: {kernel}." in text and says in text
    assert "in the queue" not in diagnose_text(HIP.format("EXCEPTION")).as_text()


def test_kernels_of_another_chip_are_told_where_the_text_asks_for_them():
    fault = "Memory access fault by GPU node-1 (Agent handle: 0x1b) on address 0x7f."
    text = diagnose_text(f"HSA_OVERRIDE_GFX_VERSION=11.0.0 vllm serve m\n{fault}").as_text()
    assert "HSA_OVERRIDE_GFX_VERSION=11.0.0, by which kernels of another chip run" in text
    assert "another chip" not in diagnose_text(fault).as_text()


def test_a_bracket_that_people_put_around_an_error_is_not_its_own():
    text = diagnose_text("Fatal error with a store (AssertionError: x is not None)").as_text()
    assert "AssertionError: x is not None\n" in text
    assert "KeyError: f(x)\n" in diagnose_text("KeyError: f(x)").as_text()


def test_a_worker_s_loop_is_no_sign_that_it_serves():
    loop = (f"{LIB}vllm/v1/executor/multiproc_executor.py", "worker_busy_loop")
    assert "serving requests" not in told(loop, (ENGINE, "forward"), error=BROKE)
    core = (f"{LIB}vllm/v1/engine/core.py", "run_busy_loop")
    assert "serving requests" in told(core, (ENGINE, "forward"), error=BROKE)


def test_kernels_that_others_compiled_are_not_tuned():
    text = told(("/w/sglang/srt/layers/moe/flashinfer_trtllm.py", "fused_experts"), error=BROKE)
    assert not [words for words in TUNES if words in text]


def test_an_unknown_error_stands_before_the_lines_that_follow_it():
    text = told((ENGINE, "forward"), error=BROKE, first="EngineCore failed to start.\nTraceback:")
    assert text.startswith("unknown: ") and "1. follows: " in text


SILENT = "Exception: Capture cuda graph failed: {}\nPossible solutions:\n"
SILENT += "4. disable CUDA graph by --disable-cuda-graph. (Not recommended. Huge performance loss)"


@pytest.mark.parametrize("reason", ["", "CUDA error: x"])
def test_a_capture_that_fails_without_words_and_what_sglang_advises(reason):
    text = diagnose_text(SILENT.format(reason)).as_text()
    assert ("sglang names no reason here" in text) == (not reason)
    assert "Start the server with --disable-cuda-graph" in text  # the advice is not the command


def test_a_traceback_that_is_cut_where_an_earlier_one_names_the_error_asks_for_no_more():
    assert "Cut off" not in diagnose_text(PROCESS).as_text()
    assert (
        "give the lines below it too"
        in diagnose_text(PROCESS.partition("AssertionError")[0]).as_text()
    )


def test_a_cut_traceback_of_the_process_that_waits_names_where_the_cause_stands():
    frames = (
        f'(APIServer pid=3)   File "{LIB}vllm/v1/engine/core_client.py", line 535, in __init__\n'
        "(APIServer pid=3)     with launch_core_engines(\n"
    )
    assert "only waited for the engine's processes" in diagnose_text(frames).as_text()


def test_a_container_s_device_option_is_no_gpu():
    text = diagnose_text("nixlBackendError: NIXL_ERR_BACKEND on RTX 3090").as_text()
    assert "--device /dev/infiniband" in text
    assert "--device is what the text calls" not in text


def test_the_kind_of_a_silent_error_of_nccl_and_the_cloud_are_told(subtests):
    for error, says in (
        ("internal error - please report this issue to the NCCL developers", "a check of its own"),
        ("unhandled system error (run with NCCL_DEBUG=INFO for details)", "shared memory"),
        ("unhandled cuda error (run with NCCL_DEBUG=INFO for details)", "a CUDA call of NCCL"),
        ("invalid usage (run with NCCL_DEBUG=WARN for details)", "two ranks on one GPU"),
    ):
        with subtests.test(error=error):
            text = diagnose_text(f"RuntimeError: NCCL error: {error}").as_text()
            assert says in text
            assert "aws-ofi-nccl" not in text
    cloud = "vLLM with KubeRay on AWS EKS\nRuntimeError: NCCL error: "
    cloud += "internal error - please report this issue to the NCCL developers"
    assert "aws-ofi-nccl" in diagnose_text(cloud).as_text()


def test_the_scale_of_an_input_that_loading_did_not_make():
    text = "AttributeError: 'ColumnParallelLinear' object has no attribute 'input_scale'"
    told = diagnose_text(text).as_text()
    assert "loading the weights made none for this layer" in told
    assert "quantised in another way" not in told


def test_each_xid_near_a_fault_is_explained():
    text = (
        "NVRM: Xid (PCI:0000:01:00): 120, GSP kernel exception\nNVRM: Xid (PCI:0000:01:00): 154, "
    )
    text += "GPU recovery action changed\nNVRM: Xid (PCI:0000:01:00): 45, pid=1, name=python"
    told = diagnose_text(text).as_text()
    for words in ("120: the GPU's own", "154: no fault of its own", "45: the driver ended"):
        assert words in told


def test_a_file_that_was_not_found_is_told_without_the_line_s_beginning():
    name = "E=256,N=256,device_name=NVIDIA_H200,dtype=int8_w8a8,per_channel_quant=True.json"
    assert "did not find it" in diagnose_text(f"`Config file not found at .../{name}`").as_text()
    assert "did not find it" not in diagnose_text(name).as_text()


def test_intel_s_cards_have_no_cuda_graphs_to_switch_on():
    text = "intel/llm-scaler-vllm:0.14.0-b8.1\nvllm serve m --enforce-eager -tp=4"
    assert "CUDA graphs" not in diagnose_text(text).as_text()


def test_a_weight_of_a_draft_model_is_told_to_be_its():
    text = (
        "Traceback (most recent call last):\n"
        '  File "/w/sglang/srt/speculative/eagle_worker.py", line 33, in __init__\n'
        '  File "/w/sglang/srt/models/llama.py", line 500, in load_weights\n'
        "KeyError: 'layers.0.self_attn.qkv_proj.weight'\n"
    )
    assert "it is the draft model" in diagnose_text(text).as_text()
    own = text.replace("srt/speculative/eagle_worker.py", "srt/managers/tp_worker.py")
    assert "it is the draft model" not in diagnose_text(own).as_text()
