"""RateLimit headers: each answer says what is left, and asking Redis for it is rare."""

import re
import uuid
from dataclasses import replace

import pytest
from api_server import JOB, Answer, serving
from limits import RateLimitItemPerHour, RateLimitItemPerMinute
from limits.strategies import MovingWindowRateLimiter
from test_api_guards import Nobody

from api import limits
from api.settings import ApiSettings
from tuner.store.keys import Scope
from workers.settings import Settings


@pytest.fixture
def settings(tmp_path):
    return ApiSettings(
        Settings(f"sqlite:///{tmp_path / 'tuner.db'}"),
        rate=(RateLimitItemPerMinute(60), RateLimitItemPerHour(6)),
        submit_rate=(RateLimitItemPerHour(2),),
        no_auth=True,
    )


def left(answer: Answer) -> dict[str, int]:
    """What remains, by the policy's name. Each has a policy and a time in its window."""
    policies = dict(re.findall(r'"([^"]+)";q=\d+;w=(\d+)', answer.headers["ratelimit-policy"]))
    found = re.findall(r'"([^"]+)";r=(\d+);t=(\d+)', answer.headers["ratelimit"])
    assert {name for name, _, _ in found} == set(policies)
    assert all(1 <= int(wait) <= int(policies[name]) for name, _, wait in found)
    return {name: int(remaining) for name, remaining, _ in found}


def test_each_answer_says_what_is_left(settings):
    with serving(settings) as server:
        first = server.call("GET", "/v1/jobs")
        assert first.headers["ratelimit-policy"] == '"rate-60s";q=60;w=60, "rate-3600s";q=6;w=3600'
        assert left(first) == {"rate-60s": 59, "rate-3600s": 5}
        posts = [server.call("POST", "/v1/jobs", {**JOB, "seed": n}) for n in range(3)]
        assert [answer.status for answer in posts] == [202, 202, 429]
        assert [left(answer)["submit-3600s"] for answer in posts] == [1, 0, 0]
        wrong = server.call("POST", "/v1/jobs", {"tpp": 1})
        assert (wrong.status, left(wrong)) == (422, {"rate-60s": 55, "rate-3600s": 1})
        gets = [server.call("GET", "/v1/jobs") for _ in range(2)]
        assert [answer.status for answer in gets] == [200, 429]
        assert [left(answer)["rate-3600s"] for answer in gets] == [0, 0]
        wait = int(re.findall(r"t=(\d+)", gets[1].headers["ratelimit"])[1])
        assert abs(wait - int(gets[1].headers["retry-after"])) <= 1
        assert "ratelimit" not in server.call("GET", "/healthz").headers


def test_without_a_rate_there_is_nothing_to_say(settings):
    with serving(replace(settings, rate=(), submit_rate=())) as server:
        answer = server.call("POST", "/v1/jobs", JOB)
        assert answer.status == 202
        assert not {"ratelimit", "ratelimit-policy"} & set(answer.headers)


@pytest.mark.parametrize(("known_s", "asked"), [(0.0, 4), (3600.0, 1)])
def test_redis_is_seldom_asked(settings, redis_url, monkeypatch, known_s, asked):
    calls = []
    ask = MovingWindowRateLimiter.get_window_stats

    def count(self: MovingWindowRateLimiter, *arguments: object) -> object:
        calls.append(arguments)
        return ask(self, *arguments)

    monkeypatch.setattr(MovingWindowRateLimiter, "get_window_stats", count)
    monkeypatch.setattr(limits, "KNOWN_S", known_s)
    service = replace(settings.service, broker_url=redis_url)
    few = replace(settings, service=service, rate=(RateLimitItemPerHour(4),), no_auth=False)
    with serving(few, Nobody()) as server:
        key = server.app.state.api.keys.add(uuid.uuid4().hex, Scope.READ)
        answers = [server.call("GET", "/v1/jobs", key=key) for _ in range(4)]
        assert [left(answer)["rate-3600s"] for answer in answers] == [3, 2, 1, 0]
        assert len(calls) == asked
        assert left(server.call("GET", "/v1/jobs", key=key)) == {"rate-3600s": 0}


def test_what_other_processes_count_is_seen(settings, redis_url, monkeypatch):
    monkeypatch.setattr(limits, "KNOWN_S", 0.0)
    service = replace(settings.service, broker_url=redis_url)
    few = replace(settings, service=service, rate=(RateLimitItemPerHour(6),), no_auth=False)
    with serving(few, Nobody()) as first, serving(few, Nobody()) as second:
        key = first.app.state.api.keys.add(uuid.uuid4().hex, Scope.READ)
        answers = [one.call("GET", "/v1/jobs", key=key) for one in (first, second) * 4]
        assert [left(answer)["rate-3600s"] for answer in answers] == [5, 4, 3, 2, 1, 0, 0, 0]
        assert [answer.status for answer in answers] == [200] * 6 + [429] * 2
