"""Random operations on a queue by eight threads at once, and what must hold after them.

Rounds of operations alternate with audits, during which nothing goes on. A seed decides which
operations each thread does; how they meet is up to the threads and the database.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta

from cases import new_request
from sqlalchemy import Connection, RowMapping, func, select, update
from store_writer import ENVIRONMENT, KEY, POINTS, PROBLEM, trial

from tuner.errors import (
    EqualJobUnfinished,
    JobUnfinished,
    NotRetriable,
    RunAlreadyActive,
    StaleLease,
    UnknownJob,
)
from tuner.families.fused_moe.family import MoeSelection
from tuner.jobs.attempts import AttemptPhase, Exceeded
from tuner.jobs.job import (
    FRESH,
    HELD,
    MAX_ATTEMPTS,
    Job,
    JobFilter,
    JobRequest,
    JobState,
    Lease,
    Priority,
    Submitted,
)
from tuner.problems.points import Config, Point
from tuner.problems.results import Compiled, Entry, Run, Status, Totals
from tuner.store.database import Database
from tuner.store.jobs import JobStore
from tuner.store.leases import LeasedResults, Leases
from tuner.store.results import ResultStore
from tuner.store.tables import IS_COALESCIBLE, job_events
from tuner.store.tables import jobs as table

THREADS = 8
AT_ONCE = 20  # operations of a thread between two audits
REQUESTS = 6  # that are asked for in a round: threads meet at them
ROUNDS = 3  # until other requests are asked for
MOST_LEASES = 3  # of a worker
REQUEST = new_request(PROBLEM, "L40S", measure="predict", selection=MoeSelection((2, 16)))
ANY = [JobFilter(needs_gpu=False)]
ENDED_BADLY = (JobState.FAILED, JobState.DEAD, JobState.CANCELLED)


def entry(point: Point) -> Entry:
    """A winner at a point."""
    return Entry(point, Config({"BLOCK_SIZE_M": 16}), Status.OK, 9.0, Compiled(Status.OK), {}, "")


class Broken(AssertionError):
    """The queue did not keep a promise."""


@dataclass
class Promises:
    """What clients were told. The threads share it."""

    wanted: set[tuple[str, str]] = field(default_factory=set)  # client and job, until it withdraws
    seen: list[str] = field(default_factory=list)  # ids of jobs
    ended_for_all: set[str] = field(default_factory=set)  # by somebody who may
    asked_to_stop: set[str] = field(default_factory=set)
    deleting: set[str] = field(default_factory=set)
    deleted: dict[str, JobState] = field(default_factory=dict)


class Actor:
    """A thread's client and worker. No other thread speaks for them."""

    def __init__(self, number: int, store: Database, promises: Promises) -> None:
        self.client, self._worker = f"client-{number}", f"worker-{number}"
        self._jobs, self._leases = JobStore(store), Leases(store)
        self._promises = promises
        self._held: list[Lease] = []
        self._runs: dict[Lease, tuple[LeasedResults, Run]] = {}
        self._answered: dict[str, list[str]] = {}  # ids by idempotency key
        self.done: Counter[str] = Counter()

    def work(self, dice: random.Random, first_seed: int) -> None:
        """Do some operations. Raises Broken, and whatever an operation should not raise."""
        self._dice = dice
        self._requests = [replace(REQUEST, seed=first_seed + at) for at in range(REQUESTS)]
        names, weights = zip(*OPERATIONS.items(), strict=True)
        for name in dice.choices(names, weights, k=AT_ONCE):
            self.done[name] += 1
            try:
                getattr(self, f"_{name}")()
            except EXPECTED.get(name, ()):
                self.done[f"{name}, refused"] += 1

    # What clients do.

    def _submit(self) -> None:
        self._post([self._dice.choice(self._requests)])

    def _batch(self) -> None:
        self._post(self._dice.sample(self._requests, self._dice.randint(2, REQUESTS)))

    def _submit_with_key(self) -> None:
        key = f"key-{len(self._answered)}"
        asked = self._dice.choices(self._requests, k=self._dice.randint(1, 3))
        self._answered[key] = [one.job.id for one in self._post(asked, key)]
        again = self._dice.choice(list(self._answered))
        ids = [one.job.id for one in self._post(asked, again)]
        if ids != self._answered[again] and not self._promises.deleting & {*self._answered[again]}:
            raise Broken(f"key {again} of {self.client} was answered with other jobs")
        self._answered[again] = ids

    def _post(self, requests: Sequence[JobRequest], key: str | None = None) -> Sequence[Submitted]:
        answers = self._submit_all(requests, key)
        for answer in answers:
            job = answer.job
            self._promises.seen.append(job.id)
            if answer.replayed or job.state is JobState.DONE:  # even if its end was asked for
                continue
            if job.state in ENDED_BADLY or job.cancel_requested:
                raise Broken(f"{self.client} was promised job {job.id}, which is {job.state.value}")
            self._is_promised(job)
        return answers

    def _submit_all(self, requests: Sequence[JobRequest], key: str | None) -> Sequence[Submitted]:
        priority = self._dice.choice(list(Priority))
        return self._jobs.submit_all(
            [(request, priority) for request in requests],
            client=self.client,
            idempotency_key=key,
            fresh=self._dice.choice((FRESH, *3 * [timedelta(0)])),
        )

    def _is_promised(self, job: Job) -> None:
        if self.client not in job.clients:
            raise Broken(f"{self.client} is no client of job {job.id}, which it was promised")
        self._promises.wanted.add((self.client, job.id))

    def _cancel(self) -> None:
        mine = sorted(
            job_id for client, job_id in [*self._promises.wanted] if client == self.client
        )
        if not mine:
            return
        job = self._jobs.cancel(mine[self._dice.randrange(-min(3, len(mine)), 0)], self.client)
        if job.cancel_requested:
            self._promises.asked_to_stop.add(job.id)
        ends = job.cancel_requested or job.state is JobState.CANCELLED
        if ends or self.client not in job.clients:  # a job that has failed keeps its clients
            self._promises.wanted.discard((self.client, job.id))

    def _cancel_for_all(self) -> None:
        if job_id := self._some_job():
            self._promises.ended_for_all.add(job_id)
            self._jobs.cancel(job_id)

    def _retry(self) -> None:
        if job_id := self._some_job():
            job = self._jobs.retry(job_id, self.client)
            if self.client in job.clients and not job.cancel_requested:
                self._promises.wanted.add((self.client, job.id))

    def _delete(self) -> None:
        if job_id := self._some_job():
            self._promises.deleting.add(job_id)
            self._promises.deleted[job_id] = self._jobs.delete(job_id).state

    def _list(self) -> None:
        self._jobs.list(limit=20)

    def _some_job(self) -> str | None:
        return self._dice.choice(self._promises.seen[-40:] or [None])

    # What workers do.

    def _claim(self) -> None:
        if len(self._held) < MOST_LEASES and (lease := self._leases.claim(ANY, self._worker)):
            self._held.append(lease)

    def _heartbeat(self) -> None:
        self._with_lease(self._leases.heartbeat)

    def _begin(self) -> None:
        def begin(lease: Lease) -> None:
            results = self._leases.store(lease)
            run = results.begin_run(replace(KEY, seed=lease.request.seed))
            self._runs[lease] = results, run

        self._with_lease(begin)

    def _add_trials(self) -> None:
        def add(lease: Lease) -> None:
            if lease in self._runs:
                results, run = self._runs[lease]
                results.add_trials(run, [trial(self._dice.randrange(50))])

        self._with_lease(add)

    def _finish(self) -> None:
        def finish(lease: Lease) -> None:
            if lease in self._runs:
                results, run = self._runs[lease]
                # All runs of one problem publish at the same points, in any order.
                points = self._dice.sample(POINTS, len(POINTS))
                results.finish_run(run, map(entry, points), Totals())
                self._held.remove(lease)

        self._with_lease(finish)

    def _fail(self) -> None:
        self._end(lambda lease: self._leases.fail(lease, "no"))

    def _give_back(self) -> None:
        self._end(lambda lease: self._leases.release(lease))

    def _refuse(self) -> None:
        self._end(lambda lease: self._leases.refuse(lease, "no driver"))

    def _lose_attempt(self) -> None:
        self._end(lambda lease: self._leases.retry(lease, "crash"))

    def _stop(self) -> None:
        def stop(lease: Lease) -> None:
            if self._leases.look(lease).cancel_requested:
                self._leases.cancelled(lease)
                self._held.remove(lease)

        self._with_lease(stop)

    def _end(self, how: Callable[[Lease], object]) -> None:
        def end(lease: Lease) -> None:
            how(lease)
            self._held.remove(lease)

        self._with_lease(end)

    def _with_lease(self, do: Callable[[Lease], object]) -> None:
        if not self._held:
            self._claim()
        if not self._held:
            return
        lease = self._dice.choice(self._held)
        try:
            do(lease)
        except StaleLease:
            self._held.remove(lease)
            raise

    # What reconcilers do.

    def _lapse(self) -> None:
        if held := sorted(self._leases.held().items()):
            phase = self._dice.choice([None, AttemptPhase.START])
            self._leases.take_back(*self._dice.choice(held), Exceeded("it lapsed", phase))

    def _age(self) -> None:
        if job_id := self._some_job():
            earlier = update(table).where(table.c.id == job_id)
            with self._jobs.database.write() as connection:
                now = self._jobs._now(connection)
                connection.execute(earlier.values(available_at=now - timedelta(hours=2)))

    def _withdraw_results(self) -> None:
        ResultStore(self._jobs.database).withdraw(PROBLEM, ENVIRONMENT.device, ENVIRONMENT.engine)

    def _announce(self) -> None:
        self._leases.unannounced(timedelta(0))


