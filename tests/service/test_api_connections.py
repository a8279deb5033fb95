"""What a client's connection may cost: too many, too slow, or with bytes that bring nothing."""

import asyncio
import contextlib
import gc
import http.client
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import h11
import pytest
from api_server import JOB, Server, eventually, serving

import api.serve
from api.serve import ClientConnection, ConnectionPlaces, uvicorn_options
from api.settings import COOKIE_BYTES, HEADERS, PIECE_BYTES, PIECES, ApiSettings
from tuner.store.keys import Scope
from workers.settings import Settings

HEAD = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
FEW = 12


@pytest.fixture
def settings(tmp_path):
    url = f"sqlite:///{tmp_path / 'tuner.db'}"
    return ApiSettings(Settings(url), body_s=1, connections=FEW, no_auth=True)


@pytest.fixture
def server(settings, monkeypatch):
    monkeypatch.setattr("api.serve.HEAD_S", 0.3)
    monkeypatch.setattr("api.serve.KEEP_ALIVE_S", 0.3)
    with serving(settings) as running:
        yield running


def connect(server: Server, address: str = "127.0.0.1") -> socket.socket:
    """A connection from one of this machine's addresses."""
    return socket.create_connection(("127.0.0.1", server.port), 30, (address, 0))


def refused(server: Server, address: str = "127.0.0.1") -> tuple[int, str]:
    """The status and the words with which a request is refused that is not for the health."""
    with connect(server, address) as client:
        client.sendall(b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = rest(client)
    problem = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert answer.startswith(b"HTTP/1.1 %d " % problem["status"])
    return problem["status"], problem["detail"]


def is_healthy(server: Server) -> bool:
    """Whether it takes one more connection, and answers that it is healthy."""
    with contextlib.suppress(ConnectionError):
        return server.call("GET", "/healthz").status == 200
    return False


def answered(server: Server) -> float:
    """How many requests for the OpenAPI document were answered."""
    counted = server.app.state.api.metrics.requests.collect()[0].samples
    return sum(
        one.value
        for one in counted
        if one.name.endswith("_total") and one.labels["route"] == "/openapi.json"
    )


def settled(server: Server) -> float:
    """How many were answered, once it stays so while others are answered."""
    counts: list[float] = []
    while len(counts) < 20 or counts[-20] != counts[-1]:
        assert server.call("GET", "/healthz").status == 200
        counts.append(answered(server))
    return counts[-1]


def most(settings: ApiSettings) -> int:
    """The number of connections that are taken."""
    places = uvicorn_options(settings)["http"].args[0]
    assert isinstance(places, ConnectionPlaces)
    return places.most


def rest(client: socket.socket) -> bytes:
    """All that the server still says, until it closes."""
    said = b""
    with contextlib.suppress(ConnectionError):  # what was sent after the answer may reset it
        while chunk := client.recv(65536):
            said += chunk
    return said


class TestTooMuchInAHead:
    @pytest.mark.parametrize(
        ("lines", "status"),
        [
            (b"".join(b"X-%d: a\r\n" % at for at in range(HEADERS - 2)), b"200"),
            (b"X: a\r\n" * 2_000, b"431"),
            (b"Cookie: " + b"a=b; " * (COOKIE_BYTES // 5) + b"\r\n", b"200"),
            (b"Cookie: " + b"a=b; " * 6_000 + b"\r\n", b"431"),
            ((b"Cookie: " + b"a=b; " * 500 + b"\r\n") * 2, b"431"),
        ],
    )
    def test_more_headers_or_cookies_than_anybody_sends_are_refused(self, server, lines, status):
        with connect(server) as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + lines + b"\r\n")
            client.shutdown(socket.SHUT_WR)
            assert rest(client).startswith(b"HTTP/1.1 " + status)

    def test_so_are_those_of_a_second_request(self, server):
        first = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with connect(server) as client:
            client.sendall(first + first[:-2] + b"X: a\r\n" * 2_000 + b"\r\n")
            said = rest(client)
        assert said.startswith(b"HTTP/1.1 200 ")
        assert b"HTTP/1.1 431 " in said
        assert said.endswith(b"a request has at most 100 headers")


class TestTooSlow:
    def test_a_head_that_does_not_come_ends_the_connection(self, server):
        with contextlib.ExitStack() as clients:
            begun = {}
            for start in (b"", b"GET /v1/jo", HEAD):
                begun[start] = clients.enter_context(connect(server))
                begun[start].sendall(start)
            assert {start: rest(client) for start, client in begun.items()} == dict.fromkeys(
                begun, b""
            )

    def test_so_does_the_second_one(self, server):
        with connect(server) as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea")
            assert rest(client).startswith(b"HTTP/1.1 200 OK")

    def test_a_connection_is_kept_longer_than_proxies_keep_it(self, settings, monkeypatch):
        """nginx keeps one for 60 s, and may send a request as the server ends it."""
        assert uvicorn_options(settings)["timeout_keep_alive"] == api.serve.KEEP_ALIVE_S > 60
        monkeypatch.setattr("api.serve.HEAD_S", 0.1)
        asked = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with serving(settings) as server, connect(server) as client:
            client.sendall(asked)
            assert client.recv(4096).startswith(b"HTTP/1.1 200 ")
            with connect(server) as other:  # whose head has had its time when it ends
                assert rest(other) == b""
            client.sendall(asked + b"GET /hea")
            assert rest(client).startswith(b"HTTP/1.1 200 ")

    def test_a_body_that_does_not_come_is_given_up(self, server):
        body = json.dumps(JOB).encode()
        with connect(server) as client:
            client.sendall(HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body) + 1, body))
            said = rest(client)
        assert said.startswith(b"HTTP/1.1 408 Request Timeout")
        assert b"the body did not arrive within 1 s" in said
        assert server.call("GET", "/v1/jobs").json["jobs"] == []

    def test_slow_bodies_keep_nobody_waiting(self, server):
        with contextlib.ExitStack() as clients:
            for _ in range(FEW - 2):
                client = clients.enter_context(connect(server))
                client.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
            assert server.submit()["created"]

    def test_an_answer_may_take_longer(self, server):
        """An event stream, of which nothing more is asked."""
        job_id = server.submit()["id"]
        with connect(server) as client:
            client.sendall(b"GET /v1/jobs/%s/events HTTP/1.1\r\n" % job_id.encode())
            client.sendall(b"Host: localhost\r\n\r\n")
            said = b""
            while b"submitted" not in said:
                said += client.recv(4096)
            for _ in range(3):  # whose connections wait in vain meanwhile
                with connect(server) as other:
                    assert rest(other) == b""
            server.call("POST", f"/v1/jobs/{job_id}/cancel")
            while b"cancelled" not in said:
                said += client.recv(4096)


