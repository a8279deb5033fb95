"""Exchange with browsers: addresses of pages, cookies of sessions, proofs of forms.

Links are relative, so that a proxy may serve all of this below another path. A cookie is named for
the port, because browsers send the cookies of a host to all of its ports. Behind TLS its name
begins with `__Host-`: browsers then let no other host and no plain page set it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, get_origin
from urllib.parse import quote, urlsplit

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from api.keys import TooManyWrong, WrongKeys
from tuner.store.api_key import key_hash
from tuner.store.keys import LASTS

STATIC = "/static/"
LOGIN = "/login"
DOCS = "/docs"  # the API browser
HEALTH_PATHS = ("/healthz", "/readyz")
OPEN_PATHS = (*HEALTH_PATHS, "/openapi.json")
_LINKED = "/v1/exports/"  # downloads that pages link to: a refusal is shown
# The first parts of the addresses of pages.
PAGES = (
    *("", "results", "jobs", "workers", "nights", "watches", "keys", "exports"),
    *("bundles", "devices", "models", "compare", "sessions"),
)


def needs_no_key(path: str) -> bool:
    """Say whether a path needs no key, because it shows nothing that is stored."""
    return path in (LOGIN, DOCS, *OPEN_PATHS) or path.startswith((STATIC, f"{DOCS}/"))


def is_static(path: str) -> bool:
    """Say whether a path names a style or a script, which are the same for all."""
    return path.startswith(STATIC)


def is_page(path: str) -> bool:
    """Say whether a path names a page, and no other part of the API."""
    first = path.removeprefix("/").partition("/")[0]
    return first in PAGES or f"/{first}" in (LOGIN, "/logout")


def wants_page(scope: Scope) -> bool:
    """Say whether a browser sent the request, to show the answer."""
    accept, path = Headers(scope=scope).get("accept", ""), scope["path"]
    return "text/html" in accept and (path.startswith(_LINKED) or not path.startswith("/v1/"))


def root_of(request: Request) -> str:
    """Return the prefix that makes an address relative to the page that was asked for."""
    return "../" * (request.scope["path"].count("/") - 1) or "./"


def here(request: Request) -> str:
    """Return the address of a page, relative to the root, for a return after the log in."""
    query = request.url.query
    return quote(request.scope["path"][1:]) + (f"?{query}" if query else "")


def checked_return(address: str) -> str:
    """Return `address` if it is a page here, else the first page."""
    path, _, query = address.partition("?")
    plain = all(c.isalnum() or c in "-._~/" for c in path) and path.isascii() and "//" not in path
    if not plain or ".." in path or not is_page(f"/{path}") or path in ("login", "logout"):
        return ""
    printable = query.isascii() and query.isprintable() and not set(query) & set(" \\<>\"'#")
    return f"{path}?{query}" if query and printable else path


VALID_S = 600.0  # of a link
_TOKEN = re.compile(r"[A-Za-z0-9_-]{20,100}")
# Stands for the session where requests need no key. Other programs of this machine cannot read it.
_NO_SESSION = secrets.token_urlsafe(32)


def is_tls(headers: Headers) -> bool:
    """Say whether a browser asked by TLS, as the first of the proxies says. A client that lies
    about it gets a cookie that its browser does not keep or send.
    """
    first, _, _ = headers.get("x-forwarded-proto", "").partition(",")
    return first.strip().lower() == "https"


def session_of(headers: Headers) -> str | None:
    """Return the token in the cookie of a request, if it has a token."""
    name = _cookie_name(headers)
    for part in headers.get("cookie", "").split(";"):
        key, _, value = part.strip().partition("=")
        if key == name and _TOKEN.fullmatch(value):
            return value
    return None


def set_session(response: Response, headers: Headers, token: str) -> None:
    """Give a browser the cookie of a session."""
    _set(response, headers, token, int(LASTS.total_seconds()))


def clear_session(response: Response, headers: Headers) -> None:
    """Let a browser forget the cookie."""
    _set(response, headers, "", 0)


def proof_of(session: str | None) -> str:
    """Return the hidden field of a form. Pages from elsewhere cannot read the session it is made
    of.
    """
    token = session or _NO_SESSION
    return hmac.new(token.encode(), b"form", hashlib.sha256).hexdigest()


def is_proof(given: str, session: str | None) -> bool:
    """Say whether a form came with the right hidden field."""
    return hmac.compare_digest(given.encode(), proof_of(session).encode())


def is_same_origin(headers: Headers) -> bool:
    """Say whether a browser says that a page of this server sent the request.

    Sec-Fetch-Site says so on HTTPS and on loopback. Elsewhere, Origin must name this server.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = urlsplit(headers.get("origin", "")).netloc
    return bool(origin) and origin == headers.get("host")


def _set(response: Response, headers: Headers, value: str, seconds: int) -> None:
    response.set_cookie(
        _cookie_name(headers),
        value,
        max_age=seconds,
        path="/",
        httponly=True,
        samesite="strict",
        secure=is_tls(headers),
    )


def _cookie_name(headers: Headers) -> str:
    port = headers.get("host", "").rpartition(":")[2]
    prefix = "__Host-" if is_tls(headers) else ""
    return f"{prefix}tuner-session" + (f"-{port}" if port.isdigit() else "")


class LoginLinks:
    """The links of this process that log a browser in once, and were not used yet.

    `tuner serve` prints such a link to the person who started it. Only the event loop uses them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong = WrongKeys(clock)
        self._unused: dict[str, tuple[float, str]] = {}  # by hash: until when, and the key's name

    def add(self, key_name: str) -> str:
        """Return the secret of a new link, which stands for the key of that name."""
        token = secrets.token_urlsafe(32)
        self._unused[key_hash(token)] = self._clock() + VALID_S, key_name
        return token

    def take(self, token: str, address: str) -> str | None:
        """Return the name of a link's key, once; None if the link was used, is too old or is
        unknown.

        Raises TooManyWrong for an address that tried many.
        """
        if self._wrong.too_many(address):
            raise TooManyWrong(self._wrong.wait_s(address))
        until, name = self._unused.pop(key_hash(token), (0.0, ""))
        if self._clock() < until:
            return name
        self._wrong.add(address, "/login")
        return None


T = TypeVar("T", bound=BaseModel)


def asked(model: type[T]) -> Callable[[Request], Awaitable[T]]:
    """Return a dependency: a page's query, without the fields of its form that were left empty.

    It raises RequestValidationError, as FastAPI does for the API's queries.
    """
    fields = model.model_fields.items()
    lists = {name for name, field in fields if get_origin(field.annotation) is list}

    async def read(request: Request) -> T:
        given: dict[str, Any] = {}
        for name, value in request.query_params.multi_items():
            if value and name in lists:
                given.setdefault(name, []).append(value)
            elif value:
                given[name] = value
        try:
            return model.model_validate(given)
        except ValidationError as error:
            found = [{**one, "loc": ("query", *one["loc"])} for one in error.errors()]
            raise RequestValidationError(found) from None

    return read
