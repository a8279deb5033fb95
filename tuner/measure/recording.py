"""Recordings of trials of any family: CSV files, packed or plain, with one trial per row.

Columns: problem, part, batch_size, new_tokens, cached_tokens, config (its key), compile_status,
shared_bytes, n_regs, n_spills, status, median_us, detail. Other columns are ignored. One file may
hold several problems.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tuner.errors import BadInput, BadProblem, MalformedRecording, did_you_mean
from tuner.measure.recording_file import decode, is_packed, read_packed, unpack, write_text
from tuner.problems.points import Candidate, Config, Part, Point, Problem
from tuner.problems.registry import family_of, parse_problem
from tuner.problems.results import Compiled, Measurement, Status, Trial

COLUMNS = ("problem", "part", "batch_size", "new_tokens", "cached_tokens", "config")
FIGURES = ("compile_status", "shared_bytes", "n_regs", "n_spills", "status", "median_us", "detail")


class RecordedTrials(Protocol):
    """Trials that a run may be replayed from, whatever the format of their file."""

    @property
    def sha256(self) -> str:
        """The file's."""
        ...

    @property
    def points(self) -> Sequence[Point]: ...

    @property
    def trials(self) -> Mapping[Candidate, Trial]: ...


@dataclass(frozen=True)
class TrialRecording:
    """The trials of one problem."""

    sha256: str  # of the file
    trials: Mapping[Candidate, Trial]

    @property
    def points(self) -> tuple[Point, ...]:
        return tuple(sorted({candidate.point for candidate in self.trials}))


def read_trials(path: Path, problem: Problem) -> TrialRecording:
    """Read a problem's trials from a recording.

    Raises MalformedRecording with the file and the line, and BadInput if the file holds only
    other problems.
    """
    data = read_packed(path)
    parts = family_of(problem).parts
    trials: dict[Candidate, Trial] = {}
    others = set()
    for line, row in _rows(path, data):
        try:
            if parse_problem(row["problem"]) != problem:
                others.add(row["problem"])
                continue
            trial = _trial(row, parts)
        except (ValueError, BadProblem) as error:
            raise MalformedRecording(f"{path}, line {line}: {error}") from None
        if trial.candidate in trials:
            point, config = trial.candidate.point, trial.candidate.config
            raise MalformedRecording(f"{path}, line {line}: {point} {config.key} is there twice")
        trials[trial.candidate] = trial
    if not trials and not others:
        raise MalformedRecording(f"{path} holds no rows")
    if not trials:
        held = ", ".join(sorted(others))
        raise BadInput(f"{path} has no trial of {problem.spec()}, only of {held}")
    return TrialRecording(hashlib.sha256(data).hexdigest(), trials)


def write_trials(path: Path, problem: Problem, trials: Iterable[Trial], add: bool = False) -> None:
    """Write a recording, packed if the name ends in .gz.

    With `add`, the file keeps its trials of other problems. Raises UnwritableOutput, and with
    `add` MalformedRecording if the file is not a recording.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow((*COLUMNS, *FIGURES))
    if add and path.exists():
        for _, row in _rows(path, read_packed(path)):
            if row["problem"] != problem.spec():
                writer.writerow([row[name] for name in (*COLUMNS, *FIGURES)])
    writer.writerows(_row(problem, trial) for trial in trials)
    write_text(path, stream.getvalue())


def _rows(path: Path, data: bytes) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, cells by column) of each row. Raises MalformedRecording."""
    text = unpack(path, data) if is_packed(data) else decode(path, data)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader, [])
        _check_header(path, header)
        for cells in reader:
            if len(cells) != len(header):
                raise MalformedRecording(
                    f"{path}, line {reader.line_num}: "
                    f"{len(cells)} cells under {len(header)} columns"
                )
            yield reader.line_num, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise MalformedRecording(f"{path}, line {reader.line_num}: {error}") from None


def _check_header(path: Path, header: list[str]) -> None:
    for name in (*COLUMNS, *FIGURES):
        if name not in header:
            near = did_you_mean(name, header)
            raise MalformedRecording(f"{path} is not a recording: column {name} is missing{near}")
    if len(set(header)) < len(header):
        raise MalformedRecording(f"{path}, line 1: a column is named twice")


def _trial(row: Mapping[str, str], parts: type[Part]) -> Trial:
    """Read a row. Raises ValueError for a cell that does not fit."""
    sizes = [_whole(name, row[name]) for name in ("batch_size", "new_tokens", "cached_tokens")]
    point = Point(sizes[0], parts(row["part"]), *sizes[1:])
    pairs = [pair.partition("=") for pair in row["config"].split(",")]
    config = Config({name: _whole(name, value) for name, _, value in pairs})
    compiled = Compiled(
        Status(row["compile_status"]),
        shared_bytes=_figure(row, "shared_bytes"),
        n_regs=_figure(row, "n_regs"),
        n_spills=_figure(row, "n_spills"),
    )
    status, median_us = Status(row["status"]), _time(row)
    if (status is Status.OK) != (median_us is not None) and status is not Status.PREDICTED:
        raise ValueError(f"status {status.value} with the time {row['median_us']!r}")
    measured = Measurement(status, median_us, median_us, detail=row["detail"])
    return Trial(Candidate(point, config), compiled, measured)


def _whole(name: str, text: str) -> int:
    # int() also reads "1_0", signs, spaces and digits of other scripts.
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise ValueError(f"{name}: {text!r} is not a whole number")
    return int(text)


def _figure(row: Mapping[str, str], name: str) -> int | None:
    return _whole(name, row[name]) if row[name] else None


def _time(row: Mapping[str, str]) -> float | None:
    text = row["median_us"]
    try:
        time_us = float(text) if text else None
    except ValueError:
        time_us = math.nan
    if time_us is not None and not 0 < time_us < math.inf:
        raise ValueError(f"median_us: {text!r} is not a time in microseconds")
    return time_us


def _row(problem: Problem, trial: Trial) -> tuple[object, ...]:
    point, compiled, measured = trial.candidate.point, trial.compiled, trial.measurement
    return (
        *(problem.spec(), point.part.value, point.batch_size, point.new_tokens),
        *(point.cached_tokens, trial.candidate.config.key),
        *(compiled.status.value, compiled.shared_bytes, compiled.n_regs, compiled.n_spills),
        *(measured.status.value, measured.median_us, measured.detail),
    )
