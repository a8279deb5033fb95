"""Every command of a base installation: one that needs an extra names it, and none falls over."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.cli.help import EXAMPLES

# As `tuner` starts where no extra is installed: a process in which those cannot be found.
PROGRAM = """
import json, os, sys
from importlib.machinery import PathFinder

sys.prefix = os.getcwd()  # `tuner list engines --remove` would remove an engine of these tests
EXTRAS = set(sys.argv[2:])
find_spec = PathFinder.find_spec
PathFinder.find_spec = classmethod(
    lambda cls, name, *more: None if name in EXTRAS else find_spec(name, *more)
)
from typer.testing import CliRunner
from tuner.cli.commands import app

said = {}
for line in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, line.split())
    fell = done.exception is not None and not isinstance(done.exception, SystemExit)
    said[line] = [done.exit_code, f"{done.output}{done.exception!r}" if fell else done.output, fell]
print(json.dumps(said))
"""
EXTRAS = (
    *("celery", "fastapi", "jinja2", "kombu", "limits", "opentelemetry"),
    *("prometheus_client", "psycopg", "pynvml", "torch", "triton", "uvicorn"),
)
LONG = ("docker", "tuner preflight")  # a pipe; it looks at this machine
MORE = (
    *("nightly watches", "nightly watches add deepseek-r1 --device H200 --tp 8"),
    *("nightly watches", "nightly watches remove 1", "jobs", "nightly run --dry-run"),
    *("nightly coverage", "nightly coverage --watched", "nightly run --list", "nightly run"),
)


def run_each(lines: list[str], folder: Path, **environ: str) -> dict[str, tuple[int, str, bool]]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(lines), *EXTRAS],
        env={
            "PATH": "",
            "HOME": str(folder),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "TUNER_DATABASE_URL": f"sqlite:///{folder}/t.db",
            "TUNER_ENGINE_PATH": "",
            "PIP_NO_INDEX": "1",
            **environ,
        },
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow  # each command: the next test has the ones that once fell over
def test_no_command_needs_an_extra_without_saying_so(tmp_path, subtests):
    examples = [line for some in EXAMPLES.values() for line in some if not line.startswith(LONG)]
    lines = [line.removeprefix("tuner ") for line in examples if "engines --add" not in line]
    for line, (code, output, fell) in run_each([*MORE, *lines], tmp_path).items():
        with subtests.test(line):
            assert not fell, output
            assert code in (0, 1, 2)


def test_the_store_of_a_base_installation_is_read_and_watched(tmp_path):
    said = run_each(list(MORE), tmp_path)
    assert {line: code for line, (code, *_) in said.items() if code} == {}, said


def test_a_worker_without_celery_names_the_extra(tmp_path):
    needs = "celery and prometheus_client: pip install 'engine-tuner[service]'"
    lines = ["worker", "nightly run"]
    said = run_each(lines, tmp_path, TUNER_BROKER_URL="redis://localhost:1/0")
    for code, output, fell in said.values():
        assert (code, fell) == (2, False), output
        assert needs in output
