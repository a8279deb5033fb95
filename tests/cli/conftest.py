"""What tests of the command line share: one cache of compiled kernels."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def compile_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TUNER_CACHE_DIR for all tests of a session, whichever of xdist's workers runs them.

    A test that counts compiles, or that is about the cache, has one of its own.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return shared / "compile-cache"
