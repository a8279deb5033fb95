"""The README and the pages Start, Tune and Load: their commands run, and print the shown lines."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import FP8_RECORDING, RECORDINGS
from checkpoints import config_json
from commands import run
from real_sglang import RealSGLang

from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.problems.dtypes import Dtype
from tuner.render import gain_text
from tuner.tuning.gains import mean_gain

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *(ROOT / "docs" / name for name in ("start.md", "tune.md", "load.md"))]
SHELF = ROOT / "tuner" / "shelf"
SHOWN = re.compile(r"^```\n(\$ tuner .*?)^```", re.M | re.S)
PLACEHOLDERS = re.compile(r"\b(MODEL|PROBLEM|GPU|HOST|FOLDER|FILE|LOG|DIR|OLD|NEW|ID|VERSION|N)\b")

# DeepSeek-V3.2's fused-MoE layer at TP 8, of which the recording is.
LAYER = FusedMoe(256, 256, 7168, 8, Dtype.FP8_W8A8, (128, 128))
TENSORS = {"num_bits": 8, "type": "int", "symmetric": True}
INT8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "ignore": ["lm_head", "re:.*mlp.gate$"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {**TENSORS, "strategy": "channel", "dynamic": False},
            "input_activations": {**TENSORS, "strategy": "token", "dynamic": True},
        }
    },
}


@pytest.fixture
def env(env: dict[str, str]) -> dict[str, str]:
    """Return a user's variables: with this program's own shelf, on a terminal of 80 columns."""
    return {**env, "TUNER_SHELF": str(SHELF), "COLUMNS": "80"}


def test_the_readme_is_short_and_narrow():
    lines = README.read_text().splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 110] == []


@pytest.mark.parametrize("checked", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_readme_shows_what_its_commands_print(env, tmp_path, checked):
    """`check` compiles 36 entries: at night."""
    for words, shown in shown_commands(README):
        if words[:1] == ["check"] and not checked:
            continue
        if words[:1] == ["load-proof"]:
            (tmp_path / "server.log").write_text(server_log(tmp_path / "tuned"))
        if words[:1] == ["tune"]:
            words += ["--measure", f"replay:{FP8_RECORDING}"]
        assert_shown(shown, run(*words, env=env, cwd=tmp_path, code=0), tmp_path)


def test_the_pages_show_what_their_commands_print(env, tmp_path):
    for name in ("before", "after"):
        log = f"l40s-32gpu-{name}-decode.log"
        (tmp_path / f"{name}-decode.log").write_bytes(
            (ROOT / "tests/data/cluster/bench" / log).read_bytes()
        )
    seen = 0
    for page in PAGES[1:]:
        for words, shown in shown_commands(page):
            if words[:1] == ["tune"]:
                recording = RECORDINGS / "h100_E128_N768_K2048_top8_bfloat16.csv.gz"
                words += ["--measure", f"replay:{recording}"]
            done = run(*words, env=env, cwd=tmp_path, code=0)
            assert_shown(shown, done, tmp_path)
            seen += 1
    assert seen == 2


# Without a GPU, a network, a server or a file of a user's these run as they stand.
RUN_HERE = [
    *("plan ", "tune --help-family", "export ", "diagnose ", "results list", "jobs submit"),
    *("nightly ", "--version"),
]


def test_each_command_runs_that_needs_nothing_else(env, tmp_path, subtests):
    for name, quantization in (("my-model", None), ("my-int8", INT8)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_bytes(config_json(quantization))
    log = ROOT / "tests/data/l40s-missing-config.log"
    (tmp_path / "server.log").write_bytes(log.read_bytes())
    commands = dict.fromkeys(words for page in PAGES for words in page_commands(page))
    ran = 0
    for words in commands:
        text = shlex.join(words)
        if not text.startswith(tuple(RUN_HERE)) or PLACEHOLDERS.search(text):
            continue
        if words[:2] == ("export", "deepseek-v3.2"):
            continue  # what was tuned by the tests above
        with subtests.test(text):
            run(*words, env=env, cwd=tmp_path, code=0)
        ran += 1
    assert ran >= 13


@pytest.mark.slow  # it predicts 36 points
def test_the_demo_runs(env, tmp_path):
    (lines,) = re.findall(r"^demo:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    commands = [
        shlex.split(line.removeprefix("$(BIN)/tuner "))
        for line in lines.replace("\\\n", "").replace("\t", "").splitlines()
        if line.startswith("$(BIN)/tuner ")
    ]
    assert [words[0] for words in commands] == ["tune", "export", "check"]
    done = [run(*words, env=env, cwd=tmp_path, code=0) for words in commands]
    assert "predicted" in done[0].stdout and "all can run" in done[2].stdout


@pytest.mark.parametrize(
    "quick", [True, pytest.param(False, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_int8_experts_are_exported_with_the_flag_of_the_readme(env, tmp_path, few_kernels, quick):
    """At night all 18 sizes are predicted, and the gain is the README's."""
    text = README.read_text()
    (tmp_path / "my-int8").mkdir()
    (tmp_path / "my-int8" / "config.json").write_bytes(config_json(INT8))
    words = ["./my-int8", "--tp", "4", "--device", "L40S"]
    assert f"`tuner tune {shlex.join(words)}`" in text
    less = ["--effort", "quick", "--batch-sizes", "1"] if quick else []
    done = run("tune", *words, "--measure", "predict", *less, env=env, cwd=tmp_path, code=0)
    (gain,) = re.findall(r"^(\S+x) as fast", done.stdout, re.M)
    assert quick or f"MoE layer {gain} at Qwen3-30B-A3B's sizes (predicted)" in text
    done = run("export", *words, "--allow-predicted", env=env, cwd=tmp_path, code=0)
    (flag,) = re.findall("^start servers with: (.*)$", done.stdout, re.M)
    assert f"start servers with `{flag}`" in text


