"""Who gets into the pages: keys, links that work once, sessions, and forms from elsewhere."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import urlencode

import pytest
from api_server import JOB, NEVER, Server, serving
from clocks import Clock
from fastapi.routing import APIRoute
from test_pages import SCRIPT
from visitor import FORM, Visitor

from api.keys import MOST_WRONG, TooManyWrong
from api.pages import compare, coverage, exports, fleet, jobs, login, render, results
from api.pages.browser import VALID_S, LoginLinks, checked_return
from api.settings import ApiSettings
from tuner.errors import BadInput
from tuner.store.api_key import key_hash
from tuner.store.database import Database
from tuner.store.keys import LASTS, KeyStore, Scope, SessionStore
from workers.settings import Settings

MODULES = (compare, coverage, exports, fleet, jobs, login, results, render)
ROUTES = [
    (method, route.path)
    for router in (*(module.router for module in MODULES), exports.bundles, login.keys)
    for route in router.routes
    if isinstance(route, APIRoute)
    for method in route.methods
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(ApiSettings(Settings(f"sqlite:///{tmp_path / 'tuner.db'}"))) as running:
        yield running


@pytest.fixture
def keys(server: Server) -> KeyStore:
    found: KeyStore = server.app.state.api.keys
    return found


@pytest.fixture
def visitor(server: Server, keys: KeyStore) -> Visitor:
    someone = Visitor(server)
    assert someone.log_in(keys.add("me", Scope.ADMIN)).status == 303
    return someone


def filled(path: str) -> str:
    """The address of a route, with something for each of its parts."""
    given = {"job_id": NEVER, "device": "L40S", "name": "w", "watch_id": "1"}
    return path.format(**given, version="0")


class TestSessions:
    def test_a_key_becomes_a_session_that_a_log_out_ends(
        self, server: Server, keys: KeyStore
    ) -> None:
        visitor = Visitor(server)
        first = visitor.send("GET", "/jobs?state=dead")
        assert (first.status, first.headers["location"]) == (
            303,
            "./login?next=jobs%3Fstate%3Ddead",
        )
        answer = visitor.log_in(keys.add("me", Scope.READ), "jobs?state=dead")
        assert (answer.status, answer.headers["location"]) == (303, "./jobs?state=dead")
        (name,) = visitor.cookies
        assert name == f"tuner-session-{server.port}"
        cookie = answer.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
        assert "Secure" not in cookie
        assert "No job matches" in visitor.open("/jobs?state=dead")
        old = dict(visitor.cookies)
        assert visitor.post("/logout").headers["location"] == "./login"
        assert visitor.cookies == {}
        visitor.cookies = old  # as another tab might still send it
        assert visitor.send("GET", "/jobs").status == 303
        server.call("GET", "/v1/jobs", headers={"Cookie": f"{name}={old[name]}"}).problem(401)

    def test_behind_tls_the_cookie_is_for_tls_alone(self, server: Server, keys: KeyStore) -> None:
        body = urlencode({"key": keys.add("me", Scope.READ)}).encode()
        for proto, secure in {"https": True, "https,http": True, "http, https": False}.items():
            visitor = Visitor(server)
            answer = visitor.send("POST", "/login", body, X_Forwarded_Proto=proto)
            assert ("Secure" in answer.headers["set-cookie"].split("; ")) == secure, proto
            (name,) = visitor.cookies
            assert name.startswith("__Host-") == secure, proto
            assert ("strict-transport-security" in answer.headers) == secure, proto
            assert visitor.send("GET", "/jobs", X_Forwarded_Proto=proto).status == 200
            # A cookie that a plain page could have set does not count behind TLS.
            other = "http" if secure else "https"
            assert visitor.send("GET", "/jobs", X_Forwarded_Proto=other).status == 303

    def test_the_page_says_where_a_key_comes_from(self, server: Server) -> None:
        page = server.call("GET", "/login", key="", headers={"Accept": "text/html"}).body.decode()
        assert "<code>tuner admin keys create NAME</code> makes another" in page
        assert "ask whoever runs this service for a key" in page

    def test_what_is_no_key_is_refused_and_guessing_is_slowed(
        self, server: Server, keys: KeyStore
    ) -> None:
        visitor, key = Visitor(server), keys.add("me", Scope.READ)
        for wrong in (key[:-1], "", "<script>", "\u202e"):
            answer = visitor.log_in(wrong)
            assert (answer.status, visitor.cookies) == (403, {})
            assert (
                b"not known, or was revoked" in answer.body and b"<script>alert" not in answer.body
            )
        statuses = [visitor.log_in(f"guess-{n}").status for n in range(MOST_WRONG + 5)]
        assert statuses[-1] == 429
        assert visitor.log_in(key).status == 303  # a valid key is never refused

    def test_guessed_cookies_are_slowed_too(self, server: Server, visitor: Visitor) -> None:
        guesser = Visitor(server)
        statuses = []
        for number in range(MOST_WRONG + 2):
            guesser.cookies = {f"tuner-session-{server.port}": f"{number:040}"}
            statuses.append(guesser.send("GET", "/v1/jobs").status)
        assert set(statuses) == {401, 429} and statuses[-1] == 429
        assert visitor.send("GET", "/jobs").status == 200

    def test_a_session_ends_with_its_key(
        self, server: Server, keys: KeyStore, visitor: Visitor
    ) -> None:
        assert visitor.send("GET", "/jobs").status == 200
        keys.revoke("me", last_too=True)
        server.app.state.api.known_sessions.forget(next(iter(visitor.cookies.values())))
        assert visitor.send("GET", "/jobs").status == 303

    def test_a_session_may_what_its_key_may(self, server: Server, keys: KeyStore) -> None:
        visitor = Visitor(server)
        visitor.log_in(keys.add("reader", Scope.READ))
        assert "New job" not in visitor.open("/jobs")
        assert visitor.send("GET", "/jobs/new").status == 403
        for path in ("/jobs", f"/jobs/{NEVER}/cancel", "/workers/w/drain", "/nights", "/watches"):
            answer = visitor.post(path, {"model": "mixtral-8x7b", "device": "L40S"})
            assert answer.status == 403 and b"a key of scope" in answer.body, path
        assert visitor.send("GET", "/keys").status == 403
        assert server.app.state.api.jobs.list() == []

    def test_it_lasts_a_week_if_it_is_used_each_day(self, store_url: str, clock: Clock) -> None:
        with Database.open(store_url) as store:
            keys, sessions = KeyStore(store), SessionStore(store, clock)
            keys.add("me", Scope.SUBMIT)
            token, ends_at = sessions.start("me"), clock.now + LASTS
            found = sessions.find(token)
            assert found and (found.name, found.scope) == ("me", Scope.SUBMIT)
            assert sessions.hashes() == {key_hash(token)}
            assert sessions.find(token[:-1]) is None
            idle = sessions.start("me")
            for _ in range(8):
                clock.advance(LASTS / 8)
                assert (sessions.find(token) is None) == (clock.now >= ends_at)
            assert sessions.find(idle) is None and sessions.hashes() == frozenset()
            other = sessions.start("me")  # deletes the old one
            assert sessions.find(other)
            sessions.end(other)
            sessions.end(other)
            assert sessions.find(other) is None
            keys.revoke("me")
            with pytest.raises(BadInput, match="no valid key is named 'me'"):
                sessions.start("me")

    def test_the_other_sessions_of_a_key_are_listed_and_ended(
        self, server: Server, keys: KeyStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        api, key = server.app.state.api, keys.add("reader", Scope.READ)
        mine, other, stranger = (Visitor(server) for _ in range(3))
        stranger.log_in(keys.add("stranger", Scope.READ))
        mine.log_in(key)
        assert "End all others" not in mine.open("/sessions")
        other.log_in(key)
        html = mine.open("/sessions")
        assert sorted(re.findall(r'<th scope="row">([^<]*)</th>', html)) == ["another", "this one"]
        (what,) = re.findall(r'name="ask" value="([^"]+)"', html)
        asked = mine.post("/sessions/end-others", {"ask": what})
        assert asked.status == 200 and f"{what}?".encode() in asked.body
        (token,), (kept,) = other.cookies.values(), stranger.cookies.values()
        assert api.sessions.find(token)
        with caplog.at_level("INFO", "tuner.api.audit"):
            assert mine.post("/sessions/end-others").status == 303
        (line,) = [one for one in caplog.records if one.name == "tuner.api.audit"]
        assert (line.message, line.client) == ("ended 1 other sessions", "reader")
        assert api.sessions.find(token) is None and api.sessions.find(kept)
        assert "this one" in mine.open("/sessions")

    def test_the_cookie_is_not_stored(self, server: Server, visitor: Visitor) -> None:
        (token,) = visitor.cookies.values()
        path = server.app.state.api.settings.service.database_url.removeprefix("sqlite:///")
        stored = b"".join(one.read_bytes() for one in Path(path).parent.iterdir())
        assert key_hash(token).encode() in stored and token.encode() not in stored


class TestLinks:
    def test_a_link_works_once(self, server: Server, keys: KeyStore) -> None:
        keys.add("me", Scope.READ)
        secret = server.app.state.api.links.add("me")
        visitor = Visitor(server)
        # What looks at a link before a person does must not use it up.
        assert visitor.send("HEAD", f"/login?once={secret}").headers.get("set-cookie") is None
        answer = visitor.send("GET", f"/login?once={secret}", Sec_Fetch_Site="cross-site")
        assert answer.status == 200 and b"http-equiv" in answer.body
        assert answer.headers["cache-control"] == "private, no-store"
        assert visitor.send("GET", "/jobs").status == 200
        again = Visitor(server)
        refused = again.send("GET", f"/login?once={secret}")
        assert (refused.status, again.cookies) == (403, {})
        assert b"was used before, or is too old" in refused.body

    def test_a_link_ends_and_guessing_is_slowed(self) -> None:
        now = [0.0]
        links = LoginLinks(lambda: now[0])

        async def tried() -> None:
            old, fresh = links.add("me"), links.add("me")
            now[0] = VALID_S
            assert links.take(old, "a") is None
            now[0] = VALID_S - 1
            assert links.take(fresh, "a") == "me"
            with pytest.raises(TooManyWrong):
                for number in range(MOST_WRONG + 1):
                    links.take(f"guess-{number}", "a")
            assert links.take(links.add("you"), "b") == "you"

        asyncio.run(tried())

    def test_a_link_to_a_revoked_key_is_none(self, server: Server, keys: KeyStore) -> None:
        keys.add("me", Scope.READ)
        secret = server.app.state.api.links.add("me")
        keys.revoke("me")
        answer = Visitor(server).send("GET", f"/login?once={secret}")
        assert (answer.status, answer.headers.get("set-cookie")) == (422, None)

    def test_a_log_in_leads_to_a_page_of_this_server(self, server: Server, keys: KeyStore) -> None:
        for address in (
            *("//evil.example", "https:evil.example", "javascript:alert(1)", "/\\evil.example"),
            *("jobs//evil.example", "..//evil.example", "v1/jobs", "logout", "login"),
            *("jobs?\r\nX: y", "jobs/../../evil", "jobs?a=\u202e"),
        ):
            assert checked_return(address) in ("", "jobs")
        answer = Visitor(server).log_in(keys.add("me", Scope.READ), "https:evil.example")
        assert answer.headers["location"] == "./"


class TestForms:
    def test_each_form_needs_its_proof_and_its_origin(
        self, server: Server, visitor: Visitor
    ) -> None:
        posts = [filled(path) for method, path in ROUTES if method == "POST"]
        assert len(posts) == 22
        proof = visitor.proof()
        for path in posts:
            if path != "/login":
                for wrong in ("", proof[:-1], "0" * 64):
                    body = urlencode({"proof": wrong}).encode()
                    answer = visitor.send("POST", path, body)
                    assert (answer.status, b"too old" in answer.body) == (403, True), path
            body = urlencode({"proof": proof}).encode()
            for elsewhere in (
                {"Sec_Fetch_Site": "cross-site"},
                {"Sec_Fetch_Site": "same-site"},  # another port of this host
                {"Sec_Fetch_Site": None, "Origin": "http://evil.example"},
                {"Sec_Fetch_Site": None, "Origin": "null"},
                {"Sec_Fetch_Site": None},
            ):
                answer = visitor.send("POST", path, body, **elsewhere)
                said = b"not sent by a page of this server" in answer.body
                assert (answer.status, said) == (403, True), (path, elsewhere)
        assert visitor.send("GET", "/jobs").status == 200  # nothing has logged it out

    def test_an_old_browser_says_only_its_origin(self, server: Server, visitor: Visitor) -> None:
        answer = visitor.post("/logout", Sec_Fetch_Site=None, Origin=server.url)
        assert answer.status == 303

    def test_the_proof_of_another_session_is_none(
        self, server: Server, keys: KeyStore, visitor: Visitor
    ) -> None:
        other = Visitor(server)
        other.log_in(keys.add("other", Scope.ADMIN))
        answer = visitor.post("/logout", {"proof": other.proof()})
        assert answer.status == 403

    def test_a_session_alone_changes_nothing_over_the_api(
        self, server: Server, visitor: Visitor
    ) -> None:
        headers = {"Content_Type": "application/json"}
        answer = visitor.send("POST", "/v1/jobs", b"{}", **headers)
        assert "a session is for pages" in answer.problem(401)
        read = visitor.send("GET", "/v1/jobs")
        assert read.json == {"jobs": [], "next": None}
        assert read.headers["cache-control"] == "private, no-store"
        assert "cookie" in read.headers["vary"].lower()

    def test_pages_take_forms_alone(self, server: Server, visitor: Visitor) -> None:
        answer = visitor.send("POST", "/jobs", b"{}", Content_Type="application/json")
        assert answer.status == 415
        for body in (b"a=%ff", b"a=%00", "é".encode(), b"&".join([b"a=b"] * 300)):
            assert visitor.send("POST", "/jobs", body).status in (400, 422), body
        large = Visitor(server).send("POST", "/login", b"key=" + b"x" * 70_000)
        assert large.status == 413

    def test_a_form_sent_after_a_log_out_waits_for_the_log_in(
        self, server: Server, keys: KeyStore, visitor: Visitor
    ) -> None:
        fields = {"model": "mixtral-8x7b", "device": "L40S", "measure": "predict", "tp": "8"}
        old, proof = dict(visitor.cookies), visitor.proof("/jobs/new")
        visitor.post("/logout")
        visitor.cookies = old
        answer = visitor.post("/jobs", {**fields, "name": SCRIPT, "proof": proof})
        html = answer.body.decode()
        assert answer.status == 401 and "the form has your input again" in html
        assert "<script>alert" not in html and proof not in html
        kept = dict(re.findall(r'name="((?:kept:)?\w+)" value="([^"]*)"', html))
        kept = {name: unescape(value) for name, value in kept.items()}
        assert kept["kept:name"] == SCRIPT and kept["again"] == "jobs"
        wrong = visitor.send("POST", "/login", urlencode({**kept, "key": "no-key"}).encode())
        assert wrong.status == 403 and b'name="kept:model" value="mixtral-8x7b"' in wrong.body
        body = urlencode({**kept, "key": keys.add("again", Scope.SUBMIT)}).encode()
        shown = visitor.send("POST", "/login", body)
        assert shown.status == 200 and b"Send it now" in shown.body
        (*_, new) = re.findall(r'name="proof" value="([0-9a-f]{64})"', shown.body.decode())
        assert server.app.state.api.jobs.list() == []
        sent = visitor.post("/jobs", {**fields, "proof": new})
        assert sent.status == 303, sent.body
        # No other site can fill in the form that waits.
        other = Visitor(server).send("POST", "/jobs", body, Sec_Fetch_Site="cross-site")
        assert other.status == 401 and b"kept:" not in other.body

    def test_a_form_from_before_another_log_in_keeps_its_fields(
        self, server: Server, keys: KeyStore, visitor: Visitor
    ) -> None:
        """Another tab of the browser has logged in meanwhile, so the proof is another session's."""
        fields = {"model": "mixtral-8x7b", "device": "L40S", "measure": "predict", "tp": "8"}
        old = visitor.proof("/jobs/new")
        visitor.log_in(keys.add("second", Scope.SUBMIT))
        answer = visitor.post("/jobs", {**fields, "name": SCRIPT, "proof": old})
        html = answer.body.decode()
        assert answer.status == 403 and "This form is too old" in html
        assert "<script>alert" not in html and old not in html
        assert server.app.state.api.jobs.list() == []
        (_, kept) = re.findall(r'<form method="post" action="[^"]*"[^>]*>(.*?)</form>', html, re.S)
        found = re.findall(r'name="(\w+)" value="([^"]*)"', kept)
        again = {name: unescape(value) for name, value in found}
        assert again.items() >= {**fields, "name": SCRIPT}.items()
        again["name"] = "mixtral"
        assert visitor.send("POST", "/jobs", urlencode(again).encode()).status == 303
        elsewhere = visitor.post("/jobs", {**fields, "proof": old}, Sec_Fetch_Site="cross-site")
        assert elsewhere.status == 403 and b"mixtral-8x7b" not in elsewhere.body

    def test_without_keys_a_form_needs_its_proof_too(self, tmp_path: Path) -> None:
        settings = ApiSettings(Settings(f"sqlite:///{tmp_path / 'open.db'}"), no_auth=True)
        with serving(settings) as server:
            visitor = Visitor(server)
            fields = {"model": JOB["model"], "device": "L40S", "measure": "predict"}
            assert visitor.send("POST", "/jobs", urlencode(fields).encode()).status == 403
            answer = visitor.post("/jobs", {**fields, "proof": visitor.proof("/jobs/new")})
            assert answer.status == 303
            assert "Log out" not in visitor.open("/jobs")


