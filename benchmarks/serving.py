"""A server over a store, requests to it, and tables: what the scripts that serve share."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tuner.store.keys import KeyStore, Scope

JOB = {"model": "deepseek-r1", "device": "L40S", "tp": 32, "dtype": "int8_w8a8"}


@contextlib.contextmanager
def serving(url: str, *, keyed: bool = False, bounded: bool = False) -> Iterator[tuple[int, int]]:
    """The port and the process of a server over that store.

    `keyed`: it asks for a key; `bounded`: it has the rates that it has by default.
    """
    environ = {**os.environ, "TUNER_DATABASE_URL": url}
    if not bounded:
        environ |= {"TUNER_API_RATE": "none", "TUNER_API_SUBMIT_RATE": "none"}
        environ["TUNER_API_QUEUED"] = "1000000"
    tuner = str(Path(sys.executable).with_name("tuner"))
    command = [tuner, "serve", "--port", "0", "--no-worker"]
    command += [] if keyed else ["--no-auth"]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            command,
            # The user's own key is for another store, and stays.
            env={**environ, "TUNER_API_KEY_FILE": str(Path(folder, "api-key"))},
            stderr=subprocess.PIPE,
            text=True,
        ) as server,
    ):
        assert server.stderr
        for line in server.stderr:
            if "Uvicorn running on" in line:
                break
        drain = threading.Thread(target=server.stderr.read, daemon=True)  # or its pipe fills
        drain.start()
        try:
            yield int(urlsplit(json.loads(line)["message"].split()[3]).port or 0), server.pid
        finally:
            server.terminate()


@contextlib.contextmanager
def key_of(url: str, scope: Scope) -> Iterator[str]:
    """A key for as long as the block runs."""
    name = f"script-{time.time_ns()}"
    with KeyStore.open(url) as keys:
        yield keys.add(name, scope)
        keys.revoke(name, last_too=True)


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: object,
    status: int,
    key: str = "",
) -> bytes:
    """The answer to a request that must have that status."""
    headers = {"Content-Type": "application/json"} if body else {}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    connection.request(method, path, json.dumps(body) if body else None, headers)
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status == status, (answer.status, text)
    return text


def quantiles(latencies: Sequence[float]) -> dict[str, float]:
    ordered = sorted(latencies)

    def at(share: float) -> float:
        return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)

    return {"requests": len(ordered), "p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": at(1)}


def machine() -> str:
    load = f"load {os.getloadavg()[0]:.1f} before"
    return f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, {load}"


def print_table(database: str, rows: Sequence[dict[str, Any]]) -> None:
    print(f"\n{database}\n\n| {' | '.join(rows[0])} |\n|{'---|' * len(rows[0])}")
    for row in rows:
        print(f"| {' | '.join(str(value) for value in row.values())} |")
