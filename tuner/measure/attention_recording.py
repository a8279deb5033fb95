"""Recordings of attention's trials: CSV files, packed or plain, one trial a row.

Columns: problem, part, batch_size, new_tokens, cached_tokens, config (its key), compile_status,
shared_bytes, n_regs, n_spills, status, median_us, detail; others are passed over. One file may
hold several problems.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import BadInput, BadProblem, UnwritableOutput
from tuner.problems import Attention, Candidate, Config, Point, parse_attention, read_part
from tuner.results import Compiled, Measurement, Status, Trial

COLUMNS = ("problem", "part", "batch_size", "new_tokens", "cached_tokens", "config")
FIGURES = ("compile_status", "shared_bytes", "n_regs", "n_spills", "status", "median_us", "detail")
MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class AttentionRecording:
    """The trials of one problem."""

    sha256: str  # of the file
    trials: Mapping[Candidate, Trial]

    @property
    def points(self) -> tuple[Point, ...]:
        return tuple(sorted({candidate.point for candidate in self.trials}))


def read_attention_recording(path: Path, problem: Attention) -> AttentionRecording:
    """A problem's trials in a recording. Raises BadInput for a file that is none, or lacks it."""
    try:
        data = path.read_bytes()
        text = _unpacked(data).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read the recording {path}: {error}") from None
    rows = csv.DictReader(io.StringIO(text))
    missing = [name for name in (*COLUMNS, *FIGURES) if name not in (rows.fieldnames or ())]
    if missing:
        raise BadInput(f"{path} is no recording of attention: it lacks {', '.join(missing)}")
    trials, others = {}, set()
    try:
        for row in rows:
            if parse_attention(row["problem"]) == problem:
                trial = _trial(row)
                trials[trial.candidate] = trial
            else:
                others.add(row["problem"])
    except (ValueError, TypeError, BadProblem) as error:
        raise BadInput(f"{path}, line {rows.line_num}: {error}") from None
    if not trials:
        raise BadInput(f"{path} has no trial of {problem.spec()}, only of {', '.join(others)}")
    return AttentionRecording(hashlib.sha256(data).hexdigest(), trials)


def write_attention_recording(path: Path, problem: Attention, trials: Iterable[Trial]) -> None:
    """Write a recording; packed where the name ends in .gz. Raises UnwritableOutput."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow((*COLUMNS, *FIGURES))
    writer.writerows(_row(problem, trial) for trial in trials)
    data = stream.getvalue().encode()
    try:
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    except OSError as error:
        raise UnwritableOutput(f"cannot write {path}: {error.strerror}") from None


def _unpacked(data: bytes) -> bytes:
    if not data.startswith(b"\x1f\x8b"):
        return data[:MAX_BYTES]
    with gzip.open(io.BytesIO(data)) as packed:
        return packed.read(MAX_BYTES)


def _trial(row: Mapping[str, str]) -> Trial:
    sizes = (int(row["batch_size"]), int(row["new_tokens"]), int(row["cached_tokens"]))
    point = Point(sizes[0], read_part(row["part"]), *sizes[1:])
    config = Config({k: int(v) for k, _, v in (p.partition("=") for p in row["config"].split(","))})
    compiled = Compiled(
        Status(row["compile_status"]),
        shared_bytes=_whole(row["shared_bytes"]),
        n_regs=_whole(row["n_regs"]),
        n_spills=_whole(row["n_spills"]),
    )
    median_us = float(row["median_us"]) if row["median_us"] else None
    measured = Measurement(Status(row["status"]), median_us, median_us, detail=row["detail"])
    return Trial(Candidate(point, config), compiled, measured)


def _whole(text: str) -> int | None:
    return int(text) if text else None


def _row(problem: Attention, trial: Trial) -> tuple[object, ...]:
    point, compiled, measured = trial.candidate.point, trial.compiled, trial.measurement
    return (
        *(problem.spec(), point.part.value, point.batch_size, point.new_tokens),
        *(point.cached_tokens, trial.candidate.config.key),
        *(compiled.status.value, compiled.shared_bytes, compiled.n_regs, compiled.n_spills),
        *(measured.status.value, measured.median_us, measured.detail),
    )
