"""The OpenAPI document: names, examples, and what FastAPI cannot see in the routes."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from threading import Lock
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from api.errors import MEDIA_TYPE
from api.examples import ANSWERS, EVENT, PROBLEMS

PATH = "/openapi.json"
DESCRIPTION = """Finds, proves and stores launch configurations of LLM engines' Triton kernels.

**Keys.** Send `Authorization: Bearer KEY`. Each operation names the least scope that a key needs:
`read`, `submit` or `admin`; each includes those before it.

**Errors** are problem details (RFC 9457). `errors` points at each wrong field (RFC 6901).

**Lists** come in pages: send the `next` of one page as `after`, with the same filters. On the last
page `next` is null.

**Rates.** `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10) say what is
allowed and what is left. After a 429 or 503, wait for `Retry-After` seconds.

Times are in microseconds (`_us`), sizes in bytes (`_bytes`).
"""
TAGS = {
    "jobs": "Post tuning jobs, look at them, follow them and end them.",
    "results": "What came of jobs: winners, trials, and the files that an engine loads.",
    "coverage": "What is stored, what is watched, and what is still missing.",
    "workers": "The worker processes, what each can do, whether it takes jobs, and the compile "
    "results that they share.",
    "keys": "Which keys there are; making, replacing and revoking them.",
    "tables": "The devices and models that are known by name.",
    "health": "For load balancers and Prometheus.",
}
_HEADERS: dict[str, dict[str, Any]] = {
    "X-Request-ID": {
        "description": "The request's own, if it sent one; the server's log has it too.",
        "schema": {"type": "string"},
        "example": "2ccf662ab06a1f80",
    },
    "RateLimit-Policy": {
        "description": "The rates of this caller: requests (q) in a window (w, seconds).",
        "schema": {"type": "string"},
        "example": '"rate-60s";q=1200;w=60, "submit-60s";q=300;w=60',
    },
    "RateLimit": {
        "description": "What is left (r), and the seconds until more is allowed for certain (t). "
        "With several server processes, up to a second old.",
        "schema": {"type": "string"},
        "example": '"rate-60s";r=1187;t=42, "submit-60s";r=299;t=60',
    },
    "Retry-After": {
        "description": "Seconds to wait before another try.",
        "schema": {"type": "integer", "minimum": 1},
        "example": 5,
    },
}
_OF_BODIES = ("400", "413", "415")  # the body of a GET is not read


def operation_id(route: APIRoute) -> str:
    """The name of the route's function, as JavaScript and Java spell it: submitJob."""
    first, *others = route.name.split("_")
    return first + "".join(word.capitalize() for word in others)


def package_version() -> str:
    """The installed version of this package; 0 where it runs from a bare folder."""
    try:
        return version("engine-tuner")
    except PackageNotFoundError:
        return "0"


def tags() -> list[dict[str, str]]:
    """The tags of the document."""
    return [{"name": name, "description": text} for name, text in TAGS.items()]


def install(app: FastAPI) -> None:
    """Serve the completed document at /openapi.json. It is made when it is first asked for.

    To make it takes longer than all else that a server does at its start. The bytes are kept too:
    whoever asks for the document needs no key, and each time to write it would take its time from
    the other requests.
    """
    make, making = app.openapi, Lock()
    made: list[tuple[dict[str, Any], bytes]] = []

    def document() -> tuple[dict[str, Any], bytes]:
        with making:
            if not made:
                found = complete(make())
                made.append((found, bytes(JSONResponse(found).body)))
        return made[0]

    app.openapi = lambda: document()[0]  # type: ignore[method-assign]

    @app.get(PATH, include_in_schema=False)
    async def show_document() -> Response:
        _, text = made[0] if made else await run_in_threadpool(document)
        return Response(text, media_type="application/json")


def methods_by_path(routers: Iterable[APIRouter]) -> dict[str, list[str]]:
    """Return the paths of the document, each with its methods in order."""
    found: dict[str, list[str]] = {}
    for router in routers:
        for route in router.routes:
            if isinstance(route, APIRoute) and route.include_in_schema:
                found[route.path] = sorted({*found.get(route.path, ()), *(route.methods or ())})
    return found


def complete(document: dict[str, Any]) -> dict[str, Any]:
    """Return FastAPI's document with names, examples and what it cannot see in the routes."""
    components = document["components"]
    for name, example in ANSWERS.items():
        components["schemas"][name]["examples"] = [example]
    components["headers"] = _HEADERS
    components["responses"] = {}
    for operations in document["paths"].values():
        for method, operation in operations.items():
            _complete(operation, method)
            for status, response in operation["responses"].items():
                if MEDIA_TYPE in response.get("content", {}):
                    name = f"Error{status}"
                    components["responses"].setdefault(name, _problem(int(status), response))
                    operation["responses"][status] = {"$ref": f"#/components/responses/{name}"}
    return document


def _complete(operation: dict[str, Any], method: str) -> None:
    operation["summary"] = operation["description"].partition(".")[0]
    for requirement in operation.get("security", ()):
        for scopes in requirement.values():
            operation["description"] += f"\n\nThe key needs the scope `{', '.join(scopes)}`."
    if method in ("get", "head"):
        for status in _OF_BODIES:
            operation["responses"].pop(status, None)
    limited = ("RateLimit-Policy", "RateLimit") if "security" in operation else ()
    for response in operation["responses"].values():
        response["headers"] = _refer("X-Request-ID", *limited) | response.get("headers", {})
        if events := response.get("content", {}).get("text/event-stream"):
            # FastAPI describes an event with OpenAPI 3.2's itemSchema, in a 3.1 document. Many
            # tools refuse 3.2; for streams before it, they take `schema` as that of an event.
            events |= {"schema": events.pop("itemSchema"), "example": EVENT}


def _problem(status: int, response: dict[str, Any]) -> dict[str, Any]:
    """What all operations share of an error's answer. Its headers are sent where they apply."""
    title = HTTPStatus(status).phrase
    kind, detail = PROBLEMS.get(status, ("about:blank", title))
    example = {"type": kind, "title": title, "status": status, "detail": detail}
    example["request_id"] = _HEADERS["X-Request-ID"]["example"]
    schema = response["content"][MEDIA_TYPE]["schema"]
    later = ("Retry-After",) if status in (409, 429, 503) else ()
    return {
        "description": title,
        "headers": _refer("X-Request-ID", "RateLimit-Policy", "RateLimit", *later),
        "content": {MEDIA_TYPE: {"schema": schema, "example": example}},
    }


def _refer(*headers: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in headers}
