"""What six export clients do to the job list of a service.

    TUNER_DATABASE_URL=URL python benchmarks/fill_store.py
    python benchmarks/exports.py URL...      # stores that fill_store.py filled

Each URL is a store; the API runs as `tuner serve --no-worker` with one process and no limit of
rates. One client asks for the job list, and again as soon as it is answered, beside six export
clients, which run in a process of their own:

- polling: they have the export, and ask together ten times a second whether it changed
- downloading: they download the whole of it, together ten times a second
- without a pause: as polling and downloading, but each asks again as soon as it is answered
- changing: as polling, while a winner is published every second, so that the export is made anew

The cases take turns, several times, and after each one the job list's client goes on alone. Writes
every figure to benchmarks/results/exports_<database>.json.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from statistics import median
from typing import Any

from load import RESULTS, ask, machine, print_table, quantiles, serving

from tuner.problems.records import RunKey
from tuner.problems.results import MeasureKind, Totals
from tuner.store import Store

EXPORT = "/v1/exports/L40S.tar?engine=sglang==0.5.16"
LIST = "/v1/jobs?limit=1"
CLIENTS = 6
A_SECOND = 10.0  # requests of all export clients together
SECONDS = 4.0  # of one case in one round
ROUNDS = 5


@dataclass(frozen=True)
class Case:
    """What the export clients do."""

    name: str
    conditional: bool  # they send If-None-Match
    a_second: float | None  # of all together; None: without a pause
    changing: bool = False


CASES = (
    Case("polling", True, A_SECOND),
    Case("downloading", False, A_SECOND),
    Case("polling without a pause", True, None),
    Case("downloading without a pause", False, None),
    Case("changing", True, A_SECOND, changing=True),
)


@dataclass
class Found:
    """What was measured of a case, by round."""

    alone: list[list[float]] = field(default_factory=list)  # latencies of the job list, seconds
    beside: list[list[float]] = field(default_factory=list)
    answers: list[tuple[int, float]] = field(default_factory=list)  # of exports: status, seconds

    def row(self) -> dict[str, Any]:
        alone, beside = (quantiles(sum(of, [])) for of in (self.alone, self.beside))
        pairs = zip(self.alone, self.beside, strict=True)
        change = median(median(other) / median(one) - 1 for one, other in pairs)
        exports = quantiles([seconds for _, seconds in self.answers])
        statuses = Counter(status for status, _ in self.answers)
        return {
            **{f"alone {name}": alone[name] for name in ("p50_ms", "p99_ms")},
            **{f"beside {name}": beside[name] for name in ("p50_ms", "p99_ms")},
            "p50 change, median of rounds": f"{100 * change:+.0f} %",
            "requests": alone["requests"] + beside["requests"],
            "exports a second": round(len(self.answers) / len(self.beside) / SECONDS, 1),
            "export p50_ms": exports["p50_ms"],
            "statuses": " ".join(f"{status}: {n}" for status, n in statuses.items()),
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("urls", nargs="+", metavar="URL")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    for url in options.urls:
        found = measured(url, options.rounds)
        database = url.partition(":")[0].partition("+")[0]
        path = RESULTS / f"exports_{database}.json"
        path.write_text(json.dumps(found, indent=1) + "\n")
        print_table(database, found["rows"])


def measured(url: str, rounds: int) -> dict[str, Any]:
    """The latencies of the job list in each case, of all rounds together."""
    before = machine()
    found = {case.name: Found() for case in CASES}
    with serving(url) as (port, _):
        made = first_export(port)
        list_jobs(port, 1.0)  # nothing is imported or connected for the first time
        for case in CASES * rounds:
            here = found[case.name]
            with contextlib.ExitStack() as beside:
                if case.changing:
                    beside.enter_context(publishing(url))
                with exporting(port, case) as answers:
                    here.beside.append(list_jobs(port, SECONDS))
                here.alone.append(list_jobs(port, SECONDS))  # as busy a machine as a moment ago
            here.answers += answers
    rows = [{"six clients": name, **here.row()} for name, here in found.items()]
    after = round(os.getloadavg()[0], 1)
    return {"machine": before, "load after": after, "first export": made, "rows": rows}


def first_export(port: int) -> dict[str, float]:
    """How long an export takes when it is made, and when it is kept."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    took = []
    for _ in range(2):
        started = time.perf_counter()
        connection.request("GET", EXPORT)
        answer = connection.getresponse()
        size = len(answer.read())
        assert answer.status == 200, answer.status
        took.append(round(1000 * (time.perf_counter() - started), 1))
    return {"bytes": size, "made_ms": took[0], "kept_ms": took[1]}


def list_jobs(port: int, seconds: float) -> list[float]:
    """The latencies of one client that asks for the job list without a pause."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    ends, latencies = time.perf_counter() + seconds, []
    while (started := time.perf_counter()) < ends:
        ask(connection, "GET", LIST, None, 200)
        latencies.append(time.perf_counter() - started)
    return latencies


@contextlib.contextmanager
def exporting(port: int, case: Case) -> Iterator[list[tuple[int, float]]]:
    """Export clients while the block runs; then their answers: (status, seconds)."""
    answers: list[tuple[int, float]] = []
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=export_clients, args=(port, case, ready, stop, theirs))
    process.start()
    assert ready.wait(60)
    try:
        yield answers
    finally:
        stop.set()
        answers += ours.recv()
        process.join()


def export_clients(port: int, case: Case, ready: Event, stop: Event, answers: Connection) -> None:
    """The process of the export clients."""
    found: list[tuple[int, float]] = []
    pause = CLIENTS / case.a_second if case.a_second else 0.0

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        tag = ""
        if case.conditional:
            connection.request("GET", EXPORT)
            answer = connection.getresponse()
            answer.read()
            tag = answer.headers["ETag"]
        prepared.wait()
        stop.wait(pause * number / CLIENTS)
        while not stop.is_set():
            started = time.perf_counter()
            connection.request("GET", EXPORT, headers={"If-None-Match": tag} if tag else {})
            answer = connection.getresponse()
            answer.read()
            if tag:
                tag = answer.headers["ETag"]
            took = time.perf_counter() - started
            found.append((answer.status, took))
            stop.wait(max(0.0, pause - took))

    prepared = threading.Barrier(CLIENTS + 1)
    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    prepared.wait()
    ready.set()
    for thread in threads:
        thread.join()
    answers.send(found)


@contextlib.contextmanager
def publishing(url: str) -> Iterator[None]:
    """Publish one of the export's winners every second while the block runs."""
    stop = threading.Event()
    with Store.open(url) as store:
        winner = store.winners(device="NVIDIA_L40S", engine="sglang", engine_version="0.5.16")[0]
        points = (winner.entry.point,)
        key = RunKey(winner.problem, winner.environment, MeasureKind.GPU, "quick", 1, points, "s")

        def publish() -> None:
            while not stop.wait(1.0):
                store.finish_run(store.begin_run(key), [winner.entry], Totals())

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


if __name__ == "__main__":
    main()
