"""Coverage of another checkout and of this one, opened in turn: for a machine that is not idle.

    python benchmarks/pages_paired.py URL FOLDER [--times 9]

URL is a store that fill_store.py filled, FOLDER the other checkout. Both servers run at once, and
each opens a page after the other one. Times are as in pages.py. `main thread` is the CPU time of
the browser's main thread until the page is loaded and drawn, which depends less on what else the
machine does. Writes benchmarks/results/pages_paired.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hostile import key_of
from load import RESULTS, machine, print_table, serving
from pages import log_in, timings
from playwright.sync_api import Browser, sync_playwright
from streams import cpu_s

from tuner.store.keys import Scope

HERE = Path(__file__).parents[1]
PAGES = {"coverage, 750 cells": "/", "coverage, 6,000 cells": "/?limit=200"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--times", type=int, default=9)
    options = parser.parse_args()
    before = machine()
    with ExitStack() as stack:
        key = stack.enter_context(key_of(options.url, Scope.SUBMIT))
        servers = {}
        for name, folder in (("other", options.folder.resolve()), ("this", HERE)):
            os.environ["PYTHONPATH"] = str(folder)
            servers[name] = stack.enter_context(serving(options.url, keyed=True))
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        rows = [
            row
            for page, path in PAGES.items()
            for row in paired(browser, servers, key, page, path, options.times)
        ]
        browser.close()
    found = {"machine": before, "rows": rows}
    (RESULTS / "pages_paired.json").write_text(json.dumps(found, indent=1) + "\n")
    print_table("paired", rows)


def paired(
    browser: Browser,
    servers: dict[str, tuple[int, int]],
    key: str,
    page: str,
    path: str,
    times: int,
) -> list[dict[str, Any]]:
    """A row for each checkout: medians."""
    sessions = {name: log_in(browser, port, key) for name, (port, _) in servers.items()}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
    for turn in range(times + 1):
        for name, (port, pid) in servers.items():
            used = cpu_s(pid)
            one = timings(browser, port, sessions[name], path, main_thread=True)
            if turn:  # the first one fills the caches
                found[name].append({**one, "server CPU": 1000 * (cpu_s(pid) - used)})
    shown = ("answer", "paint", "table", "main thread", "server CPU")
    return [
        {"page": page, "checkout": name}
        | {what: round(statistics.median(one[what] for one in some)) for what in shown}
        for name, some in found.items()
    ]


if __name__ == "__main__":
    main()
