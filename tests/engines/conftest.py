"""One folder of compiled kernels for the session, which all of xdist's workers share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def compile_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder for farms, except where a test is about compiling or about a cache.

    Results lie there under keys of all that decides them, and several processes may use it.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / "compile-cache"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session", autouse=True)
def _commands_share_the_cache(compile_cache: Path) -> Iterator[None]:
    """Commands and runs take it too, and never the user's own; a test may name another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNER_CACHE_DIR", str(compile_cache))
        yield
