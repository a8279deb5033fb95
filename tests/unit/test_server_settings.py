"""Flags and variables of servers: read in every form, and carried to the commands that are printed."""

# ruff: noqa: E501 (lines of logs are long)

import shlex
from dataclasses import replace

import pytest
from tables import rows
from test_pasted import commands, parse

from tuner.cli.family_options import FamilyChoice
from tuner.cli.problems import TargetOptions, targets_of
from tuner.cli.targets import read_command_target
from tuner.devices.table import find_device
from tuner.diagnose import Hints, diagnose_text
from tuner.engines.dispatch import what_runs
from tuner.engines.settings import of_class, server_settings, settings_kept, settings_to_keep
from tuner.errors import BadInput, BadProblem
from tuner.families.fused_moe.models import problems as resolve
from tuner.models.serving import Serving
from tuner.models.table import find_preset
from tuner.problems.dtypes import Dtype
from tuner.problems.points import UNKNOWN_SERVER, ServerSettings, read_server
from tuner.problems.registry import parse_problem
from tuner.targets import as_flags_say, resolve_all

MISSING = "Performance might be sub-optimal! Config file not found at "
FOLDER = "/x/sglang/srt/layers/moe/moe_runner/triton_utils/configs/triton_3_6_0/"
R1 = "device_name=NVIDIA_B200,dtype=fp8_w8a8,block_shape=[128, 128].json"
MOE = f"Using default MoE kernel config. {MISSING}{FOLDER}E=257,N=256,{R1}"
GEMM = (
    f"Using default W8A8 Block FP8 kernel config. {MISSING}/x/sglang/srt/configs/N=2112,K=7168,{R1}"
)
VLLM = (
    f"Using default MoE config. {MISSING}/x/vllm/model_executor/layers/fused_moe/configs/"
    "E=128,N=384,device_name=NVIDIA_B200,dtype=fp8_w8a8,block_shape=[128,128].json"
)
LAUNCH = "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 8 "
ARGUMENTS = (
    "server_args=ServerArgs(model_path='deepseek-ai/DeepSeek-R1', tokenizer_path='x', tp_size=8, "
    "quantization=None, kv_cache_dtype='auto', attention_backend='triton', enable_ep_moe=False, "
    "decode_attention_backend=None, moe_runner_backend='auto', fp8_gemm_runner_backend='triton', "
    "disable_radix_cache=True, speculative_algorithm='EAGLE', speculative_eagle_topk=1)"
)
FP8 = "fp8_gemm_runner_backend='triton', "
OF_ARGUMENTS = {
    "--attention-backend": "triton",
    "--fp8-gemm-backend": "triton",
    "--disable-radix-cache": "1",
    "--speculative-algorithm": "EAGLE",
    "--speculative-eagle-topk": "1",
}
WRAPPED = "\n".join(ARGUMENTS[i : i + 60] for i in range(0, len(ARGUMENTS), 60))


def test_settings_are_read_in_every_form(subtests):
    for row in rows("pasted_facts.toml", "settings"):
        with subtests.test(row["text"][:60]):
            assert diagnose_text(row["text"]).findings.facts.settings == row["known"]


@pytest.mark.parametrize("said", [ARGUMENTS, f"[2026-01-05 10:00:00] {WRAPPED}"])
def test_every_printed_command_has_the_settings_in_one_word(said):
    found = commands(f"{said}\n{MOE}\n", Hints("sglang==0.5.16"))
    assert {shlex.split(line)[1] for line in found} == {"tune", "export"}
    for line in found:
        given = server_settings(str(parse(line)["server_args"]))
        assert OF_ARGUMENTS.items() <= given.items()


def test_settings_with_characters_of_the_shell_stay_one_word():
    text = f"{LAUNCH} --attention-backend=a;reboot --moe-a2a-backend=`id`\n{GEMM}"
    for line in commands(text, Hints("sglang==0.5.16")):
        given = server_settings(str(parse(line)["server_args"]))
        assert given["--attention-backend"] == "a;reboot"
        assert given["--moe-a2a-backend"] == "`id`"


