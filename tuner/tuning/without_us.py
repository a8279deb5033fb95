"""What a server runs without this program, told of each entry of a run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from tuner.engines.dispatch import Kernel, Runs
from tuner.problems.points import TRITON, Config, Point
from tuner.problems.results import Entry, Incumbent, Trial

_NO_CONFIG = Config({})


def with_backends(
    entries: Iterable[Entry],
    trials: Iterable[Trial],
    runs: Runs | None,
    installed: Collection[str] | None = None,
) -> list[Entry]:
    """The entries with other backends' times among their incumbents, and the name of what a server
    runs. Entries of points that were not tuned have no incumbents, and stay as they are.

    `runs`: what the engine runs by its rules; None: nobody knows. `installed`: the backends that
    the environment has; None: nobody knows.
    """
    kernel = runs.without_us(installed) if runs else None
    times: dict[str, dict[Point, Trial]] = {}
    for trial in trials:
        if trial.candidate.backend != TRITON:
            times.setdefault(trial.candidate.backend, {})[trial.candidate.point] = trial
    sizes = {name: {_size(point): one for point, one in at.items()} for name, at in times.items()}

    def told(entry: Entry) -> Entry:
        if not entry.incumbents:
            return entry
        others = {
            name: _incumbent(name, times[name].get(entry.point), sizes[name][_size(entry.point)])
            for name in sorted(times)
            if _size(entry.point) in sizes[name]
        }
        incumbents = {**entry.incumbents, **others}
        return replace(
            entry, incumbents=incumbents, without_us=name_of(kernel, incumbents) if kernel else ""
        )

    return [told(entry) for entry in entries]


def name_of(kernel: Kernel, incumbents: Mapping[str, Incumbent]) -> str:
    """The name that a kernel has among the incumbents of a point.

    Triton reads the engine's own file where the engine ships one. Empty: the engine has no kernel.
    """
    if kernel.triton:
        return "shipped" if "shipped" in incumbents else "default"
    if kernel.backend == TRITON:
        return "default"  # it reads no file
    return "" if kernel.backend == "none" else kernel.backend


def _incumbent(backend: str, trial: Trial | None, of_size: Trial) -> Incumbent:
    """A backend at a point. Without a trial there, another part's has the time of the size."""
    measured = (trial or of_size).measurement
    us = 0.0 if trial is None and measured.timed else measured.median_us
    return Incumbent(_NO_CONFIG, measured.status, us, backend=backend)


def _size(point: Point) -> tuple[int, int, int]:
    return point.batch_size, point.new_tokens, point.cached_tokens
