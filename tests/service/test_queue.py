"""The messages that wake workers, on a real Redis: bounded, and never waited for."""

import logging
from dataclasses import replace
from queue import SimpleQueue

import pytest
import redis as redis_client
from cases import submit
from servers import Redis, started_redis
from worker_processes import replay

from tuner.jobs.job import Priority
from tuner.store.jobs import JobStore
from workers.broker import WAITING
from workers.queue import Announcer, InBackground
from workers.settings import Settings

QUEUE = "compile.NVIDIA_H200"


@pytest.fixture
def redis():
    with started_redis() as server:
        yield server


@pytest.fixture
def job(sqlite_url):
    with JobStore.open(sqlite_url) as jobs:
        yield submit(jobs, replay()).job


def announcer(redis: Redis) -> Announcer:
    return Announcer(Settings("sqlite://", redis.url))


def waiting(redis: Redis, queue: str = QUEUE) -> int:
    with redis_client.Redis.from_url(redis.url) as client:
        return int(client.llen(queue))


def test_a_queue_that_nobody_reads_is_not_filled(redis, job):
    announces = announcer(redis)
    for _ in range(WAITING + 20):
        announces.announce(job)
    announces.announce(replace(job, priority=Priority.URGENT))
    assert waiting(redis) == WAITING
    assert waiting(redis, f"{QUEUE}.urgent") == 1


def test_a_redis_that_does_not_answer_holds_nobody_up(redis, job, caplog, monkeypatch):
    announces = announcer(redis)
    announces.announce(job)  # it is connected
    redis.freeze()
    with caplog.at_level(logging.WARNING, "tuner.outages"):
        announces.announce(job)
        assert "the broker does not answer" in caplog.text
        caplog.clear()
        announces.announce(job)  # at rest: not tried
        assert caplog.text == ""
    redis.stop()
    redis.start()
    monkeypatch.setattr(announces, "_again_at", 0.0)
    announces.announce(job)
    assert waiting(redis) == 1


def test_an_unexpected_error_does_not_end_the_announcing(job, caplog, monkeypatch):
    asked: SimpleQueue[str] = SimpleQueue()
    errors = [RuntimeError("nobody expects it")]

    def send(queue: str) -> None:
        asked.put(queue)
        if errors:
            raise errors.pop()

    monkeypatch.setattr("workers.broker.sender", lambda settings: send)
    monkeypatch.setattr("workers.queue.BACKOFF_S", 0.0)
    announces = InBackground(Announcer(Settings("sqlite://", "redis://127.0.0.1:1/0")))
    for _ in range(2):
        announces.announce(job)
        assert asked.get(timeout=30) == QUEUE
    assert "nobody expects it" in caplog.text
