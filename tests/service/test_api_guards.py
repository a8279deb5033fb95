"""Who is let in, how often, with what: keys, rates, bodies, names that are none."""

import asyncio
import http.client
import json
import logging
import socket
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from api_server import JOB, LARGEST, MIXTRAL, NEVER, rows_of, serving
from limits import RateLimitItemPerHour
from servers import started_redis
from worker_processes import wait_for

from api.keys import check_keys
from api.limits import Pace
from api.settings import ApiSettings, read_api_settings
from tuner.errors import BadInput
from tuner.jobs.job import Job
from tuner.store.connect import PoolLimits
from tuner.store.database import utc_now
from tuner.store.keys import KeyStore, Scope
from workers.settings import Settings


@pytest.fixture
def settings(tmp_path):
    url = f"sqlite:///{tmp_path / 'tuner.db'}"
    return ApiSettings(Settings(url), max_body_bytes=LARGEST, no_auth=True)


@pytest.fixture
def server(settings):
    with serving(settings) as running:
        yield running


@pytest.fixture
def keys(server):
    return server.app.state.api.keys


class Nobody:
    """Whom no message wakes."""

    def announce(self, job: Job) -> None:
        """Nothing is sent."""


class TestKeys:
    @pytest.fixture
    def settings(self, settings):
        return replace(settings, no_auth=False)

    def test_nobody_goes_without_one(self, server, keys):
        server.call("GET", "/v1/jobs").problem(401)  # also without any key in the store
        key = keys.add("team", Scope.READ)
        refused = server.call("GET", "/v1/jobs")
        assert "Authorization: Bearer KEY" in refused.problem(401)
        assert refused.headers["www-authenticate"] == "Bearer"
        assert server.call("GET", "/v1/jobs", key=key).status == 200
        for wrong in (key[:-1], key + "x", "", "tuner_", "\x80é"):
            headers = {"Authorization": f"Bearer {wrong}"}
            server.call("GET", "/v1/jobs", headers=headers).problem(401)

    def test_a_revoked_key_is_soon_refused(self, server, keys, monkeypatch):
        monkeypatch.setattr("api.keys.FRESH_S", 0.1)
        key = keys.add("team", Scope.READ)
        assert server.call("GET", "/v1/jobs", key=key).status == 200
        keys.revoke("team")
        wait_for(lambda: server.call("GET", "/v1/jobs", key=key).status == 401)
        # A revoked last key may have leaked: nobody gets in without one.
        server.call("GET", "/v1/jobs").problem(401)

    def test_an_expired_key_says_so(self, server, keys):
        ends = datetime(2026, 1, 31, tzinfo=timezone.utc)
        key = keys.add("ci", Scope.ADMIN, expires_at=ends)
        said = server.call("GET", "/v1/jobs", key=key).problem(401)
        assert said == "this key expired on 2026-01-31: ask for a new key"

    def test_a_key_that_expires_is_not_remembered_beyond(self, server, keys):
        key = keys.add("ci", Scope.READ, expires_at=utc_now() + timedelta(seconds=1))
        assert server.call("GET", "/v1/jobs", key=key).status in (200, 401)
        wait_for(lambda: server.call("GET", "/v1/jobs", key=key).status == 401)

    def test_urgent_jobs_need_their_scope(self, server, keys):
        plain = keys.add("plain", Scope.SUBMIT)
        hasty = keys.add("hasty", Scope.SUBMIT, urgent=True)
        admin = keys.add("admin", Scope.ADMIN)
        urgent = {**JOB, "urgent": True}
        said = server.call("POST", "/v1/jobs", urgent, key=plain).problem(403)
        assert "`tuner admin keys create NAME --scope submit,urgent`" in said
        assert server.call("GET", "/v1/jobs", key=plain).json["jobs"] == []
        assert server.call("POST", "/v1/jobs", JOB, key=plain).status == 202
        for seed, key in enumerate((hasty, admin), 1):
            answer = server.call("POST", "/v1/jobs", {**urgent, "seed": seed}, key=key)
            assert (answer.status, answer.json["priority"]) == (202, "urgent")

    def test_health_needs_no_key(self, server, keys):
        keys.add("team", Scope.READ)
        for path in ("/healthz", "/readyz"):
            assert server.call("GET", path).json == {"status": "ok"}
        server.call("GET", "/metrics").problem(401)

    def test_each_scope_reaches_so_far(self, server, keys):
        read, submit, admin = (keys.add(scope.name.lower(), scope) for scope in Scope)
        watch = {"models": ["deepseek-r1"], "devices": ["L40S"]}

        def statuses(key: str) -> list[int]:
            return [
                server.call("GET", "/v1/jobs", key=key).status,
                server.call("POST", "/v1/jobs", JOB, key=key).status,
                server.call("POST", "/v1/watches", watch, key=key).status,
            ]

        assert statuses(read) == [200, 403, 403]
        assert statuses(submit) == [200, 202, 403]
        assert statuses(admin) == [200, 202, 201]
        said = server.call("POST", "/v1/jobs", JOB, key=read).problem(403)
        assert said == "this needs a key of scope submit, and yours is of read"

    def test_a_job_is_ended_by_its_client_or_an_admin(self, server, keys):
        mine, other = keys.add("mine", Scope.SUBMIT), keys.add("other", Scope.SUBMIT)
        admin = keys.add("admin", Scope.ADMIN)
        jobs = [
            server.call("POST", "/v1/jobs", {**JOB, "seed": seed}, key=mine).json["id"]
            for seed in range(2)
        ]
        refused = server.call("POST", f"/v1/jobs/{jobs[0]}/cancel", key=other)
        assert "may end the job for mine" in refused.problem(403)
        assert server.call("POST", f"/v1/jobs/{jobs[0]}/cancel", key=mine).status == 200
        assert server.call("POST", f"/v1/jobs/{jobs[1]}/cancel", key=admin).status == 200

    def test_only_its_hash_is_kept(self, settings, server):
        key = server.app.state.api.keys.add("team", Scope.READ)
        server.call("GET", "/v1/jobs", key=key)
        files = Path(settings.service.database_url.removeprefix("sqlite:///")).parent.iterdir()
        assert key.encode() not in b"".join(file.read_bytes() for file in files)

    def test_a_key_of_the_store_opens_a_server_to_others(self, settings):
        for host in ("0.0.0.0", "::", "10.1.2.3", "tuner.example"):  # noqa: S104
            with pytest.raises(BadInput, match="make a key first"):
                check_keys(settings, host, {})
        with KeyStore.open(settings.service.database_url) as keys:
            keys.add("old", Scope.ADMIN, expires_at=utc_now() - timedelta(days=1))
            with pytest.raises(BadInput, match="make a key first"):
                check_keys(settings, "0.0.0.0", {})  # noqa: S104
            keys.add("admin", Scope.ADMIN)
        check_keys(settings, "0.0.0.0", {})  # noqa: S104


