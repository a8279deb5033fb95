"""What chaos.py does to the processes and servers of the service, and the record of it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import redis as redis_client
from chaos_clients import Tokens, client_name
from chaos_parts import Part, empty, fill, set_clock
from servers import Postgres, Redis
from worker_processes import descendants

from tuner.errors import BadInput, UnusableStore
from tuner.store.database import utc_now
from tuner.store.jobs import JobStore
from tuner.store.keys import KeyStore, Scope
from tuner.store.workers import WorkerStore

AWAY_S = 2.0  # a server that crashed
DRAIN_S = 20.0
RESUME_EVERY_S = 20.0  # an operator looks for workers that were set aside
AGAIN_S = 1.0  # what failed because the database was away is tried again
CLOCK_STEP = timedelta(hours=1)
ROTATE_EVERY_S = 2.0
CACHED_S = 5.0  # an API process believes an old key for two seconds at most

KILL_WORKER = "kill worker"
KILL_TUNING = "kill tuning process"
STOP_TUNING = "stop tuning process for 30 s"
STOP_TUNING_FOR_EVER = "stop tuning process for ever"
STOP_WORKER = "stop worker for 60 s"
KILL_API = "kill API"
KILL_BEAT = "kill beat"
DRAIN = "drain worker for 20 s"
TERM_API = "SIGTERM to API"
TERM_TUNING = "SIGTERM to tuning process"
TERM_WORKER = "SIGTERM to worker"
# How often each is done, out of 24. Whoever takes a dead worker's job back must have watched it for
# 45 s itself: with five workers, at least one almost always lives for so long.
WEIGHTS = {
    KILL_API: 5,
    KILL_BEAT: 1,
    KILL_TUNING: 5,
    KILL_WORKER: 3,
    STOP_TUNING: 3,
    STOP_TUNING_FOR_EVER: 3,
    STOP_WORKER: 1,
    DRAIN: 3,
}
STOPPED_S = {STOP_TUNING: 30.0, STOP_WORKER: 60.0}
OF_TUNING = {
    KILL_TUNING: signal.SIGKILL,
    TERM_TUNING: signal.SIGTERM,
    STOP_TUNING: signal.SIGSTOP,
    STOP_TUNING_FOR_EVER: signal.SIGSTOP,
}


def at_random(dice: random.Random) -> Iterator[str]:
    """Blows by WEIGHTS, without an end."""
    while True:
        yield dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]


def so_many_each(count: int, dice: random.Random) -> Iterator[str]:
    """For each kind of process, `count` blows that end it, half of them SIGTERM, mixed."""
    kills, terms = (KILL_API, KILL_WORKER, KILL_TUNING), (TERM_API, TERM_WORKER, TERM_TUNING)
    blows = [*kills * (count - count // 2), *terms * (count // 2)]
    dice.shuffle(blows)
    return iter(blows)


@dataclass(frozen=True)
class Blow:
    """Something done to a worker's process, or to the one that tunes for it."""

    what: str
    pid: int  # of the worker
    at: datetime


@dataclass(frozen=True)
class Drained:
    """A time in which workers were to take no jobs."""

    owners: tuple[str, ...]
    begin: datetime
    end: datetime


@dataclass
class Harm:
    """What was done to the service."""

    counts: Counter[str] = field(default_factory=Counter)
    blows: list[Blow] = field(default_factory=list)
    restarts: Counter[str] = field(default_factory=Counter)
    drains: list[Drained] = field(default_factory=list)
    disk_full: list[tuple[datetime, datetime]] = field(default_factory=list)
    clock_steps: int = 0
    keys_rotated: int = 0
    old_keys_accepted: int = 0
    resumed: int = 0  # workers that were set aside


class Later:
    """Things to do at a time; what the database refuses is tried again."""

    def __init__(self) -> None:
        self._due: list[tuple[float, Callable[[], None]]] = []

    def add(self, delay_s: float, action: Callable[[], None]) -> None:
        self._due.append((time.monotonic() + delay_s, action))

    def run(self) -> None:
        now = time.monotonic()
        due = [action for at, action in self._due if at <= now]
        self._due = [(at, action) for at, action in self._due if at > now]
        for action in due:
            try:
                action()
            except UnusableStore:
                self.add(AGAIN_S, action)


