"""What the queue does, on each database."""

import contextlib
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cases import new_request, submit
from clocks import Watcher, expire
from databases import both_databases
from job_submitter import BODY, go_on, submitter_request, submitting
from sqlalchemy import text, update
from store_writer import KEY, PROBLEM, batch, trial
from worker_processes import wait_for

from tuner.errors import (
    IdempotencyConflict,
    IdempotencyKeyInUse,
    JobUnfinished,
    RunAlreadyActive,
    StaleLease,
    UnknownJob,
)
from tuner.families.fused_moe.family import MoeSelection
from tuner.families.fused_moe.problem import Gemm
from tuner.jobs.job import (
    FRESH,
    LEASE,
    MAX_ATTEMPTS,
    JobFilter,
    JobRequest,
    JobState,
    Lease,
    Priority,
    Submitted,
)
from tuner.problems.results import Measurement, RunState, Status, Totals
from tuner.store.connect import connect
from tuner.store.database import Database
from tuner.store.jobs import JobStore
from tuner.store.leases import LeasedResults, Leases
from tuner.store.results import ResultStore
from tuner.store.tables import jobs as table
from tuner.tuning.request import Effort

REQUEST = new_request(
    PROBLEM, "L40S", measure="predict", selection=MoeSelection((16, 2)), model="deepseek-r1"
)
ON_GPU = replace(REQUEST, measure="gpu")
ANY = [JobFilter(needs_gpu=False)]
HERE = Path(__file__).parent


def claim(leases: Leases, owner: str = "worker") -> Lease:
    lease = leases.claim(ANY, owner)
    assert lease is not None
    return lease


@pytest.fixture
def job_id(jobs):
    return submit(jobs, REQUEST).job.id


def seeded(count: int) -> list[JobRequest]:
    return [replace(REQUEST, seed=seed) for seed in range(count)]


def kinds(jobs: JobStore, job_id: str) -> list[str]:
    events = jobs.events(job_id)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    return [event.kind for event in events]


class TestSubmitting:
    @both_databases
    def test_a_job_is_queued_as_asked(self, jobs, clock):
        answer = submit(jobs, ON_GPU, priority=Priority.URGENT, client="team")
        job = jobs.get(answer.job.id)
        assert answer.created
        assert not answer.replayed
        assert job == answer.job
        assert job.request == replace(ON_GPU, device="NVIDIA_L40S", selection=MoeSelection((2, 16)))
        assert (job.state, job.priority, job.client) == (JobState.QUEUED, Priority.URGENT, "team")
        assert (job.attempts, job.run_id, job.error, job.finished_at) == (0, None, "", None)
        assert job.created_at == clock.now
        assert kinds(jobs, job.id) == ["submitted"]

    @both_databases
    def test_an_unfinished_equal_job_answers(self, jobs):
        first = submit(jobs, REQUEST).job
        other_words = replace(REQUEST, model="another name", selection=MoeSelection((2, 16)))
        again = submit(jobs, other_words)
        assert (again.created, again.job.id) == (False, first.id)

    @pytest.mark.parametrize(
        "change",
        [
            {"problem": replace(PROBLEM, N=128)},
            {"device": "NVIDIA_H200"},
            {"engine": "sglang==0.5.16"},
            {"measure": "gpu"},
            {"selection": MoeSelection()},
            {"selection": MoeSelection((2, 16), (Gemm.UP,))},
            {"effort": Effort.QUICK},
            {"wide": True},
            {"seed": 1},
        ],
        ids=str,
    )
    def test_a_request_that_differs_is_another_job(self, jobs, change):
        first = submit(jobs, REQUEST).job
        other = submit(jobs, replace(REQUEST, **change))
        assert other.created
        assert other.job.id != first.id

    def test_an_urgent_request_hurries_a_queued_job(self, jobs):
        first = submit(jobs, REQUEST).job
        submit(jobs, replace(REQUEST, seed=7), Priority.URGENT)
        hurried = submit(jobs, REQUEST, Priority.URGENT)
        assert (hurried.created, hurried.job.id) == (False, first.id)
        assert hurried.job.priority is Priority.URGENT
        assert submit(jobs, REQUEST).job.priority is Priority.URGENT

    @both_databases
    def test_a_job_done_lately_answers_and_an_old_one_does_not(self, jobs, leases, clock):
        first = submit(jobs, REQUEST).job
        finish(leases, claim(leases))
        clock.advance(FRESH - timedelta(seconds=1))
        assert submit(jobs, REQUEST).job.id == first.id
        assert submit(jobs, REQUEST, fresh=timedelta(hours=1)).created
        jobs.cancel(jobs.list(limit=1)[0].id)
        clock.advance(timedelta(seconds=2))
        assert submit(jobs, REQUEST).created

    @pytest.mark.parametrize("end", ["fail", "cancelled"])
    def test_a_job_that_gave_no_answer_is_no_answer(self, jobs, leases, end):
        submit(jobs, REQUEST)
        lease = claim(leases)
        leases.fail(lease, "nothing fits") if end == "fail" else leases.cancelled(lease)
        assert submit(jobs, REQUEST).created

    def test_a_job_being_cancelled_is_no_answer(self, jobs, leases):
        first = submit(jobs, REQUEST).job
        claim(leases)
        jobs.cancel(first.id)
        assert submit(jobs, REQUEST).created


