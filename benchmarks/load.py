"""How fast the service answers: submissions, and what it lists out of a large store.

    python benchmarks/load.py submit URL...     # fresh stores: submissions a second, p50 and p99
    python benchmarks/load.py read URL...       # stores that fill_store.py filled: p50 and p99

Each URL is a store; the API runs as `tuner serve --no-worker` with one process, and the clients are
threads of this process, on the same machine. Prints the tables of docs/benchmarks.md, and writes
every figure, and the plans of the queries, to benchmarks/results/load_<what>_<database>.json.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import Engine, event

from tuner.devices.table import find_device
from tuner.jobs.job import JobState
from tuner.jobs.listing import ALL_JOBS, JobOrder, JobQuery
from tuner.store import JobStore, Store
from tuner.store.figures import Figures
from tuner.store.lookups import Lookups

RESULTS = Path(__file__).parent / "results"
JOB = {"model": "deepseek-r1", "device": "L40S", "tp": 32, "dtype": "int8_w8a8"}
WATCH = {
    "models": ["deepseek-r1", "qwen3-235b-a22b", "mixtral-8x7b", "glm-4.5", "kimi-k2"],
    "devices": ["L40S", "H200", "H100", "H20"],
    "tp": [4, 8],
    "dtypes": ["fp8_w8a8"],
}
BATCH = 100
SECONDS = 15.0  # of submissions, at each number of clients
READS = 400


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["submit", "read"])
    parser.add_argument("urls", nargs="+", metavar="URL")
    options = parser.parse_args()
    for url in options.urls:
        found = submissions(url) if options.what == "submit" else reads(url)
        database = url.partition(":")[0].partition("+")[0]
        path = RESULTS / f"load_{options.what}_{database}.json"
        path.write_text(json.dumps(found, indent=1) + "\n")
        print_table(database, found["rows"])


def submissions(url: str) -> dict[str, Any]:
    """New jobs, each another, as fast as the clients can."""
    seeds = itertools.count(time.time_ns() // 1000)
    before, rows = machine(), []
    with serving(url) as (port, pid):

        def post(connection: http.client.HTTPConnection) -> None:
            ask(connection, "POST", "/v1/jobs", {**JOB, "seed": next(seeds)}, 202)

        measure(port, post, 1, seconds=2)  # nothing is imported or connected for the first time

        def post_batch(connection: http.client.HTTPConnection) -> None:
            jobs = [{**JOB, "seed": next(seeds)} for _ in range(BATCH)]
            ask(connection, "POST", "/v1/jobs:batch", {"jobs": jobs}, 200)

        for clients, send, count in (
            (1, post, 1),
            (8, post, 1),
            (64, post, 1),
            (4, post_batch, BATCH),
        ):
            cpu_s = server_cpu_s(pid)
            took, latencies = measure(port, send, clients, seconds=SECONDS)
            cpu_ms = 1000 * (server_cpu_s(pid) - cpu_s) / len(latencies) / count
            rows.append(
                {
                    "clients": clients,
                    "jobs a request": count,
                    "jobs a second": round(count * len(latencies) / took, 1),
                    "API CPU ms a job": round(cpu_ms, 2),
                    **quantiles(latencies),
                }
            )
    return {"machine": before, "rows": rows}


def reads(url: str) -> dict[str, Any]:
    """Pages of a large store, for one client and for eight at once."""
    with JobStore.open(url) as jobs:
        middle = jobs.list(limit=1)[0].created_at.replace(month=2)
        finished = jobs.list(JobQuery(states=frozenset({JobState.DONE})), limit=1000)
    done = finished[0].id
    tuned = list(dict.fromkeys(job.request.problem.spec() for job in finished))[:10]
    after = cursor([middle.isoformat(), "z" * 26, ALL_JOBS.digest])
    pages = {
        "list": "/v1/jobs",
        "list, in the middle": f"/v1/jobs?after={after}",
        "list, by device": "/v1/jobs?device=L40S",
        "list, by state": "/v1/jobs?state=failed",
        "list, by two states": "/v1/jobs?state=failed&state=dead",
        "list, by client, oldest": "/v1/jobs?client=local&order=oldest",
        "list, since February": "/v1/jobs?created_after=2026-02-01T00:00:00Z&order=oldest",
        "list, by model": "/v1/jobs?model=mixtral-8x7b",
        "list, by device and state": "/v1/jobs?device=L40S&state=failed",
        "list, by all three": "/v1/jobs?device=L40S&state=failed&model=kimi-k2",
        "list, by a device that has none": "/v1/jobs?device=GB10",
        "a job": f"/v1/jobs/{done}",
        "a job's trials": f"/v1/jobs/{done}/trials?limit=100",
        "a job's winners": f"/v1/jobs/{done}/winners",
        "coverage": "/v1/coverage",
        "coverage, by device": "/v1/coverage?device=L40S",
        "coverage, in the middle": f"/v1/coverage?after={cursor([30, 100])}",
        "coverage, watched": "/v1/coverage/watched",
        "coverage, watched, missing": f"/v1/coverage/watched?after={cursor([60])}",
        "metrics": "/metrics",
    }
    before, rows = machine(), []
    with serving(url) as (port, _):
        for watch in ({**WATCH, "models": tuned, "tp": [1]}, WATCH):
            ask(http.client.HTTPConnection("127.0.0.1", port), "POST", "/v1/watches", watch, 201)
        for (name, path), clients in itertools.product(pages.items(), (1, 8)):

            def get(connection: http.client.HTTPConnection, path: str = path) -> None:
                ask(connection, "GET", path, None, 200)

            _, latencies = measure(port, get, clients, requests=READS)
            rows.append({"page": name, "clients": clients, **quantiles(latencies)})
    return {"machine": before, "rows": rows, "plans": plans(url, done)}


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
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as server:
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


def server_cpu_s(pid: int) -> float:
    """The processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(
    port: int,
    request: Callable[[http.client.HTTPConnection], None],
    clients: int,
    *,
    seconds: float | None = None,
    requests: int | None = None,
) -> tuple[float, list[float]]:
    """(wall seconds, each request's) of clients that ask again as soon as they are answered."""
    tickets = itertools.count()
    began = time.perf_counter()
    latencies: list[float] = []
    errors: list[BaseException] = []

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        try:
            while next(tickets) < (requests or 1 << 62):
                started = time.perf_counter()
                if seconds is not None and started - began > seconds:
                    break
                request(connection)
                latencies.append(time.perf_counter() - started)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return time.perf_counter() - began, latencies


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