class TestNoAuth:
    """A server of `tuner serve --no-auth`."""

    def test_this_machine_may_do_everything(self, server):
        job = server.call("POST", "/v1/jobs", {**JOB, "urgent": True}).json
        assert (job["client"], job["priority"]) == ("local", "urgent")
        watch = {"models": ["deepseek-r1"], "devices": ["L40S"]}
        assert server.call("POST", "/v1/watches", watch).status == 201
        # The command line may have another server's key.
        assert server.call("GET", "/v1/jobs", key="of-elsewhere").status == 200

    def test_it_is_for_this_machine_and_a_store_without_keys(self, settings):
        for host in ("127.0.0.1", "::1", "localhost"):
            assert "need no key" in check_keys(settings, host, {}).words
        for host in ("0.0.0.0", "::", "10.1.2.3", "tuner.example"):  # noqa: S104
            with pytest.raises(BadInput, match="--no-auth is for this machine alone"):
                check_keys(settings, host, {})
        with KeyStore.open(settings.service.database_url) as keys:
            keys.add("team", Scope.ADMIN)
            keys.revoke("team", last_too=True)  # it may have leaked
        with pytest.raises(BadInput, match="--no-auth is refused, because the store has or had"):
            check_keys(settings, "127.0.0.1", {})

    def test_a_page_under_another_name_gets_nothing(self, server):
        """A browser can be led here by a name that resolves to 127.0.0.1."""
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", ""):
            server.call("GET", "/v1/jobs", headers={"Host": host}).problem(401)
        for host in ("localhost:1", "127.0.0.1", "[::1]:80"):
            assert server.call("GET", "/v1/jobs", headers={"Host": host}).status == 200

    def test_a_page_from_elsewhere_gets_nothing(self, server):
        """A browser sends its requests to any address, and says whose page they are of."""
        path = f"/v1/jobs/{server.submit()['id']}/cancel"
        for origin in ("https://evil.example", "http://evil.example:8765", "null"):
            server.call("POST", path, headers={"Origin": origin}).problem(401)
        for origin in ("http://127.0.0.1:8765", "http://localhost:3000", "http://[::1]"):
            assert server.call("POST", path, headers={"Origin": origin}).status == 200

    def test_a_proxy_on_this_machine_is_not_this_machine(self, server, keys):
        headers = (
            *("Forwarded", "Via", "X-Real-IP", "X-Forwarded-For", "X-Forwarded-Proto"),
            *("X-Forwarded-Anything", "CF-Connecting-IP", "True-Client-IP"),
            *("X-Envoy-External-Address", "Fastly-Client-IP"),
        )
        for header in headers:
            passed_on = {header: "203.0.113.7"}
            assert server.call("GET", "/v1/jobs", headers=passed_on).status == 401, header
        key = keys.add("team", Scope.READ)
        for header in headers:
            passed_on = {header: "203.0.113.7"}
            assert server.call("GET", "/v1/jobs", headers=passed_on, key=key).status == 200, header


