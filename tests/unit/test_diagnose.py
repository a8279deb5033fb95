"""What `tuner diagnose` says of messages: reported, wrapped, repeated and made-up ones."""

# ruff: noqa: E501 (lines of logs are long)

import io
import random
import string
from pathlib import Path

import pytest
from diagnose_cases import CASES, MOE, OUT, SGLANG_MOE, UNKNOWN, Case, ranks, sglang

from tuner.diagnose import Hints, diagnose, diagnose_text, read_log
from tuner.diagnose.answers import ANSWERS
from tuner.diagnose.context import Context
from tuner.diagnose.files import missing_files
from tuner.diagnose.scan import scan
from tuner.diagnose.table import Kind, _form, known_messages, split_form
from tuner.errors import BadInput, UnreadableLog
from tuner.files import parse_toml
from tuner.models.serving import Serving

TABLE = known_messages()
WARNING = MOE.format(
    " kernel", f"{SGLANG_MOE}/triton_3_5_1/E=128,N=192,device_name=NVIDIA_H200.json"
)
MEMORY = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."


def missing_of(log):
    findings = read_log(log)
    return missing_files(findings, Context(Hints(), findings.facts), Serving())


def names(text: str, hints: Hints = Hints()) -> list[str]:
    return [answer.finding.message.name for answer in diagnose_text(text, hints).answers]


def words(case: Case, hints: Hints = Hints()) -> str:
    """The answer with its lines joined, as a reader reads it."""
    lines = [line for a in diagnose_text(case.log, hints).answers for line in a.lines()]
    return " ".join(" ".join(lines).replace(" \\ ", " ").split())


def test_reported_messages_get_their_answer_and_no_other(subtests):
    for case in CASES:
        with subtests.test(case.thread):
            assert sorted(names(case.log)) == sorted(case.found)
            text = words(case)
            compact = "".join(text.split())
            for phrase in case.says:
                assert "".join(phrase.split()) in compact, text
            for phrase in case.never:
                assert phrase not in text, text


def test_what_is_not_known_is_called_unknown(subtests):
    for case in UNKNOWN:
        with subtests.test(case.thread):
            found = diagnose_text(case.log)
            assert not found.answers
            assert not found.known
            assert found.as_json()["unknown"][0]["text"] in " ".join(case.log.split())
            assert "unknown: no message of the table explains" in found.as_text()


def test_a_server_without_a_known_message_gets_the_command_for_questions_of_speed():
    asked = diagnose_text("Qwen/Qwen3-30B-A3B on our H200 with vllm, tp=2: is 90 tokens/s slow?")
    assert not asked.known
    assert "tuner plan qwen3-30b-a3b --tp 2 --device H200 --engine vllm" in asked.as_text()
    own = diagnose_text("sglang serve --model-path /data/ours --tp 4 # on 4x H200")
    assert "Copy the model's config.json of /data/ours to this folder." in own.as_text()
    assert "tuner plan config.json --tp 4 --device H200 --engine sglang" in own.as_text()
    assert "tuner plan" not in diagnose_text("all is well").as_text()
    assert "tuner plan" not in diagnose_text("Qwen/Qwen3-8B on a H200 with vllm crashes").as_text()


def test_an_engine_is_read_from_words_only_if_they_name_no_other():
    for text, engine in (
        ("Sglang exits here", "sglang"),
        ("slower with sglang than with vLLM", ""),
        ("sglang0.4.6 is slower than vllm,please check", ""),
        ("see github.com/vllm-project/vllm/issues and my-vllm-image", ""),
    ):
        assert diagnose_text(text).findings.facts.engine == engine


PLUGIN = "n1:88:88 [0] NCCL INFO NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file: No such file or directory No plugin found"
CUT = '  File "/opt/lib/python3.12/site-packages/{}", line 258, in {}'


ENDED = '  File "/w/vllm/v1/engine/core_client.py", line 899, in get_output_async\nvllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n'
LOST = "Using default MoE config. Performance might be sub-optimal! Config file not found at ..."