@both_databases
class TestIdempotency:
    def test_the_same_key_and_body_is_the_same_job(self, jobs, leases, clock):
        first = submit(jobs, REQUEST, idempotency_key="k", body_hash="a")
        finish(leases, claim(leases))
        clock.advance(2 * FRESH)  # by now, only the key says that it was asked for before
        again = submit(jobs, REQUEST, idempotency_key="k", body_hash="a")
        assert (again.job.id, again.created, again.replayed) == (first.job.id, False, True)
        assert len(jobs.list()) == 1

    def test_another_body_is_refused_and_leaves_nothing(self, jobs):
        submit(jobs, REQUEST, idempotency_key="k", body_hash="a")
        with pytest.raises(IdempotencyConflict, match="'k'"):
            submit(jobs, replace(REQUEST, seed=1), idempotency_key="k", body_hash="b")
        assert len(jobs.list()) == 1

    def test_clients_do_not_share_keys(self, jobs):
        submit(jobs, REQUEST, client="a", idempotency_key="k", body_hash="a")
        other = replace(REQUEST, seed=1)
        assert submit(jobs, other, client="b", idempotency_key="k", body_hash="b").created

    def test_old_keys_are_forgotten(self, jobs, clock):
        submit(jobs, REQUEST, idempotency_key="k", body_hash="a")
        clock.advance(timedelta(days=8))
        assert jobs.forget_idempotency_keys() == 1
        submit(jobs, replace(REQUEST, seed=1), idempotency_key="k", body_hash="b")

    def test_at_once_it_is_one_job(self, jobs):
        def post(number: int) -> str:
            key = f"k{number % 2}"  # equal requests under two keys, each posted four times
            while True:
                with contextlib.suppress(IdempotencyKeyInUse):
                    return submit(jobs, REQUEST, idempotency_key=key, body_hash="a").job.id

        with ThreadPoolExecutor(4) as pool:
            assert len(set(pool.map(post, range(8)))) == 1
        assert len(jobs.list()) == 1
        assert kinds(jobs, jobs.list()[0].id) == ["submitted"]

    def test_a_key_that_another_process_is_at_work_on_is_refused_at_once(self, jobs, store_url):
        mine = {"idempotency_key": "k", "body_hash": BODY}
        with submitting(store_url, "k") as other:
            with pytest.raises(IdempotencyKeyInUse, match="try again"):
                submit(jobs, submitter_request(0), **mine)
            with pytest.raises(IdempotencyKeyInUse):  # whatever the body
                submit(jobs, REQUEST, idempotency_key="k", body_hash="a")
            assert jobs.list() == []
            job_id = go_on(other)
        answer = submit(jobs, submitter_request(0), **mine)
        assert (answer.job.id, answer.created, answer.replayed) == (job_id, False, True)

    def test_a_key_is_free_when_whoever_had_it_is_killed(self, jobs, store_url):
        with submitting(store_url, "k") as killed:
            killed.kill()
            killed.wait()
            # PostgreSQL ends the transaction as soon as it sees that its client is gone.
            answer = wait_for(lambda: _unless_in_use(jobs, "k"))
        assert (answer.created, answer.replayed) == (True, False)
        assert ids(jobs.list()) == [answer.job.id]

    def test_another_key_or_client_need_not_wait(self, jobs, store_url):
        if store_url.startswith("sqlite"):
            pytest.skip("SQLite has one writer, whatever it writes")
        with submitting(store_url, "k"):
            assert submit(jobs, REQUEST, idempotency_key="l", body_hash="a").created
            other = replace(REQUEST, seed=1)
            assert submit(jobs, other, client="b", idempotency_key="k", body_hash="a").created


