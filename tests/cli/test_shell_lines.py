"""What commands print to be pasted, read by a real shell in a folder with blanks and a quote.

A line to paste begins with a command, or has it behind a colon. In a sentence, a command stands
between backticks.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from attention_cases import EXTEND
from attention_cases import fill as fill_attention
from bundle_cases import CAPTURES, CASES, EXAMPLES, build, example, files_of, fill
from checkpoints import config_json
from commands import tuner

from api.keys import KeyPolicy
from api.serve import _greeting
from tuner.cli.remedy import write_remedy
from tuner.diagnose.explanation import filled
from tuner.errors import BadInput
from tuner.jobs.client import api_key
from tuner.shell import command_line, export_line, unset_line
from tuner.store.results import ResultStore

L40S, H20, _ = CASES
ENGINE = ("--engine", "sglang==0.5.16")
PROGRAMS = ("tuner", "curl", "chmod", "patch", "docker", "python3", "kubectl")
_WORDS = "|".join(("export", "unset", *PROGRAMS))
_LINE = re.compile(rf"^\s*(?:[^`\n]*: )?((?:{_WORDS}) .*)$", re.MULTILINE)
_WITHIN = re.compile(rf"`((?:{_WORDS}) [^`]*)`")
_STAND_IN = """#!/bin/bash
printf '%s\\0' "${0##*/}" "$@" >> "$SAID"
echo >> "$SAID"
"""


@dataclass
class Shell:
    """A bash in whose PATH the programs write down their arguments."""

    folder: Path

    def lines(self, text: str) -> list[str]:
        return [*_LINE.findall(text), *_WITHIN.findall(text)]

    def paste(self, lines: Sequence[str]) -> tuple[list[list[str]], dict[str, str]]:
        """The commands that lines run, word by word, and the variables after them."""
        assert lines
        said, after = self.folder / "said", self.folder / "after"
        said.write_text("")
        env = {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "SAID": str(said)}
        script = "\n".join([*lines, f"env -0 > '{after.name}'"])
        done = subprocess.run(
            ["bash", "-eu", "-c", script], env=env, cwd=self.folder, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, ""), script
        words = [line.split("\0")[:-1] for line in said.read_text().splitlines()]
        variables = after.read_text().split("\0")[:-1]
        return words, dict(one.split("=", 1) for one in variables)

    def read(self, text: str) -> list[list[str]]:
        """The commands in what was printed."""
        return self.paste(self.lines(text))[0]


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """The shell, in the folder in which the commands run; their store is empty."""
    folder = tmp_path / "it's my folder"
    (folder / "bin").mkdir(parents=True)
    for name in PROGRAMS:
        (folder / "bin" / name).write_text(_STAND_IN)
        (folder / "bin" / name).chmod(0o755)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TUNER_DATABASE_URL", f"sqlite:///{folder}/tuner.db")
    return Shell(folder)


WORDS = [
    *("plain", "", "two words", "it's", 'a "b"', "$HOME", "`id`", "a;b", "a&&b", "*", "~", "(x)"),
    *("--flag=a b", "#no", "back\\slash", "!x", "é", "fused_moe:E=8,block_shape=128x128", "[1, 2]"),
]


def test_every_word_arrives(shell):
    assert shell.read(command_line("tuner", *WORDS)) == [["tuner", *WORDS]]
    lines = [export_line(f"VALUE_{at}", word) for at, word in enumerate(WORDS)]
    values = {f"VALUE_{at}": word for at, word in enumerate(WORDS)}
    assert values.items() <= shell.paste(lines)[1].items()
    assert not values.keys() & shell.paste([*lines, unset_line(values)])[1].keys()


def test_what_a_log_says_is_one_word_of_a_command(shell):
    said = {"path": "/m/x; rm -rf ~", "model": "$(id)"}
    steps = ["It is {path}.", "$ tuner check {path}", "$ tuner plan {model}", "$ tuner {absent}"]
    told, *commands = filled(steps, said)
    assert told == "It is /m/x; rm -rf ~."
    found = shell.paste([command.removeprefix("$ ") for command in commands])[0]
    assert found == [["tuner", "check", said["path"]], ["tuner", "plan", said["model"]]]


def test_the_variables_of_an_export_arrive_and_go(shell):
    with ResultStore.open(os.environ["TUNER_DATABASE_URL"]) as store:
        fill(store, L40S)
        fill_attention(store, EXTEND, device="NVIDIA_L40S")
    options = ("--allow-predicted", *ENGINE, "--server-args", "--attention-backend triton")
    said = tuner("export", "--device", "L40S", *options, "--out", "out").stdout
    *exports, back = shell.lines(said)
    names = {"SGLANG_MOE_CONFIG_DIR", "TUNER_ATTENTION_CONFIG_DIR"}
    folder = str(shell.folder / "out")
    variables = shell.paste(exports)[1]
    assert {name: variables[name] for name in names} == dict.fromkeys(names, folder)
    assert not names & shell.paste([*exports, back])[1].keys()


def test_a_preflight_in_a_pipe_exports_every_variable(shell):
    shutil.copytree(CAPTURES / "h20-node01", "node")
    for path in Path("node").iterdir():  # names as long as those of predictable interfaces
        path.write_text(path.read_text().replace("mlx5_", "mlx5_bond_"))
    done = tuner("preflight", "--node=n=node", "--json")
    (node,) = json.loads(done.stdout)["nodes"]
    assert len(node["environment"]["NCCL_IB_HCA"]) > 80
    exports = [
        line
        for line in tuner("preflight", "--node=n=node").stdout.splitlines()
        if re.match(r" *export\b", line)
    ]
    variables = shell.paste(exports)[1]
    assert node["environment"].items() <= variables.items()


def test_a_plan_names_the_model_that_was_given(shell):
    Path("my model").mkdir()
    Path("my model/config.json").write_bytes(config_json(torch_dtype="bfloat16"))
    words = ["my model/config.json", "--device", "L40S", "--tp", "2", *ENGINE]
    words += ["--server-args", "--moe-runner-backend triton"]
    (line,) = shell.read(tuner("plan", *words).stderr)
    assert (line[:3], line[-1]) == (["tuner", "tune", "my model/config.json"], "--all")
    assert sorted(line[3:-1]) == sorted(words[1:])


SERVER = (
    "[2026-11-01 10:00:00] server_args=ServerArgs(model_path='/m/DeepSeek-R1', tp_size=32, "
    "quantization='w8a8_int8', attention_backend='triton', disable_shared_experts_fusion=True)\n"
    "[2026-11-01 10:00:01 TP0] Using default MoE kernel config. Performance might be sub-optimal! "
    "Config file not found at /opt/my files/configs/triton_3_6_0/E=256,N=64,"
    "device_name=NVIDIA_L40S,dtype=int8_w8a8,per_channel_quant=True.json, you can create them\n"
)


def test_a_log_is_given_on_by_its_name(shell):
    Path("server's log").write_text(SERVER)
    proof = shell.read(tuner("load-proof", "server's log", code=1).stdout)
    assert [line[:3] for line in proof] == [
        ["tuner", "tune", "server's log"],
        ["tuner", "export", "--device"],
    ]
    found = shell.read(tuner("diagnose", "server's log", *ENGINE).stdout)
    assert [line[:2] for line in found] == [["tuner", "tune"], ["tuner", "export"]]
    for line in (*proof, *found):
        assert line[-2] == "--server-args"
        assert line[-1] == "--quantization w8a8_int8 --attention-backend triton"
    Path("my notes").write_text("nothing is missing\n")
    said = tuner("tune", "my notes", "--device", "L40S", *ENGINE, code=2).stderr
    assert shell.read(said) == [["tuner", "diagnose", "my notes"]]


def test_errors_name_files_as_they_are_called(shell):
    cluster = "l40s' cluster.toml"
    shutil.copy(EXAMPLES / f"{L40S}.toml", cluster)
    bundle = ("bundle", "--device", "L40S", "--cluster", cluster)
    tune = ["tuner", "tune", "--cluster", cluster, "--device", "NVIDIA_L40S"]
    assert shell.read(tuner(*bundle, code=1).stderr) == [tune]
    with ResultStore.open(os.environ["TUNER_DATABASE_URL"]) as store:
        fill_attention(store, EXTEND, device="NVIDIA_L40S")
    (missing,) = shell.read(tuner(*bundle, code=1).stderr)
    assert missing[:3] == ["tuner", "tune", CASES[L40S][1]]
    folder = str(shell.folder)
    said = tuner("load-proof", folder, code=2).stderr
    assert shell.read(said) == [["tuner", "load-proof", folder, "LOG..."]]
    said = tuner("export", "--device", "A100", *ENGINE, code=1).stderr
    assert shell.read(said)[0][:4] == ["tuner", "tune", "MODEL", "--device"]

    key = shell.folder / "key"
    key.write_text("x")
    key.chmod(0o644)
    shell.folder.chmod(0o755)
    with pytest.raises(BadInput) as open_key:
        api_key({"TUNER_API_KEY_FILE": str(key)})
    assert shell.read(str(open_key.value)) == [["chmod", "600", str(key)]]


def test_a_patch_is_applied_from_any_folder(shell, capsys):
    remedy = SimpleNamespace(patch=lambda: "--- a\n", root=shell.folder / "site packages")
    write_remedy(remedy, Path("my.patch"))
    where = ["-d", str(remedy.root), "-i", str(shell.folder / "my.patch")]
    assert shell.read(capsys.readouterr().err) == [["patch", "-p1", *where]]


def test_a_service_is_asked_with_the_key_of_its_file(shell):
    key = shell.folder / "key"
    key.write_text("tuner_secret\n")
    text = "\n".join(_greeting("http://[::1]:8000", (), KeyPolicy("", key), False, None))
    *lines, _ = shell.lines(text)  # the last sentence has a host to fill in
    commands, variables = shell.paste(lines)
    bearer = ["--oauth2-bearer", "tuner_secret"]
    assert commands[:2] == [["curl", *bearer, "http://[::1]:8000/v1/jobs"], ["tuner", "jobs"]]
    assert variables["TUNER_SERVER"] == "http://[::1]:8000"


def test_the_readme_of_a_bundle_can_be_pasted(shell):
    whole = example(H20)
    image, path = "my registry/sglang:v0.5.16", "/models/it's DeepSeek-R1"
    cluster = replace(
        whole,
        engine=replace(whole.engine, image=image, version="0.5.16"),
        model=replace(whole.model, path=path),
    )
    text = files_of(build(H20, cluster))["README.md"].data.decode()
    blocks = "".join(re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    commands = shell.read(blocks.replace("BEFORE", "before"))
    first = ["python3", "preflight.py", "--capture", "captures/h20-node01"]
    configs = ["--config-dir", "engine-configs"]
    assert commands[0] == [*first, *configs, "--image", image]
    assert commands[2][:4] == ["python3", "preflight.py", "--cluster", "cluster.json"]
    assert ["docker", "logs", "h20-2x8-sglang-h20-node01"] in commands
    logs = ["h20-node01.log", "h20-node02.log"]
    assert ["tuner", "load-proof", "h20-2x8-sglang-NVIDIA_H20.tar.gz", *logs] in commands