class TestRates:
    def test_without_its_redis_a_process_counts_by_itself(self, settings):
        with started_redis(password="p@ss") as redis:  # noqa: S106
            service = replace(settings.service, broker_url=redis.url)
            few = replace(settings, service=service, rate=(RateLimitItemPerHour(2),))
            with serving(few, Nobody()) as server:
                assert server.call("GET", "/v1/jobs").status == 200
                redis.stop()
                answers = [server.call("GET", "/v1/jobs").status for _ in range(3)]
                assert answers == [200, 200, 429]
                redis.start()

    def test_guessing_keys_is_slowed_and_logged(self, settings, caplog):
        with serving(replace(settings, no_auth=False)) as server:
            key = server.app.state.api.keys.add("team", Scope.READ)
            with caplog.at_level(logging.WARNING, "tuner.api.auth"):
                answers = [server.call("GET", "/v1/jobs", key=f"wrong-{n}") for n in range(31)]
            assert {answer.status for answer in answers[:30]} == {401}
            assert answers[30].problem(429) == "too many wrong keys came from your address"
            assert 1 <= int(answers[30].headers["retry-after"]) <= 60
            assert [record.getMessage() for record in caplog.records] == ["a wrong key"] * 3
            assert "wrong-1" not in caplog.text
            assert server.call("GET", "/v1/jobs", key=key).status == 200


class TestBodies:
    @pytest.mark.parametrize(
        ("body", "status", "said"),
        [
            (b'{"model": NaN}', 400, "NaN is not a number"),
            (b'{"model": -Infinity}', 400, "-Infinity is not a number"),
            (b'{"seed": 1e999}', 400, "too large a number"),
            (b'{"seed": ' + b"9" * 5000 + b"}", 400, "too many digits"),
            (b'{"seed": ' + b"9" * 400 + b"}", 422, "model: Field required"),
            (b'{"model": ' + b"[" * 65 + b"]" * 65 + b"}", 400, "nested more than 64 deep"),
            (b"[" * 50_000, 400, "nested more than 64 deep"),
            (b'{"model": "\\u0000"}', 422, "a string holds a NUL"),
            (b'{"model": {"\\ud800": 1}}', 400, "half a character"),
            (b'{"model": "a\\udfff"}', 400, "half a character"),
            (b'{"model": "\xff"}', 400, "not JSON"),
            (b'{"model": "a"', 400, "not JSON"),
        ],
        ids=lambda value: repr(value[:20]) if isinstance(value, bytes) else None,
    )
    def test_what_is_not_plain_json_is_refused(self, untouched, body, status, said):
        assert said in untouched.call("POST", "/v1/jobs", body).problem(status)

    def test_another_media_type_is_refused(self, untouched):
        """Also what a web page of elsewhere can send without asking first."""
        body = json.dumps(JOB).encode()
        for kind in ("text/plain", "application/x-www-form-urlencoded", "", "application/xml"):
            untouched.call("POST", "/v1/jobs", body, {"Content-Type": kind}).problem(415)

    def test_a_large_body_is_refused_unread(self, untouched):
        """The client sees the answer though it has sent the head alone."""
        with socket.create_connection(("127.0.0.1", untouched.port), timeout=30) as client:
            client.sendall(
                b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: 999999999999\r\n\r\n"
            )
            assert client.recv(4096).startswith(b"HTTP/1.1 413 ")

    def test_a_large_body_in_chunks_is_refused(self, untouched):
        connection = http.client.HTTPConnection("127.0.0.1", untouched.port, timeout=30)
        chunks = (b" " * 10_000 for _ in range(11))
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/jobs", chunks, headers, encode_chunked=True)
        answer = connection.getresponse()
        assert answer.status == 413
        assert json.loads(answer.read())["detail"] == f"a body has at most {LARGEST} bytes"

    def test_a_body_that_is_cut_off_does_nothing(self, untouched):
        head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        whole = json.dumps(JOB).encode()
        with socket.create_connection(("127.0.0.1", untouched.port), timeout=30) as client:
            client.sendall(head + b"Content-Length: 4096\r\n\r\n" + whole)
        untouched.call("GET", "/v1/jobs")

    def test_the_largest_body_still_goes(self, server):
        body = json.dumps(JOB).encode()
        assert server.call("POST", "/v1/jobs", body + b" " * (LARGEST - len(body))).status == 202


