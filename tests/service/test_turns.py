"""Who is next: turns between clients, ageing, shared jobs and batches, on each database."""

from dataclasses import replace
from datetime import timedelta

import pytest
from cases import new_request, submit
from databases import both_databases
from store_writer import KEY, POINTS, PROBLEM, batch

from tuner.errors import IdempotencyConflict
from tuner.families.fused_moe.family import MoeSelection
from tuner.jobs.job import JobFilter, JobRequest, JobState, Priority
from tuner.problems.points import Config
from tuner.problems.results import Compiled, Entry, Status, Totals
from tuner.store.database import utc_now
from tuner.store.jobs import JobStore
from tuner.store.leases import AGED, LONGEST_DELAY, Leases
from tuner.store.results import ResultStore
from tuner.store.workers import Figures

REQUEST = new_request(PROBLEM, "L40S", measure="predict", selection=MoeSelection((2, 16)))
ANY = [JobFilter(needs_gpu=False)]
ENTRY = Entry(POINTS[0], Config({}), Status.OK, 9.0, Compiled(Status.OK), {}, "")


def post(jobs: JobStore, clients: str, first_seed: int = 0, **more: object) -> list[str]:
    """The ids of a job for each letter, posted by the client of that letter."""
    requests = [replace(REQUEST, seed=first_seed + at) for at in range(len(clients))]
    pairs = zip(requests, clients, strict=True)
    return [submit(jobs, request, client=client, **more).job.id for request, client in pairs]


def served(jobs: JobStore, leases: Leases) -> str:
    """The clients of the jobs that a worker takes, one after the other."""
    taken = iter(lambda: leases.claim(ANY, "worker"), None)
    return "".join(jobs.get(lease.job_id).client for lease in taken if lease)


@both_databases
class TestTurns:
    def test_a_client_with_many_jobs_delays_another_by_one(self, jobs, leases):
        post(jobs, "aaaaaabbc")
        assert served(jobs, leases) == "abcabaaaa"

    def test_a_client_that_comes_late_is_next(self, jobs, leases):
        post(jobs, "aaaa")
        assert leases.claim(ANY, "worker") is not None
        post(jobs, "b", first_seed=10)
        assert served(jobs, leases) == "baaa"

    def test_urgent_jobs_take_turns_among_themselves(self, jobs, leases):
        post(jobs, "cd")
        post(jobs, "aab", first_seed=10, priority=Priority.URGENT)
        assert served(jobs, leases) == "abacd"

    def test_a_job_that_waited_for_an_hour_is_as_urgent_as_a_new_urgent_one(
        self, jobs, leases, clock
    ):
        post(jobs, "a")
        clock.advance(AGED)
        post(jobs, "bbb", first_seed=10, priority=Priority.URGENT)
        first = leases.claim(ANY, "worker")
        assert jobs.get(first.job_id).client == "b"
        leases.release(first)
        clock.advance(timedelta(seconds=1))
        assert served(jobs, leases).index("a") < 2

    def test_a_backlog_that_waited_for_an_hour_delays_another_client_by_one_job(
        self, jobs, leases, clock
    ):
        post(jobs, "a" * 20)
        clock.advance(AGED + timedelta(minutes=1))
        post(jobs, "b", first_seed=100)
        assert served(jobs, leases).index("b") < 2

    def test_urgent_jobs_and_old_ones_hold_up_no_client_s_turn(self, jobs, leases, clock):
        post(jobs, "aaa")
        clock.advance(AGED + timedelta(minutes=1))
        post(jobs, "uuu", first_seed=100, priority=Priority.URGENT)
        post(jobs, "b", first_seed=200)
        assert served(jobs, leases).index("b") < 3

    def test_a_job_that_is_queued_again_has_not_waited_since_it_was_posted(
        self, jobs, leases, clock
    ):
        (old,) = post(jobs, "a")
        jobs.cancel(old)
        clock.advance(timedelta(days=7))
        jobs.retry(old, "a")
        post(jobs, "bb", first_seed=10, priority=Priority.URGENT)
        lease = leases.claim(ANY, "worker")
        assert jobs.get(lease.job_id).client == "b"
        leases.release(lease)
        assert served(jobs, leases) == "bba"

    def test_figures_say_since_when_a_job_is_queued_again(self, jobs, leases, clock):
        clock.now = utc_now() - timedelta(days=7)
        (old,) = post(jobs, "a")
        jobs.cancel(old)
        clock.advance(timedelta(days=7))
        jobs.retry(old, "a")
        figures = Figures(jobs.database)
        assert figures.read().queues[0].oldest_s < 3600
        times = figures.job_times(leases.claim(ANY, "worker"))
        assert times.queued_at == times.started_at == clock.now

    def test_what_one_worker_cannot_do_gives_others_their_turn(self, jobs, leases):
        submit(jobs, replace(REQUEST, engine="sglang==0.5.12"), client="a")
        submit(jobs, replace(REQUEST, engine="sglang==0.5.16"), client="b")
        newer = [JobFilter(False, None, ("sglang==0.5.16", "sglang"))]
        lease = leases.claim(newer, "worker")
        assert lease.request.engine == "sglang==0.5.16"
        assert leases.claim(newer, "worker") is None

    def test_a_version_is_chosen_at_the_latest_when_the_run_begins(self, jobs, leases):
        job_id = submit(jobs, REQUEST).job.id
        refused = leases.claim(ANY, "old", {"sglang": "sglang==0.5.12"})
        assert refused.request.engine == "sglang==0.5.12"
        leases.release(refused)
        assert jobs.get(job_id).request == REQUEST
        newer = [JobFilter(False, None, ("sglang==0.5.16", "sglang"))]
        lease = leases.claim(newer, "worker", {"sglang": "sglang==0.5.16"})
        leases.store(lease).begin_run(KEY)
        leases.release(lease)  # another attempt goes on with the run of that version
        assert jobs.get(job_id).request == replace(REQUEST, engine="sglang==0.5.16")
        assert leases.claim([JobFilter(False, None, ("sglang==0.5.12", "sglang"))], "old") is None

    def test_a_clock_that_went_back_holds_no_job(self, jobs, leases, clock):
        post(jobs, "a")
        lease = leases.claim(ANY, "worker")
        leases.release(lease, "another is at it", timedelta(seconds=30))
        assert leases.claim(ANY, "worker") is None
        clock.advance(-LONGEST_DELAY)
        assert leases.claim(ANY, "worker") is not None