@pytest.mark.parametrize(
    ("text", "said", "never"),
    [
        (PLUGIN, "nothing known", "not installed"),
        (PLUGIN.replace("libnccl-net", "libfoo"), "libfoo.so is not where", "   dlerror="),
        (f"{PLUGIN}\nImportError: libnuma.so.1: cannot open shared object file", "libnuma.so.1 is", "libnccl-net.so is"),
        ("[ERROR] No available memory for the cache blocks.", "Two servers on one GPU", "nothing known"),
        ("vllm on a T4 is slow", "T4", "tuner plan"),
        ("I rename the config file of my app because I reuse the json", "nothing known", "Of the same chip"),
        ("can I rename the H100 config for my H200?", "Of the same chip", "nothing known"),
        ("AttributeError: 'Qwen3_5MoeTextConfig' object has no attribute 'num_local_experts'", "Install the Transformers", "script"),
        (CUT.format("vllm/model_executor/layers/fused_moe/gpt_oss_triton_kernels_moe.py", "f") + "\nOutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376", "package triton_kernels", "tuner tune"),
        ("python -m sglang.launch_server --model-path Qwen/Qwen3-8B", "engine sglang", "$ tuner plan"),
        (CUT.format("flashinfer/jit/cpp_ext.py", "run_ninja"), "FlashInfer was building a kernel", "Triton"),
        ("[core.py:844] Search for `cudaErrorAssert' in https://docs.nvidia.com/cuda/cuda-runtime-api/x.html", "a check in a kernel failed", "unknown"),
        ("Assertion failed: /w/DeepEP/csrc/kernels/internode.cu:483, condition: ibgda_get_state()->num_rc_per_pe >= num_channels", "num_qps_per_rank", "unknown"),
        ("sglang serve m --speculative-algorithm EAGLE\nRuntimeError: CUDA error: device-side assert triggered", "sets --speculative-algorithm EAGLE", "unknown"),
        (f"{LOST}/E=128,N=352,device_name=NVIDIA_<GPU>,dtype=fp8_w8a8.json\non an L40S", "The missing file is E=128,N=352,device_name=NVIDIA_L40S,", "found no name"),
        (f"{LOST}/E=128,N=352,device_name=<GPU>.json", "The text leaves out the card: <GPU>", "NVML"),
        ("GPU: NVIDIA A100\nNCCL INFO NET/IB : Using [0]mlx5_1:1/RoCE [RO]; OOB eth1:2.0.0.2<0>", "NCCL uses mlx5_1", "GPUDirect RDMA is on"),
        ("vllm serve m --enforce-eager --x\nRuntimeError: odd", "unknown", "without CUDA graphs"),
        ("Failed: Assertion error csrc/jit_kernels/impls/smxx_layout.hpp:136 'mn % 4 == 0'", "VLLM_USE_DEEP_GEMM=0", "unknown"),
        ("Exception: Capture cuda graph failed: [/g/gloo/transport/tcp/unbound_buffer.cc:133] Timed out waiting 1800000ms for send operation to complete", "did not finish in time", "connection to another rank closed"),
        ("E=128,N=768,device_name=NVIDIA_A100-SXM4-80GB,dtype=int4_w4a16.json of vLLM", "vLLM runs Marlin", "tuner tune"),
        (f"{ENDED}RuntimeError: CUDA error: an illegal memory access was encountered", "an illegal", "It came up at"),
        (f"{LOST}/E=128,N=704,device_name=NVIDIA_L40S,dtype=fp8_w8a8.json", "gemma-4-26b-a4b at tp=1", "--engine sglang"),
        ("Using TRITON Fp8 MoE backend out of potential backends: ['DEEPGEMM', 'TRITON']\nslow on an L40S", "--engine vllm", "sglang"),
        ("export USE_FLAGGEMS=1\nvllm serve x fails: out-of-shared-memory", "without USE_FLAGGEMS", "tuner tune"),
        (CUT.format("flag_gems/ops/mm.py", "mm") + "\nOutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376", "FlagGems replaces", "tuner tune"),
    ],
)  # fmt: skip
def test_what_is_said_of_lines_and_what_is_not(text, said, never):
    answer = diagnose_text(text).as_text()
    assert said in answer
    assert never not in answer


