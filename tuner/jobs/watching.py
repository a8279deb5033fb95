"""What a service keeps tuned, and its nights, over HTTP."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from tuner.jobs.client import RemoteQueue
from tuner.jobs.workers import WorkerStatus

Json = dict[str, Any]
NIGHT_S = 600.0  # a round submits thousands of jobs before it answers

_WATCH = ("id", "watch", "client", "created_at")
_TABLE = ("models", "devices", "tp", "ep", "dtypes", "batch_sizes", "engine", "measure", "effort")
_PLACE = ("engine", "engine_version", "triton", "torch", "driver")
_STORED = ("device", "problem", "environment", "standing", "why", "points", "newest")
_WATCHED = ("model", "problem", "device", "engine", "measure", "standing", "why")
_NIGHT = ("schedule", "date", "summary", "started_at", "finished_at")


class Watching(Protocol):
    """What a server and the local store (`workers.nightly.LocalWatching`) have in common.

    Values are the JSON objects of the API.
    """

    def watches(self) -> Sequence[Json]: ...

    def add_watch(self, watch: Mapping[str, Any]) -> Json: ...

    def remove_watch(self, watch_id: int) -> None: ...

    def stored(self, device: str | None) -> Iterator[Json]: ...

    def watched(self, device: str | None) -> Iterator[Json]: ...

    def run_night(self, *, dry_run: bool, force: bool) -> Json: ...

    def nights(self, limit: int) -> Sequence[Json]: ...

    def workers(self) -> Sequence[WorkerStatus]: ...


class RemoteWatching(RemoteQueue):
    """A server's watches, coverage and nights. Raises the errors of `RemoteQueue`."""

    def watches(self) -> Sequence[Json]:
        """The watches that were added, in order of their ids."""
        answer = self._ask("GET", "/v1/watches")
        with self._expecting_this_version():
            return [_checked(values, _WATCH, watch=_TABLE) for values in answer["watches"]]

    def add_watch(self, watch: Mapping[str, Any]) -> Json:
        """Add a watch, a table of nightly.toml, and return it as stored."""
        answer = self._ask("POST", "/v1/watches", watch)
        with self._expecting_this_version():
            return _checked(answer, _WATCH, watch=_TABLE)

    def remove_watch(self, watch_id: int) -> None:
        """Remove a watch. Raises BadInput where there is none with that id."""
        with self._open("DELETE", f"/v1/watches/{watch_id}", None, {}):
            pass

    def stored(self, device: str | None) -> Iterator[Json]:
        """What is stored for a device, or for all, by environment and problem."""
        query = {"device": device, "limit": 1000}
        for row in self._pages("/v1/coverage", "stored", query):
            with self._expecting_this_version():
                checked = _checked(row, _STORED, environment=_PLACE)
            yield checked

    def watched(self, device: str | None) -> Iterator[Json]:
        """What is watched for a device, or for all, in the watch list's order."""
        query = {"device": device, "limit": 100}
        for row in self._pages("/v1/coverage/watched", "watched", query):
            with self._expecting_this_version():
                checked = _checked(row, _WATCHED)
            yield checked

    def run_night(self, *, dry_run: bool, force: bool) -> Json:
        """Do tonight's round on the server and return its summary."""
        body = {"dry_run": dry_run, "force": force}
        answer = self._ask("POST", "/v1/nights", body, timeout_s=NIGHT_S)
        with self._expecting_this_version():
            return _checked(answer, ("schedule", "date"))

    def nights(self, limit: int) -> Sequence[Json]:
        """The newest nights, the last one first."""
        answer = self._ask("GET", f"/v1/nights?limit={limit}")
        with self._expecting_this_version():
            return [_checked(values, _NIGHT) for values in answer["nights"]]

    def _pages(self, path: str, name: str, query: Mapping[str, Any]) -> Iterator[Json]:
        """All items of a list, page by page."""
        given = {key: value for key, value in query.items() if value is not None}
        while True:
            answer = self._ask("GET", f"{path}?{urllib.parse.urlencode(given)}")
            with self._expecting_this_version():
                page, given["after"] = list(answer[name]), answer["next"]
            yield from page
            if given["after"] is None:
                return


def _checked(values: Json, fields: Sequence[str], **inner: Sequence[str]) -> Json:
    """The object. Raises KeyError where it, or an object in it, lacks one of these fields."""
    if lacking := [name for name in fields if name not in values]:
        raise KeyError(*lacking)
    for name, within in inner.items():
        _checked(values[name], within)
    return values
