"""Compute a run's gain over servers without this program, and its cost.

A gain is over the kernel that a server runs without this program, if that kernel was timed.
Otherwise the gain is over Triton's own configuration, and the text says so. `with_backends` adds
the kernel that a server runs without this program to each entry. A cost consists of GPU seconds,
idle GPU seconds and CPU seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.engines.dispatch import Kernel, Runs
from tuner.engines.settings import with_flags
from tuner.problems.points import TRITON, Config, Point, title_of
from tuner.problems.results import WINNING_WORDS, Entry, Incumbent, Status, Totals, Trial
from tuner.render import gain_text

# Triton's own configurations: the entry of the engine's file, if it has an entry, comes first.
OWN = ("shipped", "default")
# Measured times on a GPU: a difference up to NOISE is none, and a gain up to CLEAR_GAIN is no gain.
NOISE, CLEAR_GAIN = 0.004, 0.01
NOT_MEASURED = "not measured"
WITHOUT_US = "the server's own choice"  # the kernel that a server runs without this program
TRITONS_OWN = "Triton's own configuration"  # the baseline of a gain if the other has no time


@dataclass(frozen=True)
class Baseline:
    """The incumbent that a gain at a point is over."""

    name: str  # of the incumbent; "default" if a point has none
    incumbent: Incumbent | None
    without_us: bool  # whether a server runs it without this program

    @property
    def median_us(self) -> float | None:
        return self.incumbent.median_us if self.incumbent else None


@dataclass(frozen=True)
class Gain:
    """The baseline's time and the chosen configuration's time at a size, in microseconds."""

    size: str
    engine_us: float
    tuned_us: float

    @property
    def ratio(self) -> float:
        return self.engine_us / self.tuned_us


def reference(entry: Entry) -> Baseline:
    """Return the baseline of a point's gain."""
    name = entry.without_us
    found = entry.incumbents.get(name)
    if found is not None and (found.median_us is not None or name in OWN):
        return Baseline(name, found, without_us=True)
    for own in OWN:
        if own in entry.incumbents:
            return Baseline(own, entry.incumbents[own], without_us=False)
    return Baseline("default", None, without_us=False)


def gains(entries: Iterable[Entry]) -> list[Gain]:
    """Sum both times over all parts of a size, for the sizes at which each part has both."""
    by_size: dict[str, list[Entry]] = {}
    for entry in entries:
        by_size.setdefault(entry.point.size, []).append(entry)
    found = []
    for size, some in by_size.items():
        times = [us for entry in some if (us := reference(entry).median_us) is not None]
        tuned = [entry.median_us for entry in some if entry.median_us is not None]
        if len(times) == len(tuned) == len(some):
            found.append(Gain(size, sum(times), sum(tuned)))
    return found


def not_compared(entries: Iterable[Entry]) -> list[str]:
    """List the sizes at which the incumbent may run but has no time.

    A size whose incumbent stays is not listed: nothing replaces the incumbent there.
    """
    by_size: dict[str, list[Incumbent]] = {}
    for entry in entries:
        own = reference(entry).incumbent
        if own and entry.status is not Status.INCUMBENT:
            by_size.setdefault(entry.point.size, []).append(own)
    return [
        size
        for size, some in by_size.items()
        if any(one.median_us is None for one in some) and not any(one.cannot_run for one in some)
    ]


def mean_gain(ratios: Iterable[float]) -> float | None:
    """Return the geometric mean over sizes, which every table and page shows; None for
    no ratios.
    """
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs)) if logs else None


def closing_line(entries: Sequence[Entry]) -> str:
    """Say all gains in one line: the geometric mean, the best, the worst and the baseline."""
    found = gains(entries)
    mean = mean_gain(one.ratio for one in found)
    if mean is None:
        return ""
    where = found[0].size if len(found) == 1 else f"{len(found)} sizes"
    if all(entry.median_us is None or _unchanged(entry) for entry in entries):
        return (
            f"nothing changes: the engine's own configurations stay at {where} ({_origin(entries)})"
        )
    if len(found) == 1:
        return f"{gain_text(mean)} as fast at {where} ({_origin(entries)})"
    ranked = sorted(found, key=lambda one: one.ratio)
    best, worst = ranked[-1], ranked[0]
    ends = (f"{gain_text(one.ratio)} at {one.size}" for one in (best, worst))
    return (
        f"{gain_text(mean)} as fast (geometric mean of {where}), "
        f"best {next(ends)}, worst {next(ends)} ({_origin(entries)})"
    )


def unmeasured(entries: Iterable[Entry]) -> list[str]:
    """List the titles of servers' own choices that have no time; "" for an unknown choice."""
    others = (entry for entry in entries if entry.incumbents and not reference(entry).without_us)
    names = sorted({entry.without_us for entry in others})
    return [title_of(name) if name else "" for name in names]


