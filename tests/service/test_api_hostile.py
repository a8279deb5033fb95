"""Bodies and queries that cost more to read than to send: to every route, and while others ask."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from api_server import JOB, NEVER, Server, serving
from visitor import FORM

import api.app
import api.bodies
import api.bundles
import api.middleware
from api.bounds import CLUSTER_CHARS, QUERY_BYTES, QUERY_FIELDS, SMALL_BYTES
from api.pages.places import is_page
from api.pages.sessions import proof_of
from api.schemas_in import EXAMPLE_CLUSTER
from api.settings import ApiSettings
from tuner import toml_table
from workers.settings import Settings

MANY = CLUSTER_CHARS // 2 - 10
TOML_BOMBS = {
    "a long key": "a." * MANY + "b = 1",
    "a long table": "[" + "a." * MANY + "b]",
    "deep lists": "x = " + "[" * MANY,
    "many tables": "[[a.b]]\n" * (MANY // 4),
    "many keys": "".join(f"k{n} = 1\n" for n in range(MANY // 8)),
    "one text": f'name = "{"é" * MANY}"',
    "quotes": '"' + '\\"' * MANY,
    "too long": EXAMPLE_CLUSTER + "#" * CLUSTER_CHARS,
}
TEXTS = {
    "long": "a" * 2000,
    "digits": "9" * 2000,
    "a problem": "fused_moe:" + "E=1," * 490,
    "an unknown problem": "fused_moe:" + "x" * 1900,
    "spaces": "a" + " " * 1990 + "b",
    "a warning": "Using default MoE kernel config. " + "/a" * 900,
    "brackets": "[" * 2000,
    "nul": "a\0b",
}
JSON_BOMBS = {
    "deep": b"[" * 100_000,
    "deep objects": b'{"a":' * 50_000,
    "a number": b"9" * 60_000,
    "a float": b"1e" + b"9" * 60_000,
    "many values": b"[" + b"1," * 30_000 + b"1]",
    "many fields": json.dumps({f"field {n}": n for n in range(3_000)}).encode(),
    "one field twice": b"{" + b'"a":1,' * 10_000 + b'"a":1}',
    "a text": json.dumps({"model": "é" * 10_000}).encode(),
    "no text": b'{"model": "\xff"}',
    "a list": b"[]",
    "null": b"null",
    **{
        f"cluster: {name}": json.dumps({"cluster": text, "device": "L40S"}).encode()
        for name, text in TOML_BOMBS.items()
    },
    **{
        f"model: {name}": json.dumps({**JOB, "model": text}).encode()
        for name, text in TEXTS.items()
    },
    "a deep model": json.dumps(
        {**JOB, "model": json.loads('{"a":' * 60 + "1" + "}" * 60)}
    ).encode(),
}
FORM_BOMBS = {
    "many fields": b"&".join(b"f%d=1" % n for n in range(5_000)),
    "escapes": b"model=" + b"%C3%A9" * 10_000,
    "half escapes": b"model=" + b"%" * 60_000,
    "no form": bytes(range(256)),
    **{
        f"cluster: {name}": urlencode(
            {"cluster": text, "device": "L40S", "proof": proof_of(None)}
        ).encode()
        for name, text in TOML_BOMBS.items()
    },
    **{
        f"model: {name}": urlencode({**JOB, "model": text, "proof": proof_of(None)}).encode()
        for name, text in TEXTS.items()
    },
}
QUERIES = {
    "many parameters": "&".join(f"device=d{n}" for n in range(QUERY_FIELDS + 1)),
    "a long one": "q=" + "a" * QUERY_BYTES,
    **{
        f"{name}: {kind}": f"{name}={quote(text)}"
        for name in ("q", "problem", "server_args")
        for kind, text in TEXTS.items()
    },
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    url = f"sqlite:///{tmp_path_factory.mktemp('hostile') / 'tuner.db'}"
    unlimited: dict[str, Any] = {"rate": (), "large_rate": (), "submit_rate": ()}
    with serving(ApiSettings(Settings(url), no_auth=True, **unlimited)) as running:
        yield running


@pytest.fixture
def on_the_loop(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was parsed in the event loop, although it was not small."""
    found: list[str] = []

    def watched(owner: Any, name: str) -> None:
        parse: Callable[..., object] = getattr(owner, name)

        def note(text: str | bytes, *rest: Any, **named: Any) -> object:
            with contextlib.suppress(RuntimeError):  # in a thread
                asyncio.get_running_loop()
                if len(text) > SMALL_BYTES:
                    found.append(f"{name} {text[:60]!r}")
            return parse(text, *rest, **named)

        monkeypatch.setattr(owner, name, note)

    watched(toml_table.tomllib, "loads")
    watched(toml_table, "_check_structure")
    watched(api.bodies, "check_json")
    watched(api.bodies, "parse_qsl")
    monkeypatch.setattr("api.bodies.UNWELCOME_S", 0.0)
    return found