VLLM = "Avg generation throughput: 9.3 tokens/s, Running: 18 reqs, Waiting: {} reqs, GPU KV cache usage: {}%, Prefix\n"
SGLANG = "Decode batch. #running-req: 8, #token: 9, token usage: {1}, gen throughput (token/s): 9.1, #queue-req: {0},\n"

WRAPPED = "Avg prompt throughput: 0.0 tokens/s, " + VLLM.replace("throughput", "throughpu\nt")


@pytest.mark.parametrize(
    ("line", "loads", "told"),
    [
        (VLLM, [(43, 95.9), (42, 87.7), (9, 98.4)], True),
        (VLLM, [(0, 95.9), (0, 97.7), (9, 98.4)], False),
        (VLLM, [(43, 9.5)], False),
        (SGLANG, [(43, 0.97), (4, 0.93)], True),
        (SGLANG, [(43, 0.97), (4, 0.3)], False),
        (WRAPPED, [(43, 95.9), (42, 97.7), (9, 98.4)], True),
    ],
)
def test_requests_that_wait_for_the_kv_cache_are_told(line, loads, told):
    assert names("".join(line.format(*load) for load in loads)) == ["kv_room"] * told


def test_a_form_without_text_of_its_own_is_refused():
    with pytest.raises(ValueError, match="no text of its own"):
        _form({"text": "{a:int} {b:word}"})


def test_there_are_enough_cases():
    assert len(CASES) + len(UNKNOWN) >= 60
    assert len({case.thread for case in CASES}) >= 55


# The table.


def test_the_table_has_many_messages_and_each_row_its_source():
    assert len(TABLE.messages) >= 30
    seen = [message.name for message in TABLE.messages]
    shown = {
        "errors",
        "kv_room_left",
        "nccl_done",
        "nccl_connected",
        "jit_loaded",
        "one_node",
    }  # by other lines
    shown |= {"start_waits", "nccl_tests_apart", "retractions", "gdr_lacks"}  # by a reader
    shown |= {"communicator_waits"}  # by a reader, too
    shown |= {"xpu"}  # a fact
    assert len(seen) == len(set(seen))
    for message in TABLE.messages:
        assert message.forms and message.cause, message.name
        assert message.fix or message.answer or message.kind in (Kind.NOTE, Kind.FOLLOWS)
        assert message.answer in {"", *ANSWERS}
        assert set(message.unless) <= {*seen, "stops", "explained", *shown}
        for form in message.forms:
            assert form.origins and all(origin.source for origin in form.origins), form.text


def test_forms_are_told_apart_by_their_anchors(subtests):
    for message in TABLE.messages:
        with subtests.test(message.name):
            for form in message.forms:
                assert len(form.anchor) >= len("NCCLWARN"), form.text
                assert form.pattern.groupindex.keys() >= set(message.per) or len(message.forms) > 1


def test_rows_name_only_holes_that_some_form_has():
    known = {"model", "tp", "estimated_length", "kernel"}
    for message in TABLE.messages:
        holes = {name for form in message.forms for name in form.pattern.groupindex}
        unified = (*message.unified_cause, *message.unified_fix)
        for sentence in (*message.cause, *message.fix, *unified):
            fields = {name for _, name, _, _ in string.Formatter().parse(sentence) if name}
            assert fields <= holes | known, (message.name, sentence)


def test_every_message_is_found_by_its_own_form():
    """A hole is filled by what it takes; nothing else may be found beside."""
    samples = {"int": "128", "some": "3", "num": "0.9", "word": "word", "path": "/a/b/E=1.json"}
    samples |= {"sizes": "/a/b/E=8,N=64", "card": "NVIDIA_L40S.json"}
    for message in TABLE.messages:
        # One form of a line of load alone says nothing: see the test of requests that wait.
        for form in message.forms if message.name != "kv_room" else ():
            text = "".join(
                part
                if isinstance(part, str)
                else (
                    part["kind"].split("|")[0]
                    if "|" in part["kind"]
                    else samples.get(part["kind"] if part["name"] is not None else "", "some")
                )
                for part in split_form(form.text)
            )
            found = names(f"[2025-01-01 00:00:00 TP0] {text}")
            assert message.name in found, (message.name, text)
            others = {*found} - {message.name}
            assert all(message.name in _named(other).unless for other in others) or others <= {
                "nccl_silent"
            }, (text, found)


