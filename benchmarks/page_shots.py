"""Takes the pictures of docs/service.md, and of all pages to look at.

    python benchmarks/page_shots.py [--all FOLDER] [--store URL]

It fills a store in a temporary folder with what was measured (shown_store.py), serves it and takes
the pictures of docs/. `--all` writes instead every page into a folder, at three widths, light and
dark. `--store` takes another store, which is used as it is.
"""

from __future__ import annotations

import argparse
import base64
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Browser, Page, sync_playwright
from serving import serving
from shown_store import add_workers, fill, predict, recorded

from tuner.store.database import Database
from tuner.store.jobs import JobStore
from tuner.store.keys import KeyStore, Scope
from tuner.store.workers import WorkerStore

DOCS = Path(__file__).parents[1] / "docs"
WIDTHS = (360, 1280, 2560)
DOCS_SIZE = (1200, 900)  # width, and the most of a page's height
TALLEST = 2600  # of a page in a folder
QUALITY = 64
# The pictures of the documentation: the page, and whether it is dark.
SHOWN = {
    "coverage": False,
    "coverage-dark": True,
    "result": False,
    "result-dark": True,
    "tried": False,
    "job": False,
    "jobs": False,
    "compare": False,
    "workers": False,
    "exports": False,
    "bundles": False,
    "keys": False,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", type=Path)
    parser.add_argument("--store")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        _filled(options.store or f"sqlite:///{folder}/tuner.db", fresh=not options.store) as url,
        serving(url, keyed=True) as (port, _),
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        key = _key(url)
        at = f"http://127.0.0.1:{port}"
        if options.all:
            options.all.mkdir(parents=True, exist_ok=True)
            take_all(browser, at, key, pages(url), options.all)
        else:
            take_shown(browser, at, key, pages(url))
        browser.close()


@contextmanager
def _filled(url: str, *, fresh: bool) -> Iterator[str]:
    if fresh:
        predict(url)
        fill(url)
    yield url


def _key(url: str) -> str:
    """A key with a name that looks well on pictures, and two others beside it."""
    scopes = {"ada": Scope.ADMIN, "ci": Scope.SUBMIT, "dashboard": Scope.READ}
    with KeyStore.open(url) as keys:
        known = {key.name for key in keys.list()}
        made = {n: keys.rotate(n) if n in known else keys.add(n, s) for n, s in scopes.items()}
    return made["ada"]


def pages(url: str) -> dict[str, str]:
    """The address of each page, by name."""
    with Database.open(url) as store:
        found = JobStore(store).list(limit=100)
        add_workers(WorkerStore(store))  # they were seen just now
    running = next((job.id for job in found if job.state.value == "running"), "")
    failed = next((job.id for job in found if job.state.value == "failed"), "")
    problem = quote(recorded().problem.spec())
    gemm = quote("block_gemm:N=7168,K=2048,dtype=fp8_w8a8,block=128x128")
    return {
        "coverage": "/",
        "result": f"/results?problem={problem}&device=NVIDIA_H200",
        "tried": f"/results?problem={problem}&device=NVIDIA_H200&point=20#tried",
        "jobs": "/jobs",
        "job": f"/jobs/{running}",
        "failed": f"/jobs/{failed}",
        "new": "/jobs/new?model=mixtral-8x7b&device=L40S",
        "workers": "/workers",
        "nights": "/nights",
        "watches": "/watches",
        "exports": "/exports",
        "export": "/exports/NVIDIA_H200",
        "bundles": "/bundles?device=NVIDIA_H200",
        "compare": f"/compare?problem={gemm}",
        "models": "/models",
        "devices": "/devices",
        "keys": "/keys",
    }


def take_all(browser: Browser, at: str, key: str, places: dict[str, str], folder: Path) -> None:
    """Every page at each width, light and dark."""
    for scheme in ("light", "dark"):
        page = logged_in(browser, at, key, scheme)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            for name, path in places.items():
                opened(page, path)
                page.evaluate(
                    "for (const one of document.querySelectorAll('details')) one.open = true"
                )
                shot(page, folder / f"{name}-{width}-{scheme}.webp", width, TALLEST)


def take_shown(browser: Browser, at: str, key: str, places: dict[str, str]) -> None:
    """The pictures of the documentation."""
    width, height = DOCS_SIZE
    for dark in (False, True):
        page = logged_in(browser, at, key, "dark" if dark else "light")
        page.set_viewport_size({"width": width, "height": height})
        for name in (name for name, is_dark in SHOWN.items() if is_dark is dark):
            opened(page, places[name.removesuffix("-dark")])
            if name == "bundles":
                page.check("text=even if files are missing")
                page.click("text=See what is in it")
                page.wait_for_load_state("load")
            shot(page, DOCS / f"pages-{name}.webp", width, height)


def logged_in(browser: Browser, at: str, key: str, scheme: str) -> Page:
    """A page of somebody who logged in."""
    page = browser.new_page(base_url=at, color_scheme=scheme)  # type: ignore[arg-type]
    page.goto("/login")
    page.fill("#key", key)
    page.click("main button")
    page.wait_for_url(f"{at}/")
    return page


def opened(page: Page, path: str) -> None:
    """Open a page, and wait for its styles and its fonts."""
    page.goto(path, wait_until="load")
    page.evaluate("document.fonts.ready")


def shot(page: Page, path: Path, width: int, tallest: int) -> None:
    """Write a picture from where the page stands, as WebP: Playwright itself writes none."""
    tall, top = page.evaluate("[document.documentElement.scrollHeight, scrollY]")
    clip = {"x": 0, "y": top, "width": width, "height": min(tall - top, tallest), "scale": 1}
    asked = {"format": "webp", "quality": QUALITY, "clip": clip, "captureBeyondViewport": True}
    answer = page.context.new_cdp_session(page).send("Page.captureScreenshot", asked)
    path.write_bytes(base64.b64decode(answer["data"]))


if __name__ == "__main__":
    main()
