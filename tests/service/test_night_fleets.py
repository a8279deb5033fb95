"""Nights of fleets whose hosts differ: what is queued ends, and each problem has its turn."""

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
from clocks import Clock
from databases import both_databases

from tuner.families.fused_moe.problem import Gemm
from tuner.jobs.job import JobState, Lease, Priority
from tuner.jobs.queue import JobQuery
from tuner.jobs.workers import WorkerInfo
from tuner.problems.points import Config, Point, Problem
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
from tuner.store.results import ResultStore
from tuner.store.workers import WorkerStore
from workers import coverage, watches
from workers.nightly import KINDS, do_round
from workers.queue import Announcer
from workers.settings import Settings

PROBLEMS = [
    parse_problem(f"fused_moe:E=8,N={n},K=1024,top_k=2,dtype=bfloat16") for n in (128, 256, 512)
]
POINTS = tuple(Point(size, gemm) for size in (1, 2) for gemm in Gemm)
NEW = Environment("NVIDIA_L40S", "sglang", "9.9.9", "3.6.0", "ab" * 32, "2.11.0", "13.0", "580.1")
OLD = replace(NEW, engine_version="9.9.7")
QUEUED = JobQuery(states=frozenset({JobState.QUEUED}))


@dataclass(frozen=True)
class Host:
    """A host with an L40S, whose results have this environment."""

    name: str
    environment: Environment

    @property
    def worker(self) -> WorkerInfo:
        engine = f"sglang=={self.environment.engine_version}"
        card = f"GPU-{self.name}"
        return WorkerInfo(
            f"{self.name}{engine}", self.name, self.name, card, "NVIDIA_L40S", None, (engine,), {}
        )


@dataclass
class Fleet:
    """A service and its hosts. A day has a night, and the work that the hosts do after it."""

    settings: Settings
    store: Database
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.jobs, self.leases, self.results, self.workers = (
            kind(self.store, self.clock) for kind in (JobStore, Leases, ResultStore, WorkerStore)
        )

    def publish(
        self, results: ResultStore, problem: Problem, at: Environment, seed: int = 0
    ) -> None:
        self.clock.advance(timedelta(minutes=1))
        key = RunKey(problem, at, MeasureKind.GPU, "standard", seed, POINTS, "sglang")
        config, compiled = Config({"BLOCK_SIZE_M": 16}), Compiled(Status.OK)
        entries = [Entry(point, config, Status.OK, 9.0, compiled, {}, "") for point in POINTS]
        results.finish_run(results.begin_run(key), entries, Totals())

    def tuned(self, *at: Environment) -> None:
        for problem, environment in zip(PROBLEMS, at, strict=True):
            self.publish(self.results, problem, environment)

    def night(self, hosts: Sequence[Host] = ()) -> dict[str, list[int]]:
        """The numbers of the problems that a night would measure, if these hosts live then."""
        self.clock.now = self.clock().replace(hour=2, minute=0) + timedelta(days=1)
        for one in hosts:
            self.workers.beat(one.worker)
        done = do_round(self.settings, self.store, Announcer(self.settings), clock=self.clock)
        assert not done["errors"]
        found = {
            kind: [PROBLEMS.index(parse_problem(one["problem"])) for one in done[kind]]
            for kind in KINDS
        }
        return {kind: some for kind, some in found.items() if some}

    def work(self, hosts: Sequence[Host]) -> None:
        """Let the hosts do what they can, in turn."""
        self.clock.advance(timedelta(hours=8))
        while taken := [(one, lease) for one in hosts if (lease := self._claim(one))]:
            for host, lease in taken:
                store, request = self.leases.store(lease), lease.request
                self.publish(store, request.problem, host.environment, request.seed)

    def _claim(self, host: Host) -> Lease | None:
        worker = host.worker
        self.workers.beat(worker)
        return self.leases.claim(worker.filters(), worker.id, worker.preferred())

    def days(self, hosts: Sequence[Host], count: int) -> Iterator[dict[str, list[int]]]:
        """Nights at which all hosts live; another host is the first to work on each day."""
        for day in range(count):
            yield self.night(hosts)
            first = day % len(hosts)
            self.work([*hosts[first:], *hosts[:first]])


@pytest.fixture
def fleet(store_url, tmp_path):
    names = ", ".join(f'"{one.spec()}"' for one in PROBLEMS)
    file = tmp_path / "nightly.toml"
    file.write_text(
        f'revalidate = 1\n[[watch]]\nmodels = [{names}]\ndevices = ["L40S"]\nbatch_sizes = [1, 2]\n'
    )
    with Database.open(store_url) as store:
        yield Fleet(Settings(store_url, nightly=file), store)


IN_TURN = [{"revalidated": [0]}, {"revalidated": [1]}, {"revalidated": [2]}, {"revalidated": [0]}]


@both_databases
def test_hosts_with_two_drivers_do_not_make_each_other_s_results_stale(fleet):
    fleet.tuned(NEW, NEW, NEW)
    hosts = [Host("a", NEW), Host("b", replace(NEW, driver="570.1"))]
    first, second, third, *later = fleet.days(hosts, 6)
    assert [first, second] == IN_TURN[:2]
    # The second host worked first on the second day, and its driver was new to the store.
    assert third == {"stale": [0, 2], "revalidated": [1]}
    assert sorted(later, key=str) == IN_TURN[:3]


def test_hosts_that_are_off_at_night_make_no_results_stale_either(fleet):
    fleet.tuned(NEW, NEW, NEW)
    always, by_day = Host("a", NEW), Host("b", replace(NEW, driver="570.1"))
    nights = []
    for day in range(6):
        nights.append(fleet.night([always]))
        fleet.work([by_day, always] if day % 2 else [always, by_day])
    assert sorted(nights[3:], key=str) == IN_TURN[:3]  # see above


