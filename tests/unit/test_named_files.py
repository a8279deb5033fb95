"""Names of config files in a text without the engine's warning line, and GPUs in people's words."""

# ruff: noqa: E501 (lines of texts are long)

from pathlib import Path

import pytest

from tuner.devices.named_cards import cards_in
from tuner.devices.table import find_device
from tuner.diagnose import Diagnosis, Hints, diagnose_text
from tuner.engines.logs.lines import lines_of
from tuner.errors import UnknownDevice

MODELS = Path(__file__).parents[1] / "data" / "models"
H20 = "E=64,N=1536,device_name=NVIDIA_H20,dtype=fp8_w8a8.json"
BLOCKS = "E=256,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128{}128]{}.json"
LIMIT = "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: {}, Hardware limit: {}. Reducing block sizes or `num_stages` may help."


def commands(found: Diagnosis) -> list[str]:
    words = [word for answer in found.as_json()["found"] for word in answer["commands"]]
    return [word for word in words if not word.startswith("tuner engines add ")]


def names(found: Diagnosis) -> list[str]:
    return [answer.finding.message.name for answer in found.answers]


# Public threads, and made-up texts of the same kinds: (text, words of the answer, never).
NAMED = [
    # vllm-project/vllm#44688: the name alone, which both engines have
    (H20, ["If the server is sglang:", "If the server is vLLM:", "--device H20 --engine vllm"], []),
    (f"where is {H20} in vLLM 0.33.0? I start `vllm serve zai-org/GLM-4.7-Flash -tp 1`", ["tuner tune fused_moe:E=64,N=1536,K=2048,top_k=4,dtype=fp8_w8a8 --device H20 --engine vllm==0.33.0", "tuner export --device H20"], ["sglang:"]),
    # vllm-project/vllm#36273, #43506: a file that a pull request adds
    ("- `vllm/model_executor/layers/fused_moe/configs/E=512,N=512,device_name=NVIDIA_GB10,dtype=fp8_w8a8.json`", ["--device GB10 --engine vllm"], ["--engine sglang"]),
    ("configs/E=128,N=768,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128,128].json", ["in the spelling of vLLM"], ["without blocks"]),
    # vllm-project/vllm#39263: blocks without a type
    ("E=256,N=256,device_name=NVIDIA_GeForce_RTX_5090,block_shape=[128,128].json", ["it has block_shape and no dtype"], ["tuner tune"]),
    ("sglang ships strategy,E=896,topk=16,device_name=NVIDIA_H200.json", ["No kernel tuned here reads"], ["Neither", "$ tuner"]),
    # sgl-project/sglang#34460: a virtual machine's name
    ("sglang: E=384,N=256,device_name=AMD_Instinct_MI350X_VF.json", ["--device AMD_Instinct_MI350X_VF --engine sglang"], []),
    # sgl-project/sglang#9978: sglang's spelling, in the folder of a Triton
    (f"python/sglang/srt/layers/moe/fused_moe_triton/configs/triton_3_4_0/{BLOCKS.format(', ', '')}", ["in the spelling of sglang", "folder of Triton 3.4.0", "before sglang 0.5.11"], ["spelling of vLLM"]),
    (f"vLLM 0.33.0: is {BLOCKS.format(', ', '')} used?", ["vLLM looks for no file that is spelled so", "--engine sglang"], ["--engine vllm"]),
    (f"/x/vllm/model_executor/layers/fused_moe/configs/{H20} is of a release before?", [], ["before vllm"]),
    (BLOCKS.format(", ", "_down"), ["in the spelling of sglang"], ["spelling of vLLM"]),
    # MetaX-MACA/vLLM-metax#319, #295
    ("| `Qwen/Qwen1.5-MoE-A2.7B` | 2048 | `H=2048,E=60,N=1408,device_name=MXC500.json` |", ["is a card of MetaX"], ["tuner tune", "spelling"]),
    ("https://github.com/vllm-project/vllm/blob/main/vllm/model_executor/layers/fused_moe/configs/E%3D8%2CN%3D14336%2Cdevice_name%3DNVIDIA_H200.json", ["--device H200 --engine vllm"], []),
    ("N=2112,K=7168,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128, 128].json", ["quantised dense GEMMs", "block_gemm:N=2112,K=7168", "--engine sglang"], []),
]  # fmt: skip


