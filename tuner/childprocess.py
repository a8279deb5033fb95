"""Talk to a child process in JSON lines, as the parent and as the child."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class ChildDied(Exception):
    """The child ended without an answer; the message says how."""


class ChildProcess:
    """`python -m module`, in a new process group, and its pipes.

    The child sends one line when it has started, then answers requests in order.
    """

    def __init__(self, module: str, env: dict[str, str]) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by reap)
        self._buffer = b""
        self.ended = False
        self._process = subprocess.Popen(  # noqa: S603 (our own module)
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=env,
            bufsize=0,
            start_new_session=True,  # a group that can be killed whole and that Ctrl-C spares
        )

    def wait_until_ready(self, timeout_s: float) -> dict[str, Any]:
        """Return the line that the child sends when it has started.

        Raises TimeoutError or ChildDied.
        """
        return self._read(timeout_s)

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Return the answer to a request. Raises TimeoutError or ChildDied; then end the child."""
        self.send(request)
        return self._read(timeout_s)

    def send(self, request: dict[str, Any]) -> None:
        """Write a request without waiting for its answer. Raises ChildDied."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except OSError:
            raise ChildDied(self._last_words()) from None

    def poll(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next answer, or None if there is none within `timeout_s`. Raises ChildDied."""
        try:
            return self._read(timeout_s)
        except TimeoutError:
            return None

    def end(self) -> None:
        """Kill the process and every process that it started. Any thread may call this."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self.ended = True

    def reap(self) -> None:
        """End the process and close its pipes. Only the thread that reads them may call this."""
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
            left = max(deadline - time.monotonic(), 0.0)
            if not select.select([pipe], [], [], left)[0]:
                raise TimeoutError(f"no answer in {timeout_s:g} s")
            data = os.read(pipe.fileno(), 1 << 16)
            if not data:
                raise ChildDied(self._last_words())
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        # Until the process is reaped, no other group can have its id.
        if self._process.returncode is None:
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        self.end()
        code = self._process.wait()
        end = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return f"the process ended ({end})" + (f": {said[-1][:300]}" if said else "")


class ParentPipes:
    """The child's side: receives JSON requests, a request a line, and sends the answers.

    When stdin closes, this process is killed with its whole group, at any point of its work: a
    killed parent leaves neither a compiler nor a hung kernel behind. If this process is stopped
    then, the kernel has it go on, so that it sees the end.
    """

    def __init__(self) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0)
        # Libraries print to stdout, so answers get a pipe that nothing else writes to.
        self._answers = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)
        self._requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def receive(self) -> dict[str, Any]:
        """Wait for the next request."""
        request: dict[str, Any] = json.loads(self._requests.get())
        return request

    def send(self, answer: Mapping[str, Any]) -> None:
        self._answers.write(json.dumps(answer).encode() + b"\n")
        self._answers.flush()

    def _read(self) -> None:
        for line in sys.stdin.buffer:
            self._requests.put(line)
        os.killpg(0, signal.SIGKILL)  # `ChildProcess` made this process the leader of its group


def run_as_child(main: Callable[[], None]) -> None:
    """Run the function that is the whole work of a child process.

    If it fails, the last line of stderr has the reason, which the parent reads. A normal exit would
    add to stderr, because the interpreter aborts while a thread still reads stdin.
    """
    try:
        main()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
