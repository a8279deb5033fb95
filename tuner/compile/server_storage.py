"""A server's folder as the storage of a shared cache, for hosts that have nothing else in common.

fsspec's HTTP storage would not do: it needs a package of its own, knows no time of use, and lists
folders as web pages.
"""

from __future__ import annotations

import http.client
import json
import logging
import threading
from urllib.parse import urlsplit

from tuner.compile.storage import LARGEST_OBJECT
from tuner.errors import BadInput

log = logging.getLogger("tuner.compile")

PATH = "/v1/compiled/"
KEY_VARIABLE = "TUNER_API_KEY"
TIMEOUT_S = 30.0  # without a byte


class ServerStorage:
    """Objects that `tuner serve` keeps. It notes their use and bounds their size by itself.

    Each thread keeps a connection. Methods raise OSError, with the server's words where it refused.
    """

    def __init__(self, url: str, key: str) -> None:
        """`url` is the server's, `key` one of its keys. Raises BadInput for what is none."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host or "@" in parts.netloc or parts.query or parts.fragment:
            raise BadInput(f"a server is like https://HOST or http://HOST:PORT: not {url!r}")
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise BadInput(f"{KEY_VARIABLE} holds no key: a key is one word")
        secure = parts.scheme == "https"
        self._kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self._host, self._port, self._url = host, port, url.rstrip("/")
        self._path = parts.path.rstrip("/") + PATH
        self._headers = {
            "Authorization": f"Bearer {key}",
            "Content-Type": "application/octet-stream",
        }
        self._kept = threading.local()

    def read(self, name: str) -> bytes | None:
        status, data = self._ask("GET", name)
        if status == 404:
            return None
        if status != 200:
            raise self._refusal(status, data)
        return data

    def write(self, name: str, data: bytes) -> None:
        status, answer = self._ask("PUT", name, data)
        if status == 413:  # the next one may be smaller
            log.warning("shared cache: %s is not shared: %s", name, _words(status, answer))
        elif status != 204:
            raise self._refusal(status, answer)

    def note_use(self, name: str) -> bool:
        return True  # the server did, when it was read

    def trim(self, limit_bytes: int) -> None:
        pass

    def _ask(self, method: str, name: str, body: bytes | None = None) -> tuple[int, bytes]:
        connection: http.client.HTTPConnection | None = getattr(self._kept, "connection", None)
        if connection is not None:
            try:
                return self._ask_over(connection, method, name, body)
            except (OSError, http.client.HTTPException):
                self._kept.connection = None  # servers end connections that have rested
        connection = self._kind(self._host, self._port, timeout=TIMEOUT_S)
        try:
            return self._ask_over(connection, method, name, body)
        except http.client.HTTPException as error:
            raise OSError(f"{self._url}: no whole answer came: {error!r}") from None

    def _ask_over(
        self, connection: http.client.HTTPConnection, method: str, name: str, body: bytes | None
    ) -> tuple[int, bytes]:
        try:
            connection.request(method, self._path + name, body, self._headers)
            answer = connection.getresponse()
            data = answer.read(LARGEST_OBJECT + 1)
        except BaseException:
            connection.close()
            raise
        self._kept.connection = connection
        return answer.status, data

    def _refusal(self, status: int, answer: bytes) -> OSError:
        return OSError(f"{self._url}: {_words(status, answer)}")


def _words(status: int, answer: bytes) -> str:
    try:
        return str(json.loads(answer)["detail"])
    except (ValueError, KeyError, TypeError):
        return f"{status} {http.client.responses.get(status, '')}".strip()