class TestSharedJobs:
    @both_databases
    def test_the_others_job_goes_on(self, jobs):
        first = submit(jobs, REQUEST, client="a").job
        second = submit(jobs, REQUEST, client="b")
        assert (second.created, second.job.id) == (False, first.id)
        assert second.job.clients == ("a", "b")
        left = jobs.cancel(first.id, "a")
        assert (left.state, left.clients) == (JobState.QUEUED, ("b",))
        assert jobs.cancel(first.id, "a").state is JobState.QUEUED  # a has no say any more
        assert jobs.cancel(first.id, "b").state is JobState.CANCELLED
        kinds = [event.kind for event in jobs.events(first.id)]
        assert kinds == ["submitted", "joined", "withdrawn", "cancelled"]

    def test_a_running_job_is_ended_with_its_last_client(self, jobs, leases):
        job_id = submit(jobs, REQUEST, client="a").job.id
        submit(jobs, REQUEST, client="b")
        lease = leases.claim(ANY, "worker")
        assert not jobs.cancel(job_id, "b").cancel_requested
        assert jobs.cancel(job_id, "a").cancel_requested
        assert leases.look(lease).cancel_requested

    def test_without_a_client_it_ends_for_all(self, jobs):
        job_id = submit(jobs, REQUEST, client="a").job.id
        submit(jobs, REQUEST, client="b")
        assert jobs.cancel(job_id).state is JobState.CANCELLED

    def test_posting_it_again_takes_the_withdrawal_back(self, jobs):
        job_id = submit(jobs, REQUEST, client="a").job.id
        submit(jobs, REQUEST, client="b")
        jobs.cancel(job_id, "a")
        assert submit(jobs, REQUEST, client="a").job.clients == ("b", "a")


