"""Start a server, wait until it is ready, and end it with all that it started."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from benchmarks.served.loads import is_ready
from benchmarks.served.server import Server, ServerLaunch
from tuner.errors import BadInput, NotEnoughMemory, ServerUnavailable
from tuner.shell import command_line

_WATCHDOG = "benchmarks.served.watchdog"
_POLL_S = 0.5
_DYING_S = 15.0
_LAST_LINES = 12
_LAST_BYTES = 20_000
# torch's message; sglang's and vLLM's about a pool that has no room.
_NO_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|Not enough memory|No available memory|"
    r"Free memory on device|less than desired GPU memory",
    re.IGNORECASE,
)


class RunningServer:
    """A server of an engine, its log and its watchdog. Use it as a context manager.

    Raises BadInput where its port is taken.
    """

    def __init__(
        self, name: str, server: Server, launch: ServerLaunch, environ: Mapping[str, str], log: Path
    ) -> None:
        refuse_taken(launch.port)
        self.name, self.port, self.log = name, launch.port, log
        self._server = server
        command = [sys.executable, "-m", *server.command(launch)]
        with log.open("wb") as output:
            output.write(f"$ {command_line(*command)}\n".encode())
            output.flush()
            self._watchdog = subprocess.Popen(  # noqa: S603 (our own module)
                [sys.executable, "-m", _WATCHDOG, *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environ,
                # `python -m` looks into the current folder first, and there may be another sglang.
                cwd=log.parent,
                start_new_session=True,  # Ctrl-C is for the parent, which then ends the server
            )

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def wait_until_ready(self, timeout_s: float) -> None:
        """Raises ServerUnavailable or NotEnoughMemory, with the last lines of the server's log."""
        deadline = time.monotonic() + timeout_s
        while not is_ready(self.port, self._server.ready_path, timeout_s):
            try:
                self._watchdog.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                if time.monotonic() < deadline:
                    continue
                raise ServerUnavailable(
                    f"the {self.name} server was not ready within {timeout_s:g} s: give it longer "
                    f"with --start-timeout\n{self.last_lines()}"
                ) from None
            self.refuse_dead()

    def refuse_dying(self) -> None:
        """Like `refuse_dead`, for a server that did not answer: it may be about to end."""
        if not is_ready(self.port, self._server.ready_path, _DYING_S):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._watchdog.wait(_DYING_S)
        self.refuse_dead()

    def refuse_dead(self) -> None:
        """Raises ServerUnavailable or NotEnoughMemory if the server has ended."""
        status = self._watchdog.poll()
        if status is None:
            return
        said = self.last_lines()
        if _NO_MEMORY.search(_tail(self.log)):
            raise NotEnoughMemory(
                f"the {self.name} server found too little GPU memory: use fewer --layers, a larger "
                f"--tp, or smaller --loads\n{said}"
            )
        raise ServerUnavailable(
            f"the {self.name} server ended (exit code {status}); its log is {self.log}\n{said}"
        )

    def last_lines(self) -> str:
        """The end of the server's log."""
        lines = [line for line in _tail(self.log).splitlines() if line.strip()]
        return "\n".join(f"  | {line[:160]}" for line in lines[-_LAST_LINES:])

    def end(self) -> None:
        """End the server and every process that it started; wait until they have ended."""
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.close()
        self._watchdog.wait()


def free_ports(count: int, first: int | None) -> list[int]:
    """Ports for servers: from `first` on, or any that are free. Raises BadInput for taken ones."""
    if first is not None:
        ports = list(range(first, first + count))
        for port in ports:
            refuse_taken(port)
        return ports
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def refuse_taken(port: int) -> None:
    """Raises BadInput if another program listens on a port."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            raise BadInput(
                f"port {port} cannot be used, another program may listen on it: choose other ports "
                "with --port"
            ) from None


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(file.tell() - _LAST_BYTES, 0))
        return file.read().decode(errors="replace")