def _unless_in_use(jobs: JobStore, key: str) -> Submitted | None:
    try:
        return submit(jobs, submitter_request(0), idempotency_key=key, body_hash=BODY)
    except IdempotencyKeyInUse:
        return None


class TestListing:
    def test_counts(self, jobs):
        first, *_ = [submit(jobs, request).job.id for request in seeded(3)]
        jobs.cancel(first)
        assert jobs.counts() == {JobState.QUEUED: 2, JobState.CANCELLED: 1}

    def test_an_unknown_job(self, jobs):
        with pytest.raises(UnknownJob, match="nope"):
            jobs.get("nope")
        with pytest.raises(UnknownJob):
            jobs.cancel("nope")
        assert jobs.events("nope") == []

    def test_events_go_on_from_a_number(self, jobs, leases):
        job = submit(jobs, REQUEST).job
        leases.release(claim(leases, "w1"))
        assert [event.kind for event in jobs.events(job.id, after=1)] == ["leased", "requeued"]
        assert [event.seq for event in jobs.events(job.id, after=1, limit=1)] == [2]
        assert jobs.events(job.id)[1].data == {"owner": "w1", "attempt": 1}


@both_databases
class TestClaiming:
    def test_urgent_before_old_before_new(self, jobs, leases, clock):
        posted = []
        for request in seeded(3):
            posted.append(submit(jobs, request).job.id)
            clock.advance(timedelta(seconds=1))
        submit(jobs, seeded(3)[2], Priority.URGENT)
        assert [claim(leases).job_id for _ in posted] == [posted[2], posted[0], posted[1]]
        assert leases.claim(ANY, "worker") is None

    def test_a_lease_says_what_to_do(self, jobs, leases, clock):
        job = submit(jobs, REQUEST).job
        lease = claim(leases, "w1")
        assert (lease.job_id, lease.owner, lease.request) == (job.id, "w1", job.request)
        held = jobs.get(job.id)
        assert (held.state, held.owner, held.attempts) == (JobState.LEASED, "w1", 1)
        assert held.lease_expires_at == clock.now + LEASE

    def test_each_worker_takes_what_it_can_do(self, jobs, leases):
        on_l40s = submit(jobs, ON_GPU).job.id
        on_h200 = submit(jobs, replace(ON_GPU, device="NVIDIA_H200")).job.id
        predict = submit(jobs, REQUEST).job.id
        l40s = [JobFilter(needs_gpu=True, devices=("NVIDIA_L40S",)), *ANY]

        def claims(asks: list[JobFilter]) -> list[str]:
            taken = iter(lambda: leases.claim(asks, "w"), None)
            return [lease.job_id for lease in taken if lease]

        assert claims([JobFilter(needs_gpu=False, devices=("NVIDIA_A10",))]) == []
        assert claims(l40s) == [on_l40s, predict]
        assert claims([JobFilter(needs_gpu=True, devices=("NVIDIA_H200", "NVIDIA_A10"))]) == [
            on_h200
        ]

    def test_processes_share_the_queue(self, jobs, store_url):
        posted = [submit(jobs, request).job.id for request in seeded(60)]
        command = [sys.executable, str(HERE / "job_claimer.py"), store_url]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        claimers = [subprocess.Popen(command, **pipes) for _ in range(3)]
        assert all(claimer.stdout.readline() == "ready\n" for claimer in claimers)
        for claimer in claimers:
            claimer.stdin.write("\n")
            claimer.stdin.flush()
        taken = [claimer.communicate()[0].split() for claimer in claimers]
        assert sorted(sum(taken, [])) == sorted(posted)


