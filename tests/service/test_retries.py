"""Queueing again what is dead, failed or cancelled: in the store, over the API, by command."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from api_server import NEVER, serving
from cases import new_request, submit
from databases import both_databases
from sqlalchemy import select, update
from store_writer import PROBLEM
from typer.testing import CliRunner
from worker_processes import embedded, replay, wait_for

from api.settings import ApiSettings
from tuner.cli.commands import app
from tuner.errors import EqualJobUnfinished, NotRetriable, UnknownJob
from tuner.jobs.job import JobRequest, JobState
from tuner.store.database import utc_now
from tuner.store.job_rows import append_event
from tuner.store.jobs import JobStore
from tuner.store.keys import Scope
from tuner.store.tables import jobs as table
from workers.settings import Settings

REQUEST = new_request(PROBLEM, "L40S", measure="predict", model="deepseek-r1")
WHY = "the process ended (SIGKILL): " + "x" * 80


@pytest.fixture
def jobs(store_url):
    with JobStore.open(store_url) as opened:
        yield opened


def ended(jobs: JobStore, request: JobRequest = REQUEST, state: JobState = JobState.DEAD) -> str:
    """A job that ended in that state a minute ago."""
    job_id = submit(jobs, request, client="team").job.id
    set_job(jobs, job_id, state=state.value, attempts=5, error=WHY, trial_count=7)
    set_job(jobs, job_id, finished_at=utc_now() - timedelta(minutes=1), started_at=utc_now())
    with jobs.database.write() as connection:
        append_event(connection, job_id, utc_now(), state.value, {"reason": WHY})
    return job_id


def set_job(jobs: JobStore, job_id: str, **values: object) -> None:
    with jobs.database.write() as connection:
        connection.execute(update(table).where(table.c.id == job_id).values(**values))


def stored(jobs: JobStore, job_id: str, *names: str) -> tuple[object, ...]:
    query = select(*(table.c[name] for name in names)).where(table.c.id == job_id)
    with jobs.database.read() as connection:
        return tuple(connection.execute(query).one())


class TestStore:
    @pytest.mark.parametrize("state", [JobState.DEAD, JobState.FAILED, JobState.CANCELLED])
    @both_databases
    def test_it_is_queued_with_all_its_attempts(self, jobs, state):
        job_id = ended(jobs, state=state)
        set_job(jobs, job_id, cancel_requested=state is JobState.CANCELLED)
        job = jobs.retry(job_id, "ops")
        assert job == jobs.get(job_id)
        assert (job.state, job.attempts, job.finished_at) == (JobState.QUEUED, 0, None)
        assert (job.cancel_requested, job.error) == (False, WHY)
        waiting = ["ops"] if state is JobState.CANCELLED else ["team", "ops"]
        columns = stored(jobs, job_id, "trial_count", "started_at", "clients")
        assert columns == (0, None, waiting)
        event = jobs.events(job_id)[-1]
        assert (event.kind, event.data) == ("retried", {"client": "ops"})
        assert jobs.retry(job_id, "ops") == job  # repeated, it changes nothing
        assert len(jobs.events(job_id)) == 3

    def test_it_is_done(self, jobs, store_url, monkeypatch):
        monkeypatch.setenv("TUNER_DATABASE_URL", store_url)
        job_id = ended(jobs, replay())
        jobs.retry(job_id)
        with embedded(Settings(store_url)):
            wait_for(lambda: jobs.get(job_id).state is JobState.DONE)
        assert (jobs.get(job_id).attempts, jobs.get(job_id).error) == (1, "")

    def test_what_is_done_or_ends_just_now_is_not_retried(self, jobs):
        job_id = ended(jobs, state=JobState.DONE)
        with pytest.raises(NotRetriable, match="is done: submit it anew"):
            jobs.retry(job_id)
        set_job(jobs, job_id, state=JobState.RUNNING.value, cancel_requested=True)
        with pytest.raises(NotRetriable, match="is being cancelled"):
            jobs.retry(job_id)
        with pytest.raises(UnknownJob):
            jobs.retry(NEVER)
        assert len(jobs.events(job_id)) == 2

    def test_an_equal_unfinished_job_is_named_and_nothing_changes(self, jobs):
        job_id = ended(jobs)
        before, equal = jobs.get(job_id), submit(jobs, REQUEST).job
        with pytest.raises(EqualJobUnfinished, match=f"job {equal.id} asks for the same work"):
            jobs.retry(job_id)
        assert jobs.get(job_id) == before
        assert len(jobs.events(job_id)) == 2
        jobs.cancel(equal.id)
        assert jobs.retry(job_id).state is JobState.QUEUED

    @both_databases
    def test_one_of_several_equal_jobs_is_retried(self, jobs):
        posted = [ended(jobs) for _ in range(4)]

        def retried(job_id: str) -> bool:
            try:
                return jobs.retry(job_id).state is JobState.QUEUED
            except EqualJobUnfinished:
                return False

        with ThreadPoolExecutor(4) as pool:
            assert sorted(pool.map(retried, posted)) == [False, False, False, True]


class TestApi:
    @pytest.fixture
    def server(self, store_url):
        woken: list[str] = []
        announcer = type("Announcer", (), {"announce": lambda self, job: woken.append(job.id)})()
        with serving(ApiSettings(Settings(store_url)), announcer) as running:
            keys = running.app.state.api.keys
            running.key = keys.add("admin-key", Scope.ADMIN)
            self.team, self.other = keys.add("team", Scope.SUBMIT), keys.add("x", Scope.SUBMIT)
            self.woken = woken
            yield running

    def test_one_s_own_job_is_retried_and_a_worker_woken(self, server, jobs):
        path = f"/v1/jobs/{(job_id := ended(jobs))}/retry"
        assert "posted by team" in server.call("POST", path, key=self.other).problem(403)
        answer = server.call("POST", path, key=self.team)
        assert (answer.status, answer.json["state"]) == (202, "queued")
        assert self.woken == [job_id]
        assert jobs.events(job_id)[-1].data == {"client": "team"}
        set_job(jobs, job_id, state=JobState.FAILED.value)
        assert server.call("POST", path).status == 202  # an admin may retry all

    def test_a_conflict_has_a_type(self, server, jobs):
        job_id = ended(jobs)
        equal = submit(jobs, REQUEST).job.id
        refused = server.call("POST", f"/v1/jobs/{job_id}/retry")
        assert equal in refused.problem(409)
        assert refused.json["type"] == "urn:engine-tuner:error:equal-job-unfinished"
        done = ended(jobs, replace(REQUEST, seed=1), JobState.DONE)
        refused = server.call("POST", f"/v1/jobs/{done}/retry")
        assert refused.json["type"] == "urn:engine-tuner:error:not-retriable"
        server.call("POST", f"/v1/jobs/{NEVER}/retry").problem(404)


class TestCommand:
    @pytest.fixture(params=["local", "server"])
    def command(self, request, store_url, monkeypatch):
        monkeypatch.setenv("TUNER_DATABASE_URL", store_url)
        monkeypatch.delenv("TUNER_SERVER", raising=False)
        if request.param == "local":
            yield
            return
        with serving(ApiSettings(Settings(store_url))) as server:
            monkeypatch.setenv("TUNER_SERVER", server.url)
            monkeypatch.setenv("TUNER_API_KEY", server.app.state.api.keys.add("a", Scope.ADMIN))
            yield

    def test_dead_jobs_are_listed_with_their_reason_and_retried(self, command, jobs):
        def tuner(*arguments: str) -> str:
            in_a_pipe = CliRunner(env={"COLUMNS": None})
            done = in_a_pipe.invoke(app, arguments)
            assert done.exit_code == 0, done.stderr
            return done.stdout

        job_id = ended(jobs)
        listed = tuner("jobs", "--state", "dead").splitlines()
        assert listed[0].endswith("why")
        assert listed[2].endswith(f"  {WHY[:87]}...")
        assert tuner("jobs", "retry", job_id) == f"{job_id} is queued\n"
        assert json.loads(tuner("jobs", "retry", job_id, "--json"))["state"] == "queued"
        assert WHY[:87] not in tuner("jobs")
        set_job(jobs, job_id, state=JobState.DONE.value)
        refused = CliRunner().invoke(app, ["jobs", "retry", job_id])
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert "is done: submit it anew" in refused.stderr

    def test_what_is_stored_does_not_change_the_terminal(self, command, jobs):
        """A name from before names were checked, and the last words of a process."""
        job_id = ended(jobs, replace(REQUEST, model="\u009b31mRED\u202e"))
        set_job(jobs, job_id, error="one\n\x1b]0;two\x07")
        with jobs.database.write() as connection:
            append_event(connection, job_id, utc_now(), "dead", {"reason": "\x1b]0;three\x07"})
        for arguments in (["jobs"], ["jobs", "show", job_id], ["jobs", "follow", job_id]):
            shown = CliRunner().invoke(app, arguments)
            text = shown.stdout + shown.stderr
            assert "31mRED" in text and "two" in text
            assert all(c.isprintable() or c == "\n" for c in text)
