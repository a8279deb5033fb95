"""Real worker processes on a real Redis and PostgreSQL: work, kills, cancels."""

import errno
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from subprocess import Popen
from uuid import uuid4

import pytest
from cases import RECORDINGS, submit
from servers import postgres_database, started_redis
from sqlalchemy import select, update
from tls_proxy import tls_proxy
from worker_processes import (
    RECORDING,
    celery_worker,
    descendants,
    embedded,
    replay,
    running,
    tuning_child,
    wait_for,
)

from tuner.engines.engine import find_engine
from tuner.families.fused_moe.family import MoeSelection
from tuner.jobs.attempts import AttemptLimits
from tuner.jobs.job import Job, JobRequest, JobState
from tuner.measure.gpu_lock import FOLDER, lock_gpu
from tuner.store.database import Database, utc_now
from tuner.store.jobs import JobStore
from tuner.store.leases import Leases
from tuner.store.tables import idempotency_keys
from tuner.store.tables import jobs as job_table
from tuner.store.workers import WorkerStore
from workers.broker import CONTROL_QUEUE, NIGHTLY, make_app
from workers.machine import LocalGpu, Registration, describe
from workers.queue import Announcer
from workers.settings import Settings, read_settings
from workers.worker import BACKOFF_S, Runner, Worker

OTHER_HOST = Path(__file__).parent / "other_host"
PASSWORD = "s3cret/@:"  # noqa: S105 (of a server that lives for one test)


class Board:
    """Posts jobs as the API does, and looks at them."""

    def __init__(self, database_url: str, broker_url: str, ca: Path | None = None) -> None:
        self.settings = Settings(database_url, broker_url, ca)
        self.jobs = JobStore(Database.open(database_url))
        self.announcer = Announcer(self.settings)

    def post(self, request: JobRequest) -> str:
        job = submit(self.jobs, request).job
        self.announcer.announce(job)
        return job.id

    def kinds(self, job_id: str) -> list[str]:
        return [event.kind for event in self.jobs.events(job_id)]

    def finished(self, job_id: str) -> Job:
        def look() -> Job | None:
            job = self.jobs.get(job_id)
            return job if job.state.finished else None

        return wait_for(look)

    def held(self, job_id: str) -> Job:
        def look() -> Job | None:
            job = self.jobs.get(job_id)
            return job if job.owner and not job.state.finished else None

        return wait_for(look)


@pytest.fixture
def board(postgres_url, redis_url):
    made = Board(postgres_url, redis_url)
    yield made
    made.jobs.database.close()


@contextmanager
def worker(board: Board, tmp_path: Path, **more: str) -> Iterator[Popen[bytes]]:
    settings = board.settings
    assert settings.broker_url
    log = tmp_path / "worker.log"
    with celery_worker(settings.database_url, settings.broker_url, log, **more) as process:
        yield process


@pytest.fixture
def stuck(tmp_path):
    """A job that reads a recording that never comes."""
    os.mkfifo(tmp_path / "never.csv")
    return replay(recording=tmp_path / "never.csv")


