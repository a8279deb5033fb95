"""The scripts of benchmarks/ run as their docstrings say, from the root of a checkout."""

import os
import re
import subprocess
import sys

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


# Runs each program in a fork of a process that has imported what most of them import, as Python
# would run it: a file has its folder first on the path, a module the current folder. What a fork
# inherits of torch takes half a second to end, so it ends at once.
RUNNER = """
import os, runpy, sys, torch, traceback, tuner.store.results

def run(words):
    name = words.split()[-1]
    sys.argv = [name, "--help"]
    try:
        if words.startswith("-m"):
            sys.path[0] = os.getcwd()
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(os.path.abspath(name))
            runpy.run_path(name, run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    return 0

for words in sys.argv[1:]:
    if not (child := os.fork()):
        status = 1
        try:
            status = run(words)
        except BaseException:
            traceback.print_exc()
        print(f"{words} ended with {status}", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_scripts_are_found_and_show_their_help(subtests):
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    scripts = sorted(commands() - {TAKES_A_COMMAND})
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, *scripts],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    rest = done.stdout
    for words in scripts:
        with subtests.test(words):
            shown, _, rest = rest.partition(f"{words} ended with ")
            assert rest.startswith("0\n"), done.stderr
            assert "usage: " in shown.lower()
