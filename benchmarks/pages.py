"""How fast the web pages are, by a browser's own timings, on a store that fill_store.py filled.

    python benchmarks/pages.py URL [--times 9]

URL is a store. The API runs as `tuner serve --no-worker`; Chromium runs on the same machine. Each
page is opened once to fill the caches, and then so often. `first` is the first page after the start
of the server, which sums up the whole store. Times are milliseconds: `answer` until the first byte,
`paint` until the first contentful paint, and `CPU` of the server for the page and its files. `KB`
are those over the wire, with an empty cache of the browser. `live` says how long after its commit a
step of a job reaches one of so many open streams, and what share of a core the server takes
meanwhile. Prints tables, and writes all figures to benchmarks/results/pages_<database>.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from hostile import key_of
from load import RESULTS, machine, print_table, serving
from playwright.sync_api import Browser, sync_playwright
from streams import cpu_s, submit

from tuner.store import JobStore, Store
from tuner.store.database import utc_now
from tuner.store.job_rows import append_event
from tuner.store.keys import Scope
from tuner.store.lookups import Lookups

STREAMS = 50
STEPS = 20  # of the job that the streams follow, one each second
_TIMINGS = """async () => {
  await new Promise((painted) => {
    const observer = new PerformanceObserver((list) => {
      if (list.getEntriesByName("first-contentful-paint").length) painted();
    });
    observer.observe({ type: "paint", buffered: true });
  });
  const [page] = performance.getEntriesByType("navigation");
  const all = [page, ...performance.getEntriesByType("resource")];
  const [paint] = performance.getEntriesByName("first-contentful-paint");
  return {
    answer: page.responseStart - page.requestStart,
    paint: paint.startTime,
    bytes: all.reduce((sum, one) => sum + one.transferSize, 0),
  };
}"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--times", type=int, default=9)
    options = parser.parse_args()
    os.environ["TUNER_API_STREAMS"] = os.environ["TUNER_API_STREAMS_PER_KEY"] = "10000"
    before = machine()
    with (
        key_of(options.url, Scope.SUBMIT) as key,
        serving(options.url, keyed=True) as (port, pid),
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        first = first_page(browser, port, key)
        rows = [
            {"page": name, **opened(browser, port, pid, key, path, options.times)}
            for name, path in pages(options.url).items()
        ]
        browser.close()
        live = follow(options.url, port, key, pid)
    database = options.url.partition(":")[0].partition("+")[0]
    found = {"machine": before, "first": first, "rows": rows, "live": live}
    (RESULTS / f"pages_{database}.json").write_text(json.dumps(found, indent=1) + "\n")
    print_table(database, rows)
    print(json.dumps({"first": first, "live": live}))


def pages(url: str) -> dict[str, str]:
    """The addresses of one page of each kind, with something on it."""
    with Store.open(url) as store:
        (summary,) = Lookups.sharing(store).stored_summaries(None, None, 1)
        job = next(
            one for one in JobStore.sharing(store).list(limit=1000) if not one.state.finished
        )
        done = JobStore.sharing(store).list(limit=3000)[-1]
    result = f"/results?problem={quote(summary.problem.spec())}&device={summary.environment.device}"
    return {
        "coverage": "/",
        "coverage, 200 problems": "/?limit=200",
        "coverage, largest gain": "/?order=speedup",
        "jobs": "/jobs",
        "a queued job": f"/jobs/{job.id}",
        "a done job": f"/jobs/{done.id}",
        "a result": result,
        "comparison": f"/compare?problem={quote(summary.problem.spec())}",
        "workers": "/workers",
        "exports": "/exports",
        "models": "/models",
    }


def log_in(browser: Browser, port: int, key: str) -> Any:  # noqa: ANN401 (Playwright's own)
    """The cookies of a new session."""
    context = browser.new_context(base_url=f"http://127.0.0.1:{port}")
    page = context.new_page()
    page.goto("/login?next=models")
    page.fill("#key", key)
    page.click("main button")
    page.wait_for_url("**/models")
    state = context.storage_state()
    context.close()
    return state


def first_page(browser: Browser, port: int, key: str) -> dict[str, float]:
    """The timings of the first page after the start of the server."""
    return timings(browser, port, log_in(browser, port, key), "/")


def timings(browser: Browser, port: int, session: Any, path: str) -> dict[str, float]:  # noqa: ANN401
    """The timings of a page in a browser whose cache is empty."""
    context = browser.new_context(base_url=f"http://127.0.0.1:{port}", storage_state=session)
    page = context.new_page()
    answer = page.goto(path, wait_until="load")
    assert answer is not None and answer.ok, path
    found: dict[str, float] = page.evaluate(_TIMINGS)
    context.close()
    return found


def opened(
    browser: Browser, port: int, pid: int, key: str, path: str, times: int
) -> dict[str, Any]:
    """Median timings of a page, and what came over the wire."""
    session = log_in(browser, port, key)
    timings(browser, port, session, path)
    used = cpu_s(pid)
    found = [timings(browser, port, session, path) for _ in range(times)]
    used = cpu_s(pid) - used
    middle = {name: statistics.median(one[name] for one in found) for name in found[0]}
    return {
        "answer": round(middle["answer"]),
        "paint": round(middle["paint"]),
        "slowest paint": round(max(one["paint"] for one in found)),
        "CPU": round(1000 * used / times),
        "KB": round(max(one["bytes"] for one in found) / 1000, 1),
    }


def follow(url: str, port: int, key: str, pid: int) -> dict[str, float]:
    """Delays of steps in one of STREAMS streams of a job, and the server's share of a core."""
    job_id = submit(port, key, 0)
    seen: list[float] = []
    with contextlib.ExitStack() as streams:
        clients = [streams.enter_context(_stream(port, key, job_id)) for _ in range(STREAMS)]
        reader = threading.Thread(target=_read, args=(clients[0], seen), daemon=True)
        reader.start()
        time.sleep(2)
        began, used, committed = time.monotonic(), cpu_s(pid), []
        with JobStore.open(url) as jobs:
            for number in range(STEPS):
                with jobs._write() as connection:
                    data = {"tried": 10, "new": 10, "best_us": {"M=1 up": 10.0 - number / 10}}
                    append_event(connection, job_id, utc_now(), "trials", data)
                committed.append(time.monotonic())
                time.sleep(1)
        share = (cpu_s(pid) - used) / (time.monotonic() - began)
        reader.join(5)
        with JobStore.open(url) as jobs:
            jobs.cancel(job_id)
    delays = [got - sent for sent, got in zip(committed, seen[-len(committed) :], strict=True)]
    return {
        "streams": STREAMS,
        "slowest_ms": round(1000 * max(delays)),
        "median_ms": round(1000 * statistics.median(delays)),
        "percent_of_a_core": round(100 * share, 2),
    }


@contextlib.contextmanager
def _stream(port: int, key: str, job_id: str) -> Iterator[socket.socket]:
    head = f"GET /v1/jobs/{job_id}/events HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Authorization: Bearer {key}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(head.encode())
        yield client


def _read(client: socket.socket, seen: list[float]) -> None:
    """Note when each step of trials arrives."""
    while len(seen) < STEPS:
        chunk = client.recv(1 << 16)
        seen.extend([time.monotonic()] * chunk.count(b"event: trials"))


if __name__ == "__main__":
    main()
