"""Results as JSON that another store takes: one object for each run, with the entries it published.

No trials are among them: they say what was tried, and entries say what counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from tuner.errors import BadInput
from tuner.problems.results import Entry, RunKey, Totals, Winner
from tuner.store.results import ResultStore, run_of
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


class ResultExchange(ResultStore):
    """Gives a store's results to another one, and takes them from there."""

    def results(self, winners: Iterable[Winner]) -> list[RunResult]:
        """The runs that published these winners of this store, in the order of their numbers."""
        by_run: dict[int, list[Winner]] = {}
        for winner in winners:
            by_run.setdefault(winner.run_id, []).append(winner)
        return [self._result(number, by_run[number]) for number in sorted(by_run)]

    def add(self, result: RunResult) -> int:
        """Store a result from elsewhere; returns the number of entries that were added.

        Entries that the store has for the same problem, environment, point and status stay.
        """
        known = {
            (winner.entry.point, winner.status)
            for winner in self.winners_in(result.key.problem, result.key.environment)
        }
        new = [entry for entry in result.entries if (entry.point, entry.status) not in known]
        if new:
            with self._write() as connection:
                run = self._begin(connection, result.key)
                self._finish(connection, run, new, result.totals)
        return len(new)

    def _result(self, number: int, published: Sequence[Winner]) -> RunResult:
        with self._read() as connection:
            run = run_of(connection, number)
        entries = tuple(winner.entry for winner in published)
        at = max(winner.published_at for winner in published)
        return RunResult(run.key, entries, run.totals or Totals(), at)


def _entry_json(entry: Entry) -> dict[str, Any]:
    return {name: value for name, value in entry_row(entry).items() if name not in _COMPUTED}
