"""Kill everything at random while clients post jobs, and count what was lost or done twice.

Run from the repository's root, with the dev dependency group installed:
    .venv/bin/python benchmarks/chaos.py [--jobs 1000 --clients 8 --workers 4 --limit 1800]
Starts its own PostgreSQL and Redis, the API, workers and beat; every few seconds one of the last
three, or a process that tunes, gets SIGKILL, and is started again. Once Redis loses all it has and
is restarted, once PostgreSQL crashes. Prints the table of docs/chaos.md; exit 1 if a promise was
broken.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import io
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests")]

import redis as redis_client  # noqa: E402
from chaos_clients import Promises, Work, start_clients  # noqa: E402
from chaos_verdict import Verdict, judge, watch_publishing  # noqa: E402
from servers import Postgres, Redis  # noqa: E402
from worker_processes import RECORDING, descendants  # noqa: E402

from tuner.errors import UnusableStore  # noqa: E402
from tuner.jobs.job import JobState  # noqa: E402
from tuner.store import JobStore  # noqa: E402
from tuner.store.database import utc_now  # noqa: E402
from tuner.store.keys import KeyStore, Scope  # noqa: E402
from workers.fleet import celery_command  # noqa: E402
from workers.gpus import worker_environ  # noqa: E402
from workers.settings import Settings  # noqa: E402

DEVICE = "NVIDIA_H200"
BATCH_SIZES = (2, 16)
SMALL = "small.csv.gz"
POSTING = 0.8  # of the expected time: kills hit clients' submissions as well as work
JOBS_A_SECOND = 1.1  # expected, to spread the submissions


@dataclass
class Options:
    jobs: int
    clients: int
    workers: int
    every_s: float
    limit_s: float
    seed: int


class Part:
    """A process that is started again whenever it is dead."""

    def __init__(self, name: str, command: list[str], environ: dict[str, str], log: Path) -> None:
        self.name, self._command, self._environ, self._log = name, command, environ, log
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def keep_alive(self) -> None:
        if not self.alive:
            with self._log.open("ab") as out:
                self.process = subprocess.Popen(
                    self._command, env=self._environ, stdout=out, stderr=out, cwd=ROOT
                )

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@dataclass
class Harm:
    """What was done to the service."""

    kills: Counter[str] = field(default_factory=Counter)
    worker_deaths: dict[int, datetime] = field(default_factory=dict)  # process number -> when
    restarts: list[str] = field(default_factory=list)


def harm(parts: list[Part], dice: random.Random, done: Harm) -> None:
    """SIGKILL one process of a random kind: a worker, the API, beat, or one that tunes."""
    alive = [part for part in parts if part.alive]
    victims: dict[str, list[Part | int]] = {}
    for part in alive:
        victims.setdefault(part.name, []).append(part)
    if tuning := tuning_below([part for part in alive if part.name == "worker"]):
        victims["tuning process"] = tuning
    kind = dice.choice(sorted(victims))
    victim = dice.choice(victims[kind])
    if isinstance(victim, int):
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    else:
        victim.end()
        if kind == "worker" and victim.process:
            done.worker_deaths[victim.process.pid] = utc_now()
    done.kills[kind] += 1


def tuning_below(workers: list[Part]) -> list[Part | int]:
    """The numbers of the processes that do the workers' jobs."""
    return [
        pid
        for part in workers
        if part.process
        for pid, line in descendants(part.process.pid).items()
        if "workers.run_job" in line
    ]


def crash_redis(server: Redis, done: Harm) -> None:
    redis_client.Redis.from_url(server.url).flushall()
    server.stop()
    time.sleep(2)
    server.start()
    done.restarts.append("Redis flushed and restarted")


def crash_postgres(server: Postgres, done: Harm) -> None:
    server.stop()
    time.sleep(2)
    server.start()
    done.restarts.append("PostgreSQL crashed and restarted")


def count_finished(jobs: JobStore) -> int | None:
    """Jobs at their end; None while the database is away."""
    try:
        return sum(jobs.counts().get(state, 0) for state in JobState if state.finished)
    except UnusableStore:
        return None


