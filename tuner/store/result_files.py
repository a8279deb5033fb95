"""Write results of runs as JSON, and into files: an object for each run, with its winners.

No trials are among them: trials say which candidates were tried, and entries say which count.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tuner.errors import BadInput
from tuner.export.files import write_all
from tuner.problems.registry import parse_problem
from tuner.problems.results import SHELF_RUN, Entry, Environment, RunKey, Totals, Winner
from tuner.store.declared import check_declared
from tuner.store.rows import entry_row, read_entry, read_key, run_row

FORMAT = 1
_MOST_BYTES = 64 << 20  # of an unpacked file; the shelf's largest has 2 MB
_COMPUTED = ("over", "over_us")  # columns of an entry that follow from the others


@dataclass(frozen=True)
class RunResult:
    """A finished run, and the entries that it published."""

    key: RunKey
    entries: tuple[Entry, ...]
    totals: Totals
    published_at: datetime  # UTC
    models: tuple[str, ...] = ()  # that run the problem, as "deepseek-r1 tp 8", if it is told

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON, which `read_result` reads back."""
        row = run_row(self.key)
        del row["fingerprint"]
        return {
            **({"models": list(self.models)} if self.models else {}),
            "format": FORMAT,
            "problem": self.key.problem.spec(),
            "environment": asdict(self.key.environment),
            **row,
            "totals": asdict(self.totals),
            "published_at": self.published_at.isoformat(),
            "entries": [_entry_json(entry) for entry in self.entries],
        }

    def winners(self) -> list[Winner]:
        """Return the entries as winners of no store: their run is SHELF_RUN."""
        place, at = (self.key.problem, self.key.environment), self.published_at
        return [Winner(*place, entry, SHELF_RUN, at) for entry in self.entries]


def read_result(values: object) -> RunResult:
    """Read the JSON that `RunResult.as_json` makes. Raises BadInput."""
    if not isinstance(values, Mapping) or values.get("format") != FORMAT:
        raise BadInput(f"this is no result of a run in format {FORMAT}")
    try:
        return RunResult(
            key=read_key({**values, **values["environment"], "spec": values["problem"]}),
            entries=tuple(read_entry(row) for row in values["entries"]),
            totals=Totals(**values["totals"]),
            published_at=datetime.fromisoformat(values["published_at"]),
            models=tuple(map(str, values.get("models", ()))),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        what = f"{type(error).__name__}: {error}"
        raise BadInput(f"this result of a run cannot be read: {what[:200]}") from None


def checked(result: RunResult) -> RunResult:
    """Return a result that others made. Raises BadInput for values of other types than declared."""
    try:
        check_declared(result, "result")
    except ValueError as error:
        raise BadInput(f"this result of a run cannot be read: {error}") from None
    return result


def winner_json(winner: Winner) -> dict[str, Any]:
    """Return a winner as JSON, which `read_winner` reads back."""
    other = winner.unpredicted
    return {
        "problem": winner.problem.spec(),
        "environment": asdict(winner.environment),
        "entry": _entry_json(winner.entry),
        "run_id": winner.run_id,
        "published_at": winner.published_at.isoformat(),
        "unpredicted": winner_json(other) if other else None,
    }


def read_winner(values: Mapping[str, Any]) -> Winner:
    """Read the JSON that `winner_json` makes. Raises KeyError, TypeError and ValueError."""
    other = values["unpredicted"]
    return Winner(
        parse_problem(values["problem"]),
        Environment(**values["environment"]),
        read_entry(values["entry"]),
        int(values["run_id"]),
        datetime.fromisoformat(values["published_at"]),
        read_winner(other) if other else None,
    )


def read_results(path: Path) -> list[RunResult]:
    """Read a file with the JSON of a result in each line, compressed by gzip.

    Raises BadInput, which names the line.
    """
    try:
        with gzip.open(path) as stream:
            data = stream.read(_MOST_BYTES + 1)
        lines = data.decode().splitlines()
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise BadInput(
            f"{path} cannot be read: {error}: name a file that `tuner results export` wrote"
        ) from None
    if not lines or len(data) > _MOST_BYTES:
        why = "it is empty" if not lines else f"it is larger than {_MOST_BYTES >> 20} MiB"
        raise BadInput(f"{path} has no results: {why}")
    return [_read_line(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


def write_results(folder: Path, results: Iterable[RunResult]) -> list[Path]:
    """Write results into files by card, engine and Triton: CARD/ENGINE-VERSION-triton-X.jsonl.gz.

    The same results give the same bytes. Raises UnwritableOutput, and then nothing has changed.
    """
    texts: dict[Path, str] = {}
    for one in results:
        place = one.key.environment
        name = f"{place.engine}-{place.engine_version}-triton-{place.triton}.jsonl.gz"
        path = folder / place.device / name
        texts[path] = texts.get(path, "") + json.dumps(one.as_json()) + "\n"
    write_all(folder, {path: gzip.compress(text.encode(), mtime=0) for path, text in texts.items()})
    return list(texts)


def _read_line(line: str, place: str) -> RunResult:
    try:
        return read_result(json.loads(line))
    except RecursionError:
        raise BadInput(f"{place}: this is no result of a run: it is too deep") from None
    except (BadInput, ValueError) as error:
        raise BadInput(f"{place}: {error}") from None


def _entry_json(entry: Entry) -> dict[str, Any]:
    return {name: value for name, value in entry_row(entry).items() if name not in _COMPUTED}
