"""Ask servers over HTTP: no redirect is followed, and a server of this machine needs no proxy."""

from __future__ import annotations

import contextlib
import ipaddress
import urllib.parse
import urllib.request

from tuner.errors import BadInput


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Return None: a key must not be sent to another server than the named server."""


def opener_for(url: str) -> urllib.request.OpenerDirector:
    """Return the opener of a server's URLs."""
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
    if is_loopback(urllib.parse.urlsplit(url).hostname or ""):
        handlers.append(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener(*handlers)


def checked_url(text: str) -> str:
    """Return a server's address without its last slash. Raises BadInput if it is no address."""
    with contextlib.suppress(ValueError):  # an invalid address or port
        url = urllib.parse.urlsplit(text)
        address = url.hostname and url.port != 0 and "@" not in url.netloc
        plain = text.isascii() and text.isprintable() and not set(text) & set(" ?#")
        if url.scheme in ("http", "https") and address and plain:
            return text.rstrip("/")
    raise BadInput(f"a server is like http://HOST:PORT or https://HOST: not {text!r}")


def is_loopback(host: str) -> bool:
    """Say whether a host is this machine's own."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
