"""Pass results of runs from a store to another store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tuner.problems.results import Status, Totals, Winner
from tuner.store.current_winners import kernels, size_of
from tuner.store.result_files import RunResult
from tuner.store.results import ResultStore, run_of


class ResultExchange(ResultStore):
    """Gives a store's results to another store, and takes them from there.

    It has the store's own winners alone, none of the shelf.
    """

    shelf = False

    def results(self, winners: Iterable[Winner]) -> list[RunResult]:
        """Return the runs that published these winners of this store, in the order of their
        numbers.
        """
        by_run: dict[int, list[Winner]] = {}
        for winner in winners:
            by_run.setdefault(winner.run_id, []).append(winner)
        return [self._result(number, by_run[number]) for number in sorted(by_run)]

    def unmeasured(self, result: RunResult) -> RunResult | None:
        """Return a result's entries at sizes that the store has not measured for these kernels;
        None if these were not tuned.
        """
        place = result.key.environment
        mine = {
            size_of(winner.entry.point)
            for winner in self.winners_at(result.key.problem, place.device, place.engine)
            if winner.status is Status.OK and kernels(winner.environment) == kernels(place)
        }
        new = tuple(entry for entry in result.entries if size_of(entry.point) not in mine)
        tuned = not mine or any(entry.status is Status.OK for entry in new)
        return replace(result, entries=new) if tuned else None

    def add(self, result: RunResult) -> int:
        """Store a result from elsewhere; return the number of entries that were added.

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
