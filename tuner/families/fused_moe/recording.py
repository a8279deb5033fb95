"""Read and write recordings of a fused-MoE layer's trials, for a search without a GPU.

A recording is a gzip CSV file of a problem on a device, with a row per (M, gemm, config). Its
columns are the problem (E, N, K, topk, dtype, block, and per_channel_quant if true), the `Origin`
of the times (old files lack it), the point (M, gemm), the configuration (all columns from
BLOCK_SIZE_M to the column before `shared`), the compiled kernel (shared, n_regs, n_spills) and the
measurement (min_us, median_us, status).
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NoReturn

from tuner.errors import BadInput, BadProblem, MalformedRecording, did_you_mean
from tuner.families.fused_moe.problem import FusedMoe, Gemm, gemm_of
from tuner.measure.recording import (
    ORIGIN,
    Origin,
    read_origin,
    read_packed,
    unpack,
    write_text,
)
from tuner.problems.dtypes import Dtype, parse_dtype
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import UNCHECKED, UNTUNED, Compiled, Measurement, Status, Trial

_PROBLEM = ("E", "N", "K", "topk", "dtype", "block")
# Columns that a recording may lack.
_RARE = ("per_channel_quant", "ep", "shared_experts", *ORIGIN)
_POINT = ("M", "gemm")
_CONFIG = (
    "BLOCK_SIZE_M",
    "BLOCK_SIZE_N",
    "BLOCK_SIZE_K",
    "GROUP_SIZE_M",
    "num_warps",
    "num_stages",
)
_FIGURES = ("shared", "n_regs", "n_spills", "min_us", "median_us", "status")
_GEMMS = [gemm.value for gemm in Gemm]
SPILL_BYTES = 4  # per spilled register, which the column counts as Triton's launcher does
_UNMEASURED = {*UNTUNED, Status.PREDICTED, Status.NOT_RECORDED}
_STATUSES = {status.value: status for status in Status if status not in _UNMEASURED}
_NOT_COMPARED = "not_compared"  # in place of "ok": the outputs may be wrong
_FAILS_TO_COMPILE = {Status.OUT_OF_RESOURCES, Status.COMPILE_ERROR, Status.COMPILE_TIMEOUT}


@dataclass(frozen=True)
class Recording:
    """All trials of a problem on a device."""

    path: Path
    problem: FusedMoe
    trials: Mapping[Candidate, Trial]
    sha256: str  # of the unpacked text, so it does not depend on the packing
    origin: Origin
    # Without the column, fp8 without blocks may have one scale per tensor or one per channel.
    says_channels: bool = field(default=False, compare=False)

    @property
    def points(self) -> list[Point]:
        """Return the recorded points, ascending."""
        return sorted({candidate.point for candidate in self.trials})

    def check(self, problem: FusedMoe, points: Iterable[Point]) -> None:
        """Check that the recording has this problem and these points. Raises BadInput if not."""
        ours, theirs = problem.spec(), self.problem.spec()
        if not self.says_channels:
            ours, theirs = (s.removesuffix(",per_channel_quant") for s in (ours, theirs))
        if ours != theirs:
            raise BadInput(f"{self.path} holds {self.problem.spec()}, not {problem.spec()}")
        held = self.points
        if missing := [str(point) for point in points if point not in held]:
            has = ", ".join(map(str, held))
            raise BadInput(f"{self.path} has nothing for {', '.join(missing)}; it holds {has}")


def read_recording(path: Path) -> Recording:
    """Read a recording. Raises MalformedRecording with the file, the line and the column."""
    return _read(path, unpack(path, read_packed(path)))


@lru_cache(maxsize=2)  # a command reads the same thousands of rows for each of its runs
def _read(path: Path, text: str) -> Recording:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        rows = _Rows(path, next(reader, []))
        for cells in reader:
            rows.add(reader.line_num, cells)
    except csv.Error as error:
        raise MalformedRecording(f"{path}, line {reader.line_num}: {error}") from None
    if rows.problem is None:
        raise MalformedRecording(f"{path} holds no rows")
    digest = hashlib.sha256(text.encode()).hexdigest()
    origin = read_origin(path, rows.problem_cells)
    says_channels = "per_channel_quant" in rows.column
    return Recording(path, rows.problem, rows.trials, digest, origin, says_channels)


def write_recording(
    path: Path, problem: FusedMoe, trials: Iterable[Trial], origin: Origin = Origin()
) -> None:
    """Write the measured `trials`. The same trials produce the same bytes.

    Raises UnwritableOutput.
    """
    measured = [trial for trial in trials if trial.measurement.status not in _UNMEASURED]
    extra = sorted({name for trial in measured for name in trial.candidate.config} - {*_CONFIG})
    rare = {
        "per_channel_quant": "true" * problem.per_channel_quant,
        "ep": problem.ep if problem.ep > 1 else "",
        "shared_experts": problem.shared_experts or "",
        **asdict(origin),
    }
    rare = {name: cell for name, cell in rare.items() if cell}
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    columns = (*_PROBLEM, *rare, *_POINT, *_CONFIG, *extra, *_FIGURES)
    writer.writerow(columns)
    block = "" if problem.block_shape is None else "{},{}".format(*problem.block_shape)
    about = [problem.E, problem.N, problem.K, problem.top_k, problem.dtype.value, block]
    for trial in measured:
        writer.writerow([*about, *rare.values(), *_cells(trial, (*_CONFIG, *extra))])
    write_text(path, text.getvalue())


def _cells(trial: Trial, config_columns: Sequence[str]) -> list[object]:
    point, config = trial.candidate.point, trial.candidate.config
    compiled, measured = trial.compiled, trial.measurement
    spills = None if compiled.n_spills is None else compiled.n_spills // SPILL_BYTES
    figures = (compiled.shared_bytes, compiled.n_regs, spills)
    status = _NOT_COMPARED if trial.unchecked else measured.status.value
    times = (measured.min_us, measured.median_us, status)
    # A missing key is an empty cell, because a recording has no defaults of Triton.
    values = [config.get(name) for name in config_columns]
    return [point.batch_size, gemm_of(point).value, *values, *figures, *times]


class _Rows:
    """Reads rows in turn. Errors name the line and the column."""

    def __init__(self, path: Path, header: Sequence[str]) -> None:
        self._path, self._line, self._cells = path, 1, header
        self.column = {name: index for index, name in enumerate(header)}
        if len(self.column) < len(header):
            raise MalformedRecording(f"{path}, line 1: a column is named twice")
        for name in (*_PROBLEM, *_POINT, *_CONFIG, *_FIGURES):
            if name not in self.column:
                near = did_you_mean(name, header)
                raise MalformedRecording(f"{path}, line 1: column {name} is missing{near}")
        self._config_columns = header[self.column["BLOCK_SIZE_M"] : self.column["shared"]]
        self.trials: dict[Candidate, Trial] = {}
        self.problem: FusedMoe | None = None
        self.problem_cells: dict[str, str] = {}
        self._configs: dict[tuple[str, ...], Config] = {}

    def add(self, line: int, cells: Sequence[str]) -> None:
        self._line, self._cells = line, cells
        if len(cells) != len(self.column):
            raise MalformedRecording(
                f"{self._path}, line {line}: {len(cells)} cells under {len(self.column)} columns"
            )
        self._same_problem()
        candidate = Candidate(self._point(), self._config())
        if candidate in self.trials:
            self._fail("BLOCK_SIZE_M", f"{candidate.point} {candidate.config.key} is there twice")
        measurement = self._measurement()
        self.trials[candidate] = Trial(candidate, self._compiled(measurement.status), measurement)

    def _fail(self, column: str, what: str) -> NoReturn:
        raise MalformedRecording(f"{self._path}, line {self._line}, column {column}: {what}")

    def _cell(self, column: str, absent: str = "") -> str:
        if column in _RARE and column not in self.column:
            return absent
        return self._cells[self.column[column]]

    def _whole(self, column: str, absent: str = "") -> int:
        text = self._cell(column, absent)
        if not _is_whole(text):
            self._fail(column, f"{text!r} is not a whole number")
        return int(text)

    def _time(self, column: str) -> float:
        try:
            time_us = float(self._cell(column))
        except ValueError:
            time_us = math.nan
        if not 0 < time_us < math.inf:
            self._fail(column, f"{self._cell(column)!r} is not a time in microseconds")
        return time_us

    def _same_problem(self) -> None:
        cells = {name: self._cell(name) for name in (*_PROBLEM, *self._rare_columns())}
        if self.problem is None:
            self.problem, self.problem_cells = self._read_problem(), cells
        elif cells != self.problem_cells:
            column = next(name for name in cells if cells[name] != self.problem_cells[name])
            first = self.problem_cells[column]
            self._fail(column, f"{cells[column]!r}, but {first!r} in the first row")

    def _rare_columns(self) -> list[str]:
        return [name for name in _RARE if name in self.column]

    def _read_problem(self) -> FusedMoe:
        try:
            dtype, block = parse_dtype(self._cell("dtype")), self._block()
            return FusedMoe(
                E=self._whole("E"),
                N=self._whole("N"),
                K=self._whole("K"),
                top_k=self._whole("topk"),
                dtype=dtype,
                block_shape=block,
                # The kernel supports int8 without blocks only with one scale per channel.
                per_channel_quant=(dtype is Dtype.INT8_W8A8 and block is None)
                or self._cell("per_channel_quant").lower() == "true",
                ep=self._whole("ep", "1"),
                shared_experts=self._whole("shared_experts", "0"),
            )
        except BadProblem as error:
            self._fail("dtype", str(error))

    def _block(self) -> tuple[int, int] | None:
        text = self._cell("block")
        if text.lower() in ("", "none", "0", "0,0"):
            return None
        n, comma, k = text.replace(" ", "").partition(",")
        if not (comma and _is_whole(n) and _is_whole(k)):
            self._fail("block", f"{text!r} is not a block like 128,128")
        return int(n), int(k)

    def _point(self) -> Point:
        gemm = self._cell("gemm")
        if gemm not in _GEMMS:
            self._fail("gemm", f"{gemm!r} is neither up nor down{did_you_mean(gemm, _GEMMS)}")
        return Point(self._whole("M"), Gemm(gemm))

    def _config(self) -> Config:
        cells = tuple(self._cell(name) for name in self._config_columns)
        if cells not in self._configs:  # a cache: every point has a row for each configuration
            # An empty cell is a missing key.
            names = [name for name, cell in zip(self._config_columns, cells, strict=True) if cell]
            self._configs[cells] = Config({name: self._whole(name) for name in names})
        return self._configs[cells]

    def _measurement(self) -> Measurement:
        text = self._cell("status")
        known = {**_STATUSES, _NOT_COMPARED: Status.OK}
        if text not in known:
            self._fail("status", f"unknown status {text!r}{did_you_mean(text, known)}")
        status = known[text]
        if status is Status.OK:
            times = self._time("median_us"), self._time("min_us")
            return Measurement(status, *times, detail=UNCHECKED if text == _NOT_COMPARED else "")
        for column in ("median_us", "min_us"):
            if self._cell(column):
                self._fail(column, f"a time, though the status is {text}")
        return Measurement(status)

    def _compiled(self, status: Status) -> Compiled:
        shared, n_regs, n_spills = (
            self._whole(name) if self._cell(name) else None for name in _FIGURES[:3]
        )
        if n_spills is not None:
            n_spills *= SPILL_BYTES
        failed = status in _FAILS_TO_COMPILE
        return Compiled(status if failed else Status.OK, shared, n_regs, n_spills)


def _is_whole(text: str) -> bool:
    # int() also reads "1_0", signs, spaces and digits of other scripts.
    return text.isascii() and text.isdigit() and len(text) <= 12
