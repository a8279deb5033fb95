"""Thirty nights of a busy service: only the clock and the times of GPUs are made up.

Two processes try to do each night. H200 has a worker and a queue that is never empty, H20 a worker
with an older engine, and L40S none. The jobs of two watched problems always fail.
"""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any

import pytest
from cases import new_request, submit
from clocks import Clock
from tiers import only

from tuner.families.fused_moe.problem import Gemm
from tuner.jobs.job import Job, JobState, Lease
from tuner.jobs.queue import JobQuery
from tuner.jobs.workers import WorkerInfo
from tuner.problems.points import Config, Point
from tuner.problems.registry import parse_problem
from tuner.problems.results import (
    Compiled,
    Entry,
    Environment,
    MeasureKind,
    RunKey,
    Status,
    Totals,
)
from tuner.store.database import Database
from tuner.store.jobs import JobStore
from tuner.store.leases import Leases
from tuner.store.nights import NightStore
from tuner.store.results import ResultStore
from tuner.store.workers import WorkerStore
from workers.nightly import do_round
from workers.queue import Announcer
from workers.settings import Settings

NIGHTS = 30
REVALIDATE = 2
FIRST = date(2026, 11, 1)
FORCED = FIRST + timedelta(days=9)
PROBLEMS = [
    parse_problem(f"fused_moe:E=8,N={n},K=1024,top_k=2,dtype=bfloat16")
    for n in (128, 256, 384, 512, 640, 768)
]
FAILING = PROBLEMS[1:3]
SOMEBODY_S = parse_problem("fused_moe:E=16,N=128,K=1024,top_k=2,dtype=bfloat16")
POINTS = tuple(Point(size, gemm) for size in (1, 2) for gemm in Gemm)
H200, H20, L40S = "NVIDIA_H200", "NVIDIA_H20", "NVIDIA_L40S"
WORKERS = [
    WorkerInfo(f"{device}-0", f"{device}-0@host", "host", device, device, None, (engine,), {})
    for device, engine in ((H200, "sglang==9.9.9"), (H20, "sglang==9.9.7"))
]
ANSWERS_A_DAY = 6


def watch(device: str) -> str:
    models = ", ".join(f'"{one.spec()}"' for one in PROBLEMS)
    return f'[[watch]]\nmodels = [{models}]\ndevices = ["{device}"]\nbatch_sizes = [1, 2]\n'


@pytest.fixture
def settings(store_url, tmp_path):
    file = tmp_path / "nightly.toml"
    file.write_text(f"revalidate = {REVALIDATE}\n" + "".join(map(watch, (H200, H20, L40S))))
    return Settings(store_url, nightly=file)


def publish(results: ResultStore, request: Any, version: str) -> None:  # noqa: ANN401 (a lease's)
    environment = Environment(
        request.device, "sglang", version, "3.6.0", "ab" * 32, "2.11.0", "13.0", "580.1"
    )
    key = RunKey(
        request.problem, environment, MeasureKind.GPU, "standard", request.seed, POINTS, "sglang"
    )
    config, compiled = Config({"BLOCK_SIZE_M": 16}), Compiled(Status.OK)
    entries = [Entry(point, config, Status.OK, 9.0, compiled, {}, "") for point in POINTS]
    results.finish_run(results.begin_run(key), entries, Totals())


@dataclass
class World:
    """The service, and what happens around it."""

    settings: Settings
    clock: Clock
    stores: list[Database]
    seeds: Iterator[int] = field(default_factory=lambda: iter(range(1, 10_000)))
    answered: list[tuple[str, Any]] = field(default_factory=list)  # client and request, in order

    def __post_init__(self) -> None:
        self.jobs, self.leases = (kind(self.stores[0], self.clock) for kind in (JobStore, Leases))
        self.workers = WorkerStore(self.stores[0], self.clock)

    def post(self, client: str, count: int) -> None:
        for _ in range(count):
            request = new_request(SOMEBODY_S, H200, engine="sglang==9.9.9", seed=next(self.seeds))
            submit(self.jobs, request, client=client)

    def beat(self) -> None:
        for one in WORKERS:
            self.workers.beat(one)

    def night(self, store: Database, *, force: bool = False) -> dict[str, Any]:
        announcer = Announcer(self.settings)
        return do_round(self.settings, store, announcer, force=force, clock=self.clock)

    def both_try(self) -> list[dict[str, Any]]:
        """What two processes did that try at the same time: the rounds that were not skipped."""
        self.beat()
        with ThreadPoolExecutor(2) as pool:
            return [one for one in pool.map(self.night, self.stores) if "skipped" not in one]

    def work(self, worker: WorkerInfo, most: int) -> None:
        """Let a worker answer some jobs."""
        for _ in range(most):
            self.workers.beat(worker)
            lease = self.leases.claim(worker.filters(), worker.id, worker.preferred())
            if lease is None:
                return
            self._answer(lease)
            self.clock.advance(timedelta(minutes=1))

    def _answer(self, lease: Lease) -> None:
        request = lease.request
        self.answered.append((self.jobs.get(lease.job_id).client, request))
        if request.problem in FAILING:
            self.leases.fail(lease, "nothing fits")
        else:
            publish(self.leases.store(lease), request, request.engine.partition("==")[2])