def test_settings_of_the_other_engine_and_defaults_are_left_out():
    text = f"SGLANG_USE_AITER=1 VLLM_BATCH_INVARIANT=1 NCCL_DEBUG=INFO {LAUNCH} --ep-size 1\n{MOE}"
    for line in commands(text, Hints("sglang==0.5.16")):
        given = server_settings(str(parse(line)["server_args"]))
        assert given == {"SGLANG_USE_AITER": "1", "--moe-runner-backend": "triton"}


def test_ranks_shared_experts_and_quantisation_are_carried_with_a_model():
    crash = (
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 102401, "
        "Hardware limit: 101376. Reducing block sizes or `num_stages` may help."
    )
    command = (
        "python -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B --tp 4 --enable-ep-moe "
        "--quantization fp8 --enable-dp-attention --dp 2 --page-size 64\n"
    )
    text = f"GPU 0: NVIDIA L40S\n{command}{crash}"
    moe, attention = (
        next(parse(line) for line in commands(text, Hints("sglang")) if wanted(parse(line)))
        for wanted in (
            lambda one: not one["family"],
            lambda one: one["family"] == "attention",
        )
    )
    assert (moe["tp"], moe["ep"], moe["dtype"]) == (4, 4, "fp8_w8a8")
    assert (attention["tp"], attention["dp"], attention["page_size"]) == (4, 2, 64)
    assert attention["dtype"] is None


def test_a_value_that_is_no_number_ends_nothing():
    text = f"GPU 0: NVIDIA L40S\n{LAUNCH} --page-size 6x\nout of resource: shared me"
    assert "--page-size" not in " ".join(commands(text, Hints("sglang")))
    assert commands(text, Hints("sglang"))


# What a warning shows.


def said(text: str, engine: str) -> str:
    found = diagnose_text(text, Hints(engine)).answers
    return " ".join(" ".join(line for one in found for line in one.lines()).split())


@pytest.mark.parametrize(
    ("line", "engine", "flag"),
    [
        (MOE, "sglang==0.5.16", "--moe-runner-backend triton"),
        (GEMM, "sglang==0.5.16", "--fp8-gemm-backend triton"),
        (GEMM.replace("B200", "H200"), "sglang==0.5.23", "--fp8-gemm-backend triton"),
        (VLLM, "vllm==0.33.0", "--moe-backend triton"),
    ],
)  # fmt: skip
def test_a_missing_file_shows_that_triton_runs(line, engine, flag):
    text = said(line, engine)
    assert "runs Triton here; it reads tuned files" in text
    assert "the line shows that Triton runs" in text
    assert f"--server-args '{flag}'" in text
    assert " if " not in text.partition("runs Triton here")[0].rpartition("Read from it")[2]


def test_a_missing_file_of_an_older_release_shows_more_than_newer_rules():
    """0.15.1 was read for where it looks, and its dispatch was not."""
    for engine in ("vllm==0.15.1", "vllm==0.10.2"):
        text = said(VLLM, engine)
        assert "the line shows that Triton runs" in text
        assert "is not known" not in text and "the oldest release read" not in text
    text = said(VLLM, "vllm==0.9.2")  # whose search was not read either
    assert "the line shows" not in text
    assert "the oldest release read); whether it reads tuned files is not known" in text


def test_the_search_before_the_choice_shows_nothing():
    """sglang 0.4.4 looks for the file of a GEMM, and then runs DeepGEMM."""
    text = said(GEMM.replace("B200", "H200"), "sglang==0.4.4")
    assert "shows that Triton runs" not in text


def test_plan_and_tune_of_a_log_know_it_too(tmp_path):
    gemm_name = GEMM.rpartition("/")[2]
    log, card, none = tmp_path / "server.log", find_device("B200"), FamilyChoice((), {})
    log.write_text(f"{ARGUMENTS.replace(FP8, '')}\n{GEMM}\n")
    for target in (str(log), GEMM):
        named = read_command_target(target)
        asked = TargetOptions(named, card, "sglang", "0.5.16")
        targets = targets_of(asked, none, every=False)
        problems = [problem for one in targets for problem in one.problems]
        flags = named.shown_settings(problems, "sglang", "0.5.16", card, named.settings(""))
        runs = what_runs("sglang", "0.5.16", problems[0], card, flags)
        assert runs and runs.always_triton
        assert (
            read_command_target(gemm_name).shown_settings(problems, "sglang", "0.5.16", card, {})
            == {}
        )
    assert (
        read_command_target(str(log)).settings("--attention-backend fa3")["--attention-backend"]
        == "fa3"
    )


