"""The client against servers that are none, or of another kind: always one line, never a trace."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tuner.errors import BadInput, ServerUnavailable, UnknownJob
from tuner.jobs.client import RemoteQueue, api_key

ID = "01m7yar279krwp9bj5re32v19s"


def http(body: object, status: str = "200 OK", length: int | None = None) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Length: {length or len(data)}\r\n\r\n"
    return head.encode() + data


@contextmanager
def answering(answer: bytes) -> Iterator[RemoteQueue]:
    """A queue of a server that answers each request so."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return  # the test is over
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield RemoteQueue(f"http://127.0.0.1:{listening.getsockname()[1]}", None)
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(10)


CALLS: dict[str, Callable[[RemoteQueue], object]] = {
    "list": lambda queue: queue.list(),
    "get": lambda queue: queue.get(ID),
    "cancel": lambda queue: queue.cancel(ID),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    "answer",
    [
        b"garbage\r\n\r\n",
        http(b"<html>"),
        http([]),
        http("jobs"),
        http({}),
        http({"jobs": 1}),
        http({"jobs": [1]}),
        http({"jobs": [{"id": ID}], "id": ID}),
        http(b'{"jobs": ', length=100),
        http(b"boom", "500 Broken"),
        http({"detail": 7}, "503 Away"),
    ],
    ids=lambda answer: repr(answer[-12:]),
)
def test_what_is_no_answer_of_a_service_is_said_to_be_none(answer, call):
    with answering(answer) as queue, pytest.raises(ServerUnavailable) as caught:
        call(queue)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", ["1", "[]", "{}", '{"at": 1}', '{"seq": 1, "at": "2026-11-21"}'])
def test_an_event_that_is_none_ends_the_following(data):
    stream = http(f"data: {data}\n\n".encode())
    with answering(stream) as queue, pytest.raises(ServerUnavailable):
        list(queue.events(ID))


def test_a_stream_that_breaks_within_an_event_just_ends():
    event = '{"seq": 1, "kind": "leased", "at": "2026-11-21T05:54:55+00:00", "data": {}}'
    with answering(http(f'data: {event}\n\ndata: {{"seq": 2, "ki'.encode())) as queue:
        assert [one.seq for one in queue.events(ID)] == [1]


def test_refusals_are_in_the_server_s_words():
    problem = {"type": "about:blank", "detail": "there is no job"}
    with answering(http(problem, "404 Not Found")) as queue, pytest.raises(UnknownJob) as caught:
        queue.get(ID)
    assert str(caught.value) == "there is no job"
    with answering(http(b"", "301 Moved")) as queue, pytest.raises(BadInput, match="301 Moved"):
        queue.get(ID)


@pytest.mark.parametrize(
    "url",
    [
        *("", "tuner", "ftp://host", "http://", "http://:80", "http://[::1", "http://host:abc"),
        *("http://host:99999", "http://host:0", "http://a b", "http://host/ x", "http://höst"),
        *("http://user:password@host", "http://:password@host", "http://h?x=1", "http://h#x"),
        "http://host\nX: 1",
    ],
)
def test_what_is_no_server_is_refused(url):
    with pytest.raises(BadInput, match="a server is like"):
        RemoteQueue(url, None)


@pytest.mark.parametrize("key", ["a b", "a\nb", "kéy", "\n"])
def test_what_is_no_key_is_refused_and_not_shown(key):
    with pytest.raises(BadInput, match="TUNER_API_KEY holds no key") as caught:
        api_key({"TUNER_API_KEY": key})
    assert key.strip() == "" or key not in str(caught.value)


def test_a_key_s_line_end_is_none_of_it():
    assert api_key({"TUNER_API_KEY": "tuner_abc\r\n"}) == "tuner_abc"