@both_databases
class TestLeases:
    def test_a_job_goes_from_queued_to_done(self, jobs, leases, clock, job_id):
        lease = claim(leases)
        leased = leases.store(lease)
        run = leased.begin_run(KEY)
        assert jobs.get(job_id).state is JobState.RUNNING
        assert jobs.get(job_id).run_id == run.id
        leased.add_trials(run, batch(0))
        clock.advance(timedelta(seconds=3))
        leased.finish_run(run, [], Totals(measurements=100))
        done = jobs.get(job_id)
        assert (done.state, done.finished_at) == (JobState.DONE, clock.now)
        assert done.lease_expires_at is None
        assert kinds(jobs, job_id) == ["submitted", "leased", "running", "trials", "done"]
        trials, end = jobs.events(job_id)[3:]
        assert trials.data == {
            "tried": 100,
            "new": 100,
            "statuses": {"ok": 100},
            "best_us": {"M=1 up": 0.5, "M=1 down": 1.5},
            "incumbents_us": {},  # nothing was said of the incumbents
        }
        assert (end.data["run_id"], end.data["totals"]["measurements"]) == (run.id, 100)

    def test_trials_that_were_there_are_told_apart(self, jobs, leases, job_id):
        leased = leases.store(claim(leases))
        run = leased.begin_run(KEY)
        leased.add_trials(run, [trial(0), trial(1)])
        leased.add_trials(run, [trial(1), trial(2)])
        data = [event.data for event in jobs.events(job_id) if event.kind == "trials"]
        assert [(one["tried"], one["new"]) for one in data] == [(2, 2), (2, 1)]

    def test_mishaps_are_told_and_are_progress_and_no_trials(self, jobs, leases, job_id):
        """A job whose candidates are all lost works on them, so it does not hang."""
        lease = claim(leases)
        leased = leases.store(lease)
        run = leased.begin_run(KEY)
        lost = replace(trial(0), measurement=Measurement(Status.TIMED_OUT))
        leased.add_trials(run, [lost])
        leased.add_trials(run, [lost, trial(1)])
        data = [event.data for event in jobs.events(job_id) if event.kind == "trials"]
        assert [(one["tried"], one["new"]) for one in data] == [(1, 0), (2, 1)]
        assert data[0]["statuses"] == {"timed_out": 1}
        assert leased.trials(run) == [trial(1)]
        assert leases.look(lease).trial_count == 3

    def test_the_best_is_that_of_the_run_so_far(self, jobs, leases, job_id):
        leased = leases.store(claim(leases))
        run = leased.begin_run(KEY)
        for numbers in ([4, 5], [6], [2, 3, 8], [7]):  # odd ones are of gemm down
            leased.add_trials(run, map(trial, numbers))
        events = [event for event in jobs.events(job_id) if event.kind == "trials"]
        assert [event.data["best_us"] for event in events] == [
            {"M=1 up": 4.5, "M=1 down": 5.5},
            {"M=1 up": 4.5},
            {"M=1 up": 2.5, "M=1 down": 3.5},
            {"M=1 down": 3.5},
        ]
        assert events[0].as_json()["at"] == "2026-11-01T00:00:00Z"

    def test_a_heartbeat_keeps_the_lease(self, jobs, leases, clock):
        submit(jobs, REQUEST)
        lease = claim(leases)
        watcher = Watcher(leases)
        assert watcher.watch(LEASE.total_seconds()) == []
        clock.advance(timedelta(seconds=10))
        leases.heartbeat(lease)
        assert watcher.watch(LEASE.total_seconds()) == []
        assert [job.id for job in watcher.watch(10)] == [lease.job_id]

    def test_an_expired_lease_gives_the_job_back(self, jobs, leases, clock, job_id):
        claim(leases, "killed")
        (expired,) = expire(leases)
        assert (expired.id, expired.state) == (job_id, JobState.QUEUED)
        assert "killed" in expired.error
        assert expire(leases) == []
        assert claim(leases, "next").fence == 2
        assert kinds(jobs, job_id) == ["submitted", "leased", "refused", "leased"]

    def test_hosts_that_vanish_before_their_runs_begin_cost_no_attempt(self, jobs, leases, job_id):
        for _ in range(MAX_ATTEMPTS + 1):
            claim(leases, "preempted")
            (expired,) = expire(leases)
            assert (expired.state, expired.attempts) == (JobState.QUEUED, 0)
        leased = leases.store(claim(leases))
        leased.begin_run(KEY)
        (expired,) = expire(leases)
        assert expired.attempts == 1  # a child had begun

    @pytest.mark.parametrize("end", ["cancelled", "fail", "retry", "lapse"])
    def test_a_run_goes_on_no_longer_than_its_job(self, jobs, leases, store, clock, job_id, end):
        lease = claim(leases)
        leases.store(lease).begin_run(KEY)
        assert runs(store) == [("running",)]
        ends = {
            "cancelled": lambda: (jobs.cancel(job_id), leases.cancelled(lease)),
            "fail": lambda: leases.fail(lease, "no"),
            "retry": lambda: leases.retry(lease, "no"),
            "lapse": lambda: expire(leases),
        }
        ends[end]()
        assert runs(store) == [("interrupted",)]
        if end in ("retry", "lapse"):
            clock.advance(timedelta(minutes=1))
            finish(leases, claim(leases))
            assert runs(store) == [("done",)]

    def test_a_killed_worker_s_trials_are_there_for_the_next(self, jobs, leases, store, clock):
        submit(jobs, REQUEST)
        killed = leases.store(claim(leases))
        killed.add_trials(killed.begin_run(KEY), batch(0))
        expire(leases)
        again = leases.store(claim(leases))
        assert again.trials(again.begin_run(KEY)) == batch(0)

    WRITES: dict[str, Callable[[Leases, Lease], object]] = {
        "heartbeat": lambda leases, lease: leases.heartbeat(lease),
        "look": lambda leases, lease: leases.look(lease),
        "refuse": lambda leases, lease: leases.refuse(lease, "no"),
        "fail": lambda leases, lease: leases.fail(lease, "no"),
        "retry": lambda leases, lease: leases.retry(lease, "no"),
        "release": lambda leases, lease: leases.release(lease),
        "cancelled": lambda leases, lease: leases.cancelled(lease),
        "begin_run": lambda leases, lease: leases.store(lease).begin_run(KEY),
    }

    @pytest.mark.parametrize("loss", ["expired", "claimed again", "restored", "done", "cancelled"])
    def test_a_lost_lease_writes_nothing(self, jobs, leases, store, clock, loss, job_id):
        lost = claim(leases)
        if loss == "restored":  # from a backup without the claim, so its number is given out again
            with store.write() as connection:
                before = {"state": "queued", "fence": 0, "owner": ""}
                connection.execute(update(table).values(**before))
            assert claim(leases, "another").fence == lost.fence
        elif loss == "done":
            finish(leases, lost)
        elif loss == "cancelled":
            leases.cancelled(lost)
        else:
            expire(leases)
            if loss == "claimed again":
                assert claim(leases).job_id == job_id
        before = jobs.get(job_id), kinds(jobs, job_id), runs(store)
        for write in self.WRITES.values():
            with pytest.raises(StaleLease, match=job_id):
                write(leases, lost)
        assert (jobs.get(job_id), kinds(jobs, job_id), runs(store)) == before

    def test_a_run_in_hand_is_refused_once_the_lease_is_lost(self, jobs, leases, store, clock):
        submit(jobs, REQUEST)
        lost = leases.store(claim(leases))
        run = lost.begin_run(KEY)
        expire(leases)
        winner = leases.store(claim(leases))
        for write in (
            lambda: lost.add_trials(run, batch(0)),
            lambda: lost.finish_run(run, [], Totals()),
            lambda: lost.stop_run(run, RunState.FAILED, "no"),
        ):
            with pytest.raises(StaleLease):
                write()
        assert ResultStore(store).trials(run) == []
        assert runs(store) == [("interrupted",)]
        winner.finish_run(winner.begin_run(KEY), [], Totals())
        with pytest.raises(StaleLease):
            winner.finish_run(run, [], Totals())

    def test_a_run_has_one_worker_at_a_time(self, jobs, leases, store):
        # Jobs of one run, as it turns out.
        posted = [submit(jobs, request).job.id for request in seeded(2)]
        first, second = (leases.store(claim(leases)) for _ in posted)
        run = first.begin_run(KEY)
        with pytest.raises(RunAlreadyActive, match=posted[0]):
            second.begin_run(KEY)
        assert jobs.get(posted[1]).state is JobState.LEASED
        assert kinds(jobs, posted[1]) == ["submitted", "leased"]
        second.begin_run(replace(KEY, seed=1))
        first.add_trials(run, batch(0))
        first.finish_run(run, [], Totals())
        again = leases.store(claim_again(jobs, leases, posted[1]))
        assert again.trials(again.begin_run(KEY)) == batch(0)

    def test_of_workers_that_begin_a_run_at_once_one_has_it(self, jobs, leases):
        count = len([submit(jobs, request) for request in seeded(4)])
        held = [leases.store(claim(leases)) for _ in range(count)]

        def begin(leased: LeasedResults) -> bool:
            try:
                leased.begin_run(KEY)
            except RunAlreadyActive:
                return False
            return True

        with ThreadPoolExecutor(count) as pool:
            assert sorted(pool.map(begin, held)) == [False] * (count - 1) + [True]
        states = sorted(job.state.value for job in jobs.list())
        assert states == ["leased"] * (count - 1) + ["running"]

    def test_attempts_end(self, jobs, leases, clock, job_id):
        for attempt in range(1, MAX_ATTEMPTS + 1):
            lease = claim(leases)
            if attempt % 2:
                state = leases.retry(lease, f"crash {attempt}")
            else:
                leases.store(lease).begin_run(KEY)
                (expired,) = expire(leases)
                state = expired.state
            clock.advance(timedelta(minutes=10))
        dead = jobs.get(job_id)
        assert state is dead.state is JobState.DEAD
        assert (dead.attempts, dead.error) == (MAX_ATTEMPTS, f"crash {MAX_ATTEMPTS}")
        assert leases.claim(ANY, "worker") is None
        assert kinds(jobs, job_id)[-1] == "dead"

    def test_a_retry_waits_longer_each_time(self, jobs, leases, clock, job_id):
        waits = []
        for _ in range(3):
            leases.retry(claim(leases), "crash")
            assert leases.claim(ANY, "worker") is None
            waits.append(jobs.get(job_id).available_at - clock.now)
            clock.advance(waits[-1])
        assert waits == sorted(set(waits))

    def test_a_worker_that_stops_costs_no_attempt(self, jobs, leases, job_id):
        for _ in range(MAX_ATTEMPTS + 1):
            leases.release(claim(leases))
        assert (jobs.get(job_id).state, jobs.get(job_id).attempts) == (JobState.QUEUED, 0)

    def test_a_job_given_back_waits_as_long_as_it_was_told(self, jobs, leases, clock, job_id):
        leases.release(claim(leases), "another is at it", timedelta(seconds=30))
        assert leases.claim(ANY, "worker") is None
        clock.advance(timedelta(seconds=30))
        claim(leases)
        assert (jobs.get(job_id).attempts, jobs.get(job_id).error) == (1, "another is at it")

    def test_a_failed_job_keeps_its_reason(self, jobs, leases, job_id):
        leases.fail(claim(leases), "nothing\0fits")
        failed = jobs.get(job_id)
        assert failed.state is JobState.FAILED
        assert failed.error == "nothing\N{REPLACEMENT CHARACTER}fits"

    def test_reconcilers_at_once_give_a_job_back_once(self, jobs, leases, clock):
        posted = [submit(jobs, request).job.id for request in seeded(8)]
        while leases.claim(ANY, "killed"):
            pass
        with ThreadPoolExecutor(4) as pool:
            found = [
                job.id for jobs_ in pool.map(lambda _: expire(leases), range(4)) for job in jobs_
            ]
        assert sorted(found) == sorted(posted)
        assert all(kinds(jobs, job_id).count("refused") == 1 for job_id in posted)


