"""Report the result of a tuning run as JSON and as a table.

Also keep and report the engine's configurations that lack a time, because candidates were lost to
mishaps or the kernel could not be bound.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tuner.devices.table import Device
from tuner.engines.config_files import AMD_OPTIONS
from tuner.engines.dispatch import Runs
from tuner.errors import MeasurerFailed
from tuner.problems.points import Candidate, Config, Part, Point, Problem, title_of
from tuner.problems.results import Entry, Environment, Status, Totals, Trial, entry_json, is_shipped
from tuner.render import folded, gain_text, table
from tuner.tuning.gains import (
    NOT_MEASURED,
    closing_line,
    cost_line,
    gains,
    reference,
    unmeasured,
    work_line,
)


@dataclass(frozen=True)
class EntryTable:
    """The first columns of a family's table of entries, and the order of its rows."""

    headers: tuple[str, ...]
    cells: Callable[[Entry], tuple[object, ...]]
    order: Callable[[Entry], Any] | None = None  # None: the order of the entries


@dataclass(frozen=True)
class RunReport:
    """The entries of a run, and the problem, device and environment that they hold for."""

    problem: Problem
    device: Device
    environment: Environment
    file_names: Mapping[Part, str]
    entries: Sequence[Entry]
    totals: Totals
    table: EntryTable
    runs: Runs | None  # the kernels of the request's server; None: unknown
    mishaps: Sequence[str] = ()  # lines on the run's losses to mishaps

    def as_json(self) -> dict[str, Any]:
        """Return the object that `tuner tune --json` prints."""
        return {
            "problem": self.problem.spec(),
            "device": self.device.name,
            "engine": f"{self.environment.engine}=={self.environment.engine_version}",
            "environment": {
                **asdict(self.environment),
                "fingerprint": self.environment.fingerprint,
            },
            "file_names": {part.value: name for part, name in self.file_names.items()},
            "entries": [{**e.point.as_json(), **entry_json(e, config_json)} for e in self.entries],
            "totals": asdict(self.totals),
            "runs": self.runs.as_json() if self.runs else None,
            **({"caveat": self._caveat} if self._caveat else {}),
            **({"mishaps": list(self.mishaps)} if self.mishaps else {}),
        }

    def as_text(self) -> str:
        """Return a table of the entries, then lines with the gain, the cost and remarks.

        Return one line if nothing was tried.
        """
        if self.entries and all(entry.status is Status.INCUMBENT for entry in self.entries):
            return folded(
                f"{self.environment.engine} ships a file for {self.device.name}, and a prediction "
                "keeps its entries: only --measure gpu can replace them; --effort exhaustive "
                "predicts their times all the same"
            )
        order = self.table.order
        entries = sorted(self.entries, key=order) if order else list(self.entries)
        lines = [self._table(entries), "", *self._reasons(entries)]
        work = work_line([self.totals], predicted=self.predicted)
        costs = filter(None, (work, cost_line(self.totals)))
        lines += [closing_line(entries), *self.mishaps, *costs]
        lines += [self.device.shared_limit, self._caveat]
        return folded("\n".join(lines)).rstrip("\n")

    @property
    def predicted(self) -> bool:
        """Say whether nothing was measured."""
        ran = (one.status for entry in self.entries for one in entry.incumbents.values())
        return Status.OK not in {*(entry.status for entry in self.entries), *ran}

    def _table(self, entries: Sequence[Entry]) -> str:
        statuses = [SHIPPED if is_shipped(entry) else entry.status.value for entry in entries]
        columns = _columns(entries)
        columns.append(("shared", [entry.compiled.shared_bytes for entry in entries]))
        if len(set(statuses)) > 1:
            columns.append(("status", statuses))
        headers, cells = zip(*columns, strict=True)
        rows = [
            (*self.table.cells(entry), *row)
            for entry, row in zip(entries, zip(*cells, strict=True), strict=True)
        ]
        missing = [name for name, some in columns if NOT_MEASURED in some]
        return table((*self.table.headers, *headers), rows, drop=["shared", *missing])

    def _reasons(self, entries: Sequence[Entry]) -> list[str]:
        """Count the entries of each reason that does not state a gain, a line for each reason."""
        counts = Counter(entry.reason for entry in entries if not _GAIN.search(entry.reason))
        return [f"{n} of {len(entries)}: {reason}" for reason, n in counts.items() if reason]

    @property
    def _caveat(self) -> str:
        """Return a warning about predicted times beside their status; "" if there is none."""
        vendor = self.device.untested_vendor
        if not vendor or all(entry.status is not Status.PREDICTED for entry in self.entries):
            return ""
        return f"The model that predicted these times was never compared with a card of {vendor}'s."