DATA = Path(__file__).parents[1] / "data"
MESSAGES = [DATA / f"{part}_messages.toml" for part in ("network", "node", "environment")]


@pytest.mark.parametrize(
    ("cause", "lines"),
    [pair for f in MESSAGES for pair in parse_toml(f.read_bytes(), f.name, BadInput).items()],
)
def test_lines_of_programs_get_their_cause_and_no_other(cause, lines):
    assert {line: names(line) for line in lines} == {line: [cause] for line in lines}


def _named(name):
    return next(message for message in TABLE.messages if message.name == name)


# Logs as they are.


def test_colours_wraps_and_prefixes_do_not_matter():
    plain = sglang(WARNING)
    coloured = plain.replace("Performance", "\x1b[33mPerformance\x1b[0m")
    for width in (40, 61, 80, 100):
        wrapped = "\n".join(plain[i : i + width] for i in range(0, len(plain), width))
        assert names(wrapped) == ["moe_config_missing"], width
        (answer,) = diagnose_text(wrapped).answers
        assert answer.details["file"] == "E=128,N=192,device_name=NVIDIA_H200.json", width
    assert names(coloured) == ["moe_config_missing"]
    assert names(plain.replace("\n", "\r\n") + "\r\n") == ["moe_config_missing"]
    assert names(f"2025-07-25T07:53:08.217+08:00 stdout F {plain}") == ["moe_config_missing"]


def test_ranks_and_repeats_are_one_finding():
    log = "\n".join(sglang(WARNING, rank) for rank in range(32) for _ in range(3))
    (answer,) = diagnose_text(log).answers
    assert (answer.finding.count, len(answer.finding.ranks)) == (96, 32)
    assert answer.finding.where == "input:1"
    assert "96 times, on TP0, TP1" in words(Case("", log, ()))
    assert names(ranks(OUT.format(9, 8), 8)) == ["shared_memory"]