@both_databases
class TestRequestsOfANewerVersion:
    """They are left to its workers, and hold up no other job."""

    @pytest.fixture
    def foreign(self, jobs, clock):
        job_id = submit(jobs, REQUEST).job.id
        clock.advance(timedelta(seconds=1))  # the others are younger
        self.store_request(jobs, job_id, {**REQUEST.as_json(), "problem": "from_tomorrow:E=1"})
        return job_id

    def store_request(self, jobs: JobStore, job_id: str, request: object) -> None:
        with jobs.database.write() as connection:
            connection.execute(update(table).where(table.c.id == job_id).values(request=request))

    def test_the_next_job_is_claimed(self, jobs, leases, foreign):
        other = submit(jobs, replace(REQUEST, seed=1)).job.id
        assert claim(leases, "old").job_id == other
        job = jobs.get(foreign)
        assert (job.state, job.attempts, job.owner) == (JobState.QUEUED, 0, "")
        assert job.error.startswith("a worker cannot read the request: ")
        assert "from_tomorrow" in job.error

    def test_it_waits_for_a_worker_that_can_read_it(self, jobs, leases, clock, foreign):
        for _ in range(2 * MAX_ATTEMPTS):
            assert leases.claim(ANY, "old") is None
            assert leases.claim(ANY, "old") is None  # not before an upgrade had some time
            clock.advance(timedelta(hours=1))
        assert jobs.get(foreign).state is JobState.QUEUED
        assert kinds(jobs, foreign) == ["submitted", "waiting"]  # it is said once
        self.store_request(jobs, foreign, REQUEST.as_json())  # as a newer worker reads it
        assert claim(leases, "new").job_id == foreign

    @pytest.mark.parametrize(
        "change", [{"effort": {"name": "deep"}}, {"effort": "deep"}, {"measure": None}], ids=str
    )
    def test_whatever_the_request_is_like(self, jobs, leases, foreign, change):
        stored = {**REQUEST.as_json(), **change}
        self.store_request(jobs, foreign, stored)
        other = submit(jobs, replace(REQUEST, seed=1)).job.id
        assert claim(leases, "old").job_id == other
        assert jobs.get(foreign).request.as_json() == stored

    def test_it_is_listed_cancelled_retried_and_deleted(self, jobs, leases, foreign):
        other = submit(jobs, replace(REQUEST, seed=1)).job.id
        assert ids(jobs.list()) == [other, foreign]
        assert list(jobs.with_ids([foreign])) == [foreign]
        listed = jobs.get(foreign).as_json()
        assert listed["request"]["problem"] == "from_tomorrow:E=1"
        assert "from_tomorrow" in listed["unreadable"]
        assert "unreadable" not in jobs.get(other).as_json()
        assert jobs.cancel(foreign).state is JobState.CANCELLED
        assert jobs.retry(foreign).state is JobState.QUEUED
        jobs.cancel(foreign)
        assert jobs.delete(foreign).id == foreign
        assert ids(jobs.list()) == [other]

    def test_expired_leases_are_taken_back(self, jobs, leases, clock, foreign):
        with jobs.database.write() as connection:  # a newer worker had it, and was killed
            held = {"state": "running", "attempts": 1, "lease_expires_at": clock.now}
            connection.execute(update(table).where(table.c.id == foreign).values(**held))
        other = submit(jobs, replace(REQUEST, seed=1)).job.id
        claim(leases)
        assert sorted(ids(expire(leases))) == sorted([foreign, other])
        assert jobs.get(foreign).state is JobState.QUEUED

    def test_it_is_announced_for_workers_that_can_read_it(self, jobs, leases, clock, foreign):
        other = submit(jobs, replace(REQUEST, seed=1)).job.id
        clock.advance(timedelta(minutes=1))
        found = [leases.unannounced(timedelta(seconds=30)) for _ in range(3)]
        assert [job.id for job in found if job] == [foreign, other]


