"""The scripts of benchmarks/ run as their docstrings say, from the root of a checkout."""

import os
import re
import subprocess
import sys

import pytest
from benchmark_scripts import BENCHMARKS

ROOT = BENCHMARKS.parent
COMMAND = re.compile(r"python ((?:-m benchmarks\.[\w.]+)|(?:benchmarks/[\w/]+\.py))")
TAKES_A_COMMAND = "-m benchmarks.served.watchdog"  # whose words are all another program's
DUMMIES = ("served.sglang_dummy", "served.vllm_dummy")
# Other scripts start these.
STARTED = {
    "benchmarks.chaos_liar",
    "benchmarks.served.sglang_dummy",
    "benchmarks.served.vllm_dummy",
}


def commands() -> set[str]:
    """Return how docstrings say that scripts are run."""
    first = (path.read_text().split('"""')[1:2] for path in BENCHMARKS.rglob("*.py"))
    return {words for texts in first for text in texts for words in COMMAND.findall(text)}


def test_each_script_says_how_it_is_run():
    main = 'if __name__ == "__main__":\n'
    paths = [path for path in BENCHMARKS.rglob("*.py") if main in path.read_text()]
    said = {words.split()[-1].replace("/", ".").removesuffix(".py") for words in commands()}
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths}
    assert {name.removesuffix(".__main__") for name in names} - STARTED == said


@pytest.mark.parametrize("words", sorted(commands() - {TAKES_A_COMMAND}))
def test_a_script_is_found_and_shows_its_help(words):
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, *words.split(), "--help"],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "usage: " in done.stdout.lower()
