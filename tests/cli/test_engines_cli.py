"""`tuner list engines`: what it prints, and how it refuses."""

import json
import os
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from commands import run
from package_index import ENGINE_FILES, serving


@pytest.fixture(scope="module")
def index():
    with serving() as found:
        refused = b"import torch, triton\n@triton.jit\ndef second(x):\n    return torch.e\n"
        files = {**ENGINE_FILES, f"vllm/{'long/' * 20}torch_ops.py": refused}
        found.add("vllm", "1.2.0", files, ("triton==9.1.0",))
        found.add("triton", "9.1.0", {"triton/__init__.py": b""})
        yield found


@pytest.fixture(scope="module")
def env(index, tmp_path_factory):
    """A user who cannot write to Python's prefix, so engines lie in the user's data folder."""
    home = tmp_path_factory.mktemp("home")
    (home / "none").write_text("not a folder")
    places = {"XDG_DATA_HOME": str(home / "data"), "TUNER_ENGINE_PATH": "", "COLUMNS": "80"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "prefix", str(home / "none"))
        yield {**os.environ, **index.environ(), **places}


def tuner(env: dict[str, str], *args: str) -> CompletedProcess[str]:
    return run("list", "engines", *args, env=env)


@pytest.fixture(scope="module")
def added(env):
    done = tuner(env, "--add", "vllm==1.2.0", "--json")
    assert done.returncode == 0, done.stderr
    assert "Triton" in done.stderr
    return Path(json.loads(done.stdout)["path"])


def test_what_was_added_is_listed_with_its_triton(env, added):
    done = tuner(env)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["vllm", "1.2.0", "added", "9.1.0", "yes"] in [row[:5] for row in rows]
    listed = json.loads(tuner(env, "--json").stdout)
    (ours,) = (one for one in listed if one["name"] == "vllm")
    assert (ours["path"], ours["triton"], ours["triton_here"]) == (str(added), "9.1.0", True)


BAD_INPUT = [
    ("--add vlm==1.2.0", "unknown engine 'vlm'; did you mean 'vllm'?"),
    ("--add vllm", "the package index has no vllm==0.33.0; its newest are 1.2.0"),
    ("--add vllm==", "names no version"),
    ("--add vllm==1.2.1", "no vllm==1.2.1; did you mean '1.2.0'?"),
    ("--add vllm==--help", "'--help' is not a version"),
    ("--add sglang==1.0", "no wheel of sglang==1.0"),
    ("--remove vllm==1.1.0", "did you mean '1.2.0'?"),
]


def test_bad_input_is_one_line_with_the_next_step(env, added, subtests):
    for words, named in BAD_INPUT:
        with subtests.test(words):
            done = tuner(env, *words.split())
            assert (done.returncode, done.stdout) == (2, "")
            assert named in done.stderr.splitlines()[-1]


def test_without_a_network_adding_fails_and_says_what_to_do(env, added):
    with serving() as gone:
        unreachable = {**env, "PIP_INDEX_URL": f"{gone.url}/simple", "PIP_RETRIES": "1"}
    done = tuner(unreachable, "--add", "vllm==1.0.0")
    assert done.returncode == 1
    assert "the package index cannot be reached" in done.stderr.splitlines()[-1]
    assert "pip config list" in done.stderr.splitlines()[-1]
    assert not [one for one in added.parent.iterdir() if one.name.startswith("vllm-1.0")]


def test_remove_names_the_triton_that_nobody_pins_any_more(env, added):
    done = tuner(env, "--remove", "vllm==1.2.0", "--json")
    assert json.loads(done.stdout) == {"path": str(added)}
    assert not added.exists()
    assert "`tuner list engines --remove triton==9.1.0` removes it" in done.stderr
    assert tuner(env, "--remove", "triton==9.1.0").returncode == 0
    assert "no engine is here" in tuner(env).stderr
