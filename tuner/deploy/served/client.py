"""Ask a server on this machine, and see when each token of an answer arrives."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from tuner.engines.server import Post, Server
from tuner.errors import ServerUnavailable

_HOST = "127.0.0.1"
_DATA = b"data:"
_END = b"[DONE]"


@dataclass(frozen=True)
class Arrival:
    """How many tokens of an answer had arrived at a time (`time.perf_counter`, in seconds)."""

    at_s: float
    tokens: int


def is_ready(port: int, path: str, timeout_s: float) -> bool:
    """Whether the server answers 200."""
    try:
        with closing(http.client.HTTPConnection(_HOST, port, timeout=timeout_s)) as connection:
            connection.request("GET", path)
            return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False


def ask(port: int, post: Post, timeout_s: float) -> Any:  # noqa: ANN401 (any JSON)
    """The JSON of an answer, or its text. Raises ServerUnavailable."""
    with closing(http.client.HTTPConnection(_HOST, port, timeout=timeout_s)) as connection:
        text = b"".join(_sent(connection, post))
    try:
        return json.loads(text)
    except ValueError:
        return text.decode(errors="replace")


def stream(server: Server, port: int, post: Post, timeout_s: float) -> list[Arrival]:
    """When the tokens of a streamed answer arrived. Raises ServerUnavailable."""
    found: list[Arrival] = []
    with closing(http.client.HTTPConnection(_HOST, port, timeout=timeout_s)) as connection:
        for line in _sent(connection, post):
            if not line.startswith(_DATA) or _END in line:
                continue
            at_s = time.perf_counter()
            tokens = _tokens(server, line.removeprefix(_DATA))
            if tokens > (found[-1].tokens if found else 0):
                found.append(Arrival(at_s, tokens))
    return found


def _tokens(server: Server, text: bytes) -> int:
    try:
        event: Mapping[str, Any] = json.loads(text)
        return server.streamed(event)
    except (ValueError, KeyError, TypeError, IndexError):
        said = text.decode(errors="replace").strip()
        raise ServerUnavailable(f"the server streamed what is no answer: {said[:300]}") from None


def _sent(connection: http.client.HTTPConnection, post: Post) -> Iterator[bytes]:
    """The lines of the answer as they arrive."""
    try:
        body = json.dumps(post.body).encode()
        connection.request("POST", post.path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            said = answer.read().decode(errors="replace").strip()
            raise ServerUnavailable(
                f"the server answered {answer.status} to {post.path}: {said[:300]}"
            )
        yield from answer
    except TimeoutError:
        raise ServerUnavailable(
            f"{post.path} was not answered within {connection.timeout:g} s: give it longer with "
            "--load-timeout, or choose a smaller load"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise ServerUnavailable(f"{post.path} was not answered: {error}") from None
