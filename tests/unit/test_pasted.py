"""The reader of what people paste: facts in every form, and commands that work."""

# ruff: noqa: E501 (lines of logs are long)

import html
import re
import shlex
from pathlib import Path

import pytest
import typer
from diagnose_cases import CASES
from tables import rows

from tuner.cli.commands import app
from tuner.diagnose import Hints, diagnose_text
from tuner.engines.engine import published

DATA = Path(__file__).parents[1] / "data" / "pasted"
GROUP = typer.main.get_command(app)
PLACEHOLDER = re.compile(r"\b(?:GPU|MODEL|N|SIZE|NUMBER|FILE|FOLDER|VERSION|NAME|TOKEN|LOG)\b")
H20 = "E=256,N=128,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128, 128].json"
SGLANG = "/x/python/sglang/srt/layers/moe/moe_runner/triton_utils/configs/triton_3_6_0/"
MISSING = (
    "Using default MoE kernel config. Performance might be sub-optimal! Config file not found at "
)
COMPOSE = """services:
  llm:
    image: lmsysorg/sglang:v0.5.4.post2-cu129
    command: >
      python3 -m sglang.launch_server
      --model-path /models/DeepSeek-R1
      --tp-size 16
      --moe-runner-backend triton
"""
COLLECT = """vLLM Version                 : 0.33.0
GPU models and configuration :
GPU 0: NVIDIA H100 80GB HBM3
GPU 1: NVIDIA H100 80GB HBM3
[pip3] triton==3.6.0
"""


def facts(text: str) -> dict[str, str]:
    known = diagnose_text(text).findings.facts.known
    return {name: fact.value for name, fact in known.items()}


def test_facts_of_every_text_that_people_paste(subtests):
    for row in rows("pasted_facts.toml", "facts"):
        with subtests.test(row["text"][:60]):
            expected = row["known"] | dict.fromkeys(row.get("absent", ()))
            found = facts(row["text"])
            assert expected == {name: found.get(name) for name in expected}, found
            assert expected or not found


@pytest.mark.parametrize(
    ("engine", "build", "release"),
    [
        ("vllm", "0.8.3.0rc0", "0.8.3"),
        ("vllm", "0.11.1rc2.dev10+g1a2b3c", "0.11.1"),
        ("vllm", "0.10.2+cu129", "0.10.2"),
        ("vllm", "0.1.dev10684+g1a2b3c", ""),
        ("sglang", "0.5.6.post3.dev12+g1a2b3c", "0.5.6.post2"),
        ("sglang", "0.5.3rc0", "0.5.3rc0"),
        ("sglang", "0.5.4.post2", "0.5.4.post2"),
    ],
)
def test_commands_take_a_release_that_an_index_has(engine, build, release):
    assert published(engine, build) == release


def test_quotes_prefixes_and_cuts_do_not_matter(subtests):
    line = "ServerArgs(model_path='/m/DeepSeek-R1', tokenizer_path='x', tp_size=16, ep_size=1)"
    cut = line[6:]
    texts = {
        "quoted": f"> {line}",
        "twice": f"> > {line}",
        "escaped": html.escape(line),
        "compose": f"llm-1  | {line}",
        "journald": f"Sep 10 10:11:12 host python[12]: {line}",
        "kubectl": f"[pod/llm-0/server] {line}",
        "ray": f"(RayWorkerWrapper pid=3, ip=10.0.0.1) {line}",
        "colours": f"\x1b[36m{line}\x1b[0m",
        "wrapped": "\n".join(line[i : i + 40] for i in range(0, len(line), 40)),
        "cut": cut,
    }
    for name, text in texts.items():
        with subtests.test(name):
            assert facts(text)["tp"] == "16", facts(text)
            assert facts(text).get("model", "/m/DeepSeek-R1") == "/m/DeepSeek-R1"
            assert name == "cut" or facts(text)["model"] == "/m/DeepSeek-R1"


def test_each_fact_says_where_it_was_read():
    found = diagnose_text(f"hello\n{COMPOSE}").as_json()["facts"]
    assert found["tp"] == {"value": "16", "where": "input:8"}


# Commands.


def commands(text: str, hints: Hints = Hints()) -> list[str]:
    """List the commands of an answer, but for those that add a missing release."""
    lines = diagnose_text(text, hints).as_text().split("\n")
    found = [line.strip() for line in lines if line.strip().startswith("tuner ")]
    return [line for line in found if not line.startswith("tuner list engines --add ")]


def parse(line: str) -> dict[str, object]:
    """The values that our own parser reads from a command."""
    _, name, *words = shlex.split(line)
    command = GROUP.commands[name]
    return dict(command.make_context(name, words).params)


