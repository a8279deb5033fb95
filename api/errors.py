"""Error answers: RFC 9457 problem details that name the nearest valid choice."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from tuner.errors import (
    BadInput,
    ExportRefused,
    IdempotencyKeyInUse,
    NotRetriable,
    OptionsRefused,
    TunerError,
    UnknownJob,
    UnusableStore,
    WorkFailed,
    did_you_mean,
)

log = logging.getLogger("tuner.api")

MEDIA_TYPE = "application/problem+json"
RETRY_S = 5
# An error's own class decides, or else its nearest base class that is here.
_STATUSES: dict[type[BaseException], int] = {
    UnknownJob: 404,
    ExportRefused: 409,
    NotRetriable: 409,
    UnusableStore: 503,
    BadInput: 422,
    WorkFailed: 409,
    TunerError: 500,
}


class Mistake(BaseModel):
    """One thing wrong with a request."""

    pointer: str = Field(description="Where: a JSON pointer into the body, or a parameter's name.")
    detail: str


class ProblemDetails(BaseModel):
    """An error, in the form of RFC 9457."""

    model_config = ConfigDict(title="Problem")  # its name in the OpenAPI schema

    type: str = Field(description="about:blank, or a urn that names the kind of error.")
    title: str
    status: int
    detail: str = Field(description="One line for people, naming the nearest valid choice.")
    request_id: str = Field(description="As in the header X-Request-ID and the server's log.")
    errors: list[Mistake] = []


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI entries of a route's errors: these statuses, and those of every route."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": schema}},
        }
        for status in sorted({400, 401, 403, 413, 422, 429, 500, 503, *statuses})
    }


def install(app: FastAPI) -> None:
    """Answer all errors of the app with problem details."""
    app.add_exception_handler(TunerError, _on_tuner_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)


def problem_response(
    request_id: str,
    status: int,
    detail: str = "",
    *,
    kind: str = "about:blank",
    headers: Mapping[str, str] | None = None,
    errors: Sequence[Mistake] = (),
) -> JSONResponse:
    """A response with problem details; `kind` is their `type`."""
    title = HTTPStatus(status).phrase
    problem = ProblemDetails(
        type=kind,
        title=title,
        status=status,
        detail=detail or title,
        request_id=request_id,
        errors=list(errors),
    )
    content = problem.model_dump(exclude_defaults=True)
    return JSONResponse(content, status, headers, media_type=MEDIA_TYPE)


async def _on_tuner_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, TunerError)
    kinds = (_STATUSES[kind] for kind in type(error).__mro__ if kind in _STATUSES)
    status, detail, headers = next(kinds), error.in_api_words(), {}
    if status >= 500:
        # The message names the store's URL, which is for the server's log alone.
        log.error("%s", error)
        detail = "the store does not answer: try again" if status == 503 else "the tuner failed"
        headers["Retry-After"] = str(RETRY_S)
    if isinstance(error, IdempotencyKeyInUse):
        headers["Retry-After"] = "1"
    refused = error.by_field if isinstance(error, OptionsRefused) else {}
    return problem_response(
        request_id(request),
        status,
        detail,
        kind=f"urn:engine-tuner:error:{_kebab(type(error).__name__)}",
        headers=headers,
        errors=[Mistake(pointer=f"/{name}", detail=text) for name, text in refused.items()],
    )


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code < 400:
        return Response(status_code=error.status_code, headers=error.headers)
    headers, detail = dict(error.headers or {}), error.detail
    paths, route = request.app.openapi()["paths"], request.scope.get("route")
    if error.status_code == 405:  # Starlette's own header has one route's methods only
        operations = paths.get(getattr(route, "path", ""), {})
        headers["Allow"] = ", ".join(name.upper() for name in operations)
        detail = f"{request.method} does nothing here: use {headers['Allow'] or 'another'}"
    elif error.status_code == 404 and route is None:
        near = did_you_mean(request.url.path[:200], paths) or "; GET /openapi.json lists the paths"
        detail = f"there is nothing at {request.url.path[:200]!r}{near}"
    return problem_response(request_id(request), error.status_code, detail, headers=headers)


async def _on_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = [_mistake(one, error.body) for one in error.errors()[:20]]
    mistakes = [one for at, one in enumerate(found) if one not in found[:at]]
    detail = "; ".join(_line(mistake) for mistake in mistakes[:3])
    kind = "urn:engine-tuner:error:invalid-request"
    return problem_response(request_id(request), 422, detail, kind=kind, errors=mistakes)


def request_id(request: Request) -> str:
    return str(request.scope["state"].get("request_id", ""))


def _mistake(error: Mapping[str, Any], body: object) -> Mistake:
    place = [str(part) for part in error["loc"]]
    text = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] in ("enum", "literal_error") and isinstance(error["input"], str):
        choices = re.findall(r"'([^']*)'", str(error["ctx"]["expected"]))
        text += did_you_mean(error["input"][:100], choices)
    if place[0] == "body":
        missing = error["type"] == "missing"
        return Mistake(pointer=_pointer(error["loc"][1:], body, missing), detail=text)
    return Mistake(pointer=place[-1], detail=text)


def _pointer(place: Sequence[str | int], body: object, missing: bool) -> str:
    """The JSON pointer of a Pydantic location, without the names of a union's members."""
    pointer, here = "", body
    for part in place:
        match here, part:
            case dict(), str() if part in here:
                here = here[part]
            case list(), int() if part < len(here):
                here = here[part]
            case (dict(), str()) | (list(), int()) if missing and part == place[-1]:
                pass
            case _:
                continue
        pointer += "/" + str(part).replace("~", "~0").replace("/", "~1")
    return pointer or "/"


def _line(mistake: Mistake) -> str:
    return f"{mistake.pointer.lstrip('/')}: {mistake.detail}".removeprefix(": ")


def _kebab(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()
