"""Tests on one GPU take turns, whatever the number of pytest's processes."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def gpu_alone() -> Iterator[None]:
    with Path(tempfile.gettempdir(), "tuner-gpu-tests.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield
