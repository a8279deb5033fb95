"""The processes of chaos.py: the service's own, its servers, and one worker that lies."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from chaos_database import small_disk
from servers import Postgres, Redis
from worker_processes import RECORDING

from workers.fleet import celery_command
from workers.machine import worker_environ
from workers.settings import Settings

ROOT = Path(__file__).parents[1]
DEVICE = "NVIDIA_H200"
BATCH_SIZES = (2, 16)
SMALL = "small.csv.gz"
RESTART_S = 2.0  # as `tuner worker` waits before it starts a process again


class Part:
    """A process that is started again whenever it is dead."""

    def __init__(
        self, kind: str, name: str, command: list[str], environ: dict[str, str], log: Path
    ) -> None:
        self.kind, self.name = kind, name
        self._command, self._environ, self._log = command, environ, log
        self._started = -RESTART_S
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def keep_alive(self) -> None:
        if not self.alive and time.monotonic() - self._started >= RESTART_S:
            self._started = time.monotonic()
            with self._log.open("ab") as out:
                self.process = subprocess.Popen(
                    self._command, env=self._environ, stdout=out, stderr=out, cwd=ROOT
                )

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def make_parts(
    settings: Settings, workers: int, limit_s: int, port: int, home: Path
) -> tuple[list[Part], Path]:
    """One API, one beat, workers without a GPU, and a liar; and the file that the liar writes."""
    plain = {
        **os.environ,
        "TUNER_DATABASE_URL": settings.database_url,
        "TUNER_BROKER_URL": str(settings.broker_url),
        "TUNER_RECORDINGS": str(settings.recordings),
        **{
            f"TUNER_{phase}_LIMIT_S": str(limit_s)
            for phase in ("START", "FIRST_TRIAL", "NEXT_TRIAL")
        },
    }
    beat = [sys.executable, "-m", "celery", "-A", "workers.app", "beat"]
    beat += ["--schedule", str(home / "beat"), "--pidfile", ""]
    api = [str(Path(sys.executable).with_name("tuner")), "serve", "--port", str(port)]
    said = home / "liar.jsonl"
    liar = [sys.executable, str(ROOT / "benchmarks" / "chaos_liar.py")]
    parts = [
        Part("API", "api", [*api, "--no-worker"], plain, home / "api.log"),
        Part("beat", "beat", beat, plain, home / "beat.log"),
        Part("liar", "liar", [*liar, settings.database_url, str(said)], plain, home / "liar.log"),
    ]
    for i in range(workers):
        environ = {**plain, **worker_environ(None, [DEVICE], f"cpu-{i}")}
        command = celery_command(i, None, [DEVICE])
        parts.append(Part("worker", f"cpu-{i}", command, environ, home / f"worker-{i}.log"))
    return parts, said


def free_port() -> int:
    """A free port that the system gives to nobody else while the API is dead."""
    while True:
        port = random.randrange(20_000, 32_000)  # the system's own begin at 32,768
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def servers(home: Path, full_disk: bool) -> Iterator[tuple[Postgres, Redis]]:
    """A PostgreSQL and a Redis. With `full_disk`, PostgreSQL's data is on a small file system."""
    (home / "pg").mkdir()
    disk = small_disk(home / "pg" / "data") if full_disk else contextlib.nullcontext()
    with disk:
        postgres, redis = Postgres(home / "pg"), Redis()
        postgres.start()
        redis.start()
        try:
            yield postgres, redis
        finally:
            redis.stop()
            with contextlib.suppress(subprocess.CalledProcessError):  # it is down already
                postgres.stop()


def small_recording(batch_sizes: Collection[int]) -> bytes:
    """Some batch sizes of the tests' recording, and its deeper pipelines alone."""
    with gzip.open(RECORDING, "rt", newline="") as source:
        head, *rows = csv.reader(source)
    size, stages = head.index("M"), head.index("num_stages")
    wanted = [row for row in rows if int(row[size]) in batch_sizes and int(row[stages]) > 3]
    text = io.StringIO()
    csv.writer(text).writerows([head, *wanted])
    return gzip.compress(text.getvalue().encode())
