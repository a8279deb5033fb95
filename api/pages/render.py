"""Render templates: the parts that all pages share, values for people, and errors as pages.

Styles and scripts are read once. Their address changes with their content: browsers keep them.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.auth import Caller
from api.errors import MEDIA_TYPE
from api.pages.browser import checked_return, here, is_page, proof_of, root_of, wants_page
from api.pages.names import (
    device_short,
    engine_words,
    gain_words,
    model_words,
    plain,
    problem_words,
    status_words,
    step_words,
    words_of_count,
)
from tuner.draw.shapes import scheme_style

_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

router = APIRouter(include_in_schema=False)


@cache
def _static() -> tuple[Mapping[str, bytes], str]:
    """Return the files that pages load, packed by gzip, and the version in their addresses."""
    found = {
        one.name: one.read_bytes()
        for one in (files("api.pages") / "static").iterdir()
        if one.name[one.name.rfind(".") :] in _KINDS
    }
    found["pages.css"] += scheme_style().encode()
    version = hashlib.sha256(b"".join(found[name] for name in sorted(found))).hexdigest()[:12]
    return {name: gzip.compress(data, mtime=0) for name, data in found.items()}, version


@router.get("/static/{version}/{name}")
async def get_static(version: str, name: str, request: Request) -> Response:
    """Return a file of these pages. An address of another version is not to be kept."""
    packed, own = _static()
    if name not in packed:
        raise HTTPException(404)
    headers = {
        "Cache-Control": "public, max-age=31536000, immutable" if version == own else "no-store",
        "Vary": "Accept-Encoding",
    }
    data = packed[name]
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
    else:
        data = gzip.decompress(data)
    return Response(data, headers=headers, media_type=_KINDS[name[name.rfind(".") :]])


POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_GAIN = re.compile(r"\b([0-9]+\.[0-9]+)x(?= as fast)")
_CODE = re.compile(r"`([^`]+)`|(?<![\w-])(--[a-z][\w-]*(?: (?!and\b)[\w.]+)?)")
_THEMES = ("light", "dark")  # which a reader chose; without one, it is the system's
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "same-origin",  # with `no-referrer`, forms would come without an Origin
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), microphone=(), usb=()",
    # After a log out, the browser shows nothing of a page again.
    "Cache-Control": "private, no-store",
}


def theme_of(request: Request) -> str | None:
    """Return the theme that the reader chose: light or dark; None: as the system has it."""
    theme = request.cookies.get("theme")
    return theme if theme in _THEMES else None


def page(request: Request, template: str, status: int = 200, **values: object) -> HTMLResponse:
    """Return a page of the template `NAME.html`, with the values that it names."""
    state = request.scope.get("state", {})
    caller, session = state.get("caller"), state.get("session")
    text = _TEMPLATES.get_template(f"{template}.html").render(
        root=root_of(request),
        version=_static()[1],
        path=request.scope["path"],
        caller=caller if isinstance(caller, Caller) else None,
        session=session,
        proof=proof_of(session),
        theme=theme_of(request),
        **{"query": request.query_params, **values},
    )
    return HTMLResponse(text, status, _HEADERS)


def go(request: Request, address: str) -> Response:
    """Return an answer that sends the browser to a page; `address` is relative to the root."""
    return Response(status_code=303, headers={"Location": root_of(request) + address, **_HEADERS})


def as_time(value: datetime | str | None) -> datetime | None:
    """Return a time of the API's answers."""
    if isinstance(value, str):
        return datetime.fromisoformat(value.replace("Z", "+00:00"))
    return value


def _time(value: datetime | str | None, to: str = "minutes") -> Markup:
    """Return a time in UTC, to the minute or to the second. A script turns it into the reader's
    zone.
    """
    at = as_time(value)
    if at is None:
        return Markup('<span class="none">never</span>')
    at = at.astimezone(timezone.utc)
    form = "%Y-%m-%d %H:%M:%S UTC" if to == "seconds" else "%Y-%m-%d %H:%M UTC"
    mark = Markup(" data-seconds") if to == "seconds" else ""
    said = at.strftime(form)
    return Markup('<time datetime="{}"{}>{}</time>').format(_iso(at), mark, said)


def _ago(value: datetime | str | None) -> Markup:
    """Return a time by its distance from now: 3 min ago. A pointer on it shows the time itself."""
    at = as_time(value)
    if at is None:
        return Markup('<span class="none">never</span>')
    at = at.astimezone(timezone.utc)
    passed = (datetime.now(timezone.utc) - at).total_seconds()
    said = _distance(abs(passed))
    said = f"{said} ago" if passed >= 0 else f"in {said}"
    title = at.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}" data-ago title="{}">{}</time>').format(_iso(at), title, said)