def mark_untested(entries: Iterable[Entry], device: Device) -> list[Entry]:
    """Add a warning to the reasons of predicted entries, if the model was never compared with a
    card of the device's vendor.

    The reason goes with an entry wherever the entry is shown.
    """
    words = f"; model untested on {device.untested_vendor}" if device.untested_vendor else ""
    return [
        replace(entry, reason=f"{entry.reason}{words}")
        if entry.status is Status.PREDICTED
        else entry
        for entry in entries
    ]


SHIPPED = "shipped"  # the status that people see of an entry in the engine's own file
_GAIN = re.compile(r"\dx as fast as")


def _columns(entries: Sequence[Entry]) -> list[tuple[str, Sequence[object]]]:
    """Return the columns of times: the baseline, the choice and the gain; before them an incumbent
    that was not measured.
    """
    over = [reference(entry) for entry in entries]
    named = {title_of(one.name) for one in over}
    name = named.pop() if len(named) == 1 else "engine"
    engine_us = [_rounded(one.median_us) or None for one in over]
    tuned_us = [_rounded(entry.median_us) for entry in entries]
    columns: list[tuple[str, Sequence[object]]] = [
        (f"{name} us", engine_us),
        ("tuned us", tuned_us),
        ("gain", _gains(entries)),
    ]
    if missing := unmeasured(entries):
        title = missing[0] if len(missing) == 1 and missing[0] else "server's own"
        columns.insert(0, (title, ["" if one.without_us else NOT_MEASURED for one in over]))
        columns[-1] = f"over {name}", columns[-1][1]
    return columns


def _gains(entries: Sequence[Entry]) -> list[object]:
    """Return the gain of each entry.

    If a backend runs all parts of a size as one kernel, the size's gain stands at the first part.
    """
    by_size = {one.size: one for one in gains(entries)}
    whole = {entry.point.size for entry in entries if reference(entry).median_us == 0}
    found: list[object] = []
    for entry in entries:
        over, size = reference(entry), entry.point.size
        if size in whole:
            shown = by_size.get(size) if over.median_us else None
            found.append(gain_text(shown.ratio) if shown else None)
        elif over.incumbent and over.median_us is None:
            found.append(over.incumbent.status.value.replace("_", " "))
        elif over.median_us is not None and entry.median_us:
            found.append(gain_text(over.median_us / entry.median_us))
        else:
            found.append(None)
    return found


def _rounded(us: float | None) -> float | None:
    return None if us is None else round(us, 1)


def config_cells(config: Config) -> tuple[str, int, int, int]:
    """Return blocks, group size, warps and stages, as tables show them."""
    blocks = "x".join(str(config[f"BLOCK_SIZE_{axis}"]) for axis in "MNK")
    tma = " tma" if config.get("USE_TMA") else ""
    amd = "".join(f" {name}={config[name]}" for name in AMD_OPTIONS if config.get(name))
    return f"{blocks}{tma}{amd}", config["GROUP_SIZE_M"], config["num_warps"], config["num_stages"]


def config_json(config: Config) -> dict[str, int | bool]:
    """Return a configuration as engine files hold it, with USE_TMA as a boolean."""
    return {key: bool(value) if key == "USE_TMA" else value for key, value in config.items()}


Size = tuple[int, int]  # batch size, new tokens: the entries of a size are chosen together


def keep_uncompared(
    entries: Iterable[Entry],
    trials: Mapping[Candidate, Trial],
    incumbents: Mapping[Point, Mapping[str, Config]],
    requested: Collection[Point],
    previous: Mapping[Point, Config],
) -> list[Entry]:
    """Replace entries by the engine's configuration at each requested size at which that
    configuration was lost or could not be bound.

    Nothing was compared with it, so nothing may replace it. If the store has an entry for the size,
    which an earlier run compared, the stored entry stays.
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
    """Return the entry with the engine's configuration and no time. `lost` has the reason."""
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
    """Return the error of a run that lost the trials it needed."""
    return MeasurerFailed(
        f"{len(lost)} of {tried} candidates were lost to mishaps, and the others are not enough "
        f"to choose: {_words(lost)}; look at the machine (nvidia-smi, dmesg), and run it again"
    )


def _words(lost: Iterable[Trial]) -> str:
    """Return the most frequent kind of message."""
    return most_alike(trial.measurement.detail for trial in lost)[0]


def most_alike(texts: Iterable[str]) -> list[str]:
    """Return the texts of the most frequent kind. Texts that differ in numbers alone are alike."""
    alike: dict[str, list[str]] = {}
    for text in texts:
        alike.setdefault(re.sub(r"[\d,]", "", text), []).append(text)
    return max(alike.values(), key=len, default=[])
