"""The processes of chaos.py: the service's own, its servers, and one worker that lies.

On PostgreSQL, the queue asks the database for the time: `SELECT clock_timestamp()`. Here the
database has a function of that name of its own, in a schema that comes before pg_catalog in its
search_path. It adds what a table says to the time of day. So the queue's clock jumps, and nothing
else's.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from datetime import timedelta
from pathlib import Path

from servers import Postgres
from sqlalchemy import text
from worker_processes import RECORDING

from tuner.store.jobs import JobStore
from workers.fleet import celery_command
from workers.machine import worker_environ
from workers.settings import Settings

ROOT = Path(__file__).parents[1]
DEVICE = "NVIDIA_H200"
BATCH_SIZES = (2, 16)
SMALL = "h200_small.csv.gz"
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

    def ask_to_end(self) -> None:
        assert self.process is not None
        self.process.terminate()


def make_parts(
    settings: Settings, workers: int, limit_s: int, port: int, home: Path
) -> tuple[list[Part], Path]:
    """One API and workers without a GPU, and the file that a liar writes.

    On PostgreSQL, there are a beat and a liar, too. On SQLite, the API has a worker of its own.
    """
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
    if settings.database_url.startswith("sqlite"):
        parts = [Part("API", "api", [*api, "--worker"], plain, home / "api.log")]
    else:
        liar += [settings.database_url, str(said)]
        parts = [
            Part("API", "api", [*api, "--no-worker"], plain, home / "api.log"),
            Part("beat", "beat", beat, plain, home / "beat.log"),
            Part("liar", "liar", liar, plain, home / "liar.log"),
        ]
    for i in range(workers):
        environ = {**plain, **worker_environ(None, [DEVICE], f"cpu-{i}")}
        command = celery_command(i, None, [DEVICE])
        parts.append(Part("worker", f"cpu-{i}", command, environ, home / f"worker-{i}.log"))
    return parts, said


@contextlib.contextmanager
def started_postgres(home: Path, full_disk: bool) -> Iterator[Postgres]:
    """A PostgreSQL. With `full_disk`, its data is on a small file system."""
    (home / "pg").mkdir()
    disk = small_disk(home / "pg" / "data") if full_disk else contextlib.nullcontext()
    with disk:
        postgres = Postgres(home / "pg")
        postgres.start()
        try:
            yield postgres
        finally:
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


DISK_MIB = 512
BALLAST = "ballast"
_CHUNKS = [1 << bits for bits in range(26, 11, -1)]  # 64 MiB to 4 KiB

# The database itself notes every publishing of a run and each step of a job, whatever our own code
# says of it, at the time of day.
_WATCH_POSTGRES = """
CREATE TABLE chaos_published (run_id integer);
CREATE FUNCTION chaos_note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.state = 'done' THEN INSERT INTO chaos_published (run_id) VALUES (NEW.id); END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER chaos_watch AFTER UPDATE ON runs FOR EACH ROW EXECUTE FUNCTION chaos_note();

CREATE TABLE chaos_steps (
    job_id text, seq integer, at timestamptz DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (job_id, seq)
);
CREATE FUNCTION chaos_step() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_steps (job_id, seq) VALUES (NEW.job_id, NEW.seq);
    RETURN NEW;
END $$;
CREATE TRIGGER chaos_steps AFTER INSERT ON job_events FOR EACH ROW
WHEN (NEW.kind <> 'trials') EXECUTE FUNCTION chaos_step();

CREATE TABLE chaos_clock (ahead interval NOT NULL);
INSERT INTO chaos_clock VALUES ('0');
CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
    'SELECT pg_catalog.clock_timestamp() + ahead FROM public.chaos_clock';
"""
_WATCH_SQLITE = (
    "CREATE TABLE chaos_published (run_id INTEGER)",
    "CREATE TRIGGER chaos_watch AFTER UPDATE ON runs WHEN NEW.state = 'done' "
    "BEGIN INSERT INTO chaos_published VALUES (NEW.id); END",
    "CREATE TABLE chaos_steps (job_id TEXT, seq INTEGER, at TEXT, PRIMARY KEY (job_id, seq))",
    "CREATE TRIGGER chaos_steps AFTER INSERT ON job_events WHEN NEW.kind <> 'trials' "
    "BEGIN INSERT INTO chaos_steps VALUES "
    "(NEW.job_id, NEW.seq, strftime('%Y-%m-%d %H:%M:%f000', 'now')); END",
)


def prepare(jobs: JobStore) -> None:
    """Have the database count what is published; PostgreSQL follows a clock that can be set."""
    with jobs.database.write() as connection:
        if connection.dialect.name == "sqlite":
            for statement in _WATCH_SQLITE:
                connection.exec_driver_sql(statement)
            return
        name = connection.execute(text("SELECT current_database()")).scalar_one()
        connection.execute(text(_WATCH_POSTGRES))
        path = f"ALTER DATABASE {name} SET search_path = public, pg_catalog"
        connection.execute(text(path))
    jobs.database.engine.dispose()  # new connections have the new search_path


def set_clock(jobs: JobStore, ahead: timedelta) -> None:
    """Set the queue's clock. Raises UnusableStore."""
    with jobs.database.write() as connection:
        connection.execute(text("UPDATE chaos_clock SET ahead = :ahead"), {"ahead": ahead})


class NoDisk(Exception):
    """A small file system cannot be mounted."""


@contextlib.contextmanager
def small_disk(at: Path) -> Iterator[None]:
    """A file system of DISK_MIB at a new folder. Raises NoDisk."""
    at.mkdir()
    # PostgreSQL refuses to be root, and the tests then run it as nobody.
    owner = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    options = f"size={DISK_MIB}m,mode=0700,uid={owner.pw_uid},gid={owner.pw_gid}"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(at)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoDisk(getattr(error, "stderr", "") or str(error)) from None
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", at], check=True)


def fill(disk: Path) -> None:
    """Take all the room that is left on a file system."""
    with (disk / BALLAST).open("ab") as ballast:
        for chunk in _CHUNKS:
            with contextlib.suppress(OSError):  # no room for so much
                while True:
                    size = ballast.seek(0, os.SEEK_END)
                    os.posix_fallocate(ballast.fileno(), size, chunk)


def empty(disk: Path) -> None:
    """Give the room back."""
    (disk / BALLAST).unlink(missing_ok=True)