def test_a_server_that_stops_waits_for_no_event_stream(server, caplog):
    path = f"/v1/jobs/{server.submit()['id']}/events"
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(server.call, "GET", path)
        eventually(lambda: server.app.state.api.streams.open == 1)
        server.stop()
        with pytest.raises(http.client.IncompleteRead):
            stream.result()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


class TestTooMany:
    def test_one_more_is_refused_at_once_and_fits_later(self, settings, monkeypatch):
        with serving(settings) as server:
            with contextlib.ExitStack() as clients:
                for _ in range(FEW):
                    clients.enter_context(connect(server))
                said = f"{FEW} connections are open, and no more may be: try again"
                assert refused(server) == (503, said)
                for path in ("/healthz", "/readyz"):
                    assert server.call("GET", path).status == 200
            eventually(lambda: server.call("GET", "/v1/jobs").status == 200)

    def test_of_one_address_more_are_refused_than_of_all(self, settings, subtests):
        few = replace(settings, connections_per_address=3)
        with serving(few) as server, contextlib.ExitStack() as clients:
            for _ in range(3):
                clients.enter_context(connect(server, "127.0.0.2"))
            said = "3 connections of your address are open, and no more may be: try again"
            assert refused(server, "127.0.0.2") == (503, said)
            with connect(server, "127.0.0.2") as client:
                client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert client.recv(4096).startswith(b"HTTP/1.1 200 ")
            assert server.call("GET", "/v1/jobs").status == 200

    def test_idle_ones_do_not_take_the_places_for_health_checks(self, settings, monkeypatch):
        monkeypatch.setattr("api.serve.HEALTH_S", 0.1)
        with serving(settings) as server, contextlib.ExitStack() as clients:
            for _ in range(FEW + api.serve.HEALTH_OF_ONE):
                clients.enter_context(connect(server, "127.0.0.2"))
            assert server.call("GET", "/healthz").status == 200
            for _ in range(api.serve.HEALTH_OF_ONE):
                clients.enter_context(connect(server))
            eventually(lambda: is_healthy(server))

    def test_idle_ones_of_many_addresses_leave_places_for_health_checks(self, settings):
        """However long they stay, and however many there are."""
        with serving(settings) as server, contextlib.ExitStack() as clients:
            for at in range(FEW + 150):
                clients.enter_context(connect(server, f"127.0.0.{2 + at}"))
            for _ in range(2 * api.serve.HEALTH_OF_ONE):
                client = clients.enter_context(connect(server))
                client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                said = rest(client)
                assert said.startswith(b"HTTP/1.1 200 ")
                assert b"\r\nconnection: close" in said.lower()

    def test_those_of_an_ipv6_network_count_together(self):
        """A client that has one address of a /64 has all of them."""
        places = ConnectionPlaces(9, 1)
        places.take("2001:db8:0:1::1")
        assert "1 connections of your address" in places.refusal("2001:db8:0:1:ffff::2%eth0")
        assert places.refusal("2001:db8:0:2::1") == ""
        places.give_back("2001:db8:0:1::3")
        assert places.refusal("2001:db8:0:1::1") == ""
        places.take("::ffff:192.0.2.1")
        assert places.refusal("192.0.2.1") != places.refusal("::ffff:192.0.2.2") == ""

    def test_files_are_left_for_the_process_s_own(self, settings, monkeypatch):
        monkeypatch.setattr("api.serve.resource.getrlimit", lambda _: (256, 256))
        assert most(settings) == FEW
        monkeypatch.setattr("api.serve.resource.getrlimit", lambda _: (205, 256))
        assert most(settings) == 5


