"""A real browser for the tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_OPTIONS = ("--disable-quic", "--no-first-run", "--disable-background-networking")


@contextmanager
def chromium() -> Iterator[Browser]:
    """A Chromium of this machine, without a window."""
    given = os.environ.get("TUNER_TEST_BROWSER")
    found = given or next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.fail("no Chromium: apt-get install chromium, or TUNER_TEST_BROWSER=/path/to/it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(_OPTIONS))
        yield browser
        browser.close()
