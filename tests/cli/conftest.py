"""What tests of the command line share: variables and winners."""

import os

import pytest
from bundle_cases import CASES, fill

from tuner.store.results import ResultStore


@pytest.fixture
def env(tmp_path, compile_cache):
    """The variables of commands with an empty store of their own."""
    return {
        **os.environ,
        "TUNER_DATABASE_URL": f"sqlite:///{tmp_path / 'store' / 'tuner.db'}",
        "TUNER_CACHE_DIR": str(compile_cache),
    }


@pytest.fixture
def bundled_store(tmp_path, monkeypatch):
    """A store with the winners of each example cluster, and an empty folder to work in."""
    url = f"sqlite:///{tmp_path}/store/tuner.db"
    monkeypatch.setenv("TUNER_DATABASE_URL", url)
    monkeypatch.chdir(tmp_path)
    with ResultStore.open(url) as opened:
        for case in CASES:
            fill(opened, case)