def opened(stuck: JobRequest) -> int | None:
    """The other end of the recording that never comes, once a process reads it.

    The process goes on to wait until that end is closed.
    """
    try:
        return os.open(stuck.measure.partition(":")[2], os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        assert error.errno == errno.ENXIO
        return None


@dataclass
class AtWork:
    """A worker, and whoever posts jobs for it."""

    board: Board
    process: Popen[bytes]
    log: Path
    unannounced: str  # posted before the worker began, by somebody who was killed before a message


@pytest.fixture(scope="class")
def at_work(postgres, tmp_path_factory):
    """A worker whose Redis is behind a password and TLS; the jobs of a class share it."""
    folder = tmp_path_factory.mktemp("one-worker")
    with (
        postgres_database(postgres) as database_url,
        started_redis(PASSWORD) as redis,
        tls_proxy(redis.port, folder) as proxy,
    ):
        url = redis.url.replace("redis:", "rediss:").replace(str(redis.port), str(proxy.port))
        (folder / "broker-url").write_text(f"{url}\n")
        board = Board(database_url, url, proxy.certificate)
        unannounced = submit(board.jobs, replay(100)).job.id
        more = {
            "TUNER_BROKER_URL": "",
            "TUNER_BROKER_URL_FILE": str(folder / "broker-url"),
            "TUNER_BROKER_CA": str(proxy.certificate),
        }
        with worker(board, folder, **more) as process:
            yield AtWork(board, process, folder / "worker.log", unannounced)
        board.jobs.database.close()


class TestOneWorker:
    """What one worker does, one job after another."""

    def test_a_job_without_a_message_is_done_all_the_same(self, at_work):
        assert at_work.board.finished(at_work.unannounced).state is JobState.DONE

    def test_posted_jobs_are_done_and_published(self, at_work):
        board = at_work.board
        posted = [board.post(replay(seed)) for seed in range(3)]
        done = [board.finished(job_id) for job_id in posted]
        assert [job.state for job in done] == [JobState.DONE] * 3
        assert len({job.run_id for job in done}) == 3
        for job in done:
            kinds = board.kinds(job.id)
            assert kinds[:3] == ["submitted", "leased", "running"]
            assert kinds[3:-1] == ["planned", *["trials"] * (len(kinds) - 5)]
            assert kinds[-1] == "done"
        wait_for(lambda: "Task tuner.wake" in at_work.log.read_text())  # it was Redis that woke it
        loaded = Path(f"/proc/{at_work.process.pid}/maps").read_text()
        assert "libtorch" not in loaded
        assert "libtriton" not in loaded

    def test_a_night_is_done_while_a_job_is_under_way(self, at_work, stuck):
        board = at_work.board
        job_id = board.post(stuck)
        end = wait_for(lambda: opened(stuck))
        board.announcer.announce(board.jobs.get(job_id))
        make_app(board.settings).send_task(NIGHTLY, queue=CONTROL_QUEUE)
        wait_for(lambda: "nothing is watched" in at_work.log.read_text())
        assert board.held(job_id)
        board.jobs.cancel(job_id)
        assert board.finished(job_id).state is JobState.CANCELLED
        os.close(end)

    def test_work_that_cannot_be_done_fails_with_its_reason(self, at_work):
        lacking = replay(recording=RECORDINGS / "none.csv.gz")
        failed = at_work.board.finished(at_work.board.post(lacking))
        assert (failed.state, failed.attempts) == (JobState.FAILED, 1)
        assert "none.csv.gz" in failed.error

    def test_a_running_job_is_cancelled_and_its_processes_end(self, at_work, stuck):
        board = at_work.board
        job_id = board.post(stuck)
        end = wait_for(lambda: opened(stuck))  # its child is at work
        child = wait_for(lambda: tuning_child(at_work.process.pid))
        board.jobs.cancel(job_id)
        assert board.finished(job_id).state is JobState.CANCELLED
        assert not running(child)
        os.close(end)
        assert board.finished(board.post(replay(101))).state is JobState.DONE  # it goes on

    def test_a_killed_child_costs_one_attempt(self, at_work, stuck):
        board = at_work.board
        job_id = board.post(stuck)
        end = wait_for(lambda: opened(stuck))  # until then, it is the worker's fault
        os.kill(wait_for(lambda: tuning_child(at_work.process.pid)), signal.SIGKILL)
        wait_for(lambda: "requeued" in board.kinds(job_id))
        assert "SIGKILL" in board.jobs.get(job_id).error
        # After `RETRY_DELAY`, and the worker's own pause beside it: both are two seconds.
        again = wait_for(lambda: job if (job := board.held(job_id)).attempts == 2 else None)
        assert again.state is JobState.LEASED
        os.close(end)


def test_a_child_that_was_killed_between_two_jobs_costs_none_an_attempt(sqlite_url):
    with Leases.open(sqlite_url) as leases:
        jobs = JobStore(leases.database)
        worker = own_worker(leases, sqlite_url)
        first = submit(jobs, replay()).job.id
        assert worker.drain() == 1
        assert jobs.get(first).error == ""
        child = wait_for(lambda: tuning_child(os.getpid()))
        os.kill(child, signal.SIGKILL)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # its threads have ended, too
        second = submit(jobs, replay(1)).job.id
        assert worker.drain() == 1
        worker.stop()
        assert (jobs.get(second).state, jobs.get(second).attempts) == (JobState.DONE, 1)


def killed_at_work(board: Board, stuck: JobRequest, tmp_path: Path) -> Job:
    """A job, as it was held by a worker that was killed. No process of the worker is left."""
    with worker(board, tmp_path) as killed:
        job_id = board.post(stuck)
        first = board.held(job_id)
        below = wait_for(lambda: descendants(killed.pid))
        killed.kill()
        killed.wait()
        wait_for(lambda: not any(map(running, below)))  # the child does not outlive its parent
    return first


def test_a_killed_worker_s_job_is_done_by_another(board, stuck, tmp_path, monkeypatch):
    first = killed_at_work(board, stuck, tmp_path)
    # The other one looks more often, and waits less long for a renewal.
    monkeypatch.setattr("workers.service.EVERY_S", 0.1)
    monkeypatch.setenv("TUNER_DATABASE_URL", board.settings.database_url)
    with embedded(replace(board.settings, limits=AttemptLimits(lease_s=1.0))):
        again = wait_for(lambda: job if (job := board.held(first.id)).attempts > 1 else None)
        assert again.owner != first.owner


@pytest.mark.parametrize("all_of_it", [False, True])
def test_a_stopped_worker_gives_its_job_back(board, stuck, tmp_path, all_of_it):
    """Also if all its processes are asked to end at once, as systemd does."""
    with worker(board, tmp_path) as process:
        job_id = board.post(stuck)
        end = wait_for(lambda: opened(stuck))
        for pid in descendants(process.pid) if all_of_it else ():
            os.kill(pid, signal.SIGTERM)
        process.terminate()
        process.wait(timeout=60)
        os.close(end)
    given_back = board.jobs.get(job_id)
    assert (given_back.state, given_back.attempts) == (JobState.QUEUED, 0)
    assert not descendants(process.pid)


def test_workers_start_work_and_stop_without_redis(postgres_url, tmp_path):
    log = tmp_path / "worker.log"
    with started_redis() as redis:
        board = Board(postgres_url, redis.url)
        redis.stop()
        with worker(board, tmp_path) as process:
            assert board.finished(board.post(replay(0))).state is JobState.DONE
            redis.start()
            assert board.finished(board.post(replay(1))).state is JobState.DONE
            redis.stop()
            # No message wakes it: it looks every five seconds.
            assert board.finished(board.post(replay(2))).state is JobState.DONE
            wait_for(lambda: log.read_text().count("the broker does not answer") == 2)
            process.terminate()
            process.wait(timeout=60)
        board.jobs.database.close()
    lines = log.read_text().splitlines()
    said = [json.loads(one)["message"] for one in lines if one[:1] == "{"]  # not Celery's banner
    outages = [one for one in said if one.startswith("the broker ")]
    assert ["again" in one for one in outages] == [False, True, False]


@pytest.fixture
def fleet(board):
    environ = {
        **os.environ,
        "TUNER_DATABASE_URL": board.settings.database_url,
        "TUNER_BROKER_URL": str(board.settings.broker_url),
    }
    command = [sys.executable, "-c", "from tuner.cli import main; main()", "worker"]
    process = Popen([*command, "--device", "H200", "--processes", "2"], env=environ)
    yield process
    process.kill()
    process.wait()


def members(fleet: Popen[bytes]) -> list[int]:
    return [pid for pid, line in descendants(fleet.pid).items() if "workers.app" in line]


def test_no_worker_outlives_tuner_worker(fleet, board, stuck):
    board.held(board.post(stuck))  # one of them is at work
    found = wait_for(lambda: found if len(found := members(fleet)) == 2 else None)
    fleet.kill()
    fleet.wait()
    wait_for(lambda: not any(map(running, found)))


def registered(leases: Leases) -> Registration:
    """A worker of this process that the store knows."""
    made = Registration(WorkerStore(leases.database), describe(None, None, "test"))
    made.beat()
    return made


def own_worker(leases: Leases, url: str) -> Worker:
    """A worker of this process."""
    return Worker(leases, registered(leases), {**os.environ, "TUNER_DATABASE_URL": url})


def test_a_worker_that_cannot_begin_is_set_aside_and_costs_the_jobs_no_attempt(
    sqlite_url, monkeypatch
):
    works = {**os.environ, "TUNER_DATABASE_URL": sqlite_url}
    rests: list[float] = []
    with Leases.open(sqlite_url) as leases:
        jobs, workers = JobStore(leases.database), WorkerStore(leases.database)
        posted = [submit(jobs, replay(seed)).job.id for seed in range(3)]
        registration = registered(leases)
        broken = Worker(leases, registration, {**works, "TUNER_DATABASE_URL": "mysql://"})
        monkeypatch.setattr(broken._stopping, "wait", rests.append)
        assert broken.drain() == 2
        (row,) = workers.list()
        assert row.doing == "set aside"
        assert "no store is kept in 'mysql'" in row.reason
        first = jobs.events(posted[0])
        assert [event.kind for event in first] == ["submitted", "leased", "refused"]
        assert first[2].data["owner"] == registration.info.id
        assert {(jobs.get(job_id).state, jobs.get(job_id).attempts) for job_id in posted} == {
            (JobState.QUEUED, 0)
        }
        assert broken.drain() == 0  # until somebody mends it
        broken._runner = Runner(works)
        workers.resume(registration.info.name)
        registration.beat()
        for job_id in posted:
            set_job(leases, job_id, available_at=utc_now())
        assert broken.drain() == 3
        broken.stop()
        assert workers.list()[0].doing == "idle"
    assert rests == [BACKOFF_S, 2 * BACKOFF_S]


def test_a_worker_that_can_start_no_process_is_set_aside(sqlite_url, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")  # the environment was replaced
    with Leases.open(sqlite_url) as leases:
        jobs, workers = JobStore(leases.database), WorkerStore(leases.database)
        posted = [submit(jobs, replay(seed)).job.id for seed in range(3)]
        worker = own_worker(leases, sqlite_url)
        monkeypatch.setattr(worker._stopping, "wait", lambda _: None)
        assert worker.drain() == 2
        (row,) = workers.list()
        assert row.doing == "set aside"
        assert row.reason == "the tuning process did not start: No such file or directory"
        found = {(jobs.get(job_id).state, jobs.get(job_id).attempts) for job_id in posted}
        assert found == {(JobState.QUEUED, 0)}


def test_a_gpu_on_which_another_process_measures_costs_no_attempt(sqlite_url, monkeypatch):
    host = {"HOST_GPU": uuid4().hex, "PYTHONPATH": str(OTHER_HOST)}
    gpu = LocalGpu(f"GPU-{host['HOST_GPU']}", "NVIDIA_L40S")
    rests: list[float] = []
    with Leases.open(sqlite_url) as leases, ExitStack() as stack:
        jobs = JobStore(leases.database)
        job_id = submit(jobs, replace(replay(), device="NVIDIA_L40S", measure="gpu")).job.id
        registration = Registration(WorkerStore(leases.database), describe(gpu, None, "test"))
        registration.beat()
        environ = {**os.environ, **host, "TUNER_DATABASE_URL": sqlite_url}
        worker = Worker(leases, registration, environ)
        stack.callback(worker.stop)

        def rest(seconds: float) -> None:
            rests.append(seconds)
            worker.ask_to_stop()

        monkeypatch.setattr(worker._stopping, "wait", rest)
        stack.callback((FOLDER / f"engine-tuner-{gpu.uuid}.lock").unlink)
        stack.callback(os.close, lock_gpu(gpu.uuid))
        assert worker.drain() == 1
        job = jobs.get(job_id)
        assert (job.state, job.attempts) == (JobState.QUEUED, 0)
        assert job.error.endswith(f"measures on {gpu.uuid}")
        assert (registration._failed_starts, rests) == (0, [BACKOFF_S])


def test_a_worker_takes_no_job_whose_engine_it_lacks(sqlite_url):
    with Leases.open(sqlite_url) as leases:
        jobs = JobStore(leases.database)
        worker = own_worker(leases, sqlite_url)
        lacking = submit(jobs, replace(replay(), engine="sglang==99.9")).job.id
        good = submit(jobs, replay()).job.id
        assert worker.drain() == 1
        worker.stop()
        assert [event.kind for event in jobs.events(lacking)] == ["submitted"]
        done = jobs.get(good)
        assert done.state is JobState.DONE
        assert done.request.engine == f"sglang=={find_engine('sglang').version}"


def test_a_child_that_stands_still_is_ended_and_its_job_goes_on(board, monkeypatch):
    url = board.settings.database_url
    monkeypatch.setenv("TUNER_DATABASE_URL", url)
    monkeypatch.setattr("workers.worker.POLL_S", 0.1)
    # Less than three seconds without a trial may pass in good runs, where the machine is busy.
    settings = read_settings({"TUNER_DATABASE_URL": url, "TUNER_NEXT_TRIAL_LIMIT_S": "3"})
    with embedded(settings):
        job_id = submit(board.jobs, replay()).job.id
        child = wait_for(lambda: tuning_child(os.getpid()))
        wait_for(lambda: "trials" in board.kinds(job_id))
        os.kill(child, signal.SIGSTOP)
        wait_for(lambda: not running(child))  # killed: nothing else ends a stopped process
        assert board.finished(job_id).state is JobState.DONE
    (given_back,) = [one for one in board.jobs.events(job_id) if one.kind == "requeued"]
    assert "stored no further trial in 3 s" in given_back.data["reason"]
    assert board.jobs.get(job_id).attempts == 2


def test_a_job_whose_run_another_worker_has_waits_for_it(sqlite_url):
    with Leases.open(sqlite_url) as leases:
        jobs = JobStore(leases.database)
        worker = own_worker(leases, sqlite_url)
        first = submit(jobs, replay()).job.id
        assert worker.drain() == 1
        set_job(leases, first, state=JobState.RUNNING.value)  # as if another had it yet
        version = find_engine("sglang").version
        same = submit(jobs, replace(replay(), engine=f"sglang=={version}")).job.id
        assert worker.drain() == 1
        waits = jobs.get(same)
        assert (waits.state, waits.attempts) == (JobState.QUEUED, 0)
        assert waits.error == f"job {first} is working on the same run"
        set_job(leases, first, state=JobState.DONE.value)
        set_job(leases, same, available_at=utc_now())
        assert worker.drain() == 1
        worker.stop()
        assert jobs.get(same).state is JobState.DONE
        assert jobs.get(same).run_id == jobs.get(first).run_id


def set_job(leases: Leases, job_id: str, **values: object) -> None:
    with leases.database.write() as connection:
        connection.execute(update(job_table).where(job_table.c.id == job_id).values(**values))


def test_workers_forget_old_idempotency_keys(sqlite_url):
    with JobStore.open(sqlite_url) as jobs:
        for days in (6, 8):
            past = JobStore(jobs.database, lambda days=days: utc_now() - timedelta(days=days))
            past.cancel(submit(past, replay(), idempotency_key=f"{days} days").job.id)

        def keys() -> list[str]:
            with jobs.database.read() as connection:
                return list(connection.execute(select(idempotency_keys.c.key)).scalars())

        assert keys() == ["6 days", "8 days"]
        with embedded(Settings(sqlite_url)):
            wait_for(lambda: keys() == ["6 days"])


def test_a_failed_replay_names_the_recording_and_not_its_folder(sqlite_url, monkeypatch):
    monkeypatch.setenv("TUNER_DATABASE_URL", sqlite_url)
    monkeypatch.setenv("TUNER_RECORDINGS", str(RECORDINGS))
    request = replace(replay(recording=Path(RECORDING.name)), selection=MoeSelection((3,)))
    with Leases.open(sqlite_url) as leases:
        jobs = JobStore(leases.database)
        job_id = submit(jobs, request).job.id
        lacking = submit(jobs, replay(recording=Path("none.csv.gz"))).job.id
        with embedded(Settings(sqlite_url)):
            errors = [
                wait_for(lambda one=one: jobs.get(one).state.finished and jobs.get(one).error)
                for one in (job_id, lacking)
            ]
    assert errors[0].startswith(f"{RECORDING.name} has nothing for M=3")
    assert "none.csv.gz" in errors[1]
    assert not any("/" in error for error in errors)


def test_embedded_workers_need_no_redis(sqlite_url, monkeypatch):
    monkeypatch.setenv("TUNER_DATABASE_URL", sqlite_url)
    before = descendants(os.getpid())  # servers that other tests share
    with embedded(Settings(sqlite_url)) as worker, JobStore.open(sqlite_url) as jobs:
        for job in [submit(jobs, replay(seed)).job for seed in range(2)]:
            worker.announce(job)
            wait_for(lambda job=job: jobs.get(job.id).state is JobState.DONE)
    assert descendants(os.getpid()).keys() <= before.keys()
