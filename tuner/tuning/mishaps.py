"""What a run keeps and says where candidates were lost to mishaps, which are no verdicts."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from tuner.errors import MeasurerFailed
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Entry, Status, Trial

Size = tuple[int, int]  # batch size, new tokens: the entries of a size are chosen together


def keep_uncompared(
    entries: Iterable[Entry],
    trials: Mapping[Candidate, Trial],
    incumbents: Mapping[Point, Mapping[str, Config]],
    requested: Collection[Point],
    previous: Mapping[Point, Config],
) -> list[Entry]:
    """Return the entries, but keep what the engine runs at each requested size where that was lost.

    Nothing was compared with it, so nothing may replace it. If the store has an entry for the size,
    which was compared in an earlier run, that one stays.
    """
    reasons: dict[Size, str] = {}
    for point in requested:
        if not incumbents.get(point):
            continue
        name = _running(incumbents[point])
        trial = trials[Candidate(point, incumbents[point][name])]
        if trial.lost:
            why = f"the {name} configuration was not compared: {trial.measurement.detail}"
            reasons[_size(point)] = why
    stored = {
        Candidate(point, config): trials[Candidate(point, config)]
        for point, config in previous.items()
        if trials[Candidate(point, config)].measurement.timed
    }
    unstored = {_size(p) for p in requested if Candidate(p, previous.get(p, _NONE)) not in stored}

    def kept(entry: Entry) -> Entry:
        point, size = entry.point, _size(entry.point)
        if size not in reasons or point not in requested:
            return entry
        if size in unstored:
            own = incumbents[point][_running(incumbents[point])]
            trial, status, median_us = trials[Candidate(point, own)], Status.INCUMBENT, None
        else:
            trial = stored[Candidate(point, previous[point])]
            status, median_us = trial.measurement.status, trial.measurement.median_us
        return replace(
            entry,
            config=trial.candidate.config,
            status=status,
            median_us=median_us,
            compiled=trial.compiled,
            reason=reasons[size],
        )

    return [kept(entry) for entry in entries]


_NONE = Config({})


def _size(point: Point) -> Size:
    return point.batch_size, point.new_tokens


def _running(by_name: Mapping[str, Config]) -> str:
    """The name of the incumbent that the engine runs."""
    return "shipped" if "shipped" in by_name else "default"


def told(lost: Sequence[Trial], unraced: Mapping[Point, str], points: int) -> list[str]:
    """Return lines for people: how many candidates were lost, and which points have no race."""
    lines = []
    if lost:
        many = "candidate was" if len(lost) == 1 else "candidates were"
        lines.append(
            f"{len(lost)} {many} lost to mishaps, and the next run tries again: {_words(lost)}"
        )
    if unraced:
        words = most_alike(unraced.values())[0]
        lines.append(
            f"{len(unraced)} of {points} points keep the times of the search, because their race "
            f"failed: {words}"
        )
    return lines


def all_lost(lost: Sequence[Trial], tried: int) -> MeasurerFailed:
    """Return the error of a run that has lost what it needed: nothing is known of what fits."""
    return MeasurerFailed(
        f"{len(lost)} of {tried} candidates were lost to mishaps, and the others do not tell what "
        f"to choose: {_words(lost)}; look at the machine (nvidia-smi, dmesg), and run it again"
    )


def _words(lost: Iterable[Trial]) -> str:
    """What is told of most of them."""
    return most_alike(trial.measurement.detail for trial in lost)[0]


def most_alike(texts: Iterable[str]) -> list[str]:
    """The texts of the most frequent kind. Texts that differ in numbers alone are alike."""
    alike: dict[str, list[str]] = {}
    for text in texts:
        alike.setdefault(re.sub(r"[\d,]", "", text), []).append(text)
    return max(alike.values(), key=len, default=[])