class TestCancelling:
    @both_databases
    def test_a_queued_job_ends_at_once(self, jobs, leases, job_id):
        assert jobs.cancel(job_id).state is JobState.CANCELLED
        assert leases.claim(ANY, "worker") is None
        assert jobs.cancel(job_id).state is JobState.CANCELLED
        assert kinds(jobs, job_id) == ["submitted", "cancelled"]

    @both_databases
    def test_a_worker_is_asked(self, jobs, leases, job_id):
        lease = claim(leases)
        assert not leases.look(lease).cancel_requested
        asked = jobs.cancel(job_id)
        assert (asked.state, asked.cancel_requested) == (JobState.LEASED, True)
        jobs.cancel(job_id)
        assert leases.look(lease).cancel_requested
        leases.cancelled(lease)
        assert jobs.get(job_id).state is JobState.CANCELLED
        assert kinds(jobs, job_id) == ["submitted", "leased", "cancel_requested", "cancelled"]

    @pytest.mark.parametrize("end", ["expire", "retry", "release"])
    def test_it_is_not_tried_again(self, jobs, leases, clock, end, job_id):
        lease = claim(leases)
        jobs.cancel(job_id)
        if end == "expire":
            expire(leases)
        elif end == "retry":
            leases.retry(lease, "crash")
        else:
            leases.release(lease)
        assert jobs.get(job_id).state is JobState.CANCELLED

    def test_nobody_is_waited_for_whose_lease_is_over(self, jobs, leases, clock, job_id):
        lost = leases.store(claim(leases))
        run = lost.begin_run(KEY)
        clock.advance(LEASE + timedelta(seconds=1))  # and no worker is left to notice
        assert jobs.cancel(job_id).state is JobState.CANCELLED
        assert kinds(jobs, job_id)[-1] == "cancelled"
        with pytest.raises(StaleLease):
            lost.finish_run(run, [], Totals())
        assert expire(leases) == []

    def test_a_finished_job_stays_as_it_is(self, jobs, leases, job_id):
        finish(leases, claim(leases))
        assert jobs.cancel(job_id).state is JobState.DONE
        assert "cancel_requested" not in kinds(jobs, job_id)