@pytest.mark.parametrize("database", only(["sqlite"], ["sqlite", "postgresql"]))
def test_thirty_nights(settings, store_url):
    clock = Clock()
    with ExitStack() as stack:
        stores = [stack.enter_context(Database.open(store_url)) for _ in range(2)]
        world = World(settings, clock, stores)
        tuned_before(ResultStore(stores[0], clock))
        rounds = [live_a_day(world) for _ in range(NIGHTS)]
        check(world, rounds)


def tuned_before(results: ResultStore) -> None:
    """Everything was tuned once, so the two problems fail when they are measured again."""
    for device, version in ((H200, "9.9.9"), (H20, "9.9.7"), (L40S, "9.9.9")):
        for problem in PROBLEMS:
            publish(results, new_request(problem, device), version)


def live_a_day(world: World) -> list[dict[str, Any]]:
    """The rounds of a night, which begins at one, and of the hours until the next."""
    day = FIRST + timedelta(days=world.clock().toordinal() - FIRST.toordinal())
    world.clock.now = world.clock().replace(hour=0, minute=55)
    assert [one["date"] for one in world.both_try()] in ([], [str(day - timedelta(days=1))])
    world.post("team", ANSWERS_A_DAY)  # more than its share: its queue is never empty
    world.clock.now = world.clock().replace(hour=1, minute=0)
    done = world.both_try()
    world.clock.advance(timedelta(hours=2))  # what is queued has waited for long
    world.post("a person", 1)
    before = len(world.answered)
    world.work(WORKERS[0], ANSWERS_A_DAY)
    clients = [client for client, _ in world.answered[before:]]
    assert clients.index("a person") < 3
    world.work(WORKERS[1], ANSWERS_A_DAY)
    done += world.both_try()
    if day == FORCED:
        world.beat()
        done.append(world.night(world.stores[1], force=True))
        world.work(WORKERS[0], ANSWERS_A_DAY)
        world.work(WORKERS[1], ANSWERS_A_DAY)
    world.clock.now = world.clock().replace(hour=0) + timedelta(days=1)
    return done


def check(world: World, rounds: list[list[dict[str, Any]]]) -> None:
    nights = list(reversed(NightStore(world.stores[0]).nights(limit=100)))
    dates = [FIRST + timedelta(days=n) for n in range(NIGHTS)]
    everything = world.jobs.list(JobQuery(client="nightly"), limit=1000)
    assert [night.date for night in nights[-NIGHTS:]] == dates
    for night, done in zip(nights[-NIGHTS:], rounds, strict=True):
        assert night.finished_at is not None
        assert len(night.summary["rounds"]) == len(done) == (2 if night.date == FORCED else 1)
        assert (night.summary["missing"], night.summary["stale"]) == ([], [])  # a mixed fleet
        assert night.summary["errors"] == night.summary["not_submitted"] == []
        assert sorted(night.summary["submitted"]) == sorted(
            job_id for one in done for job_id in one["submitted"]
        )
    # The record is whole: each job of the nights is in one of them.
    recorded = Counter(job_id for night in nights for job_id in night.summary["submitted"])
    assert recorded == Counter(job.id for job in everything)
    # Nothing piled up.
    waiting = [job for job in everything if job.state is JobState.QUEUED]
    assert Counter(job.request.device for job in waiting) == {L40S: REVALIDATE}
    assert len(world.jobs.list(JobQuery(client="team", states=QUEUED), limit=1000)) > NIGHTS
    # Each problem is measured again in turn.
    for device in (H200, H20):
        tries = Counter(job.request.problem for job in everything if job.request.device == device)
        assert sum(tries.values()) >= NIGHTS * REVALIDATE
        assert max(tries.values()) - min(tries[one] for one in PROBLEMS) <= 1
        states = {job.state for job in everything if job.request.problem in FAILING}
        assert states == {JobState.FAILED, *_if_waiting(waiting)}


QUEUED = frozenset({JobState.QUEUED})


def _if_waiting(waiting: list[Job]) -> set[JobState]:
    return {job.state for job in waiting if job.request.problem in FAILING}
