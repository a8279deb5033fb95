"""What the tests of both storages of a shared cache do alike."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tuner.tuning.run import TuningRun


def objects_of_six_ages(put: Callable[[str, bytes], object], folder: Path) -> list[str]:
    """The names of six objects of 1,000 bytes, the least recently used one first."""
    names = [f"{n:02d}{'0' * 62}" for n in range(6)]
    for age, name in zip((60, 50, 40, 30, 20, 10), names, strict=True):
        put(name, bytes(1000))
        used = (folder / name[:2] / name).stat().st_mtime - age
        os.utime(folder / name[:2] / name, (used, used))
    return names


def assert_first_round_is_cached(run: TuningRun) -> None:
    """The run compiles nothing for what it tries first."""
    run._compiler.submit([*run._plan().incumbent_candidates(), *run._search().ask()])
    while run._compiler.poll(wait=True):
        pass
    assert run._compiler.compiled_count == 0
    # Sizes share kernels, which count as cached too.
    assert 0 < run._compiler.shared_count <= run._compiler.cached_count
