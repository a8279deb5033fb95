"""Operations that meet: who was told that a job is accepted keeps it, on each database."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cases import new_request, submit
from databases import both_databases
from store_writer import PROBLEM

from tuner.errors import QueueFull
from tuner.families.fused_moe.family import MoeSelection
from tuner.jobs.job import JobState, Priority

REQUEST = new_request(PROBLEM, "L40S", measure="predict", selection=MoeSelection((2, 16)))
ROUNDS = range(25)  # without locks, four of ten rounds went wrong


def at_once(*steps: Callable[[], Any]) -> list[Any]:
    """Do the steps in threads that begin together. Return their answers, or raise their errors."""
    begin, answers = threading.Barrier(len(steps)), [None] * len(steps)

    def do(at: int) -> None:
        begin.wait()
        try:
            answers[at] = steps[at]()
        except Exception as error:
            answers[at] = error

    threads = [threading.Thread(target=do, args=(at,)) for at in range(len(steps))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


@both_databases
class TestSubmissions:
    @pytest.mark.parametrize("end", ["cancelled", "cancelled and deleted"])
    def test_a_job_that_ends_meanwhile_is_no_answer(self, jobs, end):
        for seed in ROUNDS:
            request = replace(REQUEST, seed=seed)
            first = submit(jobs, request, client="a").job.id

            def leave(job_id: str = first) -> None:
                if jobs.cancel(job_id, "a").state is JobState.CANCELLED and end != "cancelled":
                    jobs.delete(job_id)

            _, answer = at_once(leave, lambda r=request: submit(jobs, r, client="b"))
            job = jobs.get(answer.job.id)
            assert (job.state, "b" in job.clients) == (JobState.QUEUED, True)

    def test_all_who_join_are_its_clients(self, jobs):
        for seed in ROUNDS:
            request = replace(REQUEST, seed=seed)
            job_id = submit(jobs, request, client="a").job.id
            at_once(*(lambda r=request, c=c: submit(jobs, r, client=c) for c in "bc"))
            assert sorted(jobs.get(job_id).clients) == ["a", "b", "c"]
            assert len(jobs.events(job_id)) == 3
            # Each withdraws alone, so the job goes on for the last one.
            at_once(lambda i=job_id: jobs.cancel(i, "a"), lambda i=job_id: jobs.cancel(i, "b"))
            left = jobs.get(job_id)
            assert (left.state, left.clients) == (JobState.QUEUED, ("c",))

    def test_a_client_s_queue_takes_so_many_and_no_more(self, jobs):
        def post(seed: int) -> bool:
            try:
                return submit(jobs, replace(REQUEST, seed=seed), client="a", most=5).created
            except QueueFull:
                return False

        ended = submit(jobs, REQUEST, client="a").job.id
        jobs.cancel(ended)
        assert sum(at_once(*(lambda seed=seed: post(seed) for seed in range(1, 13)))) == 5
        with pytest.raises(QueueFull, match="a has 5 queued jobs, and may have 5"):
            jobs.retry(ended, "b", most=5)
        assert jobs.get(ended).state is JobState.CANCELLED
        jobs.retry(ended, "b", most=6)

    def test_batches_in_two_orders_wait_for_each_other(self, jobs):
        for batch in range(3):
            requests = [replace(REQUEST, seed=100 * batch + at) for at in range(50)]
            wanted = [(request, Priority.NORMAL) for request in requests]
            before = jobs.submit_all(wanted[::2], client="a")
            one, other = at_once(
                lambda w=wanted: jobs.submit_all(w, client="b"),
                lambda w=wanted: jobs.submit_all(w[::-1], client="c"),
            )
            ids = [answer.job.id for answer in one]
            assert ids == [answer.job.id for answer in other][::-1]
            assert ids[::2] == [answer.job.id for answer in before]
            for job in jobs.with_ids(ids).values():
                assert {"b", "c"} <= set(job.clients)