class TestHeaders:
    def test_every_page_has_a_policy_that_lets_nothing_else_in(
        self, server: Server, visitor: Visitor
    ) -> None:
        pages = [
            filled(path) for method, path in ROUTES if method == "GET" and "static" not in path
        ]
        assert len(pages) > 12
        for path in [*pages, "/nowhere"]:
            answer = visitor.send("GET", path)
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self';")
            assert "unsafe" not in policy and "http" not in policy
            assert answer.headers["referrer-policy"] == "same-origin"
            assert "camera=()" in answer.headers["permissions-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "private, no-store"
            html = answer.body.decode()
            assert not re.search(r"<[^>]+\s(style|on[a-z]+)=", html), path
            assert not re.search(r"<script(?![^>]*\ssrc=)", html), path

    def test_without_a_key_no_page_shows_anything(self, server: Server, keys: KeyStore) -> None:
        keys.add("me", Scope.READ)
        for method, path in ROUTES:
            if path == "/login" or "static" in path:
                continue
            answer = Visitor(server).send(method, filled(path), b"" if method == "POST" else None)
            assert answer.status == (401 if method == "POST" else 303), path
            assert server.call(method, filled(path), headers={"Content-Type": FORM}).status == 401

    def test_styles_and_scripts_are_kept_by_browsers(self, server: Server) -> None:
        html = Visitor(server).open("/login")
        (address,) = re.findall(r'href="\./(static/[^"]+\.css)"', html)
        answer = server.call("GET", f"/{address}", headers={"Accept-Encoding": "gzip"})
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert (answer.headers["content-encoding"], answer.body[:2]) == ("gzip", b"\x1f\x8b")
        other = server.call("GET", "/static/0/pages.css")
        assert (other.status, other.headers["cache-control"]) == (200, "no-store")
        for name in ("pages.html", "__init__.py", "%2e%2e", "..%2frender.py", "%00"):
            server.call("GET", f"/static/0/{name}").problem(404)
