"""Old trials, jobs and nights are deleted; what winners need, and what is under way, stays."""

from dataclasses import replace
from datetime import timedelta

import pytest
from cases import new_request, submit
from databases import both_databases
from sqlalchemy import func, select
from store_writer import KEY, POINTS, PROBLEM, batch

from tuner.jobs.job import JobFilter, JobState
from tuner.problems.points import Config
from tuner.problems.results import Compiled, Entry, RunKey, Status, Totals
from tuner.store.database import Database
from tuner.store.jobs import JobStore
from tuner.store.nights import NightStore, Round
from tuner.store.prune import Pruning
from tuner.store.results import ResultStore
from tuner.store.tables import job_events, runs, trials

NOTHING = dict.fromkeys(("jobs", "runs", "trials", "nights"), 0)
AGE = timedelta(days=180)
ANY = [JobFilter(needs_gpu=False)]
ENTRY = Entry(POINTS[0], Config({}), Status.OK, 9.0, Compiled(Status.OK), {}, "")


def key(seed: int) -> RunKey:
    return replace(KEY, seed=seed)


def count(store: Database, table: object) -> int:
    with store.read() as connection:
        return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


def tuned(store: ResultStore, seed: int) -> int:
    run = store.begin_run(key(seed))
    store.add_trials(run, batch(seed))
    store.finish_run(run, [ENTRY], Totals())
    return run.id


@pytest.fixture
def jobs(store, clock):
    return JobStore(store, clock)


@both_databases
def test_what_is_old_and_nobody_needs_goes(store, jobs, leases, clock):
    nights = NightStore(store, clock)
    day = clock.now.date()
    nights.finish("nightly", day, Round(nights.begin("nightly", day)), {})
    results = ResultStore(store, clock)
    for seed in range(7):  # each replaces the winner of the one before
        last = tuned(results, seed)
    request = new_request(PROBLEM, "L40S", measure="predict")
    ended, waiting = (submit(jobs, replace(request, seed=n)).job.id for n in range(2))
    lease = leases.claim(ANY, "worker")
    assert lease.job_id == ended
    of_job = leases.store(lease).begin_run(key(100)).id
    leases.fail(lease, "no")
    clock.advance(AGE + timedelta(hours=1))
    recent = tuned(results, 50)
    results.withdraw(PROBLEM, "NVIDIA_L40S", "sglang")
    current = tuned(results, 51)
    day = clock.now.date()
    nights.finish("nightly", day, Round(nights.begin("nightly", day)), {})

    gone = Pruning(store, clock).prune(AGE)
    assert gone == {"jobs": 1, "runs": 8, "trials": 7 * len(batch(0)), "nights": 1}
    with store.read() as connection:
        left = set(connection.execute(select(runs.c.id)).scalars())
    assert left == {recent, current}
    assert not left & {last, of_job}
    assert [job.id for job in jobs.list()] == [waiting]
    assert [night.date for night in nights.nights()] == [day]
    assert count(store, job_events) == 1
    assert len(results.winners_of(current)) == 1
    assert Pruning(store, clock).prune(AGE) == NOTHING


@both_databases
def test_the_runs_of_winners_and_of_jobs_stay_however_old(store, jobs, leases, clock):
    results = ResultStore(store, clock)
    of_winner = tuned(results, 0)
    submit(jobs, new_request(PROBLEM, "L40S", measure="predict"))
    lease = leases.claim(ANY, "worker")
    running = leases.store(lease).begin_run(key(100))
    clock.advance(10 * AGE)
    assert Pruning(store, clock).prune(AGE) == NOTHING
    assert count(store, trials) == len(results.trials(results.begin_run(key(0)))) > 0
    leases.store(lease).finish_run(running, [], Totals())
    assert jobs.get(lease.job_id).state is JobState.DONE
    assert len(results.winners_of(of_winner)) == 1