class TestUseless:
    """Bytes that the parser keeps, and that no handler ever sees."""

    MORE = b"x" * 16_384

    def test_they_end_soon(self, settings):
        with serving(settings) as server:
            for what, start in {
                "a URL": b"GET /",
                "a header": HEAD + b"X-Long: ",
                "a chunk's extension": HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;",
                "a trailer": HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nX-Trailer: ",
            }.items():
                with connect(server) as client:
                    client.sendall(start)
                    sent = 0
                    with contextlib.suppress(ConnectionError):
                        while sent < 64 << 20:
                            client.sendall(self.MORE)
                            sent += len(self.MORE)
                assert sent < 64 << 20, what

    def test_a_long_head_is_refused(self, settings):
        with serving(settings) as server, connect(server) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: " + self.MORE * 5)
            assert rest(client).startswith(b"HTTP/1.1 400 ")

    def test_a_request_is_read_when_the_one_before_is_answered(self, server):
        """A client that reads nothing gets answers until its buffers are full, and no more."""
        asked = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with connect(server) as client:
            client.sendall(asked * 5)
            assert rest(client).count(b"HTTP/1.1 200 OK") == 5
        before = answered(server)
        with connect(server) as client:
            client.sendall(asked * 1000)
            assert client.recv(1) == b"H"
            assert settled(server) - before < 12
        eventually(lambda: server.call("GET", "/healthz").status == 200)

    def test_what_is_no_request_is_refused_while_an_answer_goes_out(self, server, caplog):
        with connect(server) as client:
            client.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n[\r\nno chunk\r\n")
            rest(client)
        assert server.call("GET", "/healthz").status == 200
        assert [record for record in caplog.records if record.levelname == "ERROR"] == []

    def test_a_body_has_one_length(self, server):
        """A proxy may see another end of it, and pass on a second request."""
        for headers, status in {
            b"Content-Length: 2\r\nContent-Length: 3\r\n": 400,
            b"Content-Length: -2\r\n": 400,
            b"Transfer-Encoding: gzip\r\n": 400,
        }.items():
            with connect(server) as client:
                client.sendall(HEAD + headers + b"\r\n0\r\n\r\n")
                assert rest(client).startswith(b"HTTP/1.1 %d " % status), headers


class TestBodies:
    """They are read piece by piece, as their requests' handlers ask for them."""

    CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    SMALL = b"1\r\n \r\n" * 60_000 + b"0\r\n\r\n"

    @pytest.fixture
    def parsed(self, monkeypatch):
        """Note the pieces that are parsed, and what else runs in the event loop between them."""
        found: list[str] = []
        next_event = h11.Connection.next_event

        def note(connection: h11.Connection) -> object:
            event = next_event(connection)
            if isinstance(event, h11.Data):
                found.append("piece")
                asyncio.get_running_loop().call_soon(found.append, "other")
            return event

        monkeypatch.setattr(h11.Connection, "next_event", note)
        return found

    @pytest.fixture
    def keyed(self, settings) -> Iterator[Server]:
        with serving(replace(settings, no_auth=False, body_s=20)) as server:
            server.key = server.app.state.api.keys.add("mine", Scope.SUBMIT)
            yield server

    def test_a_request_that_its_head_refuses_costs_no_more_than_that(self, keyed, parsed, subtests):
        large = replace(keyed.app.state.api.settings).max_body_bytes + 1
        key = b"Authorization: Bearer %s\r\n" % str(keyed.key).encode()
        chunked = b"Transfer-Encoding: chunked\r\n\r\n" + self.SMALL
        for status, sent in {
            401: HEAD + chunked,
            413: HEAD + key + b"Content-Length: %d\r\n\r\n[1," % large,
            422: HEAD.replace(b"/v1/jobs", b"/v1/jobs?" + b"a&" * 300) + key + chunked,
        }.items():
            with subtests.test(status=status), connect(keyed) as client:
                client.sendall(sent)
                head, _, body = rest(client).partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 %d " % status)
                assert b"\r\nconnection: close" in head
                assert json.loads(body)["status"] == status
                assert parsed == []

    def test_chunks_are_bounded_and_others_go_on_between_them(self, keyed, parsed):
        with connect(keyed) as client:
            key = b"Authorization: Bearer %s\r\n" % str(keyed.key).encode()
            client.sendall(self.CHUNKED.replace(b"\r\n\r\n", b"\r\n" + key + b"\r\n") + self.SMALL)
            head, _, body = rest(client).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert json.loads(body)["detail"] == "send at least 256 bytes of a body at a time"
        assert parsed == ["piece", "other"] * (PIECES + 1)

    def test_honest_chunks_are_taken(self, keyed, subtests):
        text = json.dumps(JOB).encode()
        for what, chunks in {
            "a byte each": [text[at : at + 1] for at in range(len(text))],
            "as small as they may be": [text, *[b" " * PIECE_BYTES] * 3000],
            "large ones": [text, *[b" " * 50_000] * 20],
        }.items():
            with (
                subtests.test(what),
                contextlib.closing(
                    http.client.HTTPConnection("127.0.0.1", keyed.port, timeout=30)
                ) as client,
            ):
                head = {"Content-Type": "application/json", "Authorization": f"Bearer {keyed.key}"}
                client.request("POST", "/v1/jobs", iter(chunks), head, encode_chunked=True)
                assert client.getresponse().status == 202

    def test_a_client_that_still_sends_gets_its_answer(self, keyed):
        answer = keyed.call("POST", "/v1/jobs", b" " * (16 << 20), key="wrong")
        assert "not known" in answer.problem(401)

    def test_a_connection_stays_after_a_body_that_was_read(self, server, subtests):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port)) as client:
            client.connect()
            first = client.sock
            head = {"Content-Type": "application/json"}
            for method, path, body, status in (
                ("GET", "/v1/jobs", None, 200),
                ("POST", "/v1/jobs", json.dumps(JOB), 202),
                ("POST", "/v1/jobs", "", 422),
                ("POST", "/v1/jobs", "no JSON", 400),
                ("POST", "/v1/nothing", "{}", 404),
                ("DELETE", "/v1/jobs", "{}", 405),
                ("GET", "/healthz", None, 200),
            ):
                client.request(method, path, body, head)
                answer = client.getresponse()
                answer.read()
                assert (answer.status, client.sock) == (status, first), (method, path)

    def test_a_client_that_waits_is_told_to_go_on_only_if_its_body_is_read(self, keyed, subtests):
        body = json.dumps(JOB).encode()
        waits = HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n" % len(body)
        with connect(keyed) as client:
            client.sendall(waits + b"\r\n")
            assert rest(client).startswith(b"HTTP/1.1 401 ")
        with connect(keyed) as client:
            client.sendall(waits + b"Authorization: Bearer %s\r\n\r\n" % str(keyed.key).encode())
            assert client.recv(4096).startswith(b"HTTP/1.1 100 ")
            client.sendall(body)
            assert client.recv(65536).startswith(b"HTTP/1.1 202 ")

    def test_what_a_connection_holds_is_freed_with_it(self, keyed):
        """The garbage collector would come too late to it."""
        gc.collect()
        gc.disable()
        try:
            with connect(keyed) as client:
                client.sendall(self.CHUNKED + self.SMALL)
                rest(client)
            assert keyed.call("GET", "/healthz").status == 200
            eventually(
                lambda: not any(isinstance(one, ClientConnection) for one in gc.get_objects())
            )
        finally:
            gc.enable()
