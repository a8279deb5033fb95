"""Harm everything at random while clients post jobs, and count what was lost or done twice.

Run from the repository's root, with the dev dependency group installed:
    .venv/bin/python benchmarks/chaos.py [--store sqlite] [--jobs 1000 --clients 8 --limit 600]
Starts its own PostgreSQL and Redis, the API, workers, beat, and a worker that lies. Every few
seconds something is killed, stopped or drained. PostgreSQL crashes every minute. Once each, Redis
loses all it has, the clients' keys are replaced, the queue's clock goes an hour ahead and back, and
the database's disk is full for a minute. With --store sqlite, a server with a worker of its own and
a second worker share a file with commands that come and go without a pause, and all of them are
ended by SIGKILL and SIGTERM. Harm waits until the service has worked since the last harm, so a slow
machine makes it slow. Prints a table of the figures; exit 1 if a promise was broken, 2
where a small disk cannot be mounted (--full-disk 0 does without).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from chaos_clients import (  # noqa: E402
    Promises,
    Tokens,
    Work,
    ask,
    client_name,
    start_clients,
)
from chaos_harm import (  # noqa: E402
    CLOCK_STEP,
    Attacker,
    Harm,
    Later,
    Servers,
    at_random,
    so_many_each,
)
from chaos_neighbours import Neighbours  # noqa: E402
from chaos_parts import (  # noqa: E402
    BATCH_SIZES,
    DEVICE,
    SMALL,
    NoDisk,
    Part,
    make_parts,
    prepare,
    small_recording,
    started_postgres,
)
from chaos_verdict import Verdict, judge  # noqa: E402
from servers import Postgres, free_port, started_redis  # noqa: E402

from tuner.errors import UnusableStore  # noqa: E402
from tuner.jobs.job import JobState  # noqa: E402
from tuner.store.jobs import JobStore  # noqa: E402
from tuner.store.keys import KeyStore, Scope  # noqa: E402
from tuner.store.workers import WorkerStore  # noqa: E402
from workers.settings import Settings  # noqa: E402

POSTING = 0.8  # of the expected time: what is done hits clients' submissions as well as work
JOBS_A_SECOND = 1.0  # expected, to spread the submissions
TICK_S = 0.5
PLACES = ("json", "logs")  # options that say where figures and logs are written
POSTGRES, SQLITE = "postgresql", "sqlite"
FILE = "tuner.db"
# All who would watch a dead worker are killed as often: a job may wait until the harm is over.
OF_SQLITE = {"jobs": 300, "workers": 1, "every": 2.0, "reclaim_limit": 900.0}


class Pace:
    """When harm is done again: every so many seconds, if the service has worked meanwhile.

    On a slow machine a process takes longer to start than harm takes to come. If it came all the
    same, no process would ever do its work.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s, self._at = every_s, time.monotonic() + every_s
        self._done = Done(0, 0)

    def is_due(self, done: Done, *, anyway: bool = False) -> bool:
        """Whether it is time, and more jobs were both accepted and ended; `anyway`: time alone."""
        worked = done.accepted != self._done.accepted and done.ended != self._done.ended
        if time.monotonic() < self._at or not (worked or anyway):
            return False
        self._at, self._done = time.monotonic() + self._every_s, done
        return True


class Done(NamedTuple):
    """How many jobs the clients were promised, and how many have ended."""

    accepted: int
    ended: int


def chaos(options: argparse.Namespace, home: Path) -> Verdict:
    """The whole trial, on servers that it starts below `home`. Raises NoDisk."""
    (home / SMALL).write_bytes(small_recording(BATCH_SIZES))
    with contextlib.ExitStack() as stack:
        postgres: Postgres | None = None
        url = f"sqlite:///{home / FILE}"
        if options.store == POSTGRES:
            postgres = stack.enter_context(started_postgres(home, options.full_disk > 0))
            url = postgres.url.render_as_string(hide_password=False)
        redis = stack.enter_context(started_redis())
        settings = Settings(url, redis.url, recordings=home)
        jobs = stack.enter_context(JobStore.open(settings.database_url))
        prepare(jobs)
        tokens, port = Tokens(options.clients), free_port()
        keys = KeyStore(jobs.database)
        for number in range(options.clients):
            keys.add(client_name(number), Scope.SUBMIT, tokens[number])
        parts, lies = make_parts(settings, options.workers, options.progress_limit, port, home)
        for part in parts:
            stack.callback(part.end)
        promises, harm, later = Promises(), Harm(), Later()
        dice = random.Random(options.seed)
        blows = so_many_each(options.blows, dice) if postgres is None else at_random(dice)
        attacker = Attacker(parts, WorkerStore(jobs.database), blows, dice, later, harm)
        attacked = Servers(postgres, redis, home / "pg" / "data", jobs, later, harm)
        neighbours = None
        if postgres is None:
            let_go(jobs)
            environ = {**os.environ, "TUNER_DATABASE_URL": url}
            neighbours = Neighbours(home / FILE, environ, options.lanes, options.blows, dice)
            stack.callback(neighbours.end)
            neighbours.start()
        started = time.monotonic()
        clients = start_clients(
            tokens,
            options.jobs,
            Work(port, DEVICE, f"replay:{SMALL}", BATCH_SIZES),
            POSTING * options.clients / JOBS_A_SECOND,
            options.seed,
            promises,
        )
        later.add(0, attacker.resume_set_aside)
        events = one_time_events(options, attacked, tokens, port)
        run(options, jobs, parts, attacker, attacked, clients, promises, later, events, neighbours)
        for part in parts:
            part.end()
        wall_s = time.monotonic() - started
        said = neighbours.judge(jobs) if neighbours else None
        limit_s = options.reclaim_limit
        return judge(jobs, options.jobs, limit_s, promises, harm, lies, wall_s, said)