class TestNames:
    """Nothing that a client names is ever a path."""

    PATHS = ("../../etc/passwd", "/etc", "..", ".", "./x", "etc/passwd", "file:///etc/passwd")

    def test_models(self, untouched, tmp_path):
        config = tmp_path / "model" / "config.json"
        config.parent.mkdir()
        config.write_text(json.dumps(MIXTRAL))
        for path in (*self.PATHS, str(config), str(config.parent)):
            said = untouched.call("POST", "/v1/jobs", {**JOB, "model": path}).problem(422)
            assert "no preset" in said
            watch = {"models": [path], "devices": ["L40S"]}
            untouched.call("POST", "/v1/watches", watch).problem(422)

    def test_recordings_and_engines(self, settings, tmp_path):
        service = replace(settings.service, recordings=tmp_path)
        with serving(replace(settings, service=service)) as server:
            for path in self.PATHS:
                body = {**JOB, "measure": f"replay:{path}"}
                server.call("POST", "/v1/jobs", body).problem(422)
                server.call("POST", "/v1/jobs", {**JOB, "engine": path}).problem(422)
            assert rows_of(settings.service.database_url) == 0
            body = {**JOB, "measure": "replay:h200.csv"}
            assert server.call("POST", "/v1/jobs", body).status == 202

    def test_jobs_and_request_ids(self, untouched):
        for name in ("..%2f..%2fetc", "%00" * 26, "0" * 27, NEVER.upper().replace("0", "Z")):
            assert untouched.call("GET", f"/v1/jobs/{name}").status in (404, 422)
        answer = untouched.call("GET", "/v1/jobs", headers={"X-Request-ID": "a b\t"})
        assert answer.headers["x-request-id"] != "a b"
        mine = untouched.call("GET", "/v1/jobs", headers={"X-Request-ID": "trace-1"})
        assert mine.headers["x-request-id"] == "trace-1"


class TestSettings:
    def test_they_are_read_from_the_environment(self, tmp_path):
        file = tmp_path / "rate"
        file.write_text("5/second\n")
        read = read_api_settings(
            {"TUNER_API_RATE_FILE": str(file), "TUNER_API_SUBMIT_RATE": "none"}
            | {"TUNER_API_MAX_BODY_BYTES": "2048", "TUNER_API_STREAMS": "3"}
            | {"TUNER_API_LARGE_RATE": "1/hour", "TUNER_API_STREAMS_PER_KEY": "2"}
            | {"TUNER_API_BODY_S": "7", "TUNER_API_CONNECTIONS": "50"}
            | {"TUNER_API_STATEMENT_S": "8", "TUNER_API_LOCK_S": "4"}
        )
        assert (read.max_body_bytes, read.streams, read.submit_rate) == (2048, 3, ())
        assert (read.streams_per_key, read.body_s, read.connections) == (2, 7, 50)
        assert [str(rate) for rate in read.large_rate] == ["1 per 1 hour"]
        assert read.store_limits == PoolLimits(connection_s=4, statement_s=8, lock_s=4, connect_s=4)
        assert [str(rate) for rate in read.rate] == ["5 per 1 second"]

    @pytest.mark.parametrize(
        ("name", "value"),
        [("RATE", "often"), ("MAX_BODY_BYTES", "4M"), ("STREAMS", "0"), ("STREAM_S", "-1")],
    )
    def test_what_cannot_be_is_refused(self, name, value):
        with pytest.raises(BadInput, match=value):
            read_api_settings({f"TUNER_API_{name}": value})


def test_requests_without_a_key_are_spaced_out_by_address(monkeypatch):
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(round(seconds, 6))

    monkeypatch.setattr("api.limits.time.monotonic", lambda: 100.0)
    monkeypatch.setattr("api.limits.anyio.sleep", sleep)
    pace = Pace(0.01)

    async def ask() -> None:
        for address in ("2001:db8::1", "2001:db8::2", "192.0.2.1", "2001:db8::1"):
            await pace.wait(address)

    asyncio.run(ask())
    assert slept == [0.01, 0.02]
