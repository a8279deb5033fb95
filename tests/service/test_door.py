"""The proxy that lets other machines in: its file beside the API's own bounds, and as a process."""

import contextlib
import http.client
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from api_server import Server, eventually, serving
from servers import free_port
from visitor import HTML

from api.settings import HEAD_BYTES, ApiSettings
from tuner.store.keys import KeyStore, Scope
from workers.settings import Settings

CONFIG = (Path(__file__).parents[2] / "docker" / "haproxy.cfg").read_text()
OF_ONE = int(re.findall(r"sc0_conn_cur gt (\d+)", CONFIG)[0])


def number(pattern: str) -> int:
    """The number in the one place of the file that has the pattern."""
    (found,) = re.findall(pattern, CONFIG)
    return int(found)


def test_its_bounds_fit_those_of_the_api():
    api = ApiSettings(Settings("sqlite://"))
    assert number(r"req\.body_size gt (\d+)") == api.max_body_bytes
    assert number(r"tune\.bufsize (\d+)") > HEAD_BYTES
    assert number(r"server api api:8765 maxconn (\d+)") < api.connections
    # All keys behind an address share its bound, so it is wider than the API's for one key.
    (rate,) = api.rate
    assert number(r"http_req_rate gt (\d+)") / 10 > rate.amount / rate.get_expiry()
    assert number(r"timeout client (\d+)s") == number(r"timeout server (\d+)s") > 15
    assert api.connections_per_address == OF_ONE


@pytest.mark.parametrize("file", ["haproxy.cfg", "haproxy-hosts.cfg"])
def test_it_counts_a_client_s_ipv6_network_as_one_address(file):
    text = (Path(__file__).parents[2] / "docker" / file).read_text()
    tracked = re.findall(r"track-sc0 (.*)", text)
    assert set(tracked) == {"src,ipmask(32,64)"}
    assert len(tracked) == text.count("stick-table ")


@dataclass
class Door:
    """A running proxy, and the API behind it."""

    port: int
    trusted: ssl.SSLContext
    api: Server

    def connect(self, address: str = "127.0.0.1") -> socket.socket:
        """A connection from one of this machine's addresses, without a byte."""
        return socket.create_connection(("127.0.0.1", self.port), 30, (address, 0))

    def ask(
        self, path: str, headers: Mapping[str, str], address: str = "127.0.0.1"
    ) -> http.client.HTTPResponse:
        client = http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=30, context=self.trusted, source_address=(address, 0)
        )
        client.request("GET", path, headers=dict(headers))
        return client.getresponse()

    def answers(self) -> bool:
        with contextlib.suppress(OSError):
            return self.ask("/readyz", {}).status == 200
        return False


@pytest.fixture(scope="module")
def door(tmp_path_factory):
    program = shutil.which("haproxy")
    if program is None:
        pytest.skip("haproxy is not installed: apt-get install haproxy")
    folder = tmp_path_factory.mktemp("door")
    authority, port = trustme.CA(), free_port()
    certificate, file = folder / "certificate", folder / "haproxy.cfg"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    settings = ApiSettings(Settings(f"sqlite:///{folder / 'tuner.db'}"))
    with serving(settings) as api:
        here = CONFIG.replace("bind :8443", f"bind 127.0.0.1:{port}")
        here = here.replace("/run/secrets/tls_certificate", str(certificate))
        file.write_text(here.replace("server api api:8765", f"server api 127.0.0.1:{api.port}"))
        with subprocess.Popen([program, "-db", "-f", file], stdout=subprocess.DEVNULL) as process:
            try:
                found = Door(port, trusted, api)
                eventually(found.answers)
                yield found
            finally:
                process.terminate()


@pytest.fixture
def bearer(door):
    keys: KeyStore = door.api.app.state.api.keys
    yield {"Authorization": f"Bearer {keys.add('me', Scope.ADMIN)}"}
    keys.revoke("me", last_too=True)


@pytest.mark.slow
class TestAsAProcess:
    def test_a_browser_is_told_that_it_asks_by_tls(self, door):
        answer = door.ask("/jobs", {"Accept": HTML, "X-Forwarded-Proto": "http"})
        assert (answer.status, answer.getheader("location")) == (303, "./login?next=jobs")
        assert answer.getheader("strict-transport-security") == "max-age=31536000"

    def test_an_event_stream_comes_as_it_happens(self, door, bearer):
        door.api.key = bearer["Authorization"].partition(" ")[2]
        job_id = door.api.submit()["id"]
        stream = door.ask(f"/v1/jobs/{job_id}/events", bearer)
        while b"event: submitted" not in stream.readline():
            pass
        door.api.call("POST", f"/v1/jobs/{job_id}/cancel")
        assert b"event: cancelled" in stream.read()

    def test_an_address_has_so_many_connections_and_others_are_answered(self, door):
        with contextlib.ExitStack() as clients:
            for _ in range(OF_ONE - 1):
                clients.enter_context(door.connect("127.0.0.2"))

            def one_more_is_refused() -> bool:
                # Its threads take connections in any order: a question may be let in before one of
                # these, which is then refused, and leaves a place free.
                clients.enter_context(door.connect("127.0.0.2"))
                return not self.is_let_in(door)

            eventually(one_more_is_refused)
            assert door.ask("/healthz", {}).status == 200
        eventually(lambda: self.is_let_in(door))

    def test_what_is_too_large_is_refused_before_the_api(self, door):
        assert door.ask("/healthz", {"X-Long": "a" * (HEAD_BYTES + 1000)}).status in (400, 431)
        with door.trusted.wrap_socket(door.connect(), server_hostname="127.0.0.1") as client:
            client.sendall(b"POST /login HTTP/1.1\r\nHost: localhost\r\n")
            client.sendall(b"Content-Length: %d\r\n\r\n" % ((4 << 20) + 1) + b"a" * HEAD_BYTES)
            assert client.recv(65536).startswith(b"HTTP/1.1 413 ")

    def test_it_says_no_two_things_of_a_body_s_length(self, door):
        head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        for lengths in (
            b"Content-Length: 2\r\nContent-Length: 3\r\n",
            b"Content-Length: -2\r\n",
            b"Transfer-Encoding: gzip\r\n",
        ):
            with door.trusted.wrap_socket(door.connect(), server_hostname="127.0.0.1") as client:
                client.sendall(head + lengths + b"\r\n0\r\n\r\n")
                assert re.match(rb"HTTP/1\.1 (400|422|501|401) ", client.recv(65536)), lengths

    @staticmethod
    def is_let_in(door: Door) -> bool:
        with contextlib.suppress(OSError):
            return door.ask("/healthz", {}, "127.0.0.2").status == 200
        return False
