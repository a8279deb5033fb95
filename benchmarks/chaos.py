"""Kill everything at random while clients post jobs, and count what was lost or done twice.

Run from the repository's root, with the dev dependency group installed:
    .venv/bin/python benchmarks/chaos.py [--jobs 1000 --clients 8 --workers 4 --limit 1800]
Starts its own PostgreSQL and Redis, workers and beat; every few seconds one of them, or a process
that tunes, gets SIGKILL, and is started again. Once Redis loses all it holds and is restarted, once
PostgreSQL crashes. Prints the table of docs/chaos.md; exit 1 if a promise was broken.
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
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "integration")]

import redis as redis_client  # noqa: E402
from chaos_verdict import Verdict, judge, watch_publishing  # noqa: E402
from servers import Postgres, Redis  # noqa: E402
from worker_processes import PROBLEM, RECORDING, descendants  # noqa: E402

from tuner.errors import UnusableStore  # noqa: E402
from tuner.jobs import JobRequest, JobState  # noqa: E402
from tuner.space import Effort  # noqa: E402
from tuner.store import JobStore  # noqa: E402
from tuner.store.database import utc_now  # noqa: E402
from workers.fleet import celery_command  # noqa: E402
from workers.gpus import worker_environ  # noqa: E402
from workers.queue import Announcer  # noqa: E402
from workers.settings import Settings  # noqa: E402

DEVICE = "NVIDIA_H200"
BATCH_SIZES = (2, 16)
REPEATED = 0.1  # of the submissions are sent twice, as by a client that saw no answer
POSTING = 0.6  # of the expected time: kills hit clients' submissions as well as work
JOBS_A_SECOND = 1.5  # expected, to spread the submissions


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

    def keep_alive(self) -> None:
        if self.process is None or self.process.poll() is not None:
            with self._log.open("ab") as out:
                self.process = subprocess.Popen(
                    self._command, env=self._environ, stdout=out, stderr=out, cwd=ROOT
                )

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@dataclass
class Posted:
    """What the clients were promised."""

    accepted: dict[int, str] = field(default_factory=dict)  # seed -> job id
    contradictions: int = 0  # one request, two jobs
    refusals: int = 0  # tries without an answer; each was tried again


@dataclass
class Harm:
    """What was done to the service."""

    kills: dict[str, int] = field(default_factory=dict)
    worker_deaths: dict[int, datetime] = field(default_factory=dict)  # process number -> when
    restarts: list[str] = field(default_factory=list)

    def count(self, kind: str) -> None:
        self.kills[kind] = self.kills.get(kind, 0) + 1


Post = Callable[[int, str], str]  # (seed, idempotency key) -> job id; raises UnusableStore


def local_client(settings: Settings, recording: Path) -> Post:
    """Posts into the database, and wakes workers, as the API does."""
    jobs, announcer = JobStore.open(settings.database_url), Announcer(settings)

    def post(seed: int, key: str) -> str:
        answer = jobs.submit(
            request(seed, recording), client="chaos", idempotency_key=key, body_hash=str(seed)
        )
        announcer.announce(answer.job)
        return answer.job.id

    return post


def request(seed: int, recording: Path) -> JobRequest:
    return JobRequest(
        PROBLEM,
        DEVICE,
        measure=f"replay:{recording}",
        batch_sizes=BATCH_SIZES,
        effort=Effort.QUICK,
        seed=seed,
    )


def run_client(
    post: Post, seeds: list[int], pause_s: float, dice: random.Random, to: Posted
) -> None:
    """Post each job until it is accepted."""
    for seed in seeds:
        time.sleep(dice.uniform(0, 2 * pause_s))
        for _ in range(2 if dice.random() < REPEATED else 1):
            job_id = insist(post, seed, to)
            if to.accepted.setdefault(seed, job_id) != job_id:
                to.contradictions += 1


def insist(post: Post, seed: int, to: Posted) -> str:
    while True:
        try:
            return post(seed, f"key-{seed}")
        except (UnusableStore, OSError):
            to.refusals += 1
            time.sleep(0.5)


def harm(parts: list[Part], dice: random.Random, done: Harm) -> None:
    """SIGKILL one process: a worker, beat, or one that tunes."""
    workers = [part for part in parts if part.name == "worker"]
    tuning = [
        pid
        for part in workers
        if part.process
        for pid, line in descendants(part.process.pid).items()
        if "workers.run_job" in line
    ]
    kind = dice.choice(["worker", "worker", "beat", "tuning"])
    if kind == "tuning" and tuning:
        with contextlib.suppress(ProcessLookupError):
            os.kill(dice.choice(tuning), signal.SIGKILL)
            done.count(kind)
        return
    part = dice.choice(
        [part for part in parts if part.name == (kind if kind != "tuning" else "worker")]
    )
    if part.process and part.process.poll() is None:
        part.end()
        done.count(part.name)
        if part.name == "worker":
            done.worker_deaths[part.process.pid] = utc_now()


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
    dice = random.Random(options.seed)  # noqa: S311
    recording = small_recording(home)
    with servers(home) as (postgres, redis):
        settings = Settings(postgres.url.render_as_string(hide_password=False), redis.url)
        jobs = JobStore.open(settings.database_url)
        watch_publishing(jobs)
        parts = make_parts(settings, options.workers, home)
        posted, harmed = Posted(), Harm()
        started = time.monotonic()
        clients = start_clients(options, settings, recording, posted)
        crashes = [
            (options.jobs // 3, lambda: crash_redis(redis, harmed)),
            (options.jobs // 2, lambda: crash_postgres(postgres, harmed)),
        ]
        next_kill = started + options.every_s
        try:
            while time.monotonic() - started < options.limit_s:
                for part in parts:
                    part.keep_alive()
                time.sleep(0.5)
                finished = count_finished(jobs)
                posting = any(client.is_alive() for client in clients)
                if finished == options.jobs and not posting:
                    break
                if crashes and (finished or 0) >= crashes[0][0]:
                    crashes.pop(0)[1]()
                if time.monotonic() >= next_kill:
                    next_kill += options.every_s
                    harm(parts, dice, harmed)
        finally:
            for part in parts:
                part.end()
        wall_s = time.monotonic() - started
        return judge(jobs, posted, harmed, wall_s)


def make_parts(settings: Settings, workers: int, home: Path) -> list[Part]:
    assert settings.broker_url
    environ = {
        **os.environ,
        "TUNER_DATABASE_URL": settings.database_url,
        "TUNER_BROKER_URL": settings.broker_url,
        **worker_environ(None, None),
    }
    beat = [sys.executable, "-m", "celery", "-A", "workers.app", "beat"]
    beat += ["--schedule", str(home / "beat"), "--pidfile", ""]
    return [
        Part("beat", beat, environ, home / "beat.log"),
        *(
            Part("worker", celery_command(i, None, [DEVICE]), environ, home / f"worker-{i}.log")
            for i in range(workers)
        ),
    ]


def start_clients(
    options: Options, settings: Settings, recording: Path, posted: Posted
) -> list[threading.Thread]:
    pause_s = POSTING * options.clients / JOBS_A_SECOND
    clients = [
        threading.Thread(
            target=run_client,
            args=(
                local_client(settings, recording),
                list(range(number, options.jobs, options.clients)),
                pause_s,
                random.Random(f"{options.seed}-{number}"),  # noqa: S311
                posted,
            ),
            daemon=True,
        )
        for number in range(options.clients)
    ]
    for client in clients:
        client.start()
    return clients


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


def small_recording(home: Path) -> Path:
    """The jobs' own two batch sizes of the tests' recording, and every fourth configuration."""
    with gzip.open(RECORDING, "rt", newline="") as source:
        head, *rows = csv.reader(source)
    size, stages = head.index("M"), head.index("num_stages")
    wanted = [row for row in rows if int(row[size]) in BATCH_SIZES and int(row[stages]) > 3]
    text = io.StringIO()
    csv.writer(text).writerows([head, *wanted])
    path = home / "small.csv.gz"
    path.write_bytes(gzip.compress(text.getvalue().encode()))
    return path


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
