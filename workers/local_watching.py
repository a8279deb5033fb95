"""A local store's watches, coverage and nights, as the commands use a server's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any

from tuner.errors import BadInput
from tuner.jobs.job import iso
from tuner.jobs.workers import WorkerStatus
from tuner.store.api_key import LOCAL
from tuner.store.database import Database
from tuner.store.lookups import Lookups
from tuner.store.night_diff import diff_nights
from tuner.store.nights import NightStore
from tuner.store.workers import WorkerStore
from workers.coverage import WatchedFilter, stored_rows, watched_rows
from workers.nightly import SCHEDULE, do_round, seen_now
from workers.queue import Announcer
from workers.settings import Settings
from workers.watches import named, read_watch, watch_list_of

PAGE = 100


class LocalWatching:
    """A local store's watches, coverage and nights, with the methods of `RemoteQueue`."""

    def __init__(self, settings: Settings, store: Database) -> None:
        self._settings = settings
        self._store = store
        self._nights = NightStore(store)
        self._lookups = Lookups(store)

    def watches(self) -> Sequence[dict[str, Any]]:
        """Return the watches that were added, in order of their ids."""
        return [watch.as_json() for watch in self._nights.watches()]

    def add_watch(self, watch: Mapping[str, Any]) -> dict[str, Any]:
        """Add a watch, a table of nightly.toml, and return it as stored. Raises BadInput."""
        wanted = named(read_watch(watch))
        return self._nights.add_watch(wanted.as_json(), wanted.key, LOCAL).as_json()

    def remove_watch(self, watch_id: int) -> None:
        """Remove a watch. Raises BadInput if there is none with that id."""
        if not self._nights.remove_watch(watch_id):
            raise BadInput(f"there is no watch {watch_id}")

    def stored(self, device: str | None) -> Iterator[dict[str, Any]]:
        """Yield the stored results of a device, or of all, by environment and problem."""
        after: tuple[int, int] | None = None
        while found := self._lookups.stored_summaries(device, after, PAGE):
            seen = self._lookups.environments({one.environment.device for one in found})
            for row in stored_rows(found, seen):
                yield {**row, "oldest": iso(row["oldest"]), "newest": iso(row["newest"])}
            after = found[-1].cursor

    def watched(self, device: str | None) -> Iterator[dict[str, Any]]:
        """Yield the watched problems of a device, or of all, in the watch list's order."""
        watch_list, skip = watch_list_of(self._settings, self._nights), 0
        wanted = WatchedFilter(device)
        while rows := watched_rows(watch_list, wanted, skip, PAGE, self._lookups):
            for row in rows:
                yield {**row, "tuned_at": iso(row["tuned_at"])}
            skip += PAGE

    def last_night(self) -> dict[str, Any]:
        """Return the last night with its summary. Raises BadInput before the first."""
        night = self._nights.last()
        if night is None:
            raise BadInput("there was no night yet: run `tuner nightly run` first")
        return {**night.as_json(), **seen_now(night.summary, self._store)}

    def night_diff(self, before: date, now: date) -> dict[str, Any]:
        """Compare two finished nights. Raises BadInput for a day without a night."""
        return diff_nights(self._store, SCHEDULE, before, now).as_json()

    def run_night(self, *, dry_run: bool, force: bool) -> dict[str, Any]:
        """Do tonight's round and return its summary."""
        announcer = Announcer(self._settings)
        return do_round(self._settings, self._store, announcer, dry_run=dry_run, force=force)

    def nights(self, limit: int) -> Sequence[dict[str, Any]]:
        """Return the newest nights with counts, the last first."""
        return [night.as_json() for night in self._nights.counted(limit=limit)]

    def workers(self) -> Sequence[WorkerStatus]:
        """Return the workers of the last weeks."""
        return WorkerStore(self._store).list()
