"""One compile process, as its parent sees it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tuner.errors import CompilerUnavailable

START_LIMIT_S = 120.0  # for a worker to import triton, on a machine busy with other workers
# Of Triton's own settings only those that say where ptxas lies reach a worker: the others
# would change what is compiled (TRITON_INTERPRET, TRITON_DEBUG ...) behind the cache's back.
KEPT_SETTINGS = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")


class WorkerDied(Exception):
    """The worker ended without an answer; says how."""


class WorkerProcess:
    """One compile process in a group of its own, and its pipes."""

    def __init__(self, env: dict[str, str]) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by reap)
        self._buffer = b""
        self.ended = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tuner.compile.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=env,
            bufsize=0,
            start_new_session=True,  # a group to kill with its ptxas, out of Ctrl-C's reach
        )

    def wait_until_ready(self) -> None:
        try:
            self._read(START_LIMIT_S)
        except (WorkerDied, TimeoutError) as error:
            self.reap()
            raise CompilerUnavailable(f"a compile process did not start: {error}") from None

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Raises TimeoutError or WorkerDied; the worker is of no use after either."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except OSError:
            raise WorkerDied(self._last_words()) from None
        return self._read(timeout_s)

    def end(self) -> None:
        """Kill the process and all it started. Any thread may call it."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self.ended = True

    def reap(self) -> None:
        """End it and leave nothing behind. Only the thread that reads its pipes may."""
        self.end()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._stderr):
            if pipe is not None:
                pipe.close()

    def _read(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        pipe = self._process.stdout
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                raise TimeoutError(f"no answer in {timeout_s:g} s")
            data = os.read(pipe.fileno(), 1 << 16)
            if not data:
                raise WorkerDied(self._last_words())
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        # Seen dead but not yet reaped, its group is still its own to kill.
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        self.end()
        code = self._process.wait()
        end = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return f"the compile process ended ({end})" + (f": {said[-1][:300]}" if said else "")


def installed_triton() -> str:
    """The version of the triton that a worker would import; imports nothing.

    Raises CompilerUnavailable without one.
    """
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        raise CompilerUnavailable("triton is not installed: pip install 'engine-tuner[compile]'")
    found = re.search(r"__version__ = ['\"]([^'\"]+)", Path(spec.origin).read_text())
    if found is None:
        raise CompilerUnavailable(f"{spec.origin} does not say which triton it is")
    return found[1]


def worker_env(folder: Path) -> dict[str, str]:
    dropped = ("TRITON_", "MLIR_", "LLVM_")
    env = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT_SETTINGS or not name.startswith(dropped)
    }
    # The user's own Triton cache is neither read nor filled. Of each kernel only the machine
    # code is kept, so that a launch from the same folder need not compile again.
    return env | {
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TRITON_STORE_BINARY_ONLY": "1",
        "PYTHONSAFEPATH": "1",  # a folder named triton where the user stands is not triton
    }