def _distance(seconds: float) -> str:
    """Return a duration in its largest unit."""
    for unit, size in (("day", 86_400), ("hour", 3600), ("min", 60)):
        if count := int(seconds // size):
            return f"{count} {unit}{'s' if count > 1 and unit != 'min' else ''}"
    return f"{int(seconds)} s"


def _iso(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def _us(value: float | None) -> str:
    """Return microseconds with three significant digits."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.{2 if value < 10 else 1}f}"


_HASH = re.compile(r"\b[0-9a-f]{32,64}\b")


def _kernels(text: str) -> str:
    """Return why a result is stale, with short hashes of kernels."""
    return _HASH.sub(lambda found: found[0][:8], text).replace("kernel_hash", "the kernels' hash")


def _bytes(value: float | None) -> str:
    if value is None:
        return "–"
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= size:
            number = value / size
            return f"{number:.{0 if number >= 100 or number == int(number) else 1}f} {unit}"
    return f"{value:.0f} B"


def _reason(text: str) -> str:
    """Return a reason with its gain as pages write gains: 1.164x is 1.16×."""
    return _GAIN.sub(lambda found: gain_words(float(found[1])), text)


def _seconds(value: float | None) -> str:
    """Return a duration in its two largest units."""
    if value is None:
        return "–"
    whole = int(value)
    for unit, size, below, part in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part} {below}"
    if value < 0.01:
        return "under 0.01 s"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{value:.3g} s"


def code_words(text: str) -> Markup:
    """Return a sentence with commands in backticks and the flags of servers as code."""
    parts = _CODE.split(str(plain(text)))  # each third one is text; of two others, one is None
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if at % 3 else part
        for at, part in enumerate(parts)
        if part
    )


def _query(**values: object) -> str:
    """Return a query string without empty values."""
    given = {name: value for name, value in values.items() if value not in (None, "", [], False)}
    return urlencode(given, doseq=True)


def _with(query: Mapping[str, str], **changes: object) -> str:
    """Return a page's query string with some values changed, and without a place in the list."""
    return _query(**{**dict(query), "after": None, **changes})


def _config(config: Mapping[str, int]) -> str:
    """Return a configuration as people write it: 16x64x128, and its other parameters."""
    known = {"BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"}
    words = []
    if known <= set(config):
        words.append("×".join(str(config[f"BLOCK_SIZE_{axis}"]) for axis in "MNK"))
    short = {"GROUP_SIZE_M": "group", "num_warps": "warps", "num_stages": "stages"}
    others = sorted(
        name for name in config if name not in short and (not words or name not in known)
    )
    names = [*(name for name in short if name in config), *others]
    return " · ".join([*words, *(f"{short.get(n, n)} {config[n]}" for n in names)])


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("api.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=plain,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "time": _time,
        "ago": _ago,
        "step": step_words,
        "count": words_of_count,
        "us": _us,
        "bytes": _bytes,
        "speedup": gain_words,
        "reason": _reason,
        "kernels": _kernels,
        "seconds": _seconds,
        "config": _config,
        "device": device_short,
        "engine": engine_words,
        "words": status_words,
        "problem": problem_words,
        "flags": code_words,
    }
    made.globals |= {"query_of": _query, "query_with": _with}
    made.globals["named"] = model_words
    return made


_TEMPLATES: Any = _environment()


# Titles of error pages; HTTP's own words are for programmers.
_TITLES = {
    400: "That could not be read",
    401: "Log in first",
    403: "That is not allowed",
    404: "There is nothing here",
    405: "That does nothing here",
    409: "That is not possible now",
    413: "That is too much at once",
    415: "That could not be read",
    422: "Something is not right",
    429: "Too much at once",
    500: "The server failed",
    503: "The service is not available",
    507: "The disk is full",
}
_OWN = ("content-type", "content-length", "content-encoding")  # of the answer that is replaced


KEPT = "kept:"  # before the name of a field of the form that waits for the log in


def login_form(
    request: Request,
    status: int = 200,
    *,
    problem: str = "",
    next: str = "",  # noqa: A002
    again: str = "",
    kept: Mapping[str, str] = MappingProxyType({}),
) -> Response:
    """Return the form for a key. `kept` are the fields of a form that waits for the log in."""
    return page(
        request,
        "login",
        status,
        problem=problem,
        next=next,
        again=again,
        kept={f"{KEPT}{name}": value for name, value in kept.items()},
    )


def log_in_first(request: Request, form: Mapping[str, str]) -> Response:
    """Return the log in for a form whose session has ended; the form's fields wait in it."""
    kept = {name: value for name, value in form.items() if name != "proof"}
    again = checked_return(request.scope["path"][1:])
    text = "Your session has ended. Log in, and the form has your input again."
    return login_form(request, 401, problem=text, again=again, kept=kept)


class ShowErrors:
    """ASGI middleware: turns problem details into pages if a browser asked for a page."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not wants_page(scope):
            await self._app(scope, receive, send)
            return
        started: Message | None = None
        body = b""

        async def send_page(message: Message) -> None:
            nonlocal started, body
            if message["type"] == "http.response.start":
                if Headers(raw=message["headers"]).get("content-type") == MEDIA_TYPE:
                    started = message
                    return
            elif started is not None:
                body += message.get("body", b"")
                if not message.get("more_body"):
                    answer = _answer(Request(scope), started["status"], json.loads(body))
                    _keep_headers(started, answer)
                    await answer(scope, receive, send)
                return
            await send(message)

        await self._app(scope, receive, send_page)


def _answer(request: Request, status: int, problem: dict[str, str]) -> Response:
    if status == 401 and is_page(request.scope["path"]):
        if request.method == "GET":
            return go(request, "login?" + urlencode({"next": here(request)}))
        if (form := request.scope["state"].get("form")) is not None:
            return log_in_first(request, form)
    kept, again = request.scope["state"].get("too_old"), checked_return(here(request))
    if kept is not None and again:
        return page(request, "again", status, again=again, kept=kept, too_old=True)
    title = _TITLES.get(status, problem["title"])
    return page(
        request, "error", status, get=request.method == "GET", problem={**problem, "title": title}
    )


def _keep_headers(started: Message, answer: Response) -> None:
    headers = MutableHeaders(raw=answer.raw_headers)
    for name, value in Headers(raw=started["headers"]).items():
        if name not in _OWN:
            headers.setdefault(name, value)
