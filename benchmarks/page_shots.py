"""Takes the pictures of docs/pages.md.

    python benchmarks/page_shots.py URL KEY PROBLEM DEVICE

URL is a server with results, KEY one of its keys; the second picture is of that problem's result.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import sync_playwright

DOCS = Path(__file__).parents[1] / "docs"
SIZE = {"width": 1200, "height": 700}


def main() -> None:
    url, key, problem, device = sys.argv[1:]
    pages = {"coverage": "/", "result": f"/results?problem={quote(problem)}&device={quote(device)}"}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page(base_url=url, viewport=SIZE, color_scheme="light")
        page.goto("/login")
        page.fill("#key", key)
        page.click("main button")
        for name, path in pages.items():
            page.goto(path, wait_until="networkidle")
            page.screenshot(path=DOCS / f"pages-{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