def plans(url: str, job_id: str) -> dict[str, list[str]]:
    """Each read's statements, and how the database answers them."""
    with Store.open(url) as store:
        seen: list[tuple[str, Any]] = []

        def note(*arguments: object) -> None:  # connection, cursor, statement, parameters, ...
            seen.append((str(arguments[2]), arguments[3]))

        event.listen(store._engine, "before_cursor_execute", note)  # before others share it
        jobs, lookups, found = JobStore.sharing(store), Lookups.sharing(store), {}
        figures = Figures.sharing(store)
        job, device = jobs.get(job_id), find_device("L40S").name
        run_id = job.run_id or 0
        problem = job.request.problem
        failed = frozenset({JobState.FAILED})
        ended_badly = failed | {JobState.DEAD}
        calls: dict[str, Callable[[], object]] = {
            "list": lambda: jobs.list(),
            "list, in the middle": lambda: jobs.list(after=(job.created_at, job.id)),
            "list, by device": lambda: jobs.list(JobQuery(device=device)),
            "list, by state": lambda: jobs.list(JobQuery(states=failed)),
            "list, by two states": lambda: jobs.list(JobQuery(states=ended_badly)),
            "list, by model": lambda: jobs.list(JobQuery(model="kimi-k2")),
            "list, by client, oldest": lambda: jobs.list(
                JobQuery(client="local", order=JobOrder.OLDEST)
            ),
            "list, by device and state": lambda: jobs.list(JobQuery(device=device, states=failed)),
            "a job": lambda: jobs.get(job_id),
            "a job's events": lambda: jobs.events(job_id, 0, 500),
            "a job's trials": lambda: lookups.trials(run_id, ("up", 1, 0, 0, ""), 100),
            "a job's winners": lambda: lookups.winners_of(run_id),
            "coverage": lambda: lookups.stored_summaries(None, (30, 100), 50),
            "coverage, by device": lambda: lookups.stored_summaries(device, None, 50),
            "environments": lambda: lookups.environments([device]),
            "coverage, watched": lambda: lookups.published([device], ["sglang"], [problem]),
            "metrics": lambda: figures.read(),
            "metrics, finished jobs": lambda: figures.finished(),
        }
        for name, call in calls.items():
            seen.clear()
            call()
            found[name] = explain(store._engine, list(seen))
        return found


def explain(engine: Engine, seen: Sequence[tuple[str, Any]]) -> list[str]:
    """The plans of statements with their parameters."""
    word = "EXPLAIN (ANALYZE)" if engine.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN"
    lines = []
    with engine.connect() as connection:
        for statement, parameters in seen:
            rows = connection.exec_driver_sql(f"{word} {statement}", parameters)
            lines += [str(row[-1]) for row in rows]
    return lines


def cursor(place: Sequence[Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def machine() -> str:
    load = f"load {os.getloadavg()[0]:.1f} before"
    return f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, {load}"


def print_table(database: str, rows: Sequence[dict[str, Any]]) -> None:
    print(f"\n{database}\n\n| {' | '.join(rows[0])} |\n|{'---|' * len(rows[0])}")
    for row in rows:
        print(f"| {' | '.join(str(value) for value in row.values())} |")


if __name__ == "__main__":
    main()
