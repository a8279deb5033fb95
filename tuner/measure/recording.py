"""Read and write recordings of trials of any family: CSV files, packed or plain, a trial per row.

Columns: problem, part, batch_size, new_tokens, cached_tokens, config (its key), compile_status,
shared_bytes, n_regs, n_spills, status, median_us, detail, and the fields of `Origin`, which old
files lack. Other columns are ignored. One file may hold several problems. A file is read whole or
refused, and written whole or not at all. `Replay` answers from a recording in place of a compiler
and a GPU.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import hashlib
import io
import math
import re
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Protocol

from tuner.devices.table import Device, find_device
from tuner.errors import (
    BadInput,
    BadProblem,
    MalformedRecording,
    UnknownDevice,
    UnwritableOutput,
    did_you_mean,
)
from tuner.files import read_limited
from tuner.problems.points import Candidate, Config, Part, Point, Problem
from tuner.problems.registry import family_of, parse_problem
from tuner.problems.results import Compiled, Measurement, Status, Trial

COLUMNS = ("problem", "part", "batch_size", "new_tokens", "cached_tokens", "config")
FIGURES = ("compile_status", "shared_bytes", "n_regs", "n_spills", "status", "median_us", "detail")


@dataclass(frozen=True)
class Origin:
    """The device, engine and Triton of recorded times; "": not known. Each field is a column."""

    device: str = ""
    engine: str = ""
    engine_version: str = ""
    triton: str = ""

    def differs(self, other: Origin) -> bool:
        """Say whether two origins differ in a field that both know."""
        return any(a and b and a != b for a, b in zip(astuple(self), astuple(other), strict=True))

    def __str__(self) -> str:
        engine = f", {self.engine} {self.engine_version}" * bool(self.engine)
        return f"{self.device}{engine}" + f", Triton {self.triton}" * bool(self.triton)


ORIGIN = tuple(field.name for field in fields(Origin))


def read_origin(path: Path, cells: Mapping[str, str]) -> Origin:
    """Read the origin in a row's cells. An old file's name may start with the card: `h200_...`."""
    found = Origin(**{name: cells.get(name, "") for name in ORIGIN})
    if not found.device:
        with contextlib.suppress(UnknownDevice):
            return Origin(find_device(re.split("[_.]", path.name)[0]).name)
    return found


class RecordedTrials(Protocol):
    """Trials that a run may be replayed from, in any file format."""

    @property
    def origin(self) -> Origin: ...

    @property
    def sha256(self) -> str:
        """Return the file's sha256."""
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
    origin: Origin

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
    others, origins = set(), set()
    for line, row in _rows(path, data):
        try:
            if parse_problem(row["problem"]) != problem:
                others.add(row["problem"])
                continue
            trial = _trial(row, parts)
            origins.add(read_origin(path, row))
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
    if len(origins) > 1:
        held = "; ".join(sorted(map(str, origins)))
        raise MalformedRecording(f"{path} mixes trials of one problem: {held}")
    return TrialRecording(hashlib.sha256(data).hexdigest(), trials, origins.pop())


def write_trials(
    path: Path,
    problem: Problem,
    trials: Iterable[Trial],
    add: bool = False,
    origin: Origin = Origin(),
) -> None:
    """Write a recording, packed if the name ends in .gz.

    With `add`, the file keeps its trials of other problems. Raises UnwritableOutput, and with
    `add` MalformedRecording if the file is not a recording.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow((*COLUMNS, *FIGURES, *ORIGIN))
    if add and path.exists():
        for _, row in _rows(path, read_packed(path)):
            if row["problem"] != problem.spec():
                writer.writerow([row.get(name, "") for name in (*COLUMNS, *FIGURES, *ORIGIN)])
    writer.writerows((*_row(problem, trial), *astuple(origin)) for trial in trials)
    write_text(path, stream.getvalue())


def _rows(path: Path, data: bytes) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line number, cells by column) of each row. Raises MalformedRecording."""
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


MAX_BYTES = 256 << 20  # unpacked; a recording of 12,000 rows has about 1.3 MB


def read_packed(path: Path) -> bytes:
    """Return a recording's bytes as they are on disk. Raises MalformedRecording."""
    return read_limited(path, MAX_BYTES, "recording", MalformedRecording)


def unpack(path: Path, data: bytes) -> str:
    """Return the text in a gzip file's bytes; `path` is for messages. Raises MalformedRecording."""
    try:
        with gzip.open(io.BytesIO(data)) as stream:
            unpacked = stream.read(MAX_BYTES + 1)
    except gzip.BadGzipFile as error:
        if not is_packed(data):
            raise MalformedRecording(f"{path} is not a gzip file") from None
        raise MalformedRecording(f"{path} is damaged: {error}") from None
    except (EOFError, zlib.error) as error:
        raise MalformedRecording(f"{path} is damaged: {error}") from None
    if len(unpacked) > MAX_BYTES:
        raise MalformedRecording(f"{path} unpacks to more than {MAX_BYTES >> 20} MiB")
    return decode(path, unpacked)


def is_packed(data: bytes) -> bool:
    return data.startswith(b"\x1f\x8b")


def decode(path: Path, data: bytes) -> str:
    """Return the text of UTF-8 bytes; `path` is for messages. Raises MalformedRecording."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedRecording(f"{path} is damaged: {error}") from None


def check_recordable(path: Path) -> None:
    """Raise UnwritableOutput if no recording can be written to `path`."""
    if not path.name.endswith(".csv.gz"):
        raise UnwritableOutput(f"a recording is a .csv.gz file, which {path} is not")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise UnwritableOutput(f"{path} cannot be written: {error.strerror}") from None


def write_text(path: Path, text: str) -> None:
    """Write a recording, compressed if its name ends in .gz. Raises UnwritableOutput."""
    part = path.with_name(path.name + ".part")
    data = text.encode()
    try:
        # Without a name and a time in the header, equal trials give equal files.
        part.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
        part.replace(path)
    except OSError as error:
        raise UnwritableOutput(f"{path} cannot be written: {error.strerror}") from None


_ABSENT = "not in the recording"


class Replay:
    """Compiles and measures in place of both: a recording holds their results.

    A kernel that needs more shared memory than the device has does not fit here either.
    """

    compile_s = 0.0
    compiled_count = 0

    def __init__(self, recording: RecordedTrials, device: Device) -> None:
        self._recording = recording
        self._limit_bytes = device.shared_optin_bytes
        self._pending: dict[Candidate, None] = {}

    def submit(self, candidates: Iterable[Candidate]) -> None:
        self._pending |= dict.fromkeys(candidates)

    def poll(self, wait: bool) -> list[tuple[Candidate, Compiled]]:
        """Return every pending candidate, in the order of submission, at once."""
        pending, self._pending = self._pending, {}
        return [(candidate, self._compiled(candidate)) for candidate in pending]

    def measure(self, candidate: Candidate, compiled: Compiled) -> Measurement:
        trial = self._recording.trials.get(candidate)
        return trial.measurement if trial else Measurement(Status.NOT_RECORDED, detail=_ABSENT)

    def _compiled(self, candidate: Candidate) -> Compiled:
        trial = self._recording.trials.get(candidate)
        if trial is None:
            return Compiled(Status.NOT_RECORDED, detail=_ABSENT)
        return trial.compiled.within(self._limit_bytes)
