"""Commands and runs of these tests keep kernels in the folder that the whole run shares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def _commands_share_the_cache(compile_cache: Path) -> Iterator[None]:
    """They never take the user's own; a test may name another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNER_CACHE_DIR", str(compile_cache))
        yield