WARNS = "Using default MoE config. Performance might be sub-optimal! Config file not found at /x/vllm/model_executor/layers/fused_moe/configs/{}.json"
# Warnings about a missing file, and what is said of a name that the text's model does not have.
MISSING = [
    # vllm-project/vllm#47732: what nothing here makes
    ("Using default W8A8 Block FP8 kernel config. Performance might be sub-optimal! in vLLM on L40S", ["makes no such file for vLLM"], ["tuner tune"]),
    ("vllm/x/configs/N=7168,K=2048,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128,128].json", ["vLLM reads N=7168"], ["Neither", "tuner tune"]),
    # kvcache-ai/ktransformers#2008, vllm-project/vllm#32347
    (WARNS.format("E=128,N=384,device_name=Tesla_T4"), ["too old"], ["tuner tune"]),
    (WARNS.format("E=128,N=1440,device_name=NVIDIA_L40S,dtype=mxfp4_w4a16"), ["of a type that this tuner does not tune"], ["tuner tune", "int4"]),
    ("vLLM: E=128,N=1440,device_name=NVIDIA_L40S,dtype=mxfp4_w4a16.json", ["of a type that this tuner does not tune"], ["tuner tune", "int4"]),
    # vllm-project/vllm#28709: vLLM's names do not say that fp8 is per channel
    (WARNS.format("E=128,N=1024,device_name=AMD_Instinct_MI325X,dtype=fp8_w8a8"), ["llama-4-maverick-fp8 at tp=8", "fp8_w8a8,per_channel_quant"], []),
    # vllm-project/vllm#17768: two reports in one text; made up: two servers
    ("meta-llama/Llama-4-Scout-17B-16E-Instruct\n" + WARNS.format("E=128,N=8192,device_name=NVIDIA_L40S"), ["No layer of meta-llama/Llama-4-Scout", "llama-4-maverick at tp=1"], ["tuner tune llama"]),
    ("vllm serve Qwen/Qwen3-30B-A3B -tp 2\nvllm serve Qwen/Qwen3-235B-A22B -tp 8\n" + WARNS.format("E=128,N=192,device_name=NVIDIA_H200"), ["No layer of Qwen/Qwen3-30B-A3B at tp=2", "qwen3-235b-a22b"], ["tuner tune qwen3-30b-a3b"]),
    # MiniMax-AI/MiniMax-01#42: vLLM quantises the experts itself, in a release that was not read
    (f"LLM engine (v0.8.3) with config: model='MiniMaxAI/MiniMax-Text-01', tensor_parallel_size=8\n{WARNS.format('E=32,N=1152,device_name=NVIDIA_H200,dtype=int8_w8a16')}", ["tuner tune config.json --tp 8 --dtype int8_w8a16 --device H200 --engine vllm==0.8.3", "(message of vLLM)"], ["sglang"]),
    # sgl-project/sglang#5641: a copy of the shared experts for each of 16 ranks
    ("sglang ships E=272,N=128,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128, 128].json", ["or deepseek-v3.1 at tp=16 (before sglang 0.4.7, which had a copy of the shared experts"], ["no preset matches", "glm-5"]),
    ("sglang --model-path minimax-m3 --tp 8\nConfig file not found at /s/sglang/srt/layers/moe/fused_moe_triton/configs/triton_3_5_1/E=129,N=384,device_name=NVIDIA_H200.json", ["minimax-m3 at tp=8", "K=6144,top_k=5"], ["No layer of", "joyai"]),
    # A script's own tp is not the server's, which shows more ranks
    ("zai-org/GLM-4.7\npython tuning_fused_moe_triton.py --model zai-org/GLM-4.7 --tp-size 2\nName: sglang Version: 0.5.16\n[2026-04-20 10:14:11 TP10] Using default MoE kernel config. Performance might be sub-optimal! Config file not found at /x/sglang/srt/layers/moe/moe_runner/triton_utils/configs/triton_3_5_1/E=161,N=96,device_name=NVIDIA_H100_80GB_HBM3.json", ["glm-4.7 at tp=16", "--engine sglang==0.5.16"], ["No layer of"]),
    (WARNS.format("E=128,N=192,device_name=NVIDIA_GH200_120GB"), ["--device GH200_120GB"], ["has no figures"]),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "named"), [(NAMED, ["config_named"]), (MISSING, None)])
