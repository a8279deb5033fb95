"""Error answers: RFC 9457 problem details that name each mistake and the nearest valid choice.

Pydantic's own messages are for programmers. Pages say the same for people.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from api.fields import IN_WORDS, MALFORMED, REFUSED, UNKNOWN_FIELD
from api.pages.browser import DOCS, HEALTH_PATHS, PAGES, wants_page
from tuner.errors import (
    BadInput,
    ExportRefused,
    IdempotencyKeyInUse,
    JobUnfinished,
    LastAdmin,
    NotRetriable,
    QueueFull,
    ServerUnavailable,
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

_MOST = 20  # mistakes that are named
# The words of pages about a value, by Pydantic's type of the error.
_ON_PAGES = {
    "missing": "fill this in",
    "string_too_short": "fill this in",
    "string_too_long": "should have at most {max_length} letters",
    "too_short": "name at least {min_length}",
    "too_long": "name at most {max_length}",
    "greater_than": "should be more than {gt}",
    "greater_than_equal": "should be at least {ge}",
    "less_than": "should be less than {lt}",
    "less_than_equal": "should be at most {le}",
    "enum": "should be {expected}",
    "literal_error": "should be {expected}",
    "int_parsing": "should be a whole number",
    "int_from_float": "should be a whole number",
    "bool_parsing": "should be true or false",
}


class Mistake(BaseModel):
    """A mistake in a request."""

    pointer: str = Field(
        description="A JSON pointer into the body (RFC 6901), or a parameter's name.",
        examples=["/tp", "limit"],
    )
    detail: str

    def line(self) -> str:
        """Return the mistake with its place."""
        return f"{self.pointer.lstrip('/')}: {self.detail}".removeprefix(": ")


def mistakes_of(
    errors: Sequence[Mapping[str, Any]], body: object = None, *, on_page: bool = False
) -> list[Mistake]:
    """Return the mistakes that Pydantic found, each once."""
    found = [_mistake(one, body, on_page) for one in errors[:_MOST]]
    return [one for at, one in enumerate(found) if one not in found[:at]]


def mistakes_by_field(error: BadInput, *, on_page: bool = False) -> list[Mistake]:
    """Return the mistake of each field that an error names."""
    return [
        Mistake(pointer=f"/{name}", detail=said_of(one, on_page=on_page))
        for name, one in error.by_field.items()
    ]


def said_of(error: TunerError, *, on_page: bool) -> str:
    """Return the error in the words of pages, or of the API."""
    return error.in_page_words() if on_page else error.in_api_words()


def refused_as(errors: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the class of BadInput that all errors share; None if they share no such class."""
    kinds = {str(one["type"]) for one in errors}
    if not all(kind.startswith((REFUSED, MALFORMED)) for kind in kinds):
        return None
    classes = {kind.partition(":")[2] for kind in kinds}
    return classes.pop() if len(classes) == 1 else BadInput.__name__


def _mistake(error: Mapping[str, Any], body: object, on_page: bool) -> Mistake:
    source, *place = error["loc"]
    kind = error["type"]
    text = _on_page(error) if on_page else str(error["msg"]).removeprefix("Value error, ")
    if kind in ("enum", "literal_error") and isinstance(error["input"], str):
        choices = re.findall(r"'([^']*)'", str(error["ctx"]["expected"]))
        text += did_you_mean(error["input"][:100], choices)
    elif kind == "string_pattern_mismatch":
        text = IN_WORDS.get(error["ctx"]["pattern"], text)
    elif kind == UNKNOWN_FIELD:
        place.append(error["ctx"]["name"])
    if source != "body":
        return Mistake(pointer=str(place[0]), detail=text)
    if not place:
        text = "send a JSON object" if body is None else f"send a JSON object, not {_kind(body)}"
    return Mistake(pointer=_pointer(place, body, kind == "missing"), detail=text)