def routes() -> Iterator[tuple[str, str]]:
    """The method and an address of each route."""
    values = {"{job_id}": NEVER, "{run_id}": "1", "{device}": "L40S", "{key}": "0" * 64}
    for part in api.app._PARTS:  # noqa: SLF001
        for route in part.router.routes:
            path = getattr(route, "path", "")
            for name, value in values.items():
                path = path.replace(name, value)
            for method in sorted(getattr(route, "methods", None) or ()):
                yield method, path.replace("{", "").replace("}", "")


def test_no_route_falls_or_parses_in_the_event_loop(
    server: Server, on_the_loop: list[str], subtests: pytest.Subtests
) -> None:
    sent = 0
    for method, path in routes():
        if method == "GET":
            continue
        bombs, kind = (FORM_BOMBS, FORM) if is_page(path) else (JSON_BOMBS, "application/json")
        headers = {"Content-Type": kind, "Sec-Fetch-Site": "same-origin"}
        for name, body in bombs.items():
            with subtests.test(method=method, path=path, bomb=name):
                answer = server.call(method, path, body, headers)
                assert answer.status < 500, answer.body
                sent += 1
    assert sent > 500
    assert on_the_loop == []


def test_no_query_makes_a_route_fall(server: Server, subtests: pytest.Subtests) -> None:
    for method, path in routes():
        if method == "GET" and not path.endswith("/events"):
            for name, query in QUERIES.items():
                with subtests.test(path=path, query=name):
                    answer = server.call("GET", f"{path}?{query}")
                    assert answer.status < 500, answer.body
    for name in ("many parameters", "a long one"):
        said = server.call("GET", f"/v1/jobs?{QUERIES[name]}").problem(422)
        assert said == f"a query has at most {QUERY_BYTES} bytes and {QUERY_FIELDS} parameters"


@pytest.mark.parametrize("path", ["/v1/bundles", "/bundles"])
def test_others_are_answered_while_a_cluster_is_read(
    server: Server, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    reading, go_on = threading.Event(), threading.Event()
    parse = api.bundles.parse_cluster

    def slowly(text: str) -> object:
        reading.set()
        assert go_on.wait(30)
        return parse(text)

    monkeypatch.setattr(api.bundles, "parse_cluster", slowly)
    fields = {"cluster": EXAMPLE_CLUSTER, "device": "L40S"}
    body, headers = json.dumps(fields).encode(), {"Content-Type": "application/json"}
    if is_page(path):
        body = urlencode({**fields, "proof": proof_of(None)}).encode()
        headers = {"Content-Type": FORM, "Sec-Fetch-Site": "same-origin"}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.call, "POST", path, body, headers)
        try:
            assert reading.wait(30)
            for asked in ("/healthz", "/readyz", "/v1/jobs", "/v1/models"):
                assert server.call("GET", asked).status == 200
        finally:
            go_on.set()
        assert waiting.result().status < 500


def test_a_long_key_in_a_cluster_is_named(server: Server) -> None:
    body = {"cluster": TOML_BOMBS["a long key"], "device": "L40S"}
    said = server.call("POST", "/v1/bundles", body).problem(422)
    assert said == "cluster.toml is not TOML: a key has at most 16 parts"
