"""What six export clients do to the job list of a service.

    TUNER_DATABASE_URL=URL python benchmarks/fill_store.py
    python benchmarks/exports.py URL...      # stores that fill_store.py filled

Each URL is a store; the API runs as `tuner serve --no-worker` with one process and no limit of
rates. One client asks for the job list, and again as soon as it is answered, alone and beside six
export clients, which run in a process of their own:

- polling: they have the export, and ask together ten times a second whether it changed
- downloading: they download the whole of it, together ten times a second
- without a pause: as polling and downloading, but each asks again as soon as it is answered
- changing: as polling, while a winner is published every second, so that the export is made anew

The cases take turns, several times. Writes every figure to
benchmarks/results/exports_<database>.json.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
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
    listed: dict[str, list[float]] = {"alone": [], **{case.name: [] for case in CASES}}
    exported: dict[str, list[tuple[int, float]]] = {case.name: [] for case in CASES}
    with serving(url) as (port, _):
        made = first_export(port)
        list_jobs(port, 1.0)  # nothing is imported or connected for the first time
        for _ in range(rounds):
            listed["alone"] += list_jobs(port, SECONDS)
            for case in CASES:
                with contextlib.ExitStack() as beside:
                    if case.changing:
                        beside.enter_context(publishing(url))
                    answers = beside.enter_context(exporting(port, case))
                    listed[case.name] += list_jobs(port, SECONDS)
                exported[case.name] += answers
    alone = quantiles(listed["alone"])["p50_ms"]
    rows = []
    for name, latencies in listed.items():
        row = {"beside": name, **quantiles(latencies)}
        row["p50_change"] = f"{100 * (row['p50_ms'] / alone - 1):+.0f} %"
        answers = exported.get(name, [])
        row["exports_a_second"] = round(len(answers) / rounds / SECONDS, 1)
        row["exports_p50_ms"] = quantiles([t for _, t in answers])["p50_ms"] if answers else None
        row["statuses"] = json.dumps(Counter(status for status, _ in answers))
        rows.append(row)
    return {"machine": before, "load after": machine(), "first export": made, "rows": rows}


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
