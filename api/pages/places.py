"""Addresses of pages: which are open to all; how pages refer to each other.

Links are relative, so that a proxy may serve all of this below another path.
"""

from __future__ import annotations

from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Scope

STATIC = "/static/"
LOGIN = "/login"
# The first parts of the addresses of pages.
PAGES = (
    *("", "results", "jobs", "workers", "nights", "watches", "keys", "exports"),
    *("bundles", "devices", "models", "compare", "sessions"),
)


def is_open(path: str) -> bool:
    """Whether a path needs no key: it shows nothing that is stored."""
    return path == LOGIN or path.startswith(STATIC)


def is_static(path: str) -> bool:
    """Whether a path names a style or a script, which are the same for all."""
    return path.startswith(STATIC)


def is_page(path: str) -> bool:
    """Whether a path names a page, and no other part of the API."""
    first = path.removeprefix("/").partition("/")[0]
    return first in PAGES or f"/{first}" in (LOGIN, "/logout")


def wants_page(scope: Scope) -> bool:
    """Whether a request is a browser's, for something to look at."""
    accept = Headers(scope=scope).get("accept", "")
    return "text/html" in accept and not scope["path"].startswith("/v1/")


def root_of(request: Request) -> str:
    """What stands before an address, so that it is relative to the page that was asked for."""
    return "../" * (request.scope["path"].count("/") - 1) or "./"


def here(request: Request) -> str:
    """The address of a page, relative to the root, for a return after the log in."""
    query = request.url.query
    return quote(request.scope["path"][1:]) + (f"?{query}" if query else "")


def checked_return(address: str) -> str:
    """`address` if it is a page here, else the first page."""
    path, _, query = address.partition("?")
    plain = all(c.isalnum() or c in "-._~/" for c in path) and path.isascii() and "//" not in path
    if not plain or ".." in path or not is_page(f"/{path}") or path in ("login", "logout"):
        return ""
    printable = query.isascii() and query.isprintable() and not set(query) & set(" \\<>\"'#")
    return f"{path}?{query}" if query and printable else path