def let_go(jobs: JobStore) -> None:
    """Close the trial's own connections: with them, no command would be the last one of a file."""
    if jobs.database.engine.dialect.name == "sqlite":
        jobs.database.engine.dispose()


def one_time_events(
    options: argparse.Namespace, servers: Servers, tokens: Tokens, port: int
) -> list[tuple[float, Callable[[], None]]]:
    """What is done once, and after which share of the jobs."""

    def refused(token: str) -> bool:
        path, headers = "/v1/jobs?limit=1", {"Authorization": f"Bearer {token}"}
        return ask(port, "GET", path, headers)[0] != 200

    both = [
        (0.2, servers.crash_redis),
        (0.3, lambda: servers.rotate_keys(tokens, refused)),
    ]
    if options.store != POSTGRES:
        return both
    full = [(0.5, lambda: servers.fill_disk(options.full_disk))] if options.full_disk else []
    return [
        *both,
        (0.4, lambda: servers.step_clock(CLOCK_STEP)),
        *full,
        (0.7, lambda: servers.step_clock(timedelta(0))),
    ]


def run(
    options: argparse.Namespace,
    jobs: JobStore,
    parts: list[Part],
    attacker: Attacker,
    servers: Servers,
    clients: list[threading.Thread],
    promises: Promises,
    later: Later,
    events: list[tuple[float, Callable[[], None]]],
    neighbours: Neighbours | None,
) -> None:
    """Harm the service until all jobs have ended, or until it has done nothing for too long."""
    blows, crashes = Pace(options.every), Pace(options.restart_every)
    done, worked_at = Done(0, 0), time.monotonic()
    while time.monotonic() - worked_at < options.limit:
        for part in parts:
            part.keep_alive()
        time.sleep(TICK_S)
        servers.keep_disk_full()
        ended, posting = count_finished(jobs), any(client.is_alive() for client in clients)
        if ended is None:
            servers.revive_postgres()
            ended = done.ended
        elif ended == options.jobs and not (posting or (neighbours and neighbours.running)):
            return
        elif events and ended >= events[0][0] * options.jobs:
            events.pop(0)[1]()
        # Once all jobs are posted, jobs that end are all that is left to do.
        now = Done(len(promises.accepted) if posting else ended, ended)
        if now != done:
            done, worked_at = now, time.monotonic()
        if crashes.is_due(done):
            servers.crash_postgres()
        if blows.is_due(done, anyway=servers.disk_is_full or ended == options.jobs):
            attacker.strike()
        later.run()
        if neighbours is not None:
            let_go(jobs)
            neighbours.look(over=attacker.is_done and not posting)


def count_finished(jobs: JobStore) -> int | None:
    """Jobs at their end; None while the database is away."""
    try:
        return sum(jobs.counts().get(state, 0) for state in JobState if state.finished)
    except UnusableStore:
        return None


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )

    def add(name: str, default: float, what: str = "") -> None:
        parser.add_argument(f"--{name}", type=type(default), default=default, help=what)

    parser.add_argument("--store", choices=(POSTGRES, SQLITE), default=POSTGRES)
    add("jobs", 1000)
    add("clients", 8)
    add("workers", 5)
    add("every", 5.0, "seconds between two blows")
    add("restart-every", 60.0, "seconds between crashes of PostgreSQL")
    disk = "seconds for which the database's disk is full; this mounts a tmpfs, which needs root"
    add("full-disk", 60.0, disk)
    phases = "seconds for TUNER_START_LIMIT_S, _FIRST_TRIAL_LIMIT_S and _NEXT_TRIAL_LIMIT_S"
    add("progress-limit", 32, phases)
    again = "seconds until a job that nobody works on is queued again, at p99"
    add("reclaim-limit", 60.0, again)
    add("limit", 600.0, "seconds until it gives up, if no job is accepted and no job ends")
    add("blows", 20, "on SQLite: how often each kind of process is ended")
    add("lanes", 2, "on SQLite: how many commands run at a time")
    add("seed", 0)
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--logs", type=Path, help="keep the processes' logs in this folder")
    if parser.parse_args().store == SQLITE:
        parser.set_defaults(**OF_SQLITE)
    return parser.parse_args()


def main() -> int:
    options = read_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # end what was started
    # Not the usual place for temporary files: a socket's path has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="tuner-chaos-", dir="/tmp") as folder:  # noqa: S108
        Path(folder).chmod(0o755)  # PostgreSQL runs as another account when this is root
        try:
            verdict = chaos(options, Path(folder))
        except NoDisk as error:
            text = "a small disk cannot be mounted here, which needs root on Linux"
            print(f"{text}: {error}\n--full-disk 0 does without it", file=sys.stderr)
            return 2
        finally:
            if options.logs:
                keep_logs(Path(folder), options.logs)
    print(verdict.table())
    if options.json:
        said = {name: value for name, value in vars(options).items() if name not in PLACES}
        figures = {**said, **verdict.rows()}
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    for broken in verdict.broken():
        print(f"BROKEN: {broken}", file=sys.stderr)
    return 1 if verdict.broken() else 0


def keep_logs(home: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for log in [*home.glob("*.log"), *home.glob("*.jsonl"), *home.glob("pg/log")]:
        (folder / log.name).write_bytes(log.read_bytes())


if __name__ == "__main__":
    sys.exit(main())
