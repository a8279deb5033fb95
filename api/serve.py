"""Runs the API in this process, and workers too if there is no broker.

It bounds the number and the slowness of clients' connections. h11 bounds the size of a request's
head, reads a body only as its handler asks for it, and reads the next request of a connection only
after the answer to the one before. Beyond loopback a proxy stands before all of this
(docs/operations.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import resource
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any, NoReturn

import anyio
import h11
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from api.app import create_app
from api.errors import problem_response
from api.keys import KeyPolicy, check_keys, counted
from api.pages.browser import HEALTH_PATHS, VALID_S
from api.settings import COOKIE_BYTES, HEAD_BYTES, HEADERS, ApiSettings
from tuner.errors import BadInput
from tuner.jobs.web import is_loopback
from tuner.shell import command_line, export_line
from tuner.store.connect import place_of
from tuner.store.database import Database, only_server
from workers.machine import LocalGpu, detect_gpus
from workers.service import EmbeddedWorker
from workers.telemetry import log_json

HEAD_S = 20.0  # a request's head must have arrived so long after its connection began
# Requests for the health that are answered at once above the bounds, in all and of one address: a
# full server should not look dead. Then the connections that may wait, and their seconds, until
# they ask; the oldest ends for a new connection.
HEALTH, HEALTH_OF_ONE, WAITING, HEALTH_S = 20, 2, 50, 2.0
KEEP_ALIVE_S = 75.0  # longer than the 60 s of nginx: a proxy must not ask as its connection ends
# The system keeps at most about twice so much of the answers that a client has not read yet. By
# default it keeps up to 4 MiB: a client that reads nothing would have all of that made for it.
UNREAD_BYTES = 1 << 17
LINGER_S = 1.0  # a client that does not stop keeps a connection that ends for so long
_CLOSE = (b"connection", b"close")
_OTHER_FILES = 200  # of this process: the store, Redis, modules, workers


def uvicorn_options(settings: ApiSettings) -> dict[str, Any]:
    """Return uvicorn's options, beside its address and its logs."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    connections = max(1, min(settings.connections, most - _OTHER_FILES))
    if connections < settings.connections:
        log.warning(
            "at most %d connections are taken, as the system allows %d open files",
            connections,
            most,
        )
    return {
        "http": partial(
            ClientConnection,
            ConnectionPlaces(connections, settings.connections_per_address),
            ConnectionPlaces(HEALTH, HEALTH_OF_ONE),
            {},
        ),
        "timeout_keep_alive": KEEP_ALIVE_S,
        "loop": "uvloop",
        "ws": "none",
    }


class ConnectionPlaces:
    """The connections that may be open, in all and of one address."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self.most = most
        self._most_of_one = most_of_one
        self._taken: Counter[str] = Counter()

    def refusal(self, address: str) -> str:
        """Return why an address gets no further place; empty if it gets a place."""
        if self._taken[counted(address)] >= self._most_of_one:
            taken = f"{self._most_of_one} connections of your address"
        elif self._taken.total() >= self.most:
            taken = f"{self.most} connections"
        else:
            return ""
        return f"{taken} are open, and no more may be: try again"

    def take(self, address: str) -> None:
        self._taken[counted(address)] += 1

    def give_back(self, address: str) -> None:
        network = counted(address)
        self._taken[network] -= 1
        if not self._taken[network]:
            del self._taken[network]


class Parser(h11.Connection):
    """h11's parser, which gives a piece of a body only when a handler has asked for it.

    uvicorn parses all bytes that have arrived. h11 makes an event of each chunk: 60,000 chunks of a
    byte would stop all requests for a quarter of a second, although the head alone is refused.
    """

    def __init__(self) -> None:
        super().__init__(h11.SERVER, HEAD_BYTES)
        self.asked = False
        self.too_large = ""  # why the request is refused

    @property
    def in_body(self) -> bool:
        """Say whether the current request has a body whose end was not given yet."""
        return self.their_state is h11.SEND_BODY

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return h11's next event, but PAUSED before a piece of a body that nobody asked for."""
        if self.in_body and not self.asked:
            return h11.PAUSED
        if self.their_state is h11.IDLE:
            self._refuse_headers()
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._refuse_cookies(event)
            self.asked = not _has_body(event)
        elif isinstance(event, h11.Data):
            self.asked = False
        return event

    def _refuse_headers(self) -> None:
        """Raise RemoteProtocolError for too many headers, before any is parsed."""
        head = self.trailing_data[0].partition(b"\r\n\r\n")[0]
        if head.count(b"\n") > HEADERS:
            self._refuse(f"a request has at most {HEADERS} headers")

    def _refuse_cookies(self, request: h11.Request) -> None:
        """Raise RemoteProtocolError for long cookies, which take long to parse."""
        cookies = [len(value) for name, value in request.headers if name == b"cookie"]
        if sum(cookies) > COOKIE_BYTES:
            self._refuse(f"a request's cookies have at most {COOKIE_BYTES} bytes")

    def _refuse(self, why: str) -> NoReturn:
        self.too_large = why
        raise h11.RemoteProtocolError(why, error_status_hint=431)


