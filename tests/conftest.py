"""Fixtures that tests of several folders use, and how Hypothesis draws."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "tuner",
    deadline=None,  # a busy machine is no failure
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
    # Continuous integration judges a change, not the luck of a draw; by hand, each run draws anew.
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("tuner")


# Tests read whole rows of tables; `tests/cli/test_widths.py` has 80 columns.
os.environ.setdefault("COLUMNS", "200")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """One file runs in this process: that starts at once, and a debugger or -s works. So do
    tests on a GPU, which share it.
    """
    files = {argument.partition("::")[0] for argument in config.args}
    one_file = len(files) == 1 and files.pop().endswith(".py")
    return 0 if one_file or config.option.markexpr == "gpu" else None


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this run share: who makes a file there takes a lock first."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
