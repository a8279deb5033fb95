"""A package index on this machine: wheels made up by tests, served as pip and browsers expect."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ENGINE_FILES = {
    "vllm/__init__.py": b"",
    "vllm/ops.py": b"import triton\nused = 1\n\n\n@triton.jit\ndef kernel(x):\n    return used\n",
    "vllm/configs/a.json": b"{}\n",
    "vllm/_C.abi3.so": b"\x7fELF" * 1000,
    "vllm/page.html": b"<p>",
}


def wheel(
    name: str,
    version: str,
    files: Mapping[str, bytes],
    requires: tuple[str, ...] = (),
    recorded: Mapping[str, bytes] | None = None,
) -> bytes:
    """A wheel. `recorded` has contents for RECORD's hashes that differ from the files'."""
    info = f"{name}-{version}.dist-info"
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"]
    lines += [f"Requires-Dist: {one}\n" for one in requires]
    whole = {**files, f"{info}/METADATA": "".join(lines).encode()}
    whole[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    told = {**whole, **(recorded or {})}
    rows = [f"{path},sha256={_digest(content)},{len(content)}" for path, content in told.items()]
    whole[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for path, content in whole.items():
            archive.writestr(path, content)
    return made.getvalue()


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


@dataclass
class Index:
    """What a server offers, and what it was asked for."""

    url: str = ""
    wheels: dict[str, bytes] = field(default_factory=dict)  # by file name
    hashes: dict[str, str] = field(default_factory=dict)  # where they are lies
    ranges: bool = True
    cut_after: int | None = None  # answers to ranges end after so many bytes
    changing: bool = False  # each answer has another ETag
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path, Range

    def add(self, name: str, version: str, *args: object, **options: object) -> None:
        self.wheels[f"{name}-{version}-py3-none-any.whl"] = wheel(name, version, *args, **options)

    def file_url(self, name: str) -> str:
        return f"{self.url}/files/{name}"

    def environ(self) -> dict[str, str]:
        """Settings with which pip asks this index alone."""
        settings = {"PIP_INDEX_URL": f"{self.url}/simple", "PIP_CONFIG_FILE": "/dev/null"}
        return settings | {"PIP_RETRIES": "0", "PIP_NO_CACHE_DIR": "1", "PIP_FIND_LINKS": ""}


class _Handler(BaseHTTPRequestHandler):
    index: Index

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.index.asked.append((self.path, self.headers.get("Range")))
        kind, _, rest = self.path.strip("/").partition("/")
        if kind == "simple":
            self._page(rest.strip("/"))
        elif rest.removesuffix(".metadata") in self.index.wheels:
            self._file(rest)
        else:
            self.send_error(404)

    def _page(self, name: str) -> None:
        links = [_link(self.index, one) for one in self.index.wheels if one.startswith(f"{name}-")]
        if not links:
            self.send_error(404)
            return
        self._send(200, "\n".join(links).encode(), {"Content-Type": "text/html"})

    def _file(self, name: str) -> None:
        if name.endswith(".metadata"):
            self._send(200, _metadata(self.index.wheels[name.removesuffix(".metadata")]))
            return
        content = self.index.wheels[name]
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not asked or not self.index.ranges:
            self._send(200, content)
            return
        first, last = int(asked[1]), min(int(asked[2]), len(content) - 1)
        tag = str(len(self.index.asked)) if self.index.changing else "one"
        headers = {"Content-Range": f"bytes {first}-{last}/{len(content)}", "ETag": tag}
        self._send(206, content[first : last + 1], headers, self.index.cut_after)

    def _send(
        self,
        status: int,
        content: bytes,
        headers: Mapping[str, str] = {},  # noqa: B006
        cut_after: int | None = None,
    ) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(content[:cut_after])
        self.close_connection = True


@contextmanager
def serving() -> Iterator[Index]:
    """An index, until the block ends."""
    index = Index()

    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"index": index}))
    index.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield index
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _link(index: Index, name: str) -> str:
    digest = index.hashes.get(name) or hashlib.sha256(index.wheels[name]).hexdigest()
    href = f"{index.file_url(name)}#sha256={digest}"
    metadata = hashlib.sha256(_metadata(index.wheels[name])).hexdigest()
    return f'<a href="{href}" data-core-metadata="sha256={metadata}">{name}</a>'


def _metadata(content: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        return archive.read(name)
