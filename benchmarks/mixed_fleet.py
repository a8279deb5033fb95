"""Workers on hosts that differ: each job is done where its engine is, and a broken host harms none.

Run from the repository's root, with the dev dependency group and the tests' engines installed:
    .venv/bin/python benchmarks/mixed_fleet.py [--pinned 300 --unpinned 100 --predictions 100]
Starts its own PostgreSQL and Redis, an API and worker processes. First three workers have one
version of sglang each; replays are posted that are pinned to each version, and some that are not.
Then a worker without Triton and a good one get predictions. Prints the tables of docs/chaos.md;
exit 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from chaos import write_table  # noqa: E402
from chaos_clients import ask  # noqa: E402
from chaos_parts import free_port, small_recording  # noqa: E402
from chaos_verdict import shown  # noqa: E402
from servers import postgres_database, started_postgres, started_redis  # noqa: E402
from worker_processes import (  # noqa: E402
    PROBLEM,
    celery_worker,
    other_host,
    wait_for,
)

from tuner.jobs.job import Job, JobState  # noqa: E402
from tuner.store import JobStore  # noqa: E402
from tuner.store.workers import WorkerStore  # noqa: E402

VERSIONS = ("0.5.12", "0.5.16", "0.5.23")
GOOD = "0.5.16"
DEVICE = "NVIDIA_H200"
SIZE = 2  # the only batch size of the jobs
BATCH = 100  # jobs of one request
RECORDING_NAME = "one-size.csv.gz"
START_S = 120.0


@dataclass(frozen=True)
class Service:
    """An API over an empty database, and what its workers need to know."""

    jobs: JobStore
    database_url: str
    broker_url: str
    port: int
    home: Path

    @contextlib.contextmanager
    def worker(self, name: str, *versions: str, lacks: str = "") -> Iterator[None]:
        environ = other_host(self.home, name, *versions, lacks=lacks)
        log = self.home / f"{name}.log"
        recordings = {"TUNER_RECORDINGS": str(self.home)}
        with celery_worker(self.database_url, self.broker_url, log, **environ, **recordings):
            yield

    def await_workers(self, count: int) -> None:
        """Wait until so many workers live."""
        workers = WorkerStore.sharing(self.jobs)
        wait_for(lambda: len(workers.list(living=True)) == count, START_S)

    def post(self, bodies: Sequence[Mapping[str, Any]]) -> list[str]:
        """Post jobs in batches, and return their ids."""
        ids = []
        for at in range(0, len(bodies), BATCH):
            sent = {"jobs": bodies[at : at + BATCH]}
            headers = {"Content-Type": "application/json"}
            status, _, answer = ask(self.port, "POST", "/v1/jobs:batch", headers, sent)
            assert status == 200, answer
            ids += [one["job"]["id"] for one in json.loads(answer)["jobs"]]
        assert len(set(ids)) == len(bodies)
        return ids

    def finished(self, ids: Sequence[str], limit_s: float) -> list[Job]:
        """The jobs once all have ended."""
        wait_for(lambda: len(self.jobs.ended(ids)) == len(ids), limit_s)
        return [self.jobs.get(one) for one in ids]


@contextlib.contextmanager
def service(home: Path) -> Iterator[Service]:
    """An API and its servers, started below `home`."""
    home.mkdir()
    (home / RECORDING_NAME).write_bytes(small_recording([SIZE]))
    port = free_port()
    with (
        started_postgres() as server,
        started_redis() as redis,
        postgres_database(server.url) as url,
    ):
        environ = {
            **os.environ,
            "TUNER_DATABASE_URL": url,
            "TUNER_BROKER_URL": redis.url,
            "TUNER_RECORDINGS": str(home),
        }
        tuner = str(Path(sys.executable).with_name("tuner"))
        command = [tuner, "serve", "--port", str(port), "--no-worker", "--no-auth"]
        with (home / "api.log").open("wb") as log, JobStore.open(url) as jobs:
            api = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
            try:
                wait_for(lambda: ask(port, "GET", "/readyz", {})[0] == 200, START_S)
                yield Service(jobs, url, redis.url, port, home)
            finally:
                api.kill()
                api.wait()


@dataclass(frozen=True)
class Versions:
    """What became of jobs for several versions of an engine."""

    jobs: int
    states: dict[str, int]
    done_by: dict[str, int]  # "0.5.12 pinned", "0.5.16 not pinned", ... -> jobs
    elsewhere: int  # jobs that a worker without their engine had
    attempts: dict[int, int]  # attempts -> jobs
    wall_s: float

    def broken(self) -> list[str]:
        """The promises that were not kept."""
        found = {
            "jobs were not done": self.jobs - self.states.get(JobState.DONE.value, 0),
            "jobs were done by a worker without their engine": self.elsewhere,
            "jobs took more than one attempt": self.jobs - self.attempts.get(1, 0),
        }
        return [f"{count} {what}" for what, count in found.items() if count]

    def table(self) -> str:
        """As Markdown."""
        rows = {
            "jobs": f"{self.jobs} ({shown(self.states)})",
            "dead": f"**{self.states.get(JobState.DEAD.value, 0)}**",
            "done by a worker with their version": shown(self.done_by),
            "done by a worker without it": f"**{self.elsewhere}**",
            "jobs that took more than one attempt": f"**{self.jobs - self.attempts.get(1, 0)}**",
            "wall time": f"{self.wall_s:.0f} s",
        }
        return markdown("three workers, one version of sglang each", rows)


def try_versions(home: Path, pinned: int, unpinned: int, limit_s: float) -> Versions:
    """Jobs for three versions, and for none, on three workers with one version each."""
    seeds = itertools.count()
    with service(home) as running, contextlib.ExitStack() as stack:
        for version in VERSIONS:
            stack.enter_context(running.worker(version, version))
        running.await_workers(len(VERSIONS))
        began = time.monotonic()
        asked = [f"sglang=={version}" for version in VERSIONS] * pinned + ["sglang"] * unpinned
        bodies = [{**replay(next(seeds)), "engine": engine} for engine in asked]
        done = running.finished(running.post(bodies), limit_s)
        wall_s = time.monotonic() - began
    done_by: Counter[str] = Counter()
    elsewhere = 0
    for engine, job in zip(asked, done, strict=True):
        version = job.owner.partition("@")[0]
        has = f"sglang=={version}"
        elsewhere += has != job.request.engine or engine not in (has, "sglang")
        done_by[f"on {version}" + (", not pinned" if engine == "sglang" else "")] += 1
    return Versions(
        jobs=len(done),
        states=dict(Counter(job.state.value for job in done)),
        done_by=dict(sorted(done_by.items())),
        elsewhere=elsewhere,
        attempts=dict(sorted(Counter(job.attempts for job in done).items())),
        wall_s=round(wall_s, 1),
    )


@dataclass(frozen=True)
class Broken:
    """What became of predictions with a worker without Triton beside a good one."""

    jobs: int
    states: dict[str, int]
    attempts: dict[int, int]  # attempts -> jobs
    claimed: int  # jobs that the bad worker had
    reason: str  # why it was set aside; "" if it was not
    wall_s: float

    def broken(self) -> list[str]:
        """The promises that were not kept."""
        found = {
            "jobs were not done": self.jobs - self.states.get(JobState.DONE.value, 0),
            "jobs took more than one attempt": self.jobs - self.attempts.get(1, 0),
            "jobs were taken by the worker without Triton": max(0, self.claimed - 2),
            "bad workers were not set aside": int(not self.reason),
        }
        return [f"{count} {what}" for what, count in found.items() if count]

    def table(self) -> str:
        """As Markdown."""
        rows = {
            "predictions": f"{self.jobs} ({shown(self.states)})",
            "lost": f"**{self.jobs - self.states.get(JobState.DONE.value, 0)}**",
            "jobs that took more than one attempt": f"**{self.jobs - self.attempts.get(1, 0)}**",
            "jobs that the bad worker took before it was set aside": f"**{self.claimed}**",
            "its reason": f"`{self.reason}`",
            "wall time": f"{self.wall_s:.0f} s",
        }
        return markdown("a worker without Triton beside a good one", rows)


def try_broken(home: Path, predictions: int, limit_s: float) -> Broken:
    """Predictions for a worker without Triton and a good one."""
    with (
        service(home) as running,
        running.worker("broken", GOOD, lacks="triton"),
        running.worker("good", GOOD),
    ):
        running.await_workers(2)
        began = time.monotonic()
        ids = running.post([predict(seed) for seed in range(predictions)])
        done = running.finished(ids, limit_s)
        wall_s = time.monotonic() - began
        events = [event for one in ids for event in running.jobs.events(one)]
        claims = [event for event in events if event.kind == JobState.LEASED.value]
        aside = [
            one for one in WorkerStore.sharing(running.jobs).list() if one.doing == "set aside"
        ]
    return Broken(
        jobs=len(done),
        states=dict(Counter(job.state.value for job in done)),
        attempts=dict(sorted(Counter(job.attempts for job in done).items())),
        claimed=sum(event.data["owner"].startswith("broken@") for event in claims),
        reason=aside[0].reason if aside else "",
        wall_s=round(wall_s, 1),
    )


def replay(seed: int) -> dict[str, Any]:
    """A job of less than a second."""
    return {**predict(seed), "measure": f"replay:{RECORDING_NAME}"}


def predict(seed: int) -> dict[str, Any]:
    """A job that compiles."""
    return {
        "model": PROBLEM.spec(),
        "device": DEVICE,
        "measure": "predict",
        "batch_sizes": [SIZE],
        "effort": "quick",
        "seed": seed,
    }


def markdown(title: str, rows: Mapping[str, str]) -> str:
    lines = [f"| {title} | figure |", "|---|---|"]
    return "\n".join([*lines, *(f"| {what} | {figure} |" for what, figure in rows.items())])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pinned", type=int, default=300, help="jobs for each version")
    parser.add_argument("--unpinned", type=int, default=100)
    parser.add_argument("--predictions", type=int, default=100)
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds until it gives up")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--docs", type=Path, help="put the tables between the marks in this page")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tuner-fleet-", dir="/tmp") as folder:  # noqa: S108
        home = Path(folder)
        versions = try_versions(home / "versions", given.pinned, given.unpinned, given.limit)
        triton = try_broken(home / "broken", given.predictions, given.limit)
    tables = f"{versions.table()}\n\n{triton.table()}"
    print(tables)
    if given.json:
        figures = {"versions": asdict(versions), "without_triton": asdict(triton)}
        given.json.write_text(json.dumps(figures, indent=2) + "\n")
    if given.docs:
        write_table(given.docs, "fleet", tables)
    broken = [*versions.broken(), *triton.broken()]
    for what in broken:
        print(f"BROKEN: {what}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
