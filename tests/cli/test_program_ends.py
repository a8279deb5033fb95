"""How the `tuner` program ends when its output cannot be written, or at Ctrl-C as it starts."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

TUNER = Path(sys.executable).with_name("tuner")


@pytest.mark.parametrize("words", ["list models", "list devices --json", "list models --help"])
def test_a_full_disk_behind_standard_output_is_one_line(env, words):
    done = subprocess.run(
        ["bash", "-c", f'"{TUNER}" {words} > /dev/full'], env=env, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (
        2,
        "tuner: error: standard output cannot be written: No space left on device\n",
    )


@pytest.mark.parametrize("line", ["list models >&-", "list models | head -1", "list models | true"])
def test_a_reader_that_has_gone_is_no_error(env, line):
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f'"{TUNER}" {line}'], env=env, capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_interrupt_while_modules_are_imported_ends_quietly(env, tmp_path):
    """The signal is sent as typer, the first package from elsewhere, is imported."""
    (tmp_path / "typer.py").write_text(
        f"import os\nos.kill(os.getpid(), {int(signal.SIGINT)})\nraise SystemExit('not stopped')\n"
    )
    done = subprocess.run(
        [TUNER, "list", "models"],
        env={**env, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (130, "tuner: interrupted\n")