def test_a_job_keeps_the_settings_that_choose_kernels_and_no_others():
    given = server_settings(
        "SGL_USE_AITER=1 SGLANG_ENABLE_JIT_DEEPGEMM=1 --api-key secret --port=1 "
        "--quantization w8a8_int8 --moe-runner-backend=-odd --attention-backend fa3"
    )
    layer = parse_problem("fused_moe:E=8,N=512,K=1024,top_k=2,dtype=bfloat16")
    kept = settings_to_keep("sglang", layer, of_class(given, "MixtralForCausalLM"))
    # What holds without flags is left out, as SGLANG_ENABLE_JIT_DEEPGEMM=1 does.
    words = "SGLANG_USE_AITER=1 --moe-runner-backend=-odd --quantization w8a8_int8"
    assert kept == ServerSettings("MixtralForCausalLM", "", words)
    assert settings_kept(kept) == {
        "architecture": "MixtralForCausalLM",
        "SGLANG_USE_AITER": "1",
        "--moe-runner-backend": "-odd",
        "--quantization": "w8a8_int8",
    }
    decode = parse_problem("decode_attention:q_heads=8,kv_heads=1,Lq=64,Lv=64,dtype=bfloat16")
    settings = {**given, "checkpoint": "fp8_w8a8 fp8"}  # by which no rule for attention asks
    of_decode = ServerSettings("", "", "--attention-backend fa3")
    assert settings_to_keep("sglang", decode, settings) == of_decode
    assert read_server(kept.as_json()) == kept
    assert read_server({"problem": "x"}) == UNKNOWN_SERVER
    assert not UNKNOWN_SERVER


# Flags that change a model's problems.


def specs(model: str, engine: str, flags: str) -> list[str]:
    name, _, version = engine.partition("==")
    tp = "" if "tensor" in flags or "tp " in flags else "--tp 8 "
    settings = server_settings(tp + flags)
    serving = as_flags_say(Serving(name, version, find_device("H200")), settings)
    found = resolve_all(find_preset(model), serving)
    return [problem.spec() for target in found for problem in target.problems]


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("sglang==0.5.23", "--ep-size 8 --ep-num-redundant-experts 32"),
        ("sglang==0.5.16", "--ep-size 4 --moe-dp-size=2"),
        ("sglang==0.5.23", "--moe-data-parallel-size 2"),
        ("sglang==0.5.23", "--attn-cp-size 2"),
        ("sglang==0.5.16", "--attention-context-parallel-size 2"),
        ("sglang==0.5.16", "--enable-prefill-cp --cp-strategy zigzag"),
        ("vllm==0.33.0", "-pcp 2"),
        ("vllm==0.33.0", "-ep --enable-eplb --eplb-config '{\"num_redundant_experts\": 32}'"),
        ("vllm==0.33.0", "-ep --eplb-config.num_redundant_experts=32"),
        ("vllm==0.10.2", "-ep --num-redundant-experts 32"),
    ],
)
def test_flags_that_give_ranks_sizes_which_are_not_read_are_refused(engine, flags):
    name = next(flag for flag in reversed(server_settings(flags)) if flag != "--cp-strategy")
    with pytest.raises(BadInput, match=f"^with {name} a rank has sizes that are not read here"):
        specs("deepseek-r1", engine, flags)


def test_numbers_that_change_nothing_are_no_such_flags():
    usual = specs("deepseek-r1", "sglang==0.5.23", "--moe-runner-backend triton")
    for flags in ("--ep-num-redundant-experts 0", "--moe-dp-size 1 --attn-cp-size 1"):
        assert specs("deepseek-r1", "sglang==0.5.23", flags) == usual
    log = "\n".join((ARGUMENTS.replace("tp_size=8", "ep_num_redundant_experts=32"), MOE))
    assert "--ep-num-redundant-experts" in diagnose_text(log).findings.facts.settings


def test_vllm_takes_underscores_for_hyphens():
    found = [
        specs("qwen3-30b-a3b", "vllm==0.33.0", f"--tensor{mark}parallel{mark}size 4")
        for mark in "-_"
    ]
    assert found[0] == found[1]
    assert "N=192" in found[0][0]


