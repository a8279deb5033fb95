"""One GPU, one measuring process: the lock, and who has it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.errors import GpuInUse
from tuner.measure import gpu_lock
from tuner.measure.gpu_lock import lock_gpu

HOLDER = """
import os, signal
from tuner.measure import gpu_lock
os.umask(0o077)
gpu_lock.lock_gpu("GPU-1")
print("locked", flush=True)
signal.pause()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_lock, "FOLDER", tmp_path)
    return tmp_path


def test_a_lock_is_another_process_s_until_that_ends(folder):
    environ = {**os.environ, gpu_lock.VARIABLE: str(folder)}
    command = [sys.executable, "-c", HOLDER]
    holder = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"locked\n"
        shown = f"FLOCK  ADVISORY  WRITE {holder.pid} " in Path("/proc/locks").read_text()
        with pytest.raises(GpuInUse) as caught:
            lock_gpu("GPU-1")
        named = f" (pid {holder.pid})" if shown else ""  # not every kernel shows locks
        assert str(caught.value) == f"another process{named} measures on GPU-1"
        os.close(lock_gpu("GPU-2"))
        (file,) = folder.glob("*GPU-1*")
        assert file.stat().st_mode & 0o777 == 0o644  # another user can open it
    finally:
        holder.kill()
        holder.wait()
    os.close(lock_gpu("GPU-1"))


def test_no_lock_is_had_where_its_file_cannot_be_one(folder):
    (folder / "engine-tuner-GPU-1.lock").symlink_to(folder / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        lock_gpu("GPU-1")
