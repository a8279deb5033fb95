"""What tests of engines share: compile processes, a store, and the folder of compiled kernels."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.compile import Farm
from tuner.store.results import ResultStore


@pytest.fixture(scope="session", autouse=True)
def _commands_share_the_cache(compile_cache: Path) -> Iterator[None]:
    """They never take the user's own; a test may name another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNER_CACHE_DIR", str(compile_cache))
        yield


@pytest.fixture(scope="session")
def farm(compile_cache: Path) -> Iterator[Farm]:
    """Two compile processes, for all tests of this process: starting one takes a second."""
    with Farm(2, timeout_s=240, cache_dir=compile_cache) as opened:
        yield opened


@pytest.fixture
def store(sqlite_template: Path, tmp_path: Path) -> Iterator[ResultStore]:
    """An empty store."""
    shutil.copyfile(sqlite_template, tmp_path / "tuner.db")
    with ResultStore.open(f"sqlite:///{tmp_path}/tuner.db") as opened:
        yield opened
