"""What a run keeps and says where candidates were lost to mishaps, which are no verdicts, or where
what the engine runs could not be bound.
"""

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
    """Return the entries, but keep what the engine runs at each requested size where that was lost
    or could not be bound.

    Nothing was compared with it, so nothing may replace it. If the store has an entry for the size,
    which was compared in an earlier run, that one stays.
    """
    own = {
        point: trials[Candidate(point, by_name[_running(by_name)])]
        for point, by_name in incumbents.items()
        if point in requested and by_name
    }
    lost = {_size(point): point for point, trial in own.items() if trial.lost or trial.refused}
    stored = {
        point: trial
        for point, config in previous.items()
        if (trial := trials[Candidate(point, config)]).measurement.timed
    }
    unstored = {_size(point) for point in own if point not in stored}

    def kept(entry: Entry) -> Entry:
        size = _size(entry.point)
        if entry.point not in own or size not in lost:
            return entry
        name, why = _running(incumbents[lost[size]]), own[lost[size]]
        if size in unstored:
            return uncompared(entry, name, own[entry.point], why)
        trial = stored[entry.point]
        as_stored = uncompared(entry, name, trial, why)
        return replace(
            as_stored,
            status=trial.measurement.status,
            median_us=trial.measurement.median_us,
            reason=f"{as_stored.reason}, so the stored entry stays",
        )

    return [kept(entry) for entry in entries]


def uncompared(entry: Entry, name: str, own: Trial, lost: Trial) -> Entry:
    """Return the entry with what the engine runs, whose time nobody knows. `lost` says why."""
    return replace(
        entry,
        config=own.candidate.config,
        status=Status.INCUMBENT,
        median_us=None,
        compiled=own.compiled,
        reason=f"the {name} configuration was not compared: {lost.measurement.detail}",
    )


def _size(point: Point) -> Size:
    return point.batch_size, point.new_tokens


def _running(by_name: Mapping[str, Config]) -> str:
    """The name of the incumbent that the engine runs."""
    return "shipped" if "shipped" in by_name else "default"


def mishap_lines(
    lost: Sequence[Trial], refused: Sequence[Trial], unraced: Mapping[Point, str], points: int
) -> list[str]:
    """Return lines for people: how many candidates were lost or refused by the kernel, and which
    points have no race.
    """
    lines = []
    if refused:
        one = len(refused) == 1
        many = "entry of the engine was" if one else "entries of the engine were"
        them, stay = ("it", "stays") if one else ("them", "stay")
        lines.append(
            f"{len(refused)} {many} not timed, because the kernel as it is read here does not take "
            f"{them}, and {stay} where servers run {them}: {_words(refused)}"
        )
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
