"""The service asks running servers that its operator lists for their model, release and flags."""

import json
from urllib.parse import quote, urlsplit

import pytest
from api_server import JOB
from running_servers import answering, sglang_answer, sglang_server
from typer.testing import CliRunner

from tuner.cli.commands import app
from tuner.errors import ServerUnavailable
from tuner.jobs.running import ask_listed
from workers import watches
from workers.watches import LeftAlone, Unresolved, named, read_watch

GIVEN = {"model_path": "Qwen/Qwen3-30B-A3B", "tp_size": 2, "attention_backend": "triton"}
FLAGS = "--tp-size 2 --attention-backend triton"


@pytest.fixture
def listed(monkeypatch):
    """Lists servers, as their operator does."""

    def add(*urls):
        monkeypatch.setenv("TUNER_SERVERS", ",".join(urlsplit(url).netloc for url in urls))

    return add


def test_a_url_over_http_is_the_model_the_release_and_the_flags(server, listed):
    with sglang_server("0.5.16", **GIVEN) as url:
        listed("127.0.0.1:1", url)
        asked = server.call("GET", f"/v1/plan?model={quote(url)}&device=H200")
        posted = server.call("POST", "/v1/jobs:model", {"model": url, "device": "H200"})
    flags = f"&server_args={quote(FLAGS)}&engine=sglang==0.5.16"
    named = server.call("GET", f"/v1/plan?model=qwen3-30b-a3b&device=H200{flags}")
    assert asked.json == named.json
    assert posted.status == 200, posted.body
    jobs = posted.json["jobs"]
    assert {one["request"]["engine"] for one in jobs} == {"sglang==0.5.16"}
    assert {one["request"]["model"] for one in jobs} == {"qwen3-30b-a3b"}
    assert any("E=128,N=384" in one["request"]["problem"] for one in jobs)


@pytest.mark.parametrize("model_path", ["/etc", "/data/r1", "nobody/model"])
def test_a_path_of_the_server_is_never_opened_here(server, listed, model_path):
    with sglang_server("0.5.16", model_path=model_path) as url:
        listed(url)
        answer = server.call("POST", "/v1/jobs:model", {"model": url, "device": "H200"})
    assert answer.status == 422
    assert "no preset is called" in answer.json["detail"]


def test_a_server_that_nobody_lists_is_not_asked(server):
    with sglang_server("0.5.16", **GIVEN) as url:
        answer = server.call("POST", "/v1/jobs:model", {"model": url, "device": "H200"})
    assert answer.status == 422
    assert "TUNER_SERVERS" in answer.json["detail"]


def test_a_server_that_is_away_stops_no_other_job_of_a_batch(server, listed, monkeypatch):
    listed("http://127.0.0.1:1")
    asked: list[str] = []
    monkeypatch.setattr("api.asked.ask_listed", lambda url: asked.append(url) or ask_listed(url))
    sent = {"jobs": [{**JOB, "model": "http://127.0.0.1:1"}] * 2 + [JOB]}
    answer = server.call("POST", "/v1/jobs:batch", sent)
    assert answer.status == 200, answer.body
    away, again, posted = answer.json["jobs"]
    assert "does not answer" in away["problem"]["detail"]
    assert away == again
    assert away["problem"]["status"] == 503
    assert len(asked) == 1  # each may take seconds
    assert posted["job"]["state"] == "queued"


def test_a_server_that_is_away_is_no_conflict(server, listed):
    url = "http://127.0.0.1:1"
    listed(url)
    asked = {"model": url, "device": "H200"}
    answers = [
        server.call("POST", "/v1/jobs", asked),
        server.call("POST", "/v1/jobs:model", asked),
        server.call("GET", f"/v1/plan?model={quote(url)}&device=H200"),
    ]
    for answer in answers:
        said = answer.problem(503)
        assert said.startswith(f"{url} does not answer: ")
        assert said.endswith("name its model, with its flags in server_args")
        assert answer.headers["retry-after"] == "5"


def test_a_repeated_batch_gives_no_job_to_another(server, listed):
    key = {"Idempotency-Key": "k"}
    with sglang_server("0.5.16", **GIVEN) as first, sglang_server("0.5.16", **GIVEN) as second:
        jobs = [{"model": first, "device": "H100"}, {"model": second, "device": "L40S"}]
        listed(second)  # the first is refused
        posted = server.call("POST", "/v1/jobs:batch", {"jobs": jobs}, key)
        assert [one["job"] is not None for one in posted.json["jobs"]] == [False, True]
        again = server.call("POST", "/v1/jobs:batch", {"jobs": jobs}, key)
        assert (again.status, again.headers["idempotent-replayed"]) == (200, "true")
        listed(first)
        answer = server.call("POST", "/v1/jobs:batch", {"jobs": jobs}, key)
    assert "the same batch was answered otherwise before" in answer.problem(422)


def test_submit_takes_a_url(store_url, monkeypatch):
    monkeypatch.setenv("TUNER_DATABASE_URL", store_url)
    with sglang_server("0.5.16", **GIVEN) as url:
        words = ["jobs", "submit", url, "--device", "H200", "--measure", "predict", "--json"]
        done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.stderr
    said = json.loads(done.stdout)
    (job,) = said.get("jobs", [said])
    assert job["request"]["engine"] == "sglang==0.5.16"
    assert "E=128,N=384" in job["request"]["problem"]


def test_a_server_that_is_away_is_asked_once_a_minute(listed, monkeypatch):
    monkeypatch.setattr(watches.time, "monotonic", lambda: 9_000_000.0)
    asked = []
    monkeypatch.setattr(watches, "ask_listed", lambda url: asked.append(url) or refuse(url))

    def refuse(url):
        raise ServerUnavailable(f"{url} does not answer")

    url = "http://127.0.0.1:30000"
    watch = named(read_watch({"models": [url], "devices": ["H200"], "tp": [1, 2]}))
    said = [str(one.error) for _ in range(3) for one in watch.requests()]
    assert said == [f"{url} does not answer"] * 6
    assert asked == [url]


def test_a_watch_of_a_server_follows_it_through_an_upgrade(listed, monkeypatch):
    minute = iter(range(0, 6000, 60))
    monkeypatch.setattr(watches.time, "monotonic", lambda: float(next(minute)))
    answers = {}
    with answering(answers) as url:
        listed(url)
        watch = named(read_watch({"models": [url], "devices": ["H200"]}))
        found = []
        for version in ("0.5.16", "0.5.23"):
            path, said = sglang_answer(version, **GIVEN)
            answers.clear()
            answers[path] = (200, json.dumps(said).encode())
            found.append([one for one in watch.requests() if not isinstance(one, LeftAlone)])
        answers.clear()
        (gone,) = watch.requests()
    for version, requests in zip(("0.5.16", "0.5.23"), found, strict=True):
        assert {one.engine for one in requests} == {f"sglang=={version}"}
        assert any("E=128,N=384" in one.spec for one in requests)
        assert {one.model for one in requests} == {"qwen3-30b-a3b"}
    assert isinstance(gone, Unresolved)
    assert "neither an sglang nor a vLLM server" in str(gone.error)