def test_what_a_text_says_of_config_files_is_answered(rows, named, subtests):
    for text, says, never in rows:
        with subtests.test(text):
            found = diagnose_text(text)
            assert named is None or names(found) == named
            answer = found.as_text()
            assert not [words for words in says if words not in answer], answer
            assert not [words for words in never if words in answer], answer


def test_the_same_steps_are_printed_once():
    up = WARNS.format(BLOCKS.format(", ", "")[:-5]).replace("/vllm/", "/sglang/")
    answer = diagnose_text(f"{up}\n{up.replace('.json', '_down.json')}").as_text()
    assert answer.count("tuner export") == 1
    assert "The steps of 1 are for this too." in answer


def test_the_engines_that_read_a_name_are_in_the_json():
    path = f"configs/triton_3_4_0/{BLOCKS.format(', ', '')}"
    (answer,) = diagnose_text(path).as_json()["found"]
    assert answer["details"]["engines"] == ["sglang"]


def test_a_warning_or_a_loaded_file_is_not_asked_for_again():
    warning = "Using default MoE config. Performance might be sub-optimal! Config file not found at"
    found = diagnose_text(f"{warning} /x/vllm/v1/{H20}\nmore on {H20}")
    assert names(found) == ["moe_config_missing"]
    loaded = diagnose_text(f"Using configuration from /x/vllm/v1/{H20} for MoE layer.")
    assert names(loaded) == ["config_loaded"]
    assert not commands(loaded)


CARDS = [
    ("vLLM on my DGX Spark (GB10)", "NVIDIA_GB10"),
    ("8xH100 SXM", "NVIDIA_H100_80GB_HBM3"),
    ("two RTX PRO 6000 Blackwell Max-Q Workstation Edition", "NVIDIA_RTX_PRO_6000_Blackwell_Max-Q_Workstation_Edition"),
    ("4 x L20", "NVIDIA_L20"),
    ("4x RTX PRO 6000 Blackwell Max-Q", "NVIDIA_RTX_PRO_6000_Blackwell_Max-Q_Workstation_Edition"),
    ("it fails on my 4090s", "NVIDIA_GeForce_RTX_4090"),
    ("an RTX-A6000 of 48GB", "NVIDIA_RTX_A6000"),
    ("GB200 NVL72", "NVIDIA_GB200"),
    ("H100, and E=8,N=3584,device_name=NVIDIA_H100_PCIe.json", "NVIDIA_H100_PCIe"),
    # No GPU, or not sure which.
    ("port 4090, 4090 tokens, --max-model-len=4090, the 4090 requests", ""),
    ("see fused_moe.py#L20 and L4 cache, T4 and A10 of the table", ""),
    ("works on A100/H100", ""),
    ("an RTX 4090 and an H200", ""),
    ("RTX 3090 Ti", ""),
    ("0xA100 Apache Spark", ""),
]  # fmt: skip


def test_gpus_in_prose(subtests):
    for text, name in CARDS:
        with subtests.test(text):
            shown = diagnose_text(text).findings.facts.get("device")
            assert (find_device(shown).name if shown else "") == name


def test_a_program_s_own_words_are_surer_than_people_s():
    shown = diagnose_text("better than on an A100\nGPU 0: NVIDIA L40S (UUID: GPU-1)").findings.facts
    assert shown.get("device") == "NVIDIA L40S"
    assert not shown.in_words
    far = "x" * 99 + "\n"
    assert not diagnose_text(far * 4000 + "on an A100").findings.facts.get("device")