def _has_body(request: h11.Request) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and int(value) > 0)
        for name, value in request.headers
    )


class ClientConnection(H11Protocol):
    """uvicorn's connection, which has a place, and ends if its client sends no request.

    It also ends with the answer to a request whose body was not read to its end.
    """

    conn: Parser

    def __init__(
        self,
        clients: ConnectionPlaces,
        health: ConnectionPlaces,
        waiting: dict[ClientConnection, None],
        *arguments: Any,  # noqa: ANN401 (uvicorn's own)
        **named: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(*arguments, **named)
        self.conn = Parser()
        self.app = partial(self._answer, self.app)
        self._drops = False  # incoming bytes, because the connection ends
        self._clients, self._health, self._waiting = clients, health, waiting
        self._place: ConnectionPlaces | None = None
        self._refusal = ""  # above the bounds, why no request is answered but for the health
        self._kept = False  # without a request, after an answer
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD_BYTES
        )
        if refusal := self._clients.refusal(self._address):
            self._refusal = refusal
            self._waiting[self] = None
            if len(self._waiting) > WAITING:
                oldest = next(iter(self._waiting))
                del self._waiting[oldest]
                oldest.transport.abort()
        else:
            self._take(self._clients)
        self._wait_for_request(HEALTH_S if refusal else HEAD_S)

    def _take(self, place: ConnectionPlaces) -> None:
        place.take(self._address)
        self._place = place

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._waiting.pop(self, None)
        if self._place is not None:
            self._place.give_back(self._address)
        super().connection_lost(exc)
        # It refers to this connection, whose bytes would stay until the next full collection.
        del self.app

    def data_received(self, data: bytes) -> None:
        if self._drops:
            return
        if self._kept:  # until now, when its next request begins
            self._wait_for_request(HEAD_S)
        super().data_received(data)

    async def _answer(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application, which gets a body piece by piece."""
        ends = False
        app = self._answering(scope) or app

        async def receive_piece() -> Message:
            if self.conn.in_body and not self.transport.is_closing():
                await asyncio.sleep(0)  # other requests go on between any two chunks
                self.conn.asked = True
                self.handle_events()
            return await receive()

        async def send_all_but_end(message: Message) -> None:
            nonlocal ends
            if message["type"] == "http.response.start":
                if (ends := self.conn.in_body) or self._refusal:
                    message = {**message, "headers": [*message["headers"], _CLOSE]}
            elif ends:
                message = {**message, "more_body": True}
            await send(message)

        await app(scope, receive_piece, send_all_but_end)
        if ends:
            # A client that still sends when its connection closes may lose the answer.
            self._drops = True
            with anyio.move_on_after(LINGER_S):
                while (await receive())["type"] != "http.disconnect":
                    pass
            await send({"type": "http.response.body"})

    def _answering(self, scope: Scope) -> ASGIApp | None:
        """Return an application that refuses a request above the bounds; None within the bounds."""
        self._waiting.pop(self, None)
        if not self._refusal:
            return None
        if scope["path"] in HEALTH_PATHS and not self._health.refusal(self._address):
            self._take(self._health)
            return None
        return problem_response("", 503, self._refusal)

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no request, or too large a head, unless an answer has begun."""
        with contextlib.suppress(h11.LocalProtocolError):
            if why := self.conn.too_large:
                length = b"content-length", b"%d" % len(why)
                self._send(h11.Response(status_code=431, headers=[_CLOSE, length]))
                self._send(h11.Data(data=why.encode()))
                self._send(h11.EndOfMessage())
            else:
                super().send_400_response(msg)
        self.transport.close()
        self._abort_soon()

    def _send(self, event: h11.Event) -> None:
        self.transport.write(self.conn.send(event) or b"")

    def on_response_complete(self) -> None:
        super().on_response_complete()
        kept = not (self.transport.is_closing() or self.conn.trailing_data[0])
        self._wait_for_request(KEEP_ALIVE_S if kept else HEAD_S)
        self._kept = kept

    def shutdown(self) -> None:
        """End an event stream when the server stops. Its client then connects again."""
        super().shutdown()
        cycle = self.cycle
        if cycle and not cycle.response_complete and cycle.scope["path"].endswith("/events"):
            self.transport.close()

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def _wait_for_request(self, seconds: float) -> None:
        self._stop_waiting()
        self._kept = False
        self._patience = self.loop.call_later(seconds, self._lose_patience)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()

    def _lose_patience(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
            self._abort_soon()

    def _abort_soon(self) -> None:
        """Abort the connection after LINGER_S. Until then the client may read an answer."""
        self._stop_waiting()
        self._patience = self.loop.call_later(LINGER_S, self.transport.abort)


log = logging.getLogger("tuner.api.serve")

_NO_TLS = 'It speaks no TLS: a proxy lets others in, see docs/operations.md, "The door".'
_BACKLOG = 2048  # uvicorn's own
GRACE_S = 5  # for open event streams, when the process is asked to stop


def serve(
    settings: ApiSettings, host: str, port: int, *, workers: bool, say: Callable[[str], None]
) -> None:
    """Answer requests until the process is asked to stop.

    On loopback, `say` gets lines for the person who started it; elsewhere they are logged. Raises
    BadInput as `listen`, `only_server` and `check_keys` do.
    """
    with contextlib.ExitStack() as held:
        # Before the rest: a server that cannot listen must not make keys or take jobs.
        sockets = [held.enter_context(one) for one in listen(host, port)]
        url = f"http://{_in_url(host)}:{sockets[0].getsockname()[1]}"
        store = held.enter_context(Database.open(settings.service.database_url))
        held.enter_context(only_server(store.engine, url))
        _serve(settings, host, url, sockets, workers=workers, say=say)


def listen(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen on all addresses of a host. With port 0, the system chooses the
    port.

    Raises BadInput for a port that is taken, and for a host that is not this machine's.
    """
    found: list[socket.socket] = []
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(infos):
            one = socket.socket(family, kind, protocol)
            found.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind((address[0], port or found[0].getsockname()[1], *address[2:]))
            one.listen(_BACKLOG)
    except OSError as error:
        for one in found:
            one.close()
        raise BadInput(_cannot_listen(host, port, error)) from None
    return found


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host} is taken, perhaps by another `tuner serve`: stop that, or add "
            "--port 0, which takes a free port"
        )
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine: --host 0.0.0.0 serves on all that it has"
    if error.errno == errno.EACCES:
        return f"this user may not listen on port {port}: name one above 1023"
    return f"cannot listen on port {port} of {host}: {error.strerror}"


def _serve(
    settings: ApiSettings,
    host: str,
    url: str,
    sockets: Sequence[socket.socket],
    *,
    workers: bool,
    say: Callable[[str], None],
) -> None:
    policy = check_keys(settings, host)
    log_json()
    # Uvicorn shuts down on a signal and raises it again, which then ends this process.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    gpus = detect_gpus() if workers else []
    facts = [
        f"The store is {place_of(settings.service.database_url)}.",
        policy.words,
        _work_words(gpus) if workers else "Jobs wait for processes of `tuner worker`.",
    ]

    def link() -> str | None:
        name = policy.key_name
        return name and f"{url}/login?once={app.state.api.links.add(name)}"

    def started() -> None:
        log.info("Uvicorn running on %s", url)  # which says so only if it opened the sockets
        if is_loopback(host):
            for line in _greeting(url, facts, policy, settings.no_auth, link()):
                say(line)
        else:
            log.info(" ".join([*facts, _NO_TLS]))

    with _embedded(settings, gpus) if workers else contextlib.nullcontext() as worker:
        app = create_app(settings, worker)
        # The objects of start-up live as long as the process. Each full collection would scan them,
        # and stop all requests for a tenth of a second.
        gc.collect()
        gc.freeze()
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # with them, any client could claim to be on loopback
            timeout_graceful_shutdown=GRACE_S,
            **uvicorn_options(settings),
        )
        _Server(config, started).run(list(sockets))


class _Server(uvicorn.Server):
    """Calls `started` once it listens."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._started()


def _leave(number: int, frame: object) -> NoReturn:
    raise SystemExit(0)


@contextlib.contextmanager
def _embedded(settings: ApiSettings, gpus: Sequence[LocalGpu]) -> Iterator[EmbeddedWorker]:
    worker = EmbeddedWorker(settings.service, gpus)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def _work_words(gpus: Sequence[LocalGpu]) -> str:
    others = "Replays and predictions are done for every GPU."
    if not gpus:
        return f"No GPU is usable here, so nothing is measured. {others}"
    names = ", ".join(sorted({gpu.device for gpu in gpus}))
    if find_spec("torch") is None:
        install = "`pip install 'engine-tuner[measure]'` adds it"
        return f"Nothing is measured on {names}, because torch is missing: {install}. {others}"
    return f"Jobs are measured on {names}. {others}"


def _greeting(
    url: str, facts: Sequence[str], policy: KeyPolicy, no_auth: bool, link: str | None
) -> Iterator[str]:
    yield f"The service answers on {url} until Ctrl-C stops it."
    yield from facts
    if link:
        yield f"Open this link in a browser. It works once, for {VALID_S // 60:.0f} minutes:"
        yield f"  {link}"
    elif no_auth:
        yield f"Its pages are on {url}/ in a browser."
    else:
        yield f"Its pages are on {url}/ in a browser, and ask for a key."
    if no_auth or policy.key_file:
        read = policy.key_file and command_line("cat", str(policy.key_file))
        key = f'--oauth2-bearer "$({read})" ' if read else ""
        yield "Try it in another terminal:"
        yield f"    curl {key}{command_line(f'{url}/v1/jobs')}"
        yield f"    {export_line('TUNER_SERVER', url)}; tuner jobs"
    first = "make a key with `tuner admin keys create NAME --scope admin`, then " if no_auth else ""
    serve = "run `tuner serve --host 0.0.0.0` behind a proxy with TLS"
    yield f"To let other machines in: {first}stop it and {serve}."


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
