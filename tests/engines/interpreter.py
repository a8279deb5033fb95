"""Runs programs whose kernels Triton's interpreter runs on the CPU, such as `interpret_*.py`."""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from subprocess import PIPE, CompletedProcess, Popen
from typing import Any

# Kernels are small: threads would only wait for each other.
INTERPRET = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}


def interpreted(program: str, *words: object, given: str = "") -> Any:
    """Return what a program beside this one writes as its last line, which is JSON."""
    done = run_interpreted(Path(__file__).with_name(program), *words, given=given)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def run_interpreted(
    program: Path, *words: object, environ: Mapping[str, str] | None = None, given: str = ""
) -> CompletedProcess[str]:
    """Run a program as a process. `environ`: its variables; None: those of this process."""
    environ = {**(os.environ if environ is None else environ), **INTERPRET}
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder, name) for name in ("in", "out", "err")]
        streams[0].write_text(given)
        arguments = [str(word) for word in words]
        job = {"program": str(program), "words": arguments, "environ": environ, "folder": folder}
        status = _run_in_fork(json.dumps(job))
        return CompletedProcess(arguments, status, streams[1].read_text(), streams[2].read_text())


def _run_in_fork(job: str) -> int:
    forks = _forks()
    assert forks.stdin and forks.stdout
    try:
        forks.stdin.write(job + "\n")
        forks.stdin.flush()
        return int(forks.stdout.readline())
    except BaseException:  # such as the test's time limit: the answer would be taken for the next
        os.killpg(forks.pid, signal.SIGKILL)
        _forks.cache_clear()
        raise


@cache
def _forks() -> Popen[str]:
    """The process whose forks run the programs of this one. It ends when this process ends."""
    program = Path(__file__).with_name("interpreter_forks.py")
    environ = {**os.environ, **INTERPRET}
    forks = Popen(
        [sys.executable, program],
        env=environ,
        stdin=PIPE,
        stdout=PIPE,
        text=True,
        start_new_session=True,
    )
    atexit.register(forks.communicate)
    return forks