def test_data_parallel_attention_gives_ranks_whole_scans():
    whole = "--dp 8 --enable-dp-attention", "--attention-data-parallel-size 8"
    for flags in whole:
        (scan,) = (s for s in specs("nemotron-3-ultra", "sglang==0.5.23", flags) if "scan" in s)
        assert "heads=256," in scan
        found = specs("qwen3.5-397b-a17b-fp8", "sglang==0.5.23", flags)
        assert [s for s in found if "key_heads=16,value_heads=64," in s]
        assert [s for s in found if s.startswith("decode_attention:q_heads=32,")]


def test_all_to_all_gives_ranks_whole_shared_experts_beside_the_routed():
    found = specs("deepseek-r1", "sglang==0.5.23", "--moe-a2a-backend deepep")
    assert "block_gemm:N=4096,K=7168,dtype=fp8_w8a8,block=128x128" in found
    assert "block_gemm:N=7168,K=2048,dtype=fp8_w8a8,block=128x128" in found
    for flags, experts in (("--ep-size 8", 65), ("--moe-a2a-backend deepep", 64)):
        assert specs("qwen3-next", "sglang==0.5.23", flags)[0].startswith(
            f"fused_moe:E={experts},N=512,"
        )


@pytest.mark.parametrize(
    ("engine", "word"),
    [
        *(("vllm==0.33.0", word) for word in ("nvfp4_per_token", "mxfp8", "experts_int8")),
        ("vllm==0.19.1", "fp8_per_block"),
        ("vllm==0.23.0", "fp8_per_channel"),
        *(("sglang==0.5.23", word) for word in ("mxfp8", "bitsandbytes", "modelopt_fp8")),
    ],
)
def test_16_bit_weights_that_the_server_converts_are_not_tuned_as_such(engine, word):
    flags = f"--tp 4 --quantization {word}"
    settings = server_settings(flags)
    serving = as_flags_say(Serving(*engine.split("=="), find_device("H200")), settings)
    with pytest.raises(BadProblem, match=f"with --quantization {word} servers do not run"):
        resolve(find_preset("qwen3-30b-a3b"), serving)
    named = replace(serving, dtype=Dtype.INT8_W8A16)
    assert resolve(find_preset("qwen3-30b-a3b"), named).problems[0].dtype is Dtype.INT8_W8A16
    # If the checkpoint is quantised already, the word changes nothing.
    assert resolve(find_preset("qwen3-30b-a3b-fp8"), replace(serving, tp=2)).problems


def test_vllm_has_short_and_long_words_for_fp8(subtests):
    """Blocks of weights that are quantised as they load are whole: sizes are rounded up."""
    blocks, channels = "dtype=fp8_w8a8,block_shape=128x128", "dtype=fp8_w8a8,per_channel_quant"
    for flags, size in (
        ("-q fp8", "N=192,K=2048,top_k=8,dtype=fp8_w8a8"),
        ("--quantization fp8_per_tensor", "N=192,K=2048,top_k=8,dtype=fp8_w8a8"),
        ("-q fp8_per_channel", f"N=192,K=2048,top_k=8,{channels}"),
        ("-q fp8_per_block", f"N=256,K=2048,top_k=8,{blocks}"),
    ):
        with subtests.test(flags):
            found = specs("qwen3-30b-a3b", "vllm==0.33.0", f"-tp 4 {flags}")
            assert found[0] == f"fused_moe:E=128,{size}"
    serving = as_flags_say(
        Serving("vllm", "0.33.0", find_device("H200"), tp=4, dtype=Dtype.FP8_W8A8),
        server_settings("--quantization fp8_per_block"),
    )
    as_asked = resolve(
        find_preset("qwen3-30b-a3b"), replace(serving, options={"block_shape": (128, 128)})
    )
    for found in (as_asked, resolve(find_preset("qwen3-30b-a3b"), serving)):
        assert found.problems[0].spec() == f"fused_moe:E=128,N=256,K=2048,top_k=8,{blocks}"
        (note,) = (one for one in found.notes if "pads" in one)
        assert note.endswith("pads experts to whole blocks of 128x128: N=256 for 192")
