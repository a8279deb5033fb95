"""How far open job pages are behind the store, and what they cost the server.

    python benchmarks/live_pages.py URL [--pages 50] [--steps 30]

URL is a store. The API runs as `tuner serve --no-worker`. One page of a job is open in Chromium.
The other pages are event streams of the same job, which is all that an open page asks for. Each
second a step with trials is committed. The delay is from its commit until the number on the page
changes, by the clock of this machine. The share of a core is that of the server's process, by
/proc. Prints the figures, and writes them to benchmarks/results/live_pages_<database>.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import statistics
import time
from collections.abc import Iterator

from hostile import key_of
from load import RESULTS, machine, serving
from pages import log_in
from playwright.sync_api import sync_playwright
from streams import cpu_s, submit

from tuner.store import JobStore
from tuner.store.database import utc_now
from tuner.store.job_rows import append_event
from tuner.store.keys import Scope

TRIED = 10  # trials of a step
SETTLED_S = 2.0  # until all streams have read what there is
# Notes when the page shows each number of trials.
_WATCH = """() => {
  window.shown = {};
  const tried = document.getElementById("tried");
  new MutationObserver(() => {
    window.shown[tried.dataset.count] = performance.timeOrigin + performance.now();
  }).observe(tried, { attributes: true });
}"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--pages", type=int, default=50)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    os.environ["TUNER_API_STREAMS"] = os.environ["TUNER_API_STREAMS_PER_KEY"] = "10000"
    before = machine()
    with (
        key_of(options.url, Scope.SUBMIT) as key,
        serving(options.url, keyed=True) as (port, pid),
    ):
        found = follow(options.url, port, key, pid, options.pages, options.steps)
    database = options.url.partition(":")[0].partition("+")[0]
    figures = {"machine": before, "pages": options.pages, **found}
    (RESULTS / f"live_pages_{database}.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures, indent=1))


def follow(url: str, port: int, key: str, pid: int, pages: int, steps: int) -> dict[str, float]:
    """Delays of the steps of a job on its page, and the server's share of a core."""
    job_id = submit(port, key, 0)
    with contextlib.ExitStack() as streams, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        base = f"http://127.0.0.1:{port}"
        page = browser.new_page(base_url=base, storage_state=log_in(browser, port, key))
        page.goto(f"/jobs/{job_id}", wait_until="load")
        page.evaluate(_WATCH)
        for _ in range(pages - 1):
            streams.enter_context(_stream(port, key, job_id))
        time.sleep(SETTLED_S)
        began, used = time.monotonic(), cpu_s(pid)
        committed = {TRIED * number: _step(url, job_id) for number in range(1, steps + 1)}
        share = (cpu_s(pid) - used) / (time.monotonic() - began)
        page.wait_for_function(f"window.shown[{TRIED * steps}]")
        shown = page.evaluate("window.shown")
        browser.close()
    with JobStore.open(url) as jobs:
        jobs.cancel(job_id)
    delays = [
        shown[str(count)] / 1000 - at for count, at in committed.items() if str(count) in shown
    ]
    return {
        "steps": steps,
        "steps_drawn_alone": len(delays),  # two that come at once are drawn together
        "median_ms": round(1000 * statistics.median(delays)),
        "slowest_ms": round(1000 * max(delays)),
        "percent_of_a_core": round(100 * share, 2),
    }


def _step(url: str, job_id: str) -> float:
    """Commit a step, and wait for a second. When it was committed."""
    with JobStore.open(url) as jobs:
        with jobs._write() as connection:
            data = {"tried": TRIED, "new": TRIED, "statuses": {"ok": TRIED}}
            best = {"best_us": {"M=1 up": 10.0}, "incumbents_us": {}}
            append_event(connection, job_id, utc_now(), "trials", {**data, **best})
        at = time.time()
        time.sleep(1)
    return at


@contextlib.contextmanager
def _stream(port: int, key: str, job_id: str) -> Iterator[socket.socket]:
    head = f"GET /v1/jobs/{job_id}/events HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Authorization: Bearer {key}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(head.encode())
        yield client


if __name__ == "__main__":
    main()
