"""Read a file on a web server, transferring only the parts that are read."""

from __future__ import annotations

import http.client
import io
import os
import re
import ssl
import urllib.error
import urllib.request
from collections import OrderedDict

from tuner.errors import EngineNotFetched

BLOCK_BYTES = 1 << 20
_KEPT_BLOCKS = 4  # the directory at a zip's end, and the places of its files that are being read
_ATTEMPTS = 3
_TIMEOUT_S = 60
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class RangesRefused(Exception):  # noqa: N818
    """The server does not send parts of this file, or not to this client."""


class RemoteFile(io.RawIOBase):
    """A file that is read by range requests, a block at a time.

    Raises RangesRefused if the server is not reached at first, or answers with anything but the
    requested range, and EngineNotFetched if it breaks off several times or changes the file in
    between.
    """

    def __init__(self, url: str) -> None:
        if not url.startswith(("https://", "http://")):
            raise RangesRefused(url)
        self.url = url
        self.transferred = 0  # bytes
        self._context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT") or None)
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._position = 0
        self._tag: str | None = None
        self.size = 0
        self.size = self._request(0, 0)[1]

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say that it can be read from any position on."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position, as files do."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read up to the end of a block."""
        if self._position >= self.size:
            return 0
        index, start = divmod(self._position, BLOCK_BYTES)
        part = self._block(index)[start : start + len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)

    def _block(self, index: int) -> bytes:
        if index not in self._blocks:
            first = index * BLOCK_BYTES
            last = min(first + BLOCK_BYTES, self.size) - 1
            self._blocks[index] = self._request(first, last)[0]
            if len(self._blocks) > _KEPT_BLOCKS:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(index)
        return self._blocks[index]

    def _request(self, first: int, last: int) -> tuple[bytes, int]:
        """Return the bytes `first` to `last`, and the size of the whole file."""
        for _ in range(_ATTEMPTS):
            try:
                return self._request_once(first, last)
            except urllib.error.HTTPError as error:
                if error.code < 500:
                    raise RangesRefused(f"{self.url}: {error}") from None
                reason: Exception = error
            except (OSError, http.client.HTTPException) as error:
                if not self.size:  # pip may get there: it has proxies and certificates of its own
                    raise RangesRefused(f"{self.url}: {error}") from None
                reason = error
        if not self.size:
            raise RangesRefused(f"{self.url}: {reason}")
        raise EngineNotFetched(
            f"{self.url} broke off {_ATTEMPTS} times at byte {first} ({reason}): "
            "check the network and run the same command again"
        )

    def _request_once(self, first: int, last: int) -> tuple[bytes, int]:
        headers = {"Range": f"bytes={first}-{last}", "Accept-Encoding": "identity"}
        request = urllib.request.Request(self.url, headers=headers)  # noqa: S310  # see __init__
        with urllib.request.urlopen(  # noqa: S310
            request, timeout=_TIMEOUT_S, context=self._context
        ) as answer:
            found = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            if answer.status != 206 or not found:
                raise RangesRefused(f"{self.url}: no range in the answer")
            wanted = last - first + 1
            body = answer.read(wanted + 1)
            tag = answer.headers.get("ETag")
        start, end, size = map(int, found.groups())
        if (start, end) != (first, last) or len(body) != wanted:
            raise http.client.HTTPException(f"{len(body)} of {wanted} bytes")
        if self.size and (size, tag) != (self.size, self._tag):
            raise EngineNotFetched(f"{self.url} changed while it was read: run this again")
        self._tag = tag
        self.transferred += wanted
        return body, size
