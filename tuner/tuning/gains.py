"""What a run gained over the engine: the figures that its table and its closing line show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tuner.problems.results import Entry, Incumbent, Status
from tuner.render import gain_text

# What the engine runs without this program: its file's entry where it finds one.
_RUNNING = ("shipped", "default")
_SOURCES = {Status.OK: "measured", Status.PREDICTED: "predicted"}


@dataclass(frozen=True)
class Gain:
    """One size: what the engine runs there, against what was chosen. Times are microseconds."""

    size: str
    engine_us: float
    tuned_us: float

    @property
    def ratio(self) -> float:
        return self.engine_us / self.tuned_us


def running(entry: Entry) -> tuple[str, Incumbent | None]:
    """What the engine runs at a point without this program, with its name."""
    for name in _RUNNING:
        if name in entry.incumbents:
            return name, entry.incumbents[name]
    return "default", None


def gains(entries: Iterable[Entry]) -> list[Gain]:
    """By size, the sums over all parts, at the sizes where each part has both times."""
    by_size: dict[str, list[Entry]] = {}
    for entry in entries:
        by_size.setdefault(entry.point.size, []).append(entry)
    found = []
    for size, some in by_size.items():
        engine = [incumbent.median_us for _, incumbent in map(running, some) if incumbent]
        times = [us for us in engine if us is not None]
        tuned = [entry.median_us for entry in some if entry.median_us is not None]
        if len(times) == len(tuned) == len(some):
            found.append(Gain(size, sum(times), sum(tuned)))
    return found


def closing_line(entries: Sequence[Entry]) -> str:
    """All gains in one line: geometric mean, best and worst, and where they are from."""
    found = gains(entries)
    if not found:
        return ""
    names = sorted({running(entry)[0] for entry in entries})
    sources = sorted({_SOURCES.get(entry.status, entry.status.value) for entry in entries})
    origin = f"{' and '.join(sources)}, against the engine's {' and '.join(names)} configurations"
    if len(found) == 1:
        return f"{gain_text(found[0].ratio)} as fast at {found[0].size} ({origin})"
    mean = math.exp(sum(math.log(one.ratio) for one in found) / len(found))
    ranked = sorted(found, key=lambda one: one.ratio)
    best, worst = ranked[-1], ranked[0]
    ends = (f"{gain_text(one.ratio)} at {one.size}" for one in (best, worst))
    return (
        f"{gain_text(mean)} as fast (geometric mean of {len(found)} sizes), "
        f"best {next(ends)}, worst {next(ends)} ({origin})"
    )