class Attacker:
    """Harms one process after another, as `blows` says."""

    def __init__(
        self,
        parts: list[Part],
        workers: WorkerStore,
        blows: Iterator[str],
        dice: random.Random,
        later: Later,
        done: Harm,
    ) -> None:
        self._parts, self._workers, self._dice = parts, workers, dice
        self._later, self._done = later, done
        self._blows, self._next = blows, next(blows, None)

    @property
    def is_done(self) -> bool:
        """Whether all blows are struck."""
        return self._next is None

    def strike(self) -> None:
        """Do the next of the blows, if there is a process to do it to."""
        if self._next is not None and self._strike(self._next):
            self._done.counts[self._next] += 1
            self._next = next(self._blows, None)

    def _strike(self, what: str) -> bool:
        alive = [part for part in self._parts if part.alive]
        if what in OF_TUNING:
            tuning = [one for part in alive for one in tuning_below(part)]
            if tuning:
                worker, pid = self._dice.choice(tuning)
                self._signal(what, worker, pid, OF_TUNING[what])
            return bool(tuning)
        kind = {KILL_API: "API", TERM_API: "API", KILL_BEAT: "beat"}.get(what, "worker")
        alive = [part for part in alive if part.kind == kind]
        if not alive:
            return False
        part = self._dice.choice(alive)
        if what == DRAIN:
            self._later.add(0, lambda: self._drain(part.name))
        elif what == STOP_WORKER:
            self._signal(what, part.pid, part.pid, signal.SIGSTOP)
        else:
            self._done.blows.append(Blow(what, part.pid, utc_now()))
            end = part.ask_to_end if what in (TERM_API, TERM_WORKER) else part.end
            end()
        return True

    def _signal(self, what: str, worker: int, pid: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            process = os.pidfd_open(pid)  # its number may soon be another process's
            self._done.blows.append(Blow(what, worker, utc_now()))
            signal.pidfd_send_signal(process, number)
            if what in STOPPED_S:
                self._later.add(STOPPED_S[what], lambda: go_on(process))
            else:
                os.close(process)

    def _drain(self, name: str) -> None:
        with contextlib.suppress(BadInput):  # nobody alive has the name
            host = f"{name}@{os.uname().nodename}"
            owners = tuple(self._workers.drain(host))
            self._later.add(DRAIN_S, lambda: self._resume(host, owners, utc_now()))

    def _resume(self, name: str, owners: tuple[str, ...], begin: datetime) -> None:
        end = utc_now()
        with contextlib.suppress(BadInput):
            self._workers.resume(name)
        self._done.drains.append(Drained(owners, begin, end))

    def resume_set_aside(self) -> None:
        """As an operator does who sees what became of these workers; the liar stays aside."""
        ours = {part.name for part in self._parts if part.kind == "worker"}
        for one in self._workers.list(living=True):
            if one.doing == "set aside" and one.info.name.partition("@")[0] in ours:
                with contextlib.suppress(BadInput):
                    self._workers.resume(one.info.id)
                    self._done.resumed += 1
        self._later.add(RESUME_EVERY_S, self.resume_set_aside)


def go_on(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, signal.SIGCONT)
    os.close(process)


def tuning_below(worker: Part) -> list[tuple[int, int]]:
    """(the worker's process, a process that does its jobs)."""
    return [
        (worker.pid, pid)
        for pid, line in descendants(worker.pid).items()
        if "workers.run_job" in line
    ]


class Servers:
    """Crashes the servers, fills the disk, sets the queue's clock and changes the clients' keys.

    Without a PostgreSQL, that does not crash and its disk is not filled.
    """

    def __init__(
        self,
        postgres: Postgres | None,
        redis: Redis,
        disk: Path,
        jobs: JobStore,
        later: Later,
        done: Harm,
    ) -> None:
        self._postgres, self._redis, self._disk = postgres, redis, disk
        self._jobs, self._keys = jobs, KeyStore(jobs.database)
        self._later, self._done = later, done
        self._full_since: datetime | None = None
        self._full_until = 0.0

    def crash_redis(self) -> None:
        redis_client.Redis.from_url(self._redis.url).flushall()
        self._redis.stop()
        time.sleep(AWAY_S)
        self._redis.start()
        self._done.restarts["Redis flushed and restarted"] += 1

    def crash_postgres(self) -> None:
        if self._postgres is None or self._full_since:
            return
        with contextlib.suppress(subprocess.CalledProcessError):
            self._postgres.stop()
        time.sleep(AWAY_S)
        self.revive_postgres()
        self._done.restarts["PostgreSQL crashed and restarted"] += 1

    def revive_postgres(self) -> None:
        """Start PostgreSQL unless it runs, as whatever watches over it does."""
        if self._postgres is not None:
            with contextlib.suppress(subprocess.CalledProcessError):
                self._postgres.start()

    def fill_disk(self, seconds: float) -> None:
        self._full_since, self._full_until = utc_now(), time.monotonic() + seconds

    @property
    def disk_is_full(self) -> bool:
        return self._full_since is not None

    def keep_disk_full(self) -> None:
        """To be called often: PostgreSQL gives room back that has to be taken again."""
        if self._full_since is None:
            return
        if time.monotonic() < self._full_until:
            fill(self._disk)
        else:
            empty(self._disk)
            self._done.disk_full.append((self._full_since, utc_now()))
            self._full_since = None

    def step_clock(self, ahead: timedelta) -> None:
        def step() -> None:
            set_clock(self._jobs, ahead)
            self._done.clock_steps += 1

        self._later.add(0, step)

    def rotate_keys(self, tokens: Tokens, refused: Callable[[str], bool]) -> None:
        """Give each client another key of the same name; `refused` asks the API about the old."""

        def rotate(number: int) -> None:
            old, new = tokens[number], tokens.make()
            self._keys.ensure(client_name(number), Scope.SUBMIT, new)
            tokens[number] = new
            self._done.keys_rotated += 1
            self._later.add(CACHED_S, lambda: check(old))

        def check(old: str) -> None:
            if not refused(old):
                self._done.old_keys_accepted += 1

        for number in range(len(tokens)):
            self._later.add(number * ROTATE_EVERY_S, partial(rotate, number))