class TestDeleting:
    @both_databases
    def test_a_job_goes_with_its_events_and_its_run_stays(self, jobs, leases, store, job_id):
        with pytest.raises(JobUnfinished, match="is queued: cancel it first"):
            jobs.delete(job_id)
        lease = claim(leases)
        with pytest.raises(JobUnfinished):
            jobs.delete(job_id)
        finish(leases, lease)
        before = runs(store)
        assert before
        assert jobs.delete(job_id).state is JobState.DONE
        assert (jobs.list(), jobs.events(job_id), runs(store)) == ([], [], before)
        with pytest.raises(UnknownJob):
            jobs.delete(job_id)
        assert submit(jobs, REQUEST).created

    @both_databases
    def test_an_idempotency_key_of_deleted_jobs_is_free(self, jobs):
        *some, other = seeded(3)
        wanted = [(one, Priority.NORMAL) for one in some]
        batch = jobs.submit_all(wanted, idempotency_key="batch", body_hash="a")
        submit(jobs, other, idempotency_key="other", body_hash="b")
        for answer in batch:
            jobs.cancel(answer.job.id)
        jobs.delete(batch[0].job.id)
        (left,) = jobs.submit_all(wanted, idempotency_key="batch", body_hash="a")
        assert (left.replayed, left.job.id) == (True, batch[1].job.id)  # nothing is done twice
        jobs.delete(batch[1].job.id)
        again = jobs.submit_all(wanted, idempotency_key="batch", body_hash="a")
        assert [answer.created for answer in again] == [True, True]
        assert submit(jobs, other, idempotency_key="other", body_hash="b").replayed


