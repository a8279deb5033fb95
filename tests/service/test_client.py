"""The queue of a server that answers badly: what its client sends again, and what it does not."""

import http.server
import json
import threading
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import pytest
from cases import new_request
from store_writer import PROBLEM

from tuner.errors import BadInput, ServerUnavailable
from tuner.jobs.client import PAUSES_S, RemoteQueue
from tuner.jobs.job import Job, JobState, Priority

REQUEST = new_request(PROBLEM, "L40S", measure="predict")
NOW = datetime(2026, 11, 1, tzinfo=timezone.utc)
JOB = Job(
    "0" * 26, REQUEST, Priority.NORMAL, JobState.QUEUED, "local", ("local",), 0, "", None, False,
    None, "", NOW, NOW, NOW, None, None,
)  # fmt: skip
ITEM = {"job": {**JOB.as_json(), "created": True, "estimated_gpu_s": None}, "problem": None}
ACCEPTED = (200, {"jobs": [ITEM]})
IN_USE = (409, {"type": "urn:x:idempotency-key-in-use", "detail": "being worked on"})
AWAY = (503, {"type": "about:blank", "detail": "the store does not answer"})
CUT = None  # the connection, before an answer


@dataclass
class Script:
    """What a server is to answer, and what it was asked."""

    url: str = ""
    answers: list[tuple[int, dict[str, Any]] | None] = field(default_factory=list)
    asked: list[tuple[str, bytes]] = field(default_factory=list)  # (idempotency key, body)


@pytest.fixture
def script(monkeypatch):
    monkeypatch.setattr("tuner.jobs.client.PAUSES_S", (0.0,) * len(PAUSES_S))
    made = Script()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made.asked.append((self.headers["Idempotency-Key"], body))
            answer = made.answers.pop(0)
            if answer is not None:
                self.send_response(answer[0])
                self.end_headers()
                self.wfile.write(json.dumps(answer[1]).encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        made.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield made
        server.shutdown()


def test_a_submission_is_sent_again_under_its_key_until_it_is_answered(script):
    script.answers = [CUT, AWAY, IN_USE, ACCEPTED]
    (answer,) = RemoteQueue(script.url, None).submit_all([REQUEST])
    assert (answer.job.id, answer.created) == (JOB.id, True)
    assert len(script.asked) == 4
    assert len(set(script.asked)) == 1  # each time the same key and body
    assert script.asked[0][0]


def test_a_server_that_stays_away_is_given_up(script):
    script.answers = [AWAY] * 20
    with pytest.raises(ServerUnavailable, match="the store does not answer"):
        RemoteQueue(script.url, None).submit_all([REQUEST])
    assert len(script.asked) == len(PAUSES_S) + 1


def test_what_is_refused_is_not_sent_again(script):
    script.answers = [(422, {"type": "about:blank", "detail": "no such device"})]
    with pytest.raises(BadInput, match="no such device"):
        RemoteQueue(script.url, None).submit_all([REQUEST])
    assert len(script.asked) == 1


def test_many_are_posted_in_batches(script):
    script.answers = [(200, {"jobs": [ITEM] * 100}), (200, {"jobs": [ITEM] * 20})]
    assert len(RemoteQueue(script.url, None).submit_all([REQUEST] * 120)) == 120
    assert [len(json.loads(body)["jobs"]) for _, body in script.asked] == [100, 20]
    assert len({key for key, _ in script.asked}) == 2


def test_one_that_is_refused_is_told_with_the_ones_that_were_queued(script):
    refused = {"job": None, "problem": {"detail": "no such model"}}
    script.answers = [(200, {"jobs": [ITEM, refused]})]
    with pytest.raises(BadInput, match=f"no such model; these jobs were queued: {JOB.id}"):
        RemoteQueue(script.url, None).submit_all([REQUEST, REQUEST])
