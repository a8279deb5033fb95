"""Bodies and queries that cost more to read than to send: to every route, and while others ask."""

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from api_server import JOB, NEVER, serving
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from visitor import FORM

import api.app
import api.bodies
import api.bundles
import api.middleware
from api.pages.browser import is_page, proof_of
from api.requests import EXAMPLE_CLUSTER
from api.settings import CLUSTER_CHARS, QUERY_BYTES, QUERY_FIELDS, SMALL_BYTES, ApiSettings
from tuner import files
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
DEEP = '{"a":' * 60 + "1" + "}" * 60
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
    "a deep model": json.dumps({**JOB, "model": json.loads(DEEP)}).encode(),
}


def form_of(fields: Mapping[str, object], field: str, text: str) -> bytes:
    return urlencode({**fields, field: text, "proof": proof_of(None)}).encode()


FORM_BOMBS = {
    "many fields": b"&".join(b"f%d=1" % n for n in range(5_000)),
    "escapes": b"model=" + b"%C3%A9" * 10_000,
    "half escapes": b"model=" + b"%" * 60_000,
    "no form": bytes(range(256)),
    **{
        f"cluster: {name}": form_of({"device": "L40S"}, "cluster", text)
        for name, text in TOML_BOMBS.items()
    },
    **{
        f"{field}: {name}": form_of(JOB, field, text)
        for field in ("model", "problem", "server_args", "models")
        for name, text in TEXTS.items()
    },
}
QUERIES = {
    "many parameters": "&".join(f"device=d{n}" for n in range(QUERY_FIELDS + 1)),
    "a long one": "q=" + "a" * QUERY_BYTES,
}
# Headers that something here reads, and where.
HEADERS = {
    "Accept": "/jobs",
    "Accept-Encoding": "/static/0/pages.css",
    "Authorization": "/v1/jobs",
    "Cookie": "/jobs",
    "Host": "/jobs",
    "If-None-Match": "/v1/exports/L40S.tar",
    "Last-Event-ID": f"/v1/jobs/{NEVER}/events",
    "Origin": "/v1/jobs",
    "X-Forwarded-Proto": "/jobs",
    "X-Request-ID": "/v1/jobs",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    url = f"sqlite:///{tmp_path_factory.mktemp('hostile') / 'tuner.db'}"
    unlimited: dict[str, Any] = {"rate": (), "large_rate": (), "submit_rate": ()}
    with serving(ApiSettings(Settings(url), no_auth=True, **unlimited)) as running:
        yield running


@pytest.fixture
def on_the_loop(monkeypatch):
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

    watched(files, "_loads")
    watched(files, "_check_structure")
    watched(api.bodies, "check_json")
    watched(api.bodies, "parse_qsl")
    return found


def filled(template: str) -> str:
    """The address of a route, with a value for each of its parts."""
    values = {"{job_id}": NEVER, "{run_id}": "1", "{device}": "L40S", "{digest}": "0" * 64}
    for name, value in values.items():
        template = template.replace(name, value)
    return template.replace("{", "").replace("}", "")


def api_routes() -> Iterator[APIRoute]:
    for router in api.app._ROUTERS:  # noqa: SLF001
        yield from (route for route in router.routes if isinstance(route, APIRoute))


def templates() -> Iterator[tuple[str, str]]:
    """The method and the path of each route."""
    for route in api_routes():
        for method in sorted(route.methods):
            yield method, route.path


def routes() -> Iterator[tuple[str, str]]:
    """The method and an address of each route."""
    for method, template in templates():
        yield method, filled(template)


def get_routes() -> Iterator[tuple[APIRoute, str]]:
    """The routes that change nothing, and an address of each; but those of event streams."""
    for route in api_routes():
        if "GET" in route.methods and not route.path.endswith("/events"):
            yield route, filled(route.path)


def query_names(dependant: Dependant) -> set[str]:
    """The parameters of a query that a route reads."""
    found: set[str] = set()
    for one in dependant.query_params:
        fields = getattr(one.field_info.annotation, "model_fields", None)
        found |= {one.alias} if fields is None else {f.alias or name for name, f in fields.items()}
    return found.union(*map(query_names, dependant.dependencies))


def test_no_route_falls_or_parses_in_the_event_loop(server, on_the_loop, subtests):
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


def test_no_query_makes_a_route_fall(server, subtests):
    names: set[str] = set()
    for route, path in get_routes():
        names |= query_names(route.dependant)
        given = {name: quote(text) for name, text in TEXTS.items()}
        found = {
            f"{name}={kind}": f"{name}={text}"
            for name in query_names(route.dependant)
            for kind, text in given.items()
        }
        for name, query in {**found, **QUERIES}.items():
            with subtests.test(path=path, query=name):
                answer = server.call("GET", f"{path}?{query}")
                assert answer.status < 500, answer.body
    assert {"q", "problem", "server_args", "model", "after"} <= names
    for name in ("many parameters", "a long one"):
        said = server.call("GET", f"/v1/jobs?{QUERIES[name]}").problem(422)
        assert said == f"a query has at most {QUERY_BYTES} bytes and {QUERY_FIELDS} parameters"


def test_no_path_makes_a_route_fall(server, subtests):
    for method, template in templates():
        for hole in re.findall(r"{(\w+)(?::\w+)?}", template):
            for name, text in TEXTS.items():
                path = filled(template.replace(f"{{{hole}", "{x").replace("{x}", quote(text, "")))
                with subtests.test(method=method, template=template, hole=hole, text=name):
                    body = b"" if method == "GET" else b"{}"
                    answer = server.call(method, path, body or None)
                    assert answer.status < 500, answer.body


def test_no_header_makes_a_route_fall(server, subtests):
    texts = {**{name: text for name, text in TEXTS.items() if name != "nul"}, "half": "é;q=,="}
    for header, path in HEADERS.items():
        for name, text in texts.items():
            with subtests.test(header=header, text=name):
                answer = server.call("GET", path, headers={header: text})
                assert answer.status < 500, answer.body
    for name, text in texts.items():
        with subtests.test(header="Idempotency-Key", text=name):
            answer = server.call("POST", "/v1/jobs", JOB, {"Idempotency-Key": text})
            assert answer.status < 500, answer.body


def test_no_field_makes_a_route_fall(server, subtests):
    """Each field of each JSON body, with each text: alone, in a list and as a key; and no text."""
    paths = server.app.openapi()["paths"]
    sent = 0
    for path, said in paths.items():
        for method in said.keys() & {"post", "put", "patch", "delete"}:
            content = said[method].get("requestBody", {}).get("content", {}).get("application/json")
            if content is None:
                continue
            for field, value in odd_fields(server.app.openapi(), content["schema"]):
                body = {**JOB, "cluster": EXAMPLE_CLUSTER, "name": "n", field: value}
                with subtests.test(path=path, field=field, value=f"{value!r:.60}"):
                    answer = server.call(method.upper(), filled(path), body)
                    assert answer.status < 500, answer.body
                    sent += 1
    assert sent > 500


def odd_fields(document: Any, schema: Any) -> Iterator[tuple[str, object]]:
    """The fields of a body, each with odd values."""
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    for field in schema["properties"]:
        for text in TEXTS.values():
            yield field, text
            yield field, [text] * 3
            yield field, {text: text}
        for value in (None, True, -1, 1 << 70, 1e300, [], {}, [[[]]]):
            yield field, value


@pytest.mark.parametrize("path", ["/v1/bundles", "/bundles"])
def test_others_are_answered_while_a_cluster_is_read(server, monkeypatch, path):
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


def test_a_long_key_in_a_cluster_is_named(server):
    body = {"cluster": TOML_BOMBS["a long key"], "device": "L40S"}
    said = server.call("POST", "/v1/bundles", body).problem(422)
    assert said == "cluster.toml is not TOML: a key has at most 16 parts"