def test_messages_across_the_blocks_of_a_large_log_are_found_once():
    filler = sglang("Decode batch. #running-req: 128, #token: 86816, token usage: 0.44") + "\n"
    many = filler * (2 * (1 << 20) // len(filler))
    log = many + sglang(WARNING, 1) + "\n" + many + sglang(MEMORY, 2) + "\n" + many
    found = diagnose_text(log)
    counts = [(a.finding.message.name, a.finding.count) for a in found.answers]
    assert counts == [("kv_cache_no_memory", 1), ("moe_config_missing", 1)]
    line = many.count("\n") + 1
    assert found.answers[1].finding.where == f"input:{line}"
    assert found.findings.lines == log.count("\n")


@pytest.mark.parametrize("shift", range(0, 400, 37))
def test_a_message_at_any_place_of_a_blocks_end_counts_once(shift):
    block = 1 << 20
    line = b"x" * 99 + b"\n"
    head = line * (block // 100 - 3) + b"y" * (shift + 1) + b"\n"
    log = head + f"{sglang(WARNING)}\n".encode() + line * 50
    findings = scan([("log", io.BytesIO(log))], TABLE)
    assert [f.count for f in findings.found] == [1]


def test_one_endless_line_is_read():
    log = ("x" * 3_000_000) + MEMORY + ("y" * 3_000_000)
    assert names(log) == ["kv_cache_no_memory"]


def test_facts_of_the_log_complete_the_answer():
    log = (
        "server_args=ServerArgs(model_path='/m/DeepSeek-R1', tokenizer_path='x', tp_size=32, )\n"
        "ValueError: The output_size of gate's and up's weight = 64 is not divisible by weight "
        "quantization block_n = 128."
    )
    assert "Use --tp 16" in words(Case("", log, ()))
    assert "Use --tp 8" in words(Case("", log.replace("= 64 ", "= 32 "), ()))
    hinted = words(Case("", log.partition("\n")[2], ()), Hints(tp=64))
    assert "Use --tp 32" in hinted


def test_the_int8_answer_knows_card_model_and_release():
    log = "RuntimeError: gemm executioin failed, error: Error Internal"
    hints = Hints("sglang==0.4.4", "L40S", "deepseek-r1", 32)
    (answer,) = diagnose_text(log, hints).answers
    assert answer.details["fails_at"]
    assert "batch sizes" in " ".join(answer.cause)
    (fixed,) = diagnose_text(log, Hints("sglang==0.4.5", "L40S")).answers
    assert "all tiles of sglang 0.4.5 fit" in " ".join(fixed.cause)
    (none,) = diagnose_text(log, Hints("sglang==0.5.16", "B200")).answers
    assert "no int8_scaled_mm at all" in " ".join(none.cause)


def test_the_numbers_of_the_l40s_log_are_reconciled():
    log = OUT.format(102400, 101376)
    text = words(Case("", log, ()), Hints(device="L40S"))
    assert "needs exactly 102,400 bytes with Triton 3.1.0" in text
    assert "106,496 bytes" in text
    assert "Upgrade to sglang 0.5.2 or later" in text
    assert "--enable-flashinfer-mla" in text
    assert "--write-patch" in text
    everywhere = words(Case("", log, ()))
    assert "0.5.2 for sm_86 and sm_89; 0.5.12 for sm_120 and sm_121" in everywhere
    assert "from 0.5.2 on --attention-backend flashinfer" in everywhere
    assert "before 0.5.2 --enable-flashinfer-mla" in everywhere
    of_vllm = words(Case("", log, ()), Hints("vllm", "L40S"))
    assert "patch" not in of_vllm


@pytest.mark.parametrize("engine", ["sglang==0.5.16", "sglang", ""])
@pytest.mark.parametrize("sizes", ["E=512,N=128", "E=257,N=256", "E=3,N=7"])
def test_no_command_tunes_8_bit_floats_where_triton_has_none(engine, sizes):
    folder = "/x/sglang/srt/layers/moe/fused_moe_triton/configs/triton_3_5_1"
    name = f"{sizes},device_name=NVIDIA_A100-SXM4-80GB,dtype=fp8_w8a8,block_shape=[128, 128].json"
    line = "Using default MoE kernel config. Performance might be sub-optimal! Config file not found at"
    for text in (f"{line} {folder}/{name}", f"I look for {name}"):
        said = words(Case("", text, ()), Hints(engine))
        assert "tuner tune" not in said
        assert "no 8-bit floats on sm_80" in said


def test_one_engines_steps_are_left_out_for_the_other():
    text = words(Case("", f"/x/sglang/srt/y.py\n{MEMORY}", ()))
    assert "vLLM:" not in text
    log = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert "sglang: If it fails later" in words(Case("", log, ()))
    assert "max-num-seqs" not in words(Case("", log, ()), Hints("sglang"))


def test_text_is_safe_to_print_and_wraps_no_names():
    log = "\n".join(case.log for case in CASES) + "\n\x07\x1b]0;title\x07RuntimeError: \x1b[31mred"
    found = diagnose_text(log)
    text = found.as_text()
    assert all(c.isprintable() or c == "\n" for c in text)
    for answer in found.answers:
        for sentence in (*answer.cause, answer.finding.text):
            assert sentence in text or not sentence.isprintable()


def test_hints_that_name_nothing_are_refused():
    for hints in (Hints(device="L41S"), Hints(engine="sgl"), Hints(tp=-1)):
        with pytest.raises(BadInput):
            diagnose_text("x", hints)


def test_unreadable_files_are_named(tmp_path):
    with pytest.raises(UnreadableLog, match="nothing.log cannot be read"):
        diagnose([tmp_path / "nothing.log"])
    with pytest.raises(UnreadableLog):
        diagnose([tmp_path])


def test_missing_files_of_a_log(tmp_path):
    log = tmp_path / "server.log"
    log.write_text("\n".join(sglang(WARNING, rank) for rank in range(8)) + f"\n{MEMORY}\n")
    (missing,) = missing_of(log)
    assert missing.name == "E=128,N=192,device_name=NVIDIA_H200.json"
    assert missing.engine == "sglang"
    assert diagnose([log]).answers[0].finding.where == "server.log:9"


# Made-up logs.


def _mutated(random_: random.Random, log: str) -> bytes:
    data = bytearray(log.encode())
    for _ in range(random_.randint(1, 30)):
        at = random_.randrange(len(data) + 1)
        match random_.randrange(5):
            case 0:
                data[at:at] = bytes(random_.randrange(256) for _ in range(random_.randint(1, 9)))
            case 1:
                del data[at : at + random_.randint(1, 20)]
            case 2:
                data[at:at] = data[: random_.randint(1, 60)]
            case 3:
                noise = (b"\n", b"\0", b"\x1b[", b"9" * 400, b"{}", b"E=", b"%")
                data[at:at] = random_.choice(noise)
            case 4:
                data[at:at] = random_.choice(CASES).log.encode()[:200]
    return bytes(data)


def test_made_up_logs_never_end_in_a_traceback(subtests, tmp_path):
    log = tmp_path / "log"
    for seed in range(200):
        with subtests.test(seed=seed):
            random_ = random.Random(seed)  # noqa: S311
            case = random_.choice((*CASES, *UNKNOWN))
            log.write_bytes(_mutated(random_, case.log))
            hints = random_.choice(
                (Hints(), Hints("sglang==0.4.4", "L40S", "deepseek-r1", 32), Hints("vllm"))
            )
            found = diagnose([log], hints)
            assert found.as_text()
            assert found.as_json()["lines"] >= 0
            missing_of(log)


# What people say beside it.


@pytest.mark.parametrize(
    ("text", "device"),
    [
        (
            "sglang on 4x RTX PRO 6000 is slow. On the H100 box the same command is fine.",
            "RTX PRO 6000",
        ),
        ("We plan 32 L40S; unlike the A100 they have no NVLink.", "L40S"),
        ("It is slower than on an H200, on our H20 GPUs.", "H20"),
        ("It works fine on 8x H100.", "H100"),  # the only GPU that is named
        ("On H20 it works fine, but on H100 it crashes.", ""),  # one sentence: ask
    ],
)
def test_a_gpu_that_is_only_compared_with_is_not_the_servers(text, device):
    assert diagnose_text(text).findings.facts.get("device") == device


def test_a_fork_s_or_plugin_s_code_is_not_told_as_the_engine_s():
    """`tuner` tunes sglang's and vLLM's kernels: its files cannot be at fault in another's."""
    trace = (
        '  File "/w/vllm-ascend/vllm_ascend/ops/fused_moe.py", line 420, in fused_experts\n'
        "RuntimeError: npu_grouped_matmul: call aclnnGroupedMatmulV4 failed, error code is 161002"
    )
    text = diagnose_text(trace).as_text()
    assert "The innermost frame read: /w/vllm-ascend" in text
    assert "which this tuner tunes" not in text and "GPU vllm-ascend" not in text
    own = trace.replace("/w/vllm-ascend/vllm_ascend/", "/x/vllm/model_executor/layers/")
    assert "which this tuner tunes" in diagnose_text(own).as_text()


def test_arguments_in_a_variable_are_a_command():
    text = "VLLM_ENGINE_ARGS=--model m/DeepSeek-V3 --tensor-parallel-size 8"
    facts = diagnose_text(text).findings.facts
    assert (facts.get("tp"), facts.get("model")) == ("8", "m/DeepSeek-V3")


def test_another_program_is_named():
    text = diagnose_text("E CUDA error: x\n in function ggml_cuda_mul_mat_cublas_impl").as_text()
    assert "a text of llama.cpp, and of neither sglang nor vLLM" in text


def test_a_folder_s_listing_and_a_model_give_that_model_s_command():
    names = ("E=128,N=192,device_name=NVIDIA_H20-3e.json", "E=64,N=96,device_name=NVIDIA_H20.json")
    listing = "\n".join([*names, "E=256,N=256,device_name=NVIDIA_H20,dtype=fp8_w8a8.json"])
    asks = "We have 8x H20 and run GLM-4.7-FP8 with tp=8 in vLLM 0.15.1. Which file is for us?"
    text = diagnose_text(f"{listing}\n{asks}").as_text()
    assert "tuner tune glm-4.6-fp8 --tp 8 --device H20 --engine vllm==0.15.1" in text


@pytest.mark.parametrize(
    "flag",
    [
        "--reasoning-parser minimax-m3 --tp 4",
        "`--tool-call-parser minimax-m2`",
        'args: ["--tool-call-parser", "minimax-m2"]',
        "reasoning_parser='minimax-m3'",
    ],
)
def test_a_parser_s_name_is_no_model(flag):
    assert "model" not in diagnose_text(f"sglang {flag}").findings.facts.known
    named = diagnose_text(f"MiniMax-M2 with sglang {flag}").findings.facts
    assert named.get("model") == "MiniMax-M2"


def test_an_answer_says_what_the_text_tells_of_its_server():
    server = (
        "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2 -dp 4 # vLLM API server version 0.15.1"
    )
    told = "The text tells: engine vLLM 0.15.1, model Qwen/Qwen3-8B, tp 2, dp 4."
    known = diagnose_text(
        f"{server}\nCUDA error: an illegal memory access was encountered"
    ).as_text()
    assert known.endswith(f"\n\n{told}")
    unknown = diagnose_text(f"{server}\nRuntimeError: it broke").as_text()
    assert unknown.count(told) == 1
    assert "The text tells" not in diagnose_text("CUDA error: an illegal memory access").as_text()


@pytest.mark.parametrize(
    ("log", "known"),
    [
        (
            "INFO 03-12 09:15:02 [utils.py:299]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.17.1\n"
            "INFO 03-12 09:15:02 [utils.py:299]   █▄█▀ █     █     █     █  model   Qwen/Qwen3-8B\n",
            {"engine": "vllm", "version": "0.17.1", "model": "Qwen/Qwen3-8B"},
        ),
        (
            "INFO 03-12 09:15:02 vLLM server version 0.15.1, serving model Qwen/Qwen3-8B",
            {"engine": "vllm", "version": "0.15.1", "model": "Qwen/Qwen3-8B"},
        ),
        (
            "Initializing a V1 LLM engine (v0.9.2) with config: \nmodel='Qwen/Qwen3-8B'",
            {"engine": "vllm", "version": "0.9.2"},
        ),
        (
            "  args:\n  - vllm\n  - serve\n  - /models/Mistral-7B-Instruct-v0.2\n  - --host\n",
            {"engine": "vllm", "model": "/models/Mistral-7B-Instruct-v0.2"},
        ),
        (
            'command: ["vllm", "serve", "Qwen/Qwen3-8B", "--port", "8000"]',
            {"engine": "vllm", "model": "Qwen/Qwen3-8B"},
        ),
        ('args:\n  - "serve"\n  - "Qwen/Qwen3-8B"\n', {"model": "Qwen/Qwen3-8B"}),
        ("args:\n- serve\n- run\n- app:main\n", {"engine": "", "model": ""}),
        ("args:\n- serve\n- --host\n- 0.0.0.0\n", {"engine": "", "model": ""}),
    ],
)
def test_the_lines_with_which_vllm_starts_name_it(log, known):
    facts = diagnose_text(log).findings.facts
    assert {name: facts.get(name) for name in known} == known


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("Crashes, but works in upstream vllm/vllm-openai:v0.17.1", ""),
        ("It does not work in vllm/vllm-openai:v0.17.1", "0.17.1"),
        ("image: vllm/vllm-openai:v0.17.1", "0.17.1"),
        ("docker run lmsysorg/sglang:v0.5.2", "0.5.2"),
        ("Crashes, but is fine with lmsysorg/sglang:v0.5.2", ""),
        ("Crashes on the newest release, worked with vllm 0.10.2", ""),
    ],
)
def test_a_version_that_works_is_not_the_server_s(text, version):
    assert diagnose_text(text).findings.facts.get("version") == version
