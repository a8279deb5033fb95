"""Names of config files in a text without the engine's warning line, and GPUs in people's words."""

# ruff: noqa: E501 (lines of texts are long)

from pathlib import Path

import pytest
from tables import rows

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
    return [word for word in words if not word.startswith("tuner list engines --add ")]


def names(found: Diagnosis) -> list[str]:
    return [answer.finding.message.name for answer in found.answers]


WARNS = "Using default MoE config. Performance might be sub-optimal! Config file not found at /x/vllm/model_executor/layers/fused_moe/configs/{}.json"


@pytest.mark.parametrize(("kind", "named"), [("named", ["config_named"]), ("missing", None)])
def test_what_a_text_says_of_config_files_is_answered(kind, named, subtests):
    for row in rows("named_files.toml", kind):
        with subtests.test(row["text"]):
            found = diagnose_text(row["text"])
            assert named is None or names(found) == named
            answer = found.as_text()
            assert not [words for words in row.get("says", ()) if words not in answer], answer
            assert not [words for words in row.get("never", ()) if words in answer], answer


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
        f"tuner tune {config} --family attention {options}",
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