def over_words(entries: Iterable[Entry]) -> str:
    """Name the baselines of some entries."""
    some = [entry for entry in entries if entry.incumbents]
    names = sorted({reference(entry).name for entry in some})
    own = [name for name in names if name in OWN]
    said = [title_of(name) for name in names if name not in OWN]
    if own:
        said.append(f"Triton's {' and '.join(own)} configurations")
    over = " and ".join(said)
    missing = unmeasured(some)
    started = " or".join(filter(None, dict.fromkeys(with_flags(one.server) for one in some)))
    if not missing:
        return f"over {WITHOUT_US}{started}: {over}"
    titles = " and ".join(filter(None, missing))
    runs = f"servers{started} run {titles}, which" if titles else f"{WITHOUT_US}{started}"
    return f"over {over}; {runs} was {NOT_MEASURED}"


def _unchanged(entry: Entry) -> bool:
    """Say whether an entry is the Triton configuration that a server runs without this program."""
    over = reference(entry)
    if over.incumbent is None or not over.without_us:
        return False
    return over.name in OWN and over.incumbent.config == entry.config


def _origin(entries: Sequence[Entry]) -> str:
    """Say where the times are from, and name the baselines of the gains."""
    timed = {entry.status for entry in entries if entry.median_us is not None}
    sources = sorted(WINNING_WORDS.get(status, status.value) for status in timed)
    return f"{' and '.join(sources)}, {over_words(entries)}"


_NO_CONFIG = Config({})


def with_backends(
    entries: Iterable[Entry],
    trials: Iterable[Trial],
    runs: Runs | None,
    installed: Collection[str] | None = None,
) -> list[Entry]:
    """Add other backends' times to the incumbents of entries, and the name of the kernel that a
    server runs.

    Entries of points that were not tuned have no incumbents, and stay as they are. `runs`: the
    kernels that the engine runs by its rules; None: unknown. `installed`: the backends that the
    environment has; None: unknown.
    """
    kernel = runs.without_us(installed) if runs else None
    times: dict[str, dict[Point, Trial]] = {}
    for trial in trials:
        if trial.candidate.backend != TRITON:
            times.setdefault(trial.candidate.backend, {})[trial.candidate.point] = trial
    sizes = {name: {_size(point): one for point, one in at.items()} for name, at in times.items()}

    def with_times(entry: Entry) -> Entry:
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

    return [with_times(entry) for entry in entries]


def name_of(kernel: Kernel, incumbents: Mapping[str, Incumbent]) -> str:
    """Return the name of a kernel among the incumbents of a point; "" if the engine has no kernel.

    Triton runs the entry of the engine's own file if the file has an entry.
    """
    if (kernel.triton or kernel.by_file) and "shipped" in incumbents:
        return "shipped"
    if kernel.backend == TRITON:
        return "default"
    return "" if kernel.backend == "none" else kernel.backend


def _incumbent(backend: str, trial: Trial | None, of_size: Trial) -> Incumbent:
    """Return a backend's incumbent at a point.

    Without a trial at the point, the time of the size is at another part of the size.
    """
    measured = (trial or of_size).measurement
    us = 0.0 if trial is None and measured.timed else measured.median_us
    return Incumbent(_NO_CONFIG, measured.status, us, backend=backend)


def _size(point: Point) -> tuple[int, int, int]:
    return point.batch_size, point.new_tokens, point.cached_tokens


class Meter:
    """A counter of the cost since it was made. Its figures become a run's totals."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._own_cpu = time.process_time()

    def count(self, totals: Totals, busy_s: float = 0.0, opened_at: float | None = None) -> None:
        """Add the cost until now.

        The run has owned a GPU since `opened_at` (of `time.perf_counter`); the GPU was busy for
        `busy_s` seconds. Before, processes only imported their libraries.
        """
        now = time.perf_counter()
        gpu_s = 0.0 if opened_at is None else now - max(self._began, opened_at)
        own_cpu_s = time.process_time() - self._own_cpu
        totals.extra["gpu_s"] = gpu_s
        totals.extra["gpu_idle_s"] = max(0.0, gpu_s - busy_s)
        totals.extra["cpu_s"] = totals.compile_s + own_cpu_s


def cost_line(totals: Totals) -> str:
    """Say the cost in one line; "" for a run without a GPU."""
    cost = totals.extra
    if not cost.get("gpu_s"):
        return ""
    return (
        f"{cost['gpu_s']:.1f} s of GPUs, {cost['gpu_idle_s']:.1f} s of them idle; "
        f"{cost['cpu_s']:.1f} s of CPUs"
    )


def work_line(totals: Sequence[Totals], *, predicted: bool = False) -> str:
    """Say how many kernels and times some runs compiled and took; problems may share kernels.

    `predicted`: a model gave the times, and nothing was measured. A replay compiles nothing.
    """
    cached = sum(one.extra.get("kernels_cached", 0) for one in totals)
    known = f" and {cached:.0f} from the cache" if cached else ""
    compiled = sum(one.configs_compiled for one in totals)
    times = sum(one.measurements for one in totals)
    said = f"{times} time{'s' * (times != 1)}"
    took = f"{sum(one.wall_s for one in totals):.1f} s in all"
    if not any("kernels_cached" in one.extra for one in totals):
        return f"{said} read from a recording, {took}"
    kernels = f"{compiled} kernel{'s' * (compiled != 1)} compiled{known}"
    return f"{kernels}, {said} {'predicted' if predicted else 'taken'}, {took}"
