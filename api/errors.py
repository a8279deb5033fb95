"""Error answers: RFC 9457 problem details that name the nearest valid choice."""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from api.docs import PAGE
from tuner.errors import (
    BadInput,
    ExportRefused,
    IdempotencyKeyInUse,
    NotRetriable,
    OptionsRefused,
    StoreFull,
    StoreReadOnly,
    StoreReplaced,
    StoreUnreachable,
    TunerError,
    UnknownJob,
    UnknownKey,
    UnknownWorker,
    UnusableStore,
    UnwritableOutput,
    WorkFailed,
    WrongSchema,
    did_you_mean,
)
from tuner.problems.fields import UNKNOWN_FIELD

log = logging.getLogger("tuner.api")

MEDIA_TYPE = "application/problem+json"
RETRY_S = 5
_STATUSES: dict[type[BaseException], int] = {
    UnknownJob: 404,
    UnknownWorker: 404,
    UnknownKey: 404,
    ExportRefused: 409,
    StoreFull: 507,
    NotRetriable: 409,
    UnusableStore: 503,
    UnwritableOutput: 500,  # requests name no folders: it is one of the server's own
    BadInput: 422,
    WorkFailed: 409,
    TunerError: 500,
}
# What a client is told. The errors' own messages name the store's URL or path, which are for the
# server's log alone; those of WrongSchema do not.
_STORE_WORDS: dict[type[BaseException], str] = {
    StoreUnreachable: "the store does not answer: try again",
    StoreFull: "the store's disk is full: nothing was stored. Its operator must make room",
    StoreReadOnly: "the store cannot be written: its operator must look at its disk and its rights",
    StoreReplaced: "the store's file was deleted or replaced: its operator must restart the server",
    UnusableStore: "the store cannot be used: the server's log says why",
}
DISK_FULL = "the server's disk is full: its operator must make room"


class Mistake(BaseModel):
    """One thing wrong with a request."""

    pointer: str = Field(
        description="Where: a JSON pointer into the body (RFC 6901), or a parameter's name.",
        examples=["/tp", "limit"],
    )
    detail: str


class ProblemDetails(BaseModel):
    """An error, in the form of RFC 9457."""

    type: str = Field(description="about:blank, or a urn that names the kind of error.")
    title: str
    status: int
    detail: str = Field(description="One line for people, naming the nearest valid choice.")
    request_id: str = Field(description="As in the header X-Request-ID and the server's log.")
    errors: list[Mistake] = []


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI entries of a route's errors: these statuses, and those of every route."""
    schema = {"$ref": "#/components/schemas/ProblemDetails"}
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": schema}},
        }
        for status in sorted({400, 401, 403, 408, 413, 422, 429, 500, 503, 507, *statuses})
    }


def install(app: FastAPI) -> None:
    """Answer all errors of the app with problem details."""
    app.add_exception_handler(TunerError, _on_tuner_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(OSError, _on_system_error)


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
    return _response(problem, headers)


def problem_of(error: TunerError, request_id: str) -> ProblemDetails:
    """An error as problem details. What the server alone may know is logged."""
    status, detail = _nearest(error, _STATUSES), error.in_api_words()
    if status >= 500:
        log.error("%s", error)
        detail = "the tuner failed"
    if isinstance(error, WrongSchema):
        detail = error.message
    elif isinstance(error, UnusableStore):
        detail = _nearest(error, _STORE_WORDS)
    refused = error.by_field if isinstance(error, OptionsRefused) else {}
    return ProblemDetails(
        type=_urn(error),
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        request_id=request_id,
        errors=[Mistake(pointer=f"/{name}", detail=text) for name, text in refused.items()],
    )


def store_problem(request_id: str, error: UnusableStore) -> JSONResponse:
    """The answer to a request that cannot use the store. The error itself is logged."""
    return _response(problem_of(error, request_id), {"Retry-After": str(RETRY_S)})


async def _on_tuner_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, TunerError)
    cause = error.__cause__ or error.__context__
    if _says_disk_full(cause) and not isinstance(error, UnusableStore):
        return _disk_full(request, error)
    problem = problem_of(error, request_id(request))
    headers = {"Retry-After": str(RETRY_S)} if problem.status >= 500 else {}
    if isinstance(error, IdempotencyKeyInUse):
        headers["Retry-After"] = "1"
    return _response(problem, headers)


