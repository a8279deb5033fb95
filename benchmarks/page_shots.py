"""Takes the pictures of docs/service.md: python benchmarks/page_shots.py

It fills a store in a temporary folder with what was measured (shown_store.py), serves it and takes
the pictures.
"""

from __future__ import annotations

import argparse
import base64
import shutil
import tempfile
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
DOCS_SIZE = (1200, 900)  # width, and the most of a page's height
QUALITY = 64


def main() -> None:
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        url = f"sqlite:///{folder}/tuner.db"
        predict(url)
        fill(url)
        with serving(url, keyed=True) as (port, _):
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
            take_shown(browser, f"http://127.0.0.1:{port}", _key(url), pages(url))
            browser.close()


def _key(url: str) -> str:
    """A key with a name that looks well on pictures, and two others beside it."""
    scopes = {"ada": Scope.ADMIN, "ci": Scope.SUBMIT, "dashboard": Scope.READ}
    with KeyStore.open(url) as keys:
        known = {key.name for key in keys.list()}
        made = {n: keys.rotate(n) if n in known else keys.add(n, s) for n, s in scopes.items()}
    return made["ada"]


def pages(url: str) -> dict[str, str]:
    """Return the address of each page that the documentation shows, by name."""
    with Database.open(url) as store:
        found = JobStore(store).list(limit=100)
        add_workers(WorkerStore(store))  # they were seen just now
    running = next((job.id for job in found if job.state.value == "running"), "")
    problem = quote(recorded().problem.spec())
    gemm = quote("block_gemm:N=7168,K=2048,dtype=fp8_w8a8,block=128x128")
    return {
        "coverage": "/",
        "result": f"/results?problem={problem}&device=NVIDIA_H200",
        "tried": f"/results?problem={problem}&device=NVIDIA_H200&point=20#tried",
        "job": f"/jobs/{running}",
        "workers": "/workers",
        "exports": "/exports",
        "compare": f"/compare?problem={gemm}",
    }


def take_shown(browser: Browser, at: str, key: str, places: dict[str, str]) -> None:
    """Take the pictures of the documentation."""
    width, height = DOCS_SIZE
    page = logged_in(browser, at, key)
    page.set_viewport_size({"width": width, "height": height})
    for name, path in places.items():
        opened(page, path)
        shot(page, DOCS / f"pages-{name}.webp", width, height)


def logged_in(browser: Browser, at: str, key: str) -> Page:
    """A page of somebody who logged in."""
    page = browser.new_page(base_url=at, color_scheme="light")
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
