"""What tests of the command line share: one cache of compiled kernels."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def compile_cache(run_folder: Path) -> Path:
    """A TUNER_CACHE_DIR for all tests of a run.

    A test that counts compiles, or that is about the cache, has one of its own.
    """
    return run_folder / "compile-cache"
