"""Results of runs as JSON, and files of them: one object for each run, with what it published.

No trials are among them: they say what was tried, and entries say what counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from tuner.errors import BadInput
from tuner.problems.results import Entry, RunKey, Totals, Winner
from tuner.store.rows import entry_row, read_entry, read_key, run_row

FORMAT = 1
_COMPUTED = ("over", "over_us")  # columns of an entry that follow from the others


@dataclass(frozen=True)
class RunResult:
    """A finished run, and what it published."""

    key: RunKey
    entries: tuple[Entry, ...]
    totals: Totals
    published_at: datetime  # UTC

    def as_json(self) -> dict[str, Any]:
        """The result as JSON, which `read_result` reads back."""
        row = run_row(self.key)
        del row["fingerprint"]
        return {
            "format": FORMAT,
            "problem": self.key.problem.spec(),
            "environment": asdict(self.key.environment),
            **row,
            "totals": asdict(self.totals),
            "published_at": self.published_at.isoformat(),
            "entries": [_entry_json(entry) for entry in self.entries],
        }

    def winners(self) -> list[Winner]:
        """The entries as winners of no store: their run has the number 0."""
        key, at = self.key, self.published_at
        return [Winner(key.problem, key.environment, entry, 0, at) for entry in self.entries]


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
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise BadInput(f"this result of a run cannot be read: {what[:200]}") from None


def _entry_json(entry: Entry) -> dict[str, Any]:
    return {name: value for name, value in entry_row(entry).items() if name not in _COMPUTED}
