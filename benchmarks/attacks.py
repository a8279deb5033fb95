"""What one address can do to the others with connections: their times, and the server's memory.

    python benchmarks/attacks.py [--seconds 60] [--json FILE]

The API runs as `tuner serve --no-worker` on a new SQLite store, with its default bounds and no
proxy. Each attack is a process that comes from 127.0.0.1, first without a key and then with one of
scope `read`. Meanwhile 127.0.0.2 asks for the health, over a new connection each time, and for a
list. Exit code 1: the other address waited for P99_MS or longer at p99, one of its requests failed,
or the server kept more than KEPT_MB. It takes 15 minutes of an idle machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from serving import JOB, ask, key_of, machine, print_table, quantiles, serving
from shown_store import publish, reports

from tuner.store.database import Database
from tuner.store.keys import Scope

P99_MS = 300.0  # another address waits for less
KEPT_MB = 50.0  # of memory after an attack, over what the server had before the first attack
PAUSE_S = 0.1  # of the others, after each answer: fewer than the rate of a key
SETTLES_S = 30.0  # until the memory is looked at after an attack
AGAIN_S = 0.05  # before an attacker's next connection
TOML = ("a." * 16_000 + "b = 1", "x = " + "[" * 16_000, "[[a.b]]\n" * 4_000)
BOMBS = (
    *(json.dumps({"cluster": text, "device": "L40S"}).encode() for text in TOML),
    b"[" * 60_000,
    b"[" + b"1," * 30_000 + b"1]",
    b'{"cluster": "' + "é".encode() * 1_000_000 + b'"}',
)
CHUNKS = b"1\r\n \r\n" * 60_000 + b"0\r\n\r\n"


class Attacker:
    """The connections of one attack, and what became of them."""

    def __init__(self, port: int, key: str, job_id: str) -> None:
        self.said: Counter[str] = Counter()
        self._port, self._job_id = port, job_id
        self._key = f"Authorization: Bearer {key}\r\n" if key else ""
        self._bombs = itertools.cycle(BOMBS)
        self._numbers = itertools.count(1)

    async def run(self, kind: str, seconds: float) -> None:
        count, attack = self.kinds()[kind]
        ends_at = time.monotonic() + seconds
        await asyncio.gather(*(self._again(attack, ends_at) for _ in range(count)))

    def kinds(self) -> Mapping[str, tuple[int, Attack]]:
        """How many connections each attack has at a time, and what each one does."""
        return {
            "": (0, self._idle),
            "pipelining": (100, self._pipeline),
            "idle": (1_100, self._idle),
            "slow heads": (400, self._slow_head),
            "slow bodies": (150, self._slow_body),
            "small chunks": (20, self._small_chunks),
            "bombs": (8, self._bomb),
            "streams": (85, self._stream),
            "exports": (8, self._export),
            "headers": (40, self._again_and_again(b"X: a\r\n" * 2_000)),
            "cookies": (40, self._again_and_again(b"Cookie: " + b"a=b; " * 6_000 + b"\r\n")),
            "documents": (90, self._again_and_again(b"", "/docs")),
        }

    async def _again(self, attack: Attack, ends_at: float) -> None:
        """Connect and attack until the time is over."""
        while (left := ends_at - time.monotonic()) > 0:
            writer = None
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                self.said["connections"] += 1
                await asyncio.wait_for(attack(reader, writer), left)
            except (OSError, asyncio.IncompleteReadError, TimeoutError, asyncio.TimeoutError):
                self.said["ended"] += 1
            finally:
                if writer is not None:
                    writer.transport.abort()
            await asyncio.sleep(AGAIN_S)

    async def _answer(self, reader: StreamReader) -> bytes:
        """The head of an answer, whose status counts."""
        head = await reader.readuntil(b"\r\n\r\n")
        self.said[head.split(b" ", 2)[1].decode()] += 1
        return head

    def _head(self, method: str, path: str, more: str = "") -> bytes:
        return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{self._key}{more}\r\n".encode()

    async def _pipeline(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Requests without an end, whose answers are not read."""
        reader._transport.pause_reading()
        asked = self._head("GET", "/openapi.json")
        while True:
            writer.write(asked * (63_000 // len(asked)))
            await writer.drain()
            await asyncio.sleep(1.0)

    def _again_and_again(self, lines: bytes, path: str = "/") -> Attack:
        """Ask for a page with these headers, as often as the server answers."""

        async def ask(reader: StreamReader, writer: StreamWriter) -> None:
            while True:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n".encode() + lines + b"\r\n")
                await reader.readexactly(_length(await self._answer(reader)))

        return ask

    async def _idle(self, reader: StreamReader, _: StreamWriter) -> None:
        await reader.read(1)

    async def _slow_head(self, reader: StreamReader, writer: StreamWriter) -> None:
        await _slowly(self._head("GET", "/v1/jobs")[:-2] + b"X: ", reader, writer)

    async def _slow_body(self, reader: StreamReader, writer: StreamWriter) -> None:
        more = "Content-Type: application/json\r\nContent-Length: 1000\r\n"
        await _slowly(self._head("POST", "/v1/bundles", more), reader, writer)

    async def _small_chunks(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Send a body of 60,000 chunks of a byte each, whatever the answer is."""
        more = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
        writer.write(self._head("POST", "/v1/bundles", more) + CHUNKS)
        await self._answer(reader)

    async def _bomb(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Bodies that take longer to read than to send."""
        while True:
            body = next(self._bombs)
            more = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            writer.write(self._head("POST", "/v1/bundles", more) + body)
            await writer.drain()
            await reader.readexactly(_length(await self._answer(reader)))

    async def _stream(self, reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(self._head("GET", f"/v1/jobs/{self._job_id}/events"))
        await self._answer(reader)
        while await reader.read(1 << 16):
            pass

    async def _export(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Exports of ever new settings, so that none of them is kept already."""
        flag = f"--chunked-prefill-size%20{next(self._numbers)}"
        writer.write(self._head("GET", f"/v1/exports/H200.tar?server_args={flag}"))
        length = _length(await self._answer(reader))
        await reader.readexactly(length)


def _length(head: bytes) -> int:
    """Return the length of the body of an answer."""
    return int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])


async def _slowly(start: bytes, reader: StreamReader, writer: StreamWriter) -> None:
    """Send the start, and then a byte a second, until the server ends it."""
    writer.write(start)
    while not reader.at_eof():
        writer.write(b"1")
        await writer.drain()
        with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(reader.read(1 << 16), 1.0)


Attack = Callable[[StreamReader, StreamWriter], Awaitable[None]]
Row = dict[str, Any]  # the columns of the table


def main() -> int:
    kinds = [kind for kind in Attacker(0, "", "").kinds() if kind]
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0, help="of each attack")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--attack", nargs=4, metavar=("PORT", "KEY", "JOB", "KIND"))
    options = parser.parse_args()
    if options.attack:
        port, key, job_id, kind = options.attack
        attacker = Attacker(int(port), key, job_id)
        asyncio.run(attacker.run(kind, options.seconds))
        print(json.dumps(attacker.said))
        return 0
    before = machine()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(f"sqlite:///{folder}/tuner.db", kinds, options.seconds)
    found = [fault for row in rows for fault in faults(row, rows[0])]
    if options.json:
        text = {"machine": before, "seconds": options.seconds, "rows": rows, "faults": found}
        options.json.write_text(json.dumps(text, indent=1) + "\n")
    print_table(before, rows)
    for fault in found:
        print(f"BROKEN: {fault}", file=sys.stderr)
    return 1 if found else 0


def faults(row: Row, first: Row) -> list[str]:
    """What an attack did to the others or to the server that it must not do."""
    name = f"{row['attack']}, key {row['key']}"
    found = [
        f"{name}: {what} {row[what]} ms"
        for what in ("health p99", "list p99")
        if row[what] >= P99_MS
    ]
    found += [
        f"{name}: {row[what]} requests failed ({what})"
        for what in ("health failed", "list failed")
        if row[what]
    ]
    if row["after"] > first["MB before"] + KEPT_MB:
        found.append(f"{name}: {row['after']} MB are kept, of {first['MB before']} MB at first")
    return found


def measure(url: str, kinds: list[str], seconds: float) -> list[Row]:
    """A row for each attack, without a key and with one. The first row is of no attack."""
    rows: list[Row] = []
    with Database.open(url) as store:  # there is something to export
        for report in reports():
            publish(store, report)
    with (
        key_of(url, Scope.SUBMIT) as other,
        key_of(url, Scope.READ) as mine,
        serving(url, keyed=True, bounded=True) as (port, pid),
    ):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        job_id = json.loads(ask(connection, "POST", "/v1/jobs", JOB, 202, other))["id"]
        connection.close()
        probe(port, other, 3.0)  # nothing is imported or connected for the first time
        for kind, key in [("", ""), *itertools.product(kinds, ("", mine))]:
            resting = memory_mb(pid)
            command = [sys.executable, __file__, "--seconds", str(seconds)]
            command += ["--attack", str(port), key, job_id, kind]
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the highest memory counts from here
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attacker:
                times = probe(port, other, seconds)
                said, _ = attacker.communicate()
            memory = {"MB before": resting, "highest": memory_mb(pid, "VmHWM")}
            memory["after"] = settled(pid, rows[0]["MB before"] if rows else resting)
            named = {"attack": kind or "nothing", "key": "read" if key else "none"}
            load = round(os.getloadavg()[0], 1)
            rows.append({**named, "load": load, **times, **memory})
            print(rows[-1], said, file=sys.stderr)
    return rows


def probe(port: int, key: str, seconds: float) -> dict[str, float]:
    """Quantiles in ms of another address's times, and how many of its requests failed."""
    times: dict[str, list[float]] = {"health": [], "list": []}
    failed: Counter[str] = Counter()
    ends_at = time.monotonic() + seconds

    def ask_for(what: str) -> None:
        path, keeps = ("/healthz", False) if what == "health" else ("/v1/jobs?limit=20", True)
        client = http.client.HTTPConnection("127.0.0.1", port, 30, source_address=("127.0.0.2", 0))
        while time.monotonic() < ends_at:
            began = time.perf_counter()
            try:
                client.request("GET", path, headers={"Authorization": f"Bearer {key}"})
                answer = client.getresponse()
                answer.read()
                failed[what] += answer.status != 200
            except (OSError, http.client.HTTPException):
                failed[what] += 1
                client.close()
            times[what].append(time.perf_counter() - began)
            if not keeps:
                client.close()
            time.sleep(PAUSE_S)

    threads = [threading.Thread(target=ask_for, args=(what,)) for what in times]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    row: dict[str, float] = {}
    for what, found in times.items():
        made = quantiles(found)
        row |= {f"{what} {name}": made[f"{name}_ms"] for name in ("p50", "p99", "max")}
        row[f"{what} failed"] = failed[what]
    return row


def settled(pid: int, resting: float) -> float:
    """The memory of a process when it keeps no more than it may, or after SETTLES_S."""
    ends_at = time.monotonic() + SETTLES_S
    while memory_mb(pid) > resting + KEPT_MB and time.monotonic() < ends_at:
        time.sleep(0.5)
    return memory_mb(pid)


def memory_mb(pid: int, which: str = "VmRSS") -> float:
    """The resident memory of a process: now, or the highest one."""
    said = Path(f"/proc/{pid}/status").read_text()
    return round(int(said.partition(f"{which}:")[2].split()[0]) / 1024, 1)


if __name__ == "__main__":
    sys.exit(main())
