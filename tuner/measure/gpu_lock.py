"""Let one process measure on a GPU: a lock by the GPU's UUID, which ends with the process.

Two processes that measure at once slow each other down, and wrong times become winners.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from tuner.errors import GpuInUse

VARIABLE = "TUNER_GPU_LOCK_DIR"
# For all users. It is not the folder for temporary files, which a variable may move for one of two
# processes. Each container has a /tmp of its own, so containers name a folder that they share.
FOLDER = Path(os.environ.get(VARIABLE) or "/tmp")  # noqa: S108


def lock_gpu(uuid: str) -> int:
    """Take the GPU until this process ends, and return the open file that is locked.

    Raises GpuInUse if another process has it, and OSError if no lock can be had.
    """
    file = _open(FOLDER / f"engine-tuner-{uuid}.lock")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _holder(file)
        os.close(file)
        named = f" (pid {holder})" if holder else ""
        raise GpuInUse(f"another process{named} measures on {uuid}") from None
    return file


def _open(path: Path) -> int:
    # Reading is enough for a lock, and the file may be another user's. The kernel lets nobody open
    # such a file with O_CREAT in a folder like /tmp.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        file = os.open(path, flags | os.O_CREAT, 0o644)
        os.fchmod(file, 0o644)  # at any umask: others must be able to open it
        return file


def _holder(file: int) -> str:
    """Return the id of the process that has the file's lock; "" if the kernel does not show it."""
    found = os.fstat(file)
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return ""
    # 1: FLOCK ADVISORY WRITE 1234 08:02:5678 0 EOF. A process of another namespace has no number.
    pids = {one[4] for one in locks if one[1:2] == ["FLOCK"] and one[5:6] == [place]}
    return pids.pop() if len(pids) == 1 and pids.isdisjoint({"0", "-1"}) else ""