def test_commands_parse_and_hold_no_placeholder(subtests):
    served = f"{COMPOSE}\n{MISSING}{SGLANG}{H20}\n"
    texts = [*(case.log for case in CASES), *(p.read_text() for p in DATA.glob("*.txt")), served]
    seen = 0
    for text in texts:
        for hints in (Hints(), Hints("vllm", "H200"), Hints("sglang==0.5.16", "", "x/y", 4)):
            with subtests.test(text[:50]):
                for line in commands(text, hints):
                    seen += 1
                    assert not PLACEHOLDER.search(re.sub(r"[\w,]+=\S*", "", line)), line
                    values = parse(line)
                    assert line.split()[1] not in ("tune", "export") or values["device"]
                    assert line.split()[1] not in ("tune", "export") or values["engine"]
    assert seen > 30


def test_a_release_that_is_not_here_is_added_before_the_first_command_for_it(tmp_path, monkeypatch):
    text = f"{COMPOSE}\n{MISSING}{SGLANG}{H20}\n"
    lines = [line.strip() for line in diagnose_text(text).as_text().split("\n")]
    first, *others = [at for at, line in enumerate(lines) if " --engine sglang==" in line]
    assert others
    assert lines[first - 1] == "tuner list engines --add sglang==0.5.4.post2"
    assert lines.count(lines[first - 1]) == 1
    package = tmp_path / "sglang-0.5.4.post2" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "version.py").write_text("__version__ = '0.5.4.post2'")
    monkeypatch.setenv("TUNER_ENGINE_PATH", str(tmp_path))
    assert "engines add" not in diagnose_text(text).as_text()


def test_commands_carry_what_the_text_says():
    tune, export = commands(f"{COMPOSE}\n{MISSING}{SGLANG}{H20}\n")
    assert "--device H20 --engine sglang==0.5.4.post2" in tune and "K=7168,top_k=8" in tune
    assert parse(export)["engine"] == "sglang==0.5.4.post2"
    other, _ = commands(f"{COMPOSE}\n{MISSING}{SGLANG}{H20}\n", Hints("sglang==0.5.16", "H200"))
    assert "--device H200 --engine sglang==0.5.16" in other
    spelled = H20.replace("[128, 128]", "[128,128]")
    served = "vllm serve deepseek-ai/DeepSeek-R1 -tp 16\n"
    tune, _ = commands(
        f"{served}{MISSING.replace(' kernel', '')}{spelled}\n{COLLECT.replace('H100 80GB HBM3', 'H20')}"
    )
    assert "--engine vllm==0.33.0" in tune


# Public reports: (file, hints, some of these words, none of these).
REPORTS = [
    ("moe-vllm-gb10-block64", Hints(), ["--engine vllm"], ["nemotron", "K=2048"]),
    ("moe-vllm-h20-int4", Hints(), ["not tuned by this program"], ["qwen3.5-122b", "glm-5-fp8"]),
    ("oor-sgl-fp8dynamic-4090", Hints("sglang==0.4.6.post1", "4090", "qwen3-30b-a3b-fp8", 2),
     ["tuner tune qwen3-30b-a3b-fp8 --tp 2"], ["FILE"]),
    ("oor-sgl-fp8-sm120", Hints(), ["0.5.14"], ["package triton_kernels", "--mem-fraction-static"]),
    ("script-sgl-qwen38", Hints(), ["tuner tune config.json --tp 8"], ["nstall the Transformers"]),
    ("oor-sgl-mi308", Hints("sglang==0.4.6.post1", "MI300X", "deepseek-r1", 8), ["--family attention"], []),
    ("oor-vllm-turing-gemma4", Hints(), ["Turing"], ["512triton"]),
    ("oor-vllm-lora-mi325", Hints(), ["no LoRA kernels"], ["tuner tune"]),
    ("int4-vllm-wna16-group", Hints(), ["group_size"], ["unknown"]),
    ("mixed-sgl-h800-old", Hints(), ["tuner tune"], ["0.5.23", "--fp8-gemm-backend"]),
    ("moe-sgl-gb10-int8-channel", Hints(), ["E=256,N=1024"], ["a file for the up", "block-int8"]),
    ("checkenv-sgl-a10-fp8", Hints(), ["fp8e4nv"], []),
]  # fmt: skip


def test_public_reports(subtests):
    for name, hints, any_of, never in REPORTS:
        with subtests.test(name):
            text = diagnose_text((DATA / f"{name}.txt").read_text(), hints).as_text()
            assert any(words in text for words in any_of), text
            assert not [words for words in never if words in text], text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("triton.runtime.errors.OutOfResources: out of resource: shared me", "shared_memory_cut"),
        ("shared memory, Required: 163840, Hardware limit: 101376. Reducing", "shared_memory"),
        ("No available node types can fulfill resource request {'node:gpu-1.example': 0.001}", "ray_no_node"),
    ],
)  # fmt: skip
def test_excerpts_that_are_cut_or_rare(text, message):
    (answer,) = diagnose_text(text).answers
    assert answer.finding.message.name == message
    assert answer.finding.count == 1
