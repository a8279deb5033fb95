"""Runs a server for as long as its parent lives; `python -m benchmarks.served.watchdog COMMAND`.

Its standard input is a pipe that the parent holds open. However the parent ends, the kernel closes
the pipe, and the watchdog ends the server with every process that it started, in whatever process
group or session they are. If the watchdog itself is killed, the kernel kills the server. It needs
Linux.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_GRACE_S = 10.0  # for a server to end by itself


def main(command: Sequence[str]) -> int:
    """Run the command until it ends or standard input does. Returns its exit status."""
    # Processes whose parent has ended become this process's children, so none is lost.
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    server = subprocess.Popen(  # noqa: S603 (the parent's command)
        command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_die_with_parent
    )
    ended = os.pidfd_open(server.pid)
    if sys.stdin.fileno() in select.select([sys.stdin, ended], [], [])[0]:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        select.select([ended], [], [], _GRACE_S)
    status = server.poll()
    _end_descendants()
    return status if status is not None and status >= 0 else 1


def _end_descendants() -> None:
    while pids := _descendants(os.getpid()):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)


def _descendants(root: int) -> list[int]:
    """The processes below one, as /proc shows them."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            # The name of a program may hold spaces and brackets.
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found = list(children.get(root, ()))
    for pid in found:  # grows while it is read
        found += children.get(pid, ())
    return found


def _die_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