@both_databases
class TestWithdrawnResults:
    def done(self, leases: Leases) -> int:
        """Run the next job with one trial, and return its run's id."""
        lease = leases.claim(ANY, "worker")
        store = leases.store(lease)
        run = store.begin_run(KEY)
        if not store.trials(run):
            store.add_trials(run, batch(0)[:1])
        store.finish_run(run, [ENTRY], Totals())
        return run.id

    def test_what_was_withdrawn_is_measured_anew(self, jobs, leases, store):
        first = submit(jobs, REQUEST).job.id
        run = self.done(leases)
        results = ResultStore(store)
        assert submit(jobs, REQUEST).job.id == first
        assert results.withdraw(PROBLEM, "NVIDIA_L40S", "sglang") == 1
        again = submit(jobs, REQUEST)
        assert again.created
        assert jobs.get(first).state is JobState.DONE
        lease = leases.claim(ANY, "worker")
        renewed = leases.store(lease).begin_run(KEY)
        assert renewed.id != run
        assert leases.store(lease).trials(renewed) == []
        assert len(results.trials(replace(renewed, id=run))) == 1  # what was tried stays
        leases.release(lease)
        assert self.done(leases) == renewed.id
        assert submit(jobs, REQUEST).job.id == again.job.id

    def test_a_run_under_way_publishes_what_it_finds(self, jobs, leases, store):
        submit(jobs, REQUEST)
        lease = leases.claim(ANY, "worker")
        leased = leases.store(lease)
        run = leased.begin_run(KEY)
        assert ResultStore(store).withdraw(PROBLEM, "NVIDIA_L40S", "sglang") == 0
        leased.finish_run(run, [ENTRY], Totals())
        assert len(ResultStore(store).winners_of(run.id)) == 1


class TestBatches:
    def wanted(self, *seeds: int) -> list[tuple[JobRequest, Priority]]:
        return [(replace(REQUEST, seed=seed), Priority.NORMAL) for seed in seeds]

    def test_each_request_has_its_answer(self, jobs):
        old = submit(jobs, replace(REQUEST, seed=1), client="a").job
        answers = jobs.submit_all(self.wanted(0, 1, 2, 0), client="a")
        assert [answer.created for answer in answers] == [True, False, True, False]
        assert answers[1].job.id == old.id
        assert answers[3].job.id == answers[0].job.id
        for answer in answers:
            assert jobs.get(answer.job.id) == answer.job
            assert [event.kind for event in jobs.events(answer.job.id)] == ["submitted"]

    @both_databases
    def test_it_is_listed_and_done_in_its_order(self, jobs, leases):
        seeds = [5, 3, 8, 1, 9, 2, 7, 0, 6, 4]
        jobs.submit_all(self.wanted(*seeds), client="a")
        assert [job.request.seed for job in reversed(jobs.list())] == seeds
        taken = iter(lambda: leases.claim(ANY, "worker"), None)
        assert [lease.request.seed for lease in taken] == seeds

    def test_urgency_and_what_nobody_can_do_are_told_for_each(self, jobs):
        plain, urgent = jobs.submit_all(
            [(REQUEST, Priority.NORMAL), (replace(REQUEST, seed=1), Priority.URGENT)],
            unmet=lambda request: "" if request.seed else "no worker",
        )
        assert (plain.job.priority, urgent.job.priority) == (Priority.NORMAL, Priority.URGENT)
        waiting = jobs.events(plain.job.id)[1]
        assert (waiting.kind, waiting.data) == ("waiting", {"reason": "no worker"})
        assert len(jobs.events(urgent.job.id)) == 1

    @both_databases
    def test_sent_again_it_has_the_same_answers(self, jobs, leases, clock):
        mine = {"client": "a", "idempotency_key": "k", "body_hash": "x"}
        first = jobs.submit_all(self.wanted(2, 0, 1), **mine)
        lease = leases.claim(ANY, "worker")
        leased = leases.store(lease)
        leased.finish_run(leased.begin_run(KEY), [], Totals())
        clock.advance(timedelta(days=2))
        again = jobs.submit_all(self.wanted(2, 0, 1), **mine)
        assert [answer.job.id for answer in again] == [answer.job.id for answer in first]
        assert all(answer.replayed and not answer.created for answer in again)
        with pytest.raises(IdempotencyConflict):
            jobs.submit_all(self.wanted(5), client="a", idempotency_key="k", body_hash="y")

    def test_none_is_added_where_one_cannot_be(self, jobs, monkeypatch):
        def fail(*_: object) -> None:
            raise RuntimeError("the disk is on fire")

        monkeypatch.setattr("tuner.store.submissions.new_job", fail)
        with pytest.raises(RuntimeError):
            jobs.submit_all(self.wanted(0, 1))
        assert jobs.list() == []