def test_a_driver_that_is_new_on_all_hosts_makes_each_result_stale_once(fleet):
    fleet.tuned(NEW, NEW, NEW)
    later = replace(NEW, driver="590.1")
    fleet.publish(fleet.results, PROBLEMS[0], later)
    nights = list(fleet.days([Host("a", later), Host("b", later)], 3))
    assert nights == [{"stale": [1, 2], "revalidated": [0]}, *IN_TURN[1:3]]


def test_a_driver_that_goes_back_on_the_only_host_makes_results_stale(fleet):
    later = replace(NEW, driver="590.1")
    fleet.tuned(NEW, later, NEW)
    assert fleet.night([Host("a", NEW)]) == {"stale": [1], "revalidated": [0]}


@pytest.mark.parametrize("here", [None, "9.9.7", "9.9.8"])
def test_hosts_that_are_off_at_night_get_jobs_for_their_version(fleet, monkeypatch, here):
    """The store has a result of a newer version, and the night's machine has another."""
    monkeypatch.setattr(watches, "engine_version_here", lambda _: here)
    fleet.tuned(NEW, OLD, OLD)
    host = Host("a", OLD)
    fleet.work([host])
    assert fleet.night() == {"stale": [0], "revalidated": [1]}
    assert {job.request.engine for job in fleet.jobs.list(QUEUED)} == {"sglang==9.9.7"}
    fleet.work([host])
    assert fleet.night() == {"revalidated": [2]}


def test_nobody_known_and_an_older_engine_here_leave_the_version_open(fleet, monkeypatch):
    """A job for the version here would leave its result stale."""
    for module in (watches, coverage):
        monkeypatch.setattr(module, "engine_version_here", lambda _: "9.9.7")
    fleet.tuned(NEW, OLD, NEW)
    assert fleet.night() == {"stale": [1], "revalidated": [0]}
    assert {job.request.engine for job in fleet.jobs.list(QUEUED)} == {"sglang"}


def test_jobs_for_a_version_that_was_upgraded_away_do_not_stay(fleet):
    assert fleet.night([Host("a", OLD)]) == {"missing": [0, 1, 2]}
    others = JobQuery(client="team", states=QUEUED.states)
    (shared, *_) = fleet.jobs.list(QUEUED)
    fleet.jobs.submit_all([(shared.request, Priority.NORMAL)], client="team")
    foreign = replace(shared.request, seed=7)
    fleet.jobs.submit_all([(foreign, Priority.NORMAL)], client="team")
    fleet.workers.stopped(Host("a", OLD).worker.id)
    assert fleet.night([Host("a", NEW)]) == {"missing": [0, 1, 2]}
    left = [(job.request.engine, job.clients) for job in fleet.jobs.list(QUEUED)]
    of_team = ("sglang==9.9.7", ("team",))
    assert sorted(left) == [of_team, of_team, *[("sglang==9.9.9", ("nightly",))] * 3]
    assert [job.request for job in fleet.jobs.list(others)] == [foreign]


def test_jobs_for_any_version_give_way_to_jobs_for_the_workers_version(fleet, monkeypatch):
    for module in (watches, coverage):
        monkeypatch.setattr(module, "engine_version_here", lambda _: None)
    assert fleet.night() == {"missing": [0, 1, 2]}
    assert {job.request.engine for job in fleet.jobs.list(QUEUED)} == {"sglang"}
    assert fleet.night([Host("a", NEW)]) == {"missing": [0, 1, 2]}
    assert [job.request.engine for job in fleet.jobs.list(QUEUED)] == ["sglang==9.9.9"] * 3


def test_jobs_that_another_host_can_do_stay(fleet):
    fleet.night([Host("a", OLD)])
    fleet.night([Host("a", OLD), Host("b", NEW)])
    assert len(fleet.jobs.list(QUEUED)) == 2 * len(PROBLEMS)


def test_a_version_that_no_worker_has_holds_up_no_other(fleet):
    """A watch of each of two versions; all was tuned, the older version first."""
    fleet.tuned(OLD, OLD, OLD)
    fleet.tuned(NEW, NEW, NEW)
    text = fleet.settings.nightly.read_text()
    _, _, watch = text.partition("\n")
    both = [f'{watch}engine = "sglang=={one.engine_version}"\n' for one in (OLD, NEW)]
    fleet.settings.nightly.write_text("revalidate = 1\n" + "".join(both))
    seen = [one["revalidated"] for one in fleet.days([Host("a", NEW)], 4)]
    assert seen == [[0, 0], [0, 1], [0, 2], [0, 0]]
    (queued,) = fleet.jobs.list(QUEUED)
    assert queued.request.engine == "sglang==9.9.7"


def test_sources_here_say_nothing_of_other_hosts(fleet, monkeypatch):
    """The workers have kernels of their own, under the version that this machine has too."""
    here = coverage._Kernels(NEW.engine_version, "cd" * 32)
    monkeypatch.setattr(coverage, "_kernels", lambda *_: here)
    fleet.tuned(NEW, NEW, NEW)
    assert fleet.night([Host("a", NEW)]) == IN_TURN[0]
    assert fleet.night([Host("a", NEW), Host(socket.gethostname(), NEW)]) == IN_TURN[0]


def test_sources_here_count_for_a_worker_of_this_machine(fleet, monkeypatch):
    here = coverage._Kernels(NEW.engine_version, "cd" * 32)
    monkeypatch.setattr(coverage, "_kernels", lambda *_: here)
    fleet.tuned(NEW, NEW, NEW)
    assert fleet.night([Host(socket.gethostname(), NEW)]) == {"stale": [0, 1, 2]}