def chaos(options: Options, home: Path) -> Verdict:
    """The whole thing, on servers of its own below `home`."""
    (home / SMALL).write_bytes(small_recording())
    with servers(home) as (postgres, redis), contextlib.ExitStack() as stack:
        settings = Settings(
            postgres.url.render_as_string(hide_password=False), redis.url, recordings=home
        )
        jobs = stack.enter_context(JobStore.open(settings.database_url))
        watch_publishing(jobs)
        keys = KeyStore.sharing(jobs)
        tokens = [keys.add(f"client-{i}", Scope.SUBMIT) for i in range(options.clients)]
        port = free_port()
        parts = make_parts(settings, options.workers, port, home)
        for part in parts:
            stack.callback(part.end)
        promises, harmed = Promises(), Harm()
        started = time.monotonic()
        clients = start_clients(
            tokens,
            options.jobs,
            Work(port, DEVICE, f"replay:{SMALL}", BATCH_SIZES),
            POSTING * options.clients / JOBS_A_SECOND,
            options.seed,
            promises,
        )
        crashes = [
            (options.jobs // 4, lambda: crash_redis(redis, harmed)),
            (options.jobs // 2, lambda: crash_postgres(postgres, harmed)),
        ]
        dice = random.Random(options.seed)
        next_kill = started + options.every_s
        while time.monotonic() - started < options.limit_s:
            for part in parts:
                part.keep_alive()
            time.sleep(0.5)
            finished = count_finished(jobs)
            if finished == options.jobs and not any(client.is_alive() for client in clients):
                break
            if crashes and (finished or 0) >= crashes[0][0]:
                crashes.pop(0)[1]()
            if time.monotonic() >= next_kill:
                next_kill += options.every_s
                harm(parts, dice, harmed)
        for part in parts:
            part.end()
        wall_s = time.monotonic() - started
        return judge(jobs, options.jobs, options.workers, promises, harmed, wall_s)


def make_parts(settings: Settings, workers: int, port: int, home: Path) -> list[Part]:
    """One API, one beat, and workers without a GPU."""
    environ = {
        **os.environ,
        "TUNER_DATABASE_URL": settings.database_url,
        "TUNER_BROKER_URL": str(settings.broker_url),
        "TUNER_RECORDINGS": str(settings.recordings),
        **worker_environ(None, None, "cpu-0"),
    }
    beat = [sys.executable, "-m", "celery", "-A", "workers.app", "beat"]
    beat += ["--schedule", str(home / "beat"), "--pidfile", ""]
    api = [str(Path(sys.executable).with_name("tuner")), "serve", "--port", str(port)]
    return [
        Part("API", [*api, "--no-worker"], environ, home / "api.log"),
        Part("beat", beat, environ, home / "beat.log"),
        *(
            Part("worker", celery_command(i, None, [DEVICE]), environ, home / f"worker-{i}.log")
            for i in range(workers)
        ),
    ]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def servers(home: Path) -> Iterator[tuple[Postgres, Redis]]:
    (home / "pg").mkdir()
    postgres, redis = Postgres(home / "pg"), Redis()
    postgres.start()
    redis.start()
    try:
        yield postgres, redis
    finally:
        redis.stop()
        postgres.stop()


def small_recording() -> bytes:
    """The jobs' own two batch sizes of the tests' recording, and its deeper pipelines alone."""
    with gzip.open(RECORDING, "rt", newline="") as source:
        head, *rows = csv.reader(source)
    size, stages = head.index("M"), head.index("num_stages")
    wanted = [row for row in rows if int(row[size]) in BATCH_SIZES and int(row[stages]) > 3]
    text = io.StringIO()
    csv.writer(text).writerows([head, *wanted])
    return gzip.compress(text.getvalue().encode())


def write_table(page: Path, table: str) -> None:
    begin, end = "<!-- figures -->\n", "<!-- end of figures -->\n"
    head, _, rest = page.read_text().partition(begin)
    _, found, tail = rest.partition(end)
    assert found, f"{page} has no marks for the figures"
    page.write_text(f"{head}{begin}{table}\n{end}{tail}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between kills")
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds until it gives up")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--docs", type=Path, help="put the table between the marks in this page")
    given = parser.parse_args()
    options = Options(
        given.jobs, given.clients, given.workers, given.every, given.limit, given.seed
    )
    # Not the usual place for temporary files: a socket's path has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="tuner-chaos-", dir="/tmp") as folder:  # noqa: S108
        Path(folder).chmod(0o755)  # PostgreSQL runs as another account when this is root
        verdict = chaos(options, Path(folder))
    print(verdict.table())
    if given.json:
        figures = {**asdict(options), **verdict.as_json()}
        given.json.write_text(json.dumps(figures, indent=2) + "\n")
    if given.docs:
        write_table(given.docs, verdict.table())
    for broken in verdict.broken():
        print(f"BROKEN: {broken}", file=sys.stderr)
    return 1 if verdict.broken() else 0


if __name__ == "__main__":
    sys.exit(main())