def _response(problem: ProblemDetails, headers: Mapping[str, str] | None) -> JSONResponse:
    content = problem.model_dump(exclude_defaults=True)
    return JSONResponse(content, problem.status, headers, media_type=MEDIA_TYPE)


async def _on_system_error(request: Request, error: Exception) -> Response:
    if _says_disk_full(error):
        return _disk_full(request, error)
    raise error  # a failure like any other


def _says_disk_full(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _disk_full(request: Request, error: Exception) -> Response:
    log.error("%s", error)  # with the path, which is for the server's log alone
    later = {"Retry-After": str(RETRY_S)}
    return problem_response(request_id(request), 507, DISK_FULL, headers=later)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code < 400:
        return Response(status_code=error.status_code, headers=error.headers)
    headers, detail = dict(error.headers or {}), error.detail
    paths, route = request.app.state.methods, request.scope.get("route")
    if error.status_code == 405:  # Starlette's own header has one route's methods only
        methods = paths.get(getattr(route, "path", ""), [])
        also = ["HEAD"] if "GET" in methods else []  # AnswerHead turns it into a GET
        headers["Allow"] = ", ".join([*methods, *also, "OPTIONS"])
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=headers)
        detail = f"{request.method} does nothing here: use {', '.join(methods) or 'another'}"
    elif error.status_code == 404 and route is None:
        near = (
            did_you_mean(request.url.path[:200], [*paths, PAGE])
            or "; GET /openapi.json lists the paths"
        )
        detail = f"there is nothing at {request.url.path[:200]!r}{near}"
    return problem_response(request_id(request), error.status_code, detail, headers=headers)


async def _on_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    for one in error.errors():
        if one["loc"] == ("path", "job_id"):
            text = f"there is no job {one['input'][:100]!r}: an id has 26 letters and digits"
            return await _on_tuner_error(request, UnknownJob(text))
        if one["loc"][0] == "path":
            text = f"there is nothing at {request.url.path[:200]!r}: {one['loc'][1]}: {one['msg']}"
            return await _on_http_error(request, HTTPException(404, text))
    mistakes = mistakes_of(error.errors(), error.body)
    detail = "; ".join(_line(mistake) for mistake in mistakes[:3])
    kind = "urn:engine-tuner:error:invalid-request"
    return problem_response(request_id(request), 422, detail, kind=kind, errors=mistakes)


def mistakes_of(errors: Sequence[Mapping[str, Any]], body: object = None) -> list[Mistake]:
    """What Pydantic found wrong, each thing once."""
    found = [_mistake(one, body) for one in errors[:20]]
    return [one for at, one in enumerate(found) if one not in found[:at]]


def request_id(request: Request) -> str:
    return str(request.scope["state"].get("request_id", ""))


def _mistake(error: Mapping[str, Any], body: object) -> Mistake:
    source, *place = error["loc"]
    kind, text = error["type"], str(error["msg"]).removeprefix("Value error, ")
    if kind in ("enum", "literal_error") and isinstance(error["input"], str):
        choices = re.findall(r"'([^']*)'", str(error["ctx"]["expected"]))
        text += did_you_mean(error["input"][:100], choices)
    elif kind == UNKNOWN_FIELD:
        place.append(error["ctx"]["name"])
    if source != "body":
        return Mistake(pointer=str(place[0]), detail=text)
    if not place:
        text = "send a JSON object" if body is None else f"send a JSON object, not {_kind(body)}"
    return Mistake(pointer=_pointer(place, body, kind == "missing"), detail=text)


def _kind(body: object) -> str:
    kinds = {list: "a list", str: "a string", bool: "true or false", int: "a number"}
    return kinds.get(type(body), "a number")


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
    return pointer


def _line(mistake: Mistake) -> str:
    return f"{mistake.pointer.lstrip('/')}: {mistake.detail}".removeprefix(": ")


T = TypeVar("T")


def _nearest(error: BaseException, table: Mapping[type[BaseException], T]) -> T:
    """The table's value for the error's own class, or else for its nearest base class there."""
    return next(table[kind] for kind in type(error).__mro__ if kind in table)


def _urn(error: TunerError) -> str:
    kebab = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(error).__name__).lower()
    return f"urn:engine-tuner:error:{kebab}"
