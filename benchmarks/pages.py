"""How fast the web pages are, by a browser's own timings, on a store that fill_store.py filled.

    python benchmarks/pages.py URL [--times 9]

URL is a store. The API runs as `tuner serve --no-worker`; Chromium runs on the same machine. Each
page is opened once to fill the caches, and then so often. `first` is the first page after the start
of the server, which sums up the whole store. Times are milliseconds: `answer` until the first byte,
`paint` until the first contentful paint, `table` until Coverage's cells are painted too, which is a
frame later, and `CPU` of the server for the page and its files. `KB` are those over the wire, with
an empty cache of the browser. Prints a table, and writes all figures to
benchmarks/results/pages_<database>.json. A store is filled once, into a file:

    TUNER_DATABASE_URL=sqlite:////tmp/filled.db python benchmarks/fill_store.py
    python benchmarks/pages.py sqlite:////tmp/filled.db
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from typing import Any
from urllib.parse import quote

from hostile import key_of
from load import RESULTS, machine, print_table, serving
from playwright.sync_api import Browser, sync_playwright
from streams import cpu_s

from tuner.store import JobStore, Store
from tuner.store.keys import Scope
from tuner.store.lookups import Lookups

_TIMINGS = """async () => {
  await new Promise((painted) => {
    const observer = new PerformanceObserver((list) => {
      if (list.getEntriesByName("first-contentful-paint").length) painted();
    });
    observer.observe({ type: "paint", buffered: true });
  });
  const cell = await new Promise((painted) => {
    if (!document.querySelector(".cell")) painted(null);
    const observer = new PerformanceObserver((list) => painted(list.getEntries()[0].renderTime));
    observer.observe({ type: "element", buffered: true });
  });
  const [page] = performance.getEntriesByType("navigation");
  const all = [page, ...performance.getEntriesByType("resource")];
  const [paint] = performance.getEntriesByName("first-contentful-paint");
  return {
    answer: page.responseStart - page.requestStart,
    paint: paint.startTime,
    table: cell ?? paint.startTime,
    bytes: all.reduce((sum, one) => sum + one.transferSize, 0),
  };
}"""

# The paint of Coverage's first cell is an entry too.
_MARK_CELL = """new MutationObserver((_, observer) => {
  const cell = document.querySelector(".cell");
  if (!cell) return;
  cell.setAttribute("elementtiming", "cell");
  observer.disconnect();
}).observe(document, { childList: true, subtree: true });"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--times", type=int, default=9)
    options = parser.parse_args()
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
    database = options.url.partition(":")[0].partition("+")[0]
    found = {"machine": before, "first": first, "rows": rows}
    (RESULTS / f"pages_{database}.json").write_text(json.dumps(found, indent=1) + "\n")
    print_table(database, rows)
    print(json.dumps({"first": first}))


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


def timings(
    browser: Browser,
    port: int,
    session: Any,  # noqa: ANN401
    path: str,
    *,
    main_thread: bool = False,
) -> dict[str, float]:
    """The timings of a page in a browser whose cache is empty.

    `main_thread` adds the CPU time of the browser's main thread, in milliseconds.
    """
    context = browser.new_context(base_url=f"http://127.0.0.1:{port}", storage_state=session)
    page = context.new_page()
    page.add_init_script(_MARK_CELL)
    tools = context.new_cdp_session(page)
    if main_thread:
        tools.send("Performance.enable", {"timeDomain": "threadTicks"})
    answer = page.goto(path, wait_until="load")
    assert answer is not None and answer.ok, path
    found: dict[str, float] = page.evaluate(_TIMINGS)
    if main_thread:
        figures = {
            one["name"]: one["value"] for one in tools.send("Performance.getMetrics")["metrics"]
        }
        found["main thread"] = 1000 * figures["TaskDuration"]
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
        "table": round(middle["table"]),
        "slowest paint": round(max(one["paint"] for one in found)),
        "CPU": round(1000 * used / times),
        "KB": round(max(one["bytes"] for one in found) / 1000, 1),
    }


if __name__ == "__main__":
    main()