def test_the_gains_of_the_readme_are_those_of_the_shelf():
    text = README.read_text()
    lines = (ROOT / "configs_out/index.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    h100 = [row for row in rows if "H100" in row["card"] and row["engine"] == "sglang==0.5.16"]
    assert f"[{len(h100)} layers](configs_out/index.jsonl)" in text
    for shipped in (False, True):
        gains = [row["gain"] for row in h100 if bool(row["gain_over_shipped"]) is shipped]
        span = f"{gain_text(min(gains))} to {gain_text(max(gains))}"
        assert f"MoE layer {span}, mean {gain_text(mean_gain(gains))}" in text

    def gain(model: str, card: str, engine: str) -> str:
        (row,) = (
            row
            for row in rows
            if model in row["models"] and card in row["card"] and row["engine"] == engine
        )
        return gain_text(row["gain"])

    sglang, vllm = "sglang==0.5.23", "vllm==0.33.0"
    assert f"MoE layer {gain('deepseek-r1 tp 8', 'H200', sglang)} over sglang's file" in text
    v32 = gain("deepseek-v3.2 tp 8", "H200", sglang)
    assert f"DeepSeek-V3.2 | MoE layer {v32} over sglang's file (measured)" in text
    large = gain("qwen3.5-397b-a17b-fp8 tp 8", "H100", vllm)
    small = gain("qwen3.5-35b-a3b tp 8", "H100", vllm)
    assert f"397B-A17B-FP8 {large}, of 35B-A3B {small} at TP 8 (measured)" in text


def server_log(folder: Path) -> str:
    """Return the log of a server of eight ranks that loads its files from `folder`, in the words
    of sglang 0.5.16's own loader.
    """
    loader = RealSGLang("0.5.16")
    said = [
        line for gemm in Gemm for line in loader.said(LAYER, "NVIDIA_H200", gemm, "3.6.0", folder)
    ]
    start = "[2026-11-28 10:00:00"
    return "".join(
        [
            f"{start}] server_args=ServerArgs(model_path='/models/DeepSeek-V3.2', tp_size=8)\n",
            *(f"{start} TP{rank}] {line}\n" for rank in range(8) for line in said),
            f"{start}] The server is fired up and ready to roll!\n",
        ]
    )


def shown_commands(page: Path) -> Iterator[tuple[list[str], list[str]]]:
    """Yield each command that a page shows with its output, and the lines of the output."""
    for block in SHOWN.findall(page.read_text()):
        for part in block.split("$ tuner ")[1:]:
            words, *shown = part.splitlines()
            yield shlex.split(words, comments=True), [line for line in shown if line]


def assert_shown(shown: list[str], done, folder: Path) -> None:
    """Assert that a command printed these lines in this order; "..." stands for further lines."""
    said = iter(done.stdout.replace(str(folder), "/srv").splitlines())
    missing = [line for line in shown if line != "..." and line not in said]
    assert not missing, done.stdout


def page_commands(page: Path) -> Iterator[tuple[str, ...]]:
    """Yield the words of each `tuner` command that a page has, in a block or in a sentence."""
    text = page.read_text()
    blocks = re.findall(r"^(?:    |\$ |)tuner (.+)$", text, re.M)
    for line in [
        *blocks,
        *re.findall(r"`tuner ([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.S)),
    ]:
        with contextlib.suppress(ValueError):  # a sentence that begins with the word
            words = shlex.split(line.replace("\n", " "), comments=True)
            if words[0].lower() == words[0] and not words[0].endswith(":"):  # a log's line
                yield tuple(words)