def test_a_command_for_a_gpu_of_people_s_words_says_so():
    text = f"vLLM 0.33.0 on my DGX Spark: vllm serve Qwen/Qwen3-30B-A3B -tp 2\n{H20}"
    assert "--device is what" not in diagnose_text(text).as_text()  # two GPUs: H20, Spark
    log = "sglang==0.5.99\nDGX Spark: python -m sglang.launch_server --model deepseek-r1 --tp 2\n"
    answer = diagnose_text(log + LIMIT.format(147456, 101376)).as_text()
    assert "--device GB10" in answer
    assert "--device is what the text calls DGX Spark" in answer
    several = diagnose_text(f"a 4090 or an H100\n{LIMIT.format(147456, 101376)}").as_text()
    assert "the text names 4090 and H100" in several


OTHERS = ["MetaX C500", "Ascend 910B3", "Moore Threads MTT S4000", "Intel Arc B580", "MLU590"]


@pytest.mark.parametrize("card", OTHERS)
def test_a_card_of_another_maker_is_named_and_gets_no_command(card):
    assert not diagnose_text(f"serving on {card} is slow").known
    crash = diagnose_text(
        f"vllm serve Qwen/Qwen3-30B-A3B -tp 1 on {card}\n{LIMIT.format(1, 65536)}"
    )
    assert "Turing" not in crash.as_text()
    assert f"{card} is " in crash.as_text()
    assert not commands(crash)
    with pytest.raises(UnknownDevice, match="NVIDIA's and AMD's"):
        find_device(card)


def test_a_processor_s_name_is_no_card():
    assert list(cards_in("model name: Hygon C86 7390 32-core Processor")) == []


def test_a_config_json_of_the_command_line_gets_commands_that_work(tmp_path):
    config = tmp_path / "config.json"
    config.write_text((MODELS / "dbrx" / "config.json").read_text())
    log = f"sglang==0.5.99\nGPU 0: NVIDIA L40S (UUID: GPU-1)\n{LIMIT.format(147456, 101376)}"
    found = diagnose_text(log, Hints(model=str(config), tp=2))
    options = "--tp 2 --device L40S --engine sglang==0.5.99"
    assert commands(found) == [
        f"tuner tune {config} {options}",
        f"tuner tune {config} --attention {options}",
    ]
    assert "the linear layers of" in found.as_text()  # are not known
    unknown = diagnose_text(log, Hints(model="somebody/his-own", tp=2))
    assert commands(unknown) == [f"tuner tune config.json --all {options}"]


MOCK = "<MagicMock name='mock.amdsmi_get_gpu_asic_info().__getitem__()' id='132'>"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        # kyuz0/amd-strix-halo-vllm-toolboxes#73
        (f"E=256,N=512,device_name={MOCK}.json", "The engine found no name for this card"),
        ("E=256,N=512,device_name=,dtype=fp8_w8a8.json", "The engine found no name for this card"),
    ],
)
def test_no_file_is_asked_for_by_a_name_that_is_none(name, said):
    text = f"Using default MoE config. Performance might be sub-optimal! Config file not found at /v/vllm/configs/{name}"
    (answer,) = diagnose_text(text).as_json()["found"]
    words = " ".join([*answer["cause"], *answer["fix"]])
    assert said in words
    assert not answer["commands"]
    for never in ("Put a file", "operations.md", "The missing file is"):
        assert never not in words


@pytest.mark.parametrize(
    ("written", "read"),
    [
        # MetaX-MACA/vLLM-metax#295
        ("dtype=[int8_w8a8.json](http://int8_w8a8.json/)", "dtype=int8_w8a8.json"),
        ("[https://a.ai/x](https://a.ai/x)", "https://a.ai/x"),
        ("[a.ai/x](https://a.ai/x)", "a.ai/x"),
        ("[the docs](https://a.ai/x)", "[the docs](https://a.ai/x)"),
    ],
)
def test_links_that_a_page_made_of_words_are_undone(written, read):
    assert lines_of(written.encode()) == [read.encode()]
