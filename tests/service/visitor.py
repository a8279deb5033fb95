"""A browser without scripts: it keeps cookies, follows redirects and sends forms."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import unescape
from urllib.parse import urlencode, urljoin, urlsplit

from api_server import Answer, Server

HTML = "text/html,application/xhtml+xml,*/*;q=0.8"
FORM = "application/x-www-form-urlencoded"


@dataclass
class Visitor:
    """Who opens pages of a server."""

    server: Server
    cookies: dict[str, str] = field(default_factory=dict)
    at: str = "/"  # the address of the page that was opened last

    def send(
        self, method: str, path: str, body: bytes | None = None, **headers: str | None
    ) -> Answer:
        """A request with the cookies; a header that is None is not sent."""
        sent: dict[str, str | None] = {"Accept": HTML, "Sec-Fetch-Site": "same-origin"}
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if body is not None:
            sent["Content-Type"] = FORM
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        given = {name: value for name, value in sent.items() if value is not None}
        answer = self.server.call(method, path, body, given)
        if cookie := answer.headers.get("set-cookie"):
            name, _, value = cookie.partition(";")[0].partition("=")
            self.cookies[name] = value
            if "Max-Age=0" in cookie:
                del self.cookies[name]
        return answer

    def open(self, path: str) -> str:
        """The HTML of a page, behind redirects. Fails for another status than 200."""
        for _ in range(5):
            answer = self.send("GET", path)
            if answer.status != 303:
                assert answer.status == 200, (path, answer.status, answer.body[:2000])
                assert answer.headers["content-type"].startswith("text/html")
                self.at = path
                return answer.body.decode()
            path = urljoin(path, answer.headers["location"])
        raise AssertionError("redirects without an end")

    def proof(self, path: str = "/") -> str:
        """The hidden field of a page's forms."""
        found = re.search(r'name="proof" value="([0-9a-f]{64})"', self.open(path))
        assert found, path
        return found[1]

    def post(
        self, path: str, fields: Mapping[str, str] | None = None, **headers: str | None
    ) -> Answer:
        """Send a form with its proof."""
        whole = dict(fields or {})
        if "proof" not in whole:
            whole["proof"] = self.proof()
        return self.send("POST", path, urlencode(whole).encode(), **headers)

    def log_in(self, key: str, after: str = "") -> Answer:
        """Send the form of the log in."""
        body = urlencode({"key": key, "next": after}).encode()
        return self.send("POST", "/login", body)


def links_of(html: str, page: str) -> set[str]:
    """The paths, with queries, that a page links to or loads."""
    found = re.findall(r'(?:href|src|action|data-events)="([^"]*)"', html)
    whole = (urlsplit(urljoin(f"http://here{page}", unescape(one))) for one in found)
    return {
        one.path + (f"?{one.query}" if one.query else "") for one in whole if one.netloc == "here"
    }
