"""Unit tests need no engine and start no process. Tests that do are in the other folders."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module", autouse=True)
def nothing_outside_this_process(tmp_path_factory):
    """Hide the unpacked engines, and refuse to start a process."""

    def refuse(*args: object, **options: object) -> None:
        pytest.fail(f"a unit test starts a process: {args[1:2]}")

    empty: Path = tmp_path_factory.mktemp("prefix")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "prefix", str(empty))
        patch.setattr(subprocess.Popen, "__init__", refuse)
        yield