OPERATIONS = {
    "submit": 12,
    "batch": 8,
    "submit_with_key": 3,
    "cancel": 12,
    "cancel_for_all": 1,
    "retry": 4,
    "delete": 3,
    "list": 1,
    "claim": 5,
    "heartbeat": 2,
    "begin": 4,
    "add_trials": 2,
    "finish": 3,
    "fail": 2,
    "give_back": 2,
    "refuse": 1,
    "lose_attempt": 2,
    "stop": 2,
    "lapse": 2,
    "age": 1,
    "announce": 1,
    "withdraw_results": 1,
}
EXPECTED: dict[str, tuple[type[Exception], ...]] = {
    **dict.fromkeys(("cancel", "cancel_for_all"), (UnknownJob,)),
    "retry": (UnknownJob, NotRetriable, EqualJobUnfinished),
    "delete": (UnknownJob, JobUnfinished),
    "begin": (StaleLease, RunAlreadyActive),
    **dict.fromkeys(
        ("heartbeat", "add_trials", "finish", "fail", "give_back", "refuse", "lose_attempt"),
        (StaleLease,),
    ),
    "stop": (StaleLease,),
}


def drive(store: Database, seed: int, rounds: Iterable[int]) -> Counter[str]:
    """Do rounds of operations, and return how many of each kind.

    Raises Broken, from the error of an operation that should have raised none.
    """
    promises = Promises()
    actors = [Actor(number, store, promises) for number in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        for number in rounds:
            begin = threading.Barrier(THREADS)

            def work(actor: Actor, number: int = number, begin: threading.Barrier = begin) -> None:
                dice = random.Random(f"{seed} {number} {actor.client}")  # noqa: S311
                begin.wait()
                actor.work(dice, number // ROUNDS * REQUESTS)

            try:
                list(pool.map(work, actors))
                audit(store, promises)
            except Exception as error:
                said = f"in round {number} of seed {seed}: {type(error).__name__}: {error}"
                raise Broken(said) from error
    return sum((actor.done for actor in actors), Counter())


def audit(store: Database, promises: Promises) -> None:
    """Compare the store with what was promised, while nothing goes on. Raises Broken."""
    with store.read() as connection:
        rows = {row["id"]: row for row in connection.execute(select(table)).mappings()}
        _audit_events(connection, rows.values())
        twins = select(table.c.request_key).where(IS_COALESCIBLE).group_by(table.c.request_key)
        if found := connection.execute(twins.having(func.count() > 1)).all():
            raise Broken(f"{len(found)} requests have two unfinished jobs")
    for row in rows.values():
        if wrong := _wrong_columns(row):
            raise Broken(f"job {row['id']} is {row['state']}, and {wrong}")
        clients = {client for client, job_id in promises.wanted if job_id == row["id"]}
        if JobState(row["state"]).finished or row["id"] in (
            promises.ended_for_all | promises.asked_to_stop
        ):
            continue
        if clients != {*row["clients"]}:
            off = ", ".join(sorted(clients ^ {*row["clients"]}))
            raise Broken(f"job {row['id']} has the clients {row['clients']}: wrong is {off}")
    for client, job_id in promises.wanted:
        state = JobState(rows[job_id]["state"]) if job_id in rows else promises.deleted.get(job_id)
        if state is None:
            raise Broken(f"job {job_id} of {client} is gone")
        if state is JobState.CANCELLED and job_id not in promises.ended_for_all:
            raise Broken(f"job {job_id} was cancelled, and {client} waits for it")


def _audit_events(connection: Connection, rows: Iterable[RowMapping]) -> None:
    seq = job_events.c.seq
    query = select(job_events.c.job_id, func.count(), func.min(seq), func.max(seq))
    found = {row[0]: tuple(row[1:]) for row in connection.execute(query.group_by("job_id"))}
    for row in rows:
        if found.get(row["id"]) != (row["event_count"], 1, row["event_count"]):
            raise Broken(f"job {row['id']} has gaps in its events: {found.get(row['id'])}")
    done = select(job_events.c.job_id).where(job_events.c.kind == JobState.DONE.value)
    if twice := connection.execute(done.group_by("job_id").having(func.count() > 1)).all():
        raise Broken(f"{len(twice)} jobs were done twice")


def _wrong_columns(row: RowMapping) -> str:
    """What a job's state does not allow; "" if all is well."""
    state = JobState(row["state"])
    rules = {
        "it has ended at no time": state.finished == (row["finished_at"] is not None),
        "nobody waits for it": state.finished or row["clients"],
        "its lease is not its state's": (state in HELD) == (row["lease_expires_at"] is not None),
        "it has no owner": state not in HELD or (row["owner"] and row["fence"] > 0),
        "it has no run": state not in (JobState.RUNNING, JobState.DONE) or row["run_id"],
        "it is to be stopped": state is not JobState.QUEUED or not row["cancel_requested"],
        "its attempts are out of range": 0 <= row["attempts"] <= MAX_ATTEMPTS,
    }
    return "; ".join(what for what, holds in rules.items() if not holds)