class TestAnnouncing:
    AGAIN = timedelta(seconds=30)

    def test_a_job_that_waits_is_announced_again(self, jobs, leases, clock):
        waiting = submit(jobs, REQUEST).job.id
        assert leases.unannounced(self.AGAIN) is None
        clock.advance(self.AGAIN + timedelta(seconds=1))
        found = leases.unannounced(self.AGAIN)
        assert found.id == waiting
        assert leases.unannounced(self.AGAIN) is None

    def test_one_that_is_held_or_not_yet_due_is_not(self, jobs, leases, clock):
        submit(jobs, REQUEST)
        clock.advance(self.AGAIN + timedelta(seconds=1))
        lease = claim(leases)
        assert leases.unannounced(self.AGAIN) is None
        leases.retry(lease, "crash")
        assert leases.unannounced(self.AGAIN) is None


def claim_again(jobs: JobStore, leases: Leases, job_id: str) -> Lease:
    """The job's next lease; it is held now."""
    with jobs.database.write() as connection:
        queued = {"state": "queued", "lease_expires_at": None}
        connection.execute(update(table).where(table.c.id == job_id).values(**queued))
    return claim(leases)


def finish(leases: Leases, lease: Lease) -> None:
    leased = leases.store(lease)
    leased.finish_run(leased.begin_run(KEY), [], Totals())


def ids(found: Any) -> list[str]:
    return [job.id for job in found]


def runs(store: Database) -> list[tuple[object, ...]]:
    with store.read() as connection:
        return [tuple(row) for row in connection.execute(text("SELECT state FROM runs"))]


QUERIES = {
    "a client's next job": (
        "SELECT * FROM jobs WHERE state = 'queued' AND needs_gpu = false AND client = 'a' "
        "ORDER BY priority, created_at, id LIMIT 1",
        "ix_jobs_turn",
    ),
    "the next client": (
        "SELECT client FROM jobs WHERE state = 'queued' AND needs_gpu = false "
        "AND client > 'a' ORDER BY client LIMIT 1",
        "ix_jobs_turn",
    ),
}


@pytest.mark.parametrize("name", QUERIES)
@both_databases
def test_statements_walk_an_index(store, store_url, name):
    query, index = QUERIES[name]
    engine = connect(store_url)
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SET LOCAL enable_seqscan = off"))
            connection.execute(text("SET LOCAL enable_sort = off"))
            plan = connection.execute(text(f"EXPLAIN {query}")).scalars().all()
        else:
            plan = [row[3] for row in connection.execute(text(f"EXPLAIN QUERY PLAN {query}"))]
    engine.dispose()
    assert any(f"{index}" in line for line in plan), plan
    assert not any("TEMP B-TREE" in line or "Sort" in line for line in plan), plan