def _on_page(error: Mapping[str, Any]) -> str:
    context = error.get("ctx", {})
    if error["type"].startswith((REFUSED, MALFORMED)):
        return str(context["on_page"])
    words = _ON_PAGES.get(error["type"])
    if words is None:
        return str(error["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    return words.format(**context)


def _kind(body: object) -> str:
    kinds = {list: "a list", str: "a string", bool: "true or false", int: "a number"}
    return kinds.get(type(body), "a number")


def _pointer(place: Sequence[str | int], body: object, missing: bool) -> str:
    """Return the JSON pointer of a Pydantic location, without the names of a union's members."""
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


log = logging.getLogger("tuner.api")

MEDIA_TYPE = "application/problem+json"
RETRY_S = 5
FULL_RETRY_S = 60  # of a client whose queue is full
MOST_NAMED = 5  # mistakes in one line; `errors` has them all
_STATUSES: dict[type[BaseException], int] = {
    UnknownJob: 404,
    UnknownWorker: 404,
    UnknownKey: 404,
    LastAdmin: 409,
    ExportRefused: 409,
    StoreFull: 507,
    NotRetriable: 409,
    JobUnfinished: 409,
    UnusableStore: 503,
    UnwritableOutput: 500,  # requests name no folders: it is one of the server's own
    BadInput: 422,
    QueueFull: 429,
    ServerUnavailable: 503,  # an engine's server, by whose URL a model was named
    WorkFailed: 409,
    TunerError: 500,
}
# The words for clients. The errors' own messages name the store's URL or path, which are for the
# server's log alone; those of WrongSchema do not.
_STORE_WORDS: dict[type[BaseException], str] = {
    StoreUnreachable: "the store does not answer: try again",
    StoreFull: "the store's disk is full: nothing was stored. Its operator must make room",
    StoreReadOnly: "the store cannot be written: its operator must look at its disk and its rights",
    StoreReplaced: "a file of the store was deleted or replaced: its operator must stop the server "
    "and its workers, and start them again",
    UnusableStore: "the store cannot be used: the server's log says why",
}
DISK_FULL = "the server's disk is full: its operator must make room"


class ProblemDetails(BaseModel):
    """An error, in the form of RFC 9457."""

    type: str = Field(description="about:blank, or a URN that names the kind of error.")
    title: str
    status: int
    detail: str = Field(description="A sentence for people. It names the nearest valid choice.")
    request_id: str = Field(description="The id in the header X-Request-ID and the server's log.")
    errors: list[Mistake] = []


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI entries of a route's errors: these statuses, and every route's."""
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
    request_id: str, status: int, detail: str = "", *, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return a response with problem details."""
    title = HTTPStatus(status).phrase
    problem = ProblemDetails(
        type="about:blank",
        title=title,
        status=status,
        detail=detail or title,
        request_id=request_id,
        errors=[],
    )
    return _response(problem, headers)


def problem_of(error: TunerError, request_id: str, *, on_page: bool = False) -> ProblemDetails:
    """Return an error as problem details. Log the facts that only the server may know."""
    status, detail = _nearest(error, _STATUSES), said_of(error, on_page=on_page)
    if status >= 500:
        log.error("%s", error)
    if status == 500:
        detail = "the tuner failed"
    if isinstance(error, WrongSchema):
        detail = error.message
    elif isinstance(error, UnusableStore):
        detail = _nearest(error, _STORE_WORDS)
    return ProblemDetails(
        type=_urn_of(type(error).__name__),
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        request_id=request_id,
        errors=mistakes_by_field(error, on_page=on_page) if isinstance(error, BadInput) else [],
    )


def store_problem(request_id: str, error: UnusableStore) -> JSONResponse:
    """Return the answer to a request that cannot use the store, and log the error itself."""
    return _response(problem_of(error, request_id), {"Retry-After": str(RETRY_S)})


async def _on_tuner_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, TunerError)
    cause = error.__cause__ or error.__context__
    if _says_disk_full(cause) and not isinstance(error, UnusableStore):
        return _disk_full(request, error)
    problem = problem_of(error, request_id(request), on_page=wants_page(request.scope))
    if problem.status == 507 and request.scope["path"] in HEALTH_PATHS:  # balancers know 503
        problem.status, problem.title = 503, HTTPStatus(503).phrase
    headers = {"Retry-After": str(RETRY_S)} if problem.status >= 500 else {}
    if isinstance(error, IdempotencyKeyInUse):
        headers["Retry-After"] = "1"
    elif isinstance(error, QueueFull):
        headers["Retry-After"] = str(FULL_RETRY_S)
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
        of_pages = request.app.state.page_methods
        methods = {**of_pages, **paths}.get(getattr(route, "path", ""), [])
        also = ["HEAD"] if "GET" in methods else []  # AnswerHead turns it into a GET
        headers["Allow"] = ", ".join([*methods, *also, "OPTIONS"])
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=headers)
        detail = f"{request.method} does nothing here: use {', '.join(methods) or 'another'}"
    elif error.status_code == 404 and route is None:
        detail = f"there is nothing at {request.url.path[:200]!r}{_near(request, paths)}"
    return problem_response(request_id(request), error.status_code, detail, headers=headers)


def _near(request: Request, paths: Iterable[str]) -> str:
    path = request.url.path[:200]
    if wants_page(request.scope):
        return did_you_mean(path, [f"/{place}" for place in PAGES])
    return did_you_mean(path, [*paths, DOCS]) or "; GET /openapi.json lists the paths"


async def _on_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    for one in error.errors():
        if one["loc"] == ("path", "job_id"):
            text = f"there is no job {one['input'][:100]!r}: an id has 26 letters and digits"
            return await _on_tuner_error(request, UnknownJob(text))
        if one["loc"][0] == "path":
            (mistake,) = mistakes_of([one], on_page=wants_page(request.scope))
            text = f"there is nothing at {request.url.path[:200]!r}: {mistake.line()}"
            return await _on_http_error(request, HTTPException(404, text))
    return _response(problem_of_mistakes(error.errors(), error.body, request), {})


def problem_of_mistakes(
    errors: Sequence[Mapping[str, Any]], body: object, request: Request
) -> ProblemDetails:
    """Return the mistakes that Pydantic found in a request, as problem details."""
    mistakes = mistakes_of(errors, body, on_page=wants_page(request.scope))
    detail = "; ".join(mistake.line() for mistake in mistakes[:MOST_NAMED])
    kind = "urn:engine-tuner:error:invalid-request"
    if refused := refused_as(errors):
        kind = _urn_of(refused)
        if len(mistakes) == 1:  # as where no field is named
            detail = mistakes[0].detail
    return ProblemDetails(
        type=kind,
        title=HTTPStatus(422).phrase,
        status=422,
        detail=detail,
        request_id=request_id(request),
        errors=mistakes,
    )


def request_id(request: Request) -> str:
    return str(request.scope["state"].get("request_id", ""))


T = TypeVar("T")


def _nearest(error: BaseException, table: Mapping[type[BaseException], T]) -> T:
    """Return the table's value for the error's class, or for its nearest base class there."""
    return next(table[kind] for kind in type(error).__mro__ if kind in table)


def _urn_of(kind: str) -> str:
    """Return the `type` of an error of a class."""
    kebab = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind).lower()
    return f"urn:engine-tuner:error:{kebab}"
