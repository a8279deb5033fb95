"""Large bodies: refused unread where they can be, parsed once and one at a time."""

import http.client
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from api_server import JOB, MIXTRAL, Server, serving
from limits import RateLimitItemPerHour

import api.bodies
from api.settings import LARGE_BYTES, VALUES, ApiSettings
from tuner.store.keys import Scope as KeyScope
from workers.settings import Settings

# As of a model whose layers are not all quantized: 3 MiB.
SKIPPED = [f"model.layers.{n}.mlp.experts.{n % 256}.gate_proj" for n in range(70_000)]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    url = f"sqlite:///{tmp_path_factory.mktemp('bodies') / 'tuner.db'}"
    with serving(ApiSettings(Settings(url), large_rate=(), no_auth=True)) as running:
        yield running


def large(seed: int = 0) -> dict[str, Any]:
    model = {**MIXTRAL, "modules_to_not_convert": SKIPPED}
    return {**JOB, "model": model, "dtype": None, "tp": 8, "seed": seed}


def answer_to(server: Server, headers: str, start: bytes, key: str = "") -> tuple[int, bytes]:
    """What the server says to the head of a request and the start of its body."""
    sent = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{headers}"
    )
    if key:
        sent += f"Authorization: Bearer {key}\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(sent.encode() + b"\r\n" + start)
        answer = http.client.HTTPResponse(client)
        answer.begin()
        return answer.status, answer.read()


def test_a_body_of_many_values_is_refused_before_its_end(server):
    start = b"[" + b"1," * (VALUES + 1)
    status, said = answer_to(server, "Content-Length: 4000000\r\n", start)
    assert status == 413
    assert f"at most {VALUES} commas, colons and brackets" in json.loads(said)["detail"]


def test_the_largest_config_json_is_taken(server):
    body = json.dumps(large()).encode()
    assert len(body) > 3_000_000
    answer = server.call("POST", "/v1/jobs", body)
    assert answer.status == 202, answer.body[:500]
    assert answer.json["request"]["problem"].startswith("fused_moe:E=8,N=1792,K=4096")


def test_large_bodies_of_a_key_have_a_rate_and_are_refused_unread(tmp_path):
    service = Settings(f"sqlite:///{tmp_path / 'tuner.db'}")
    with serving(ApiSettings(service, large_rate=(RateLimitItemPerHour(2),))) as server:
        keys = server.app.state.api.keys
        mine, other = keys.add("mine", KeyScope.SUBMIT), keys.add("other", KeyScope.SUBMIT)
        for seed in range(2):
            assert server.call("POST", "/v1/jobs", large(seed), key=mine).status == 202
        declared = f"Content-Length: {LARGE_BYTES + 1}\r\n"
        status, said = answer_to(server, declared, b"", mine)
        assert (status, json.loads(said)["detail"]) == (429, "more than 2 per 1 hour")
        chunk = b"%x\r\n%s\r\n" % (LARGE_BYTES + 1, b" " * (LARGE_BYTES + 1))
        assert answer_to(server, "Transfer-Encoding: chunked\r\n", chunk, mine)[0] == 429
        assert server.call("POST", "/v1/jobs", JOB, key=mine).status == 202
        assert server.call("POST", "/v1/jobs", large(), key=other).status == 202


def test_a_large_body_is_parsed_once(server, monkeypatch):
    body, parsed = json.dumps(large()).encode(), []
    loads = json.loads

    def note(text: str | bytes, **options: Any) -> Any:
        parsed.append(len(text) == len(body))
        return loads(text, **options)

    monkeypatch.setattr(json, "loads", note)
    assert server.call("POST", "/v1/jobs", body).status == 202
    assert parsed.count(True) == 1


def test_large_bodies_are_parsed_one_at_a_time(server, monkeypatch):
    lock, active, most = threading.Lock(), 0, 0
    check_json = api.bodies.check_json

    def note(body: bytes) -> object:
        nonlocal active, most
        with lock:
            active += 1
            most = max(most, active)
        try:
            return check_json(body)
        finally:
            with lock:
                active -= 1

    monkeypatch.setattr(api.bodies, "check_json", note)
    with ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(server.call, "POST", "/v1/jobs", large(n)) for n in range(6)]
        assert {answer.result().status for answer in answers} == {202}
    assert most == 1
