"""Real worker processes, and what runs below them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from cases import FP8, FP8_RECORDING, new_request

from tuner.engines.engine import find_packages
from tuner.families.fused_moe.family import MoeSelection
from tuner.jobs.job import JobRequest
from tuner.tuning.request import Effort
from workers.fleet import celery_command
from workers.machine import NAME_VARIABLE, worker_environ
from workers.service import EmbeddedWorker
from workers.settings import Settings

T = TypeVar("T")

OTHER_HOST = Path(__file__).parent / "service" / "other_host"

PROBLEM = FP8
RECORDING = FP8_RECORDING
# The same as `replay`, as the API's clients post it where its recordings are in `RECORDINGS`.
REPLAY = {
    "model": PROBLEM.spec(),
    "device": "H200",
    "measure": f"replay:{RECORDING.name}",
    "batch_sizes": [2, 16],
    "effort": "quick",
}


def replay(seed: int = 0, recording: Path = RECORDING) -> JobRequest:
    """A job of about a second."""
    return new_request(
        PROBLEM,
        "H200",
        measure=f"replay:{recording}",
        selection=MoeSelection((2, 16)),
        effort=Effort.QUICK,
        seed=seed,
    )


def predict(seed: int = 0) -> JobRequest:
    """A job that compiles, without a GPU."""
    return new_request(
        PROBLEM,
        "H200",
        measure="predict",
        selection=MoeSelection((2,)),
        effort=Effort.QUICK,
        seed=seed,
    )


@contextmanager
def celery_worker(
    database_url: str, broker_url: str, log: Path, **more: str
) -> Iterator[subprocess.Popen[bytes]]:
    """One worker without a GPU; its descendants end with it, however it ends."""
    environ = {
        **os.environ,
        "TUNER_DATABASE_URL": database_url,
        "TUNER_BROKER_URL": broker_url,
        **worker_environ(None, None, "cpu-0"),
        **more,
    }
    with log.open("ab") as out:
        process = subprocess.Popen(
            celery_command(0, None, ["NVIDIA_H200"]), env=environ, stdout=out, stderr=out
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def embedded(settings: Settings) -> Iterator[EmbeddedWorker]:
    """A worker in this process, without a GPU."""
    worker = EmbeddedWorker(settings, gpus=())
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def other_host(folder: Path, name: str, *versions: str, lacks: str = "") -> dict[str, str]:
    """The environment of a worker on a host with these versions of sglang only.

    `name` is the host's folder in `folder`, and the worker's name. `lacks` is a package that is
    missing there.
    """
    prefix = folder / name
    engines = prefix / "share" / "tuner" / "engines"
    engines.mkdir(parents=True)
    for package in find_packages("sglang"):
        if package.version in versions:
            (engines / f"sglang-{package.version}").symlink_to(package.root.parent)
    paths = [str(OTHER_HOST), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "HOST_PREFIX": str(prefix),
        "HOST_LACKS": lacks,
        NAME_VARIABLE: name,
    }


def wait_for(what: Callable[[], T], limit_s: float = 60.0) -> T:
    """The first true value; fails after the limit, which no good run comes near."""
    deadline = time.monotonic() + limit_s
    while not (value := what()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
    return value


def descendants(pid: int) -> dict[int, str]:
    """Process number -> command line of all below `pid`."""
    parent: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except OSError:
                continue  # it has just ended
            parent[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
    below: dict[int, str] = {}
    wave = {pid}
    while wave:
        wave = {child for child, of in parent.items() if of in wave and child not in below}
        below.update((child, command_line(child)) for child in wave)
    return below


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def tuning_child(pid: int) -> int | None:
    """The process that tunes for the worker `pid`."""
    found = [child for child, line in descendants(pid).items() if "workers.run_job" in line]
    return found[0] if found else None


def running(pid: int) -> bool:
    """Whether the process runs; one that ended but was not waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
