"""Use a server's queue, watches and nights over HTTP, and find the command line's key."""

from __future__ import annotations

import contextlib
import http.client
import json
import secrets
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, TypeVar

import platformdirs

from tuner.errors import BadInput, ServerUnavailable, UnknownJob
from tuner.jobs.job import (
    Cost,
    Job,
    JobEvent,
    JobRequest,
    JobState,
    Priority,
    Submitted,
    read_if_possible,
    read_time,
)
from tuner.jobs.queue import ALL_JOBS, JobQuery
from tuner.jobs.web import checked_url, opener_for
from tuner.jobs.workers import WorkerStatus, read_worker
from tuner.shell import command_line

KEY_VARIABLE = "TUNER_API_KEY"


def api_key(environ: Mapping[str, str]) -> str | None:
    """Return TUNER_API_KEY, or the content of TUNER_API_KEY_FILE or of the user's `api-key` file.

    Raises BadInput if both variables are set, for a file that cannot be read, or that other users
    may read, and for a text that cannot be a key.
    """
    key, given = environ.get(KEY_VARIABLE), environ.get(f"{KEY_VARIABLE}_FILE")
    if key and given:
        raise BadInput(f"{KEY_VARIABLE} and {KEY_VARIABLE}_FILE are both set: unset one of them")
    if key:
        return _checked_key(key, KEY_VARIABLE)
    path = key_path(environ)
    if not given and not path.exists():
        return None
    try:
        # Docker Compose's are in a folder that others cannot enter: its containers read them too.
        if path.stat().st_mode & 0o077 and path.resolve().parent.stat().st_mode & 0o077:
            close = command_line("chmod", "600", str(path))
            raise BadInput(f"others may read the key in {path}: run `{close}`")
        return _checked_key(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read the key in {path}: {error}") from None


def key_path(environ: Mapping[str, str]) -> Path:
    """Return the file in which the command line looks for its key."""
    given = environ.get(f"{KEY_VARIABLE}_FILE")
    return (
        Path(given)
        if given
        else platformdirs.user_config_path("tuner", appauthor=False) / "api-key"
    )


def _checked_key(text: str, where: str) -> str:
    key = text.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise BadInput(
            f"{where} holds no key: a key is one word, as `tuner admin keys create` prints it"
        )
    return key


TIMEOUT_S = 30.0  # without a byte; an event stream has a ping every 15 s
PAUSES_S = (0.5, 1.0, 2.0, 4.0)  # before a submission is sent again, with its idempotency key
LARGEST_ANSWER = 64 << 20  # bytes
MOST_AT_ONCE = 100  # jobs of one request
NIGHT_S = 600.0  # a round submits thousands of jobs before it answers

_WATCH = ("id", "watch", "client", "created_at")
_TABLE = ("models", "devices", "tp", "ep", "dtypes", "batch_sizes", "engine", "measure", "effort")
_PLACE = ("engine", "engine_version", "triton", "torch", "driver")
_STORED = ("device", "problem", "environment", "standing", "why", "points", "newest")
_WATCHED = ("model", "problem", "device", "engine", "measure", "standing", "why")
_NIGHT = ("schedule", "date", "started_at", "finished_at")
_SUMMARY = ("schedule", "date")
NOTHING: Mapping[str, str] = MappingProxyType({})
T = TypeVar("T")
Json = dict[str, Any]


class RemoteQueue:
    """A server's queue, results, watches, coverage and nights.

    Raises ServerUnavailable if the server does not answer, and BadInput, with the server's message,
    for a request that it refuses.
    """

    def __init__(self, url: str, key: str | None) -> None:
        self._url = checked_url(url)
        self._key = key
        self._opener = opener_for(self._url)

    def submit_all(
        self, requests: Sequence[JobRequest], *, priority: Priority = Priority.NORMAL
    ) -> Sequence[Submitted]:
        """Post jobs together. They are sent again when no answer comes; a key keeps them single.

        Raises BadInput if the server refuses a job, which does not stop the others.
        """
        answers: list[Submitted] = []
        for at in range(0, len(requests), MOST_AT_ONCE):
            some = [_job_body(one, priority) for one in requests[at : at + MOST_AT_ONCE]]
            headers = {"Idempotency-Key": secrets.token_hex(16)}
            good, refused = self._ask(
                "POST",
                "/v1/jobs:batch",
                {"jobs": some},
                headers,
                read=_read_batch,
                pauses_s=PAUSES_S,
            )
            answers += good
            if refused:
                queued = ", ".join(one.job.id for one in answers)
                text = f"; these jobs were queued: {queued}" if queued else ""
                raise BadInput(f"{self._url}: {refused[0]}{text}")
        return answers

    def get(self, job_id: str) -> Job:
        """Return the job. Raises UnknownJob."""
        return self._ask("GET", _job_path(job_id), read=_read_job)

    def list(self, query: JobQuery = ALL_JOBS, *, limit: int = 50) -> Sequence[Job]:
        """List at most `limit` jobs, which is 1 to 1000."""
        return [job for job, _ in self.list_waiting(query, limit=limit)]

    def list_waiting(
        self, query: JobQuery = ALL_JOBS, *, limit: int = 50
    ) -> Sequence[tuple[Job, str]]:
        """List jobs as `list`, each with the reason why it does not go on."""
        wanted = {**query.parameters(), "limit": str(limit)}
        path = f"/v1/jobs?{urllib.parse.urlencode(wanted, doseq=True)}"
        return self._ask("GET", path, read=lambda answer: _each(answer["jobs"], _read_waiting))

    def cancel(self, job_id: str, *, everyone: bool = False) -> Job:
        """Withdraw from the job, or end it for everyone. Raises UnknownJob."""
        query = "?everyone=true" if everyone else ""
        return self._ask("POST", f"{_job_path(job_id)}/cancel{query}", read=_read_job)

    def retry(self, job_id: str) -> Job:
        """Queue a dead, failed or cancelled job again. Raises UnknownJob."""
        return self._ask("POST", f"{_job_path(job_id)}/retry", read=_read_job)

    def waiting(self, job: Job) -> str:
        """Say why a job does not go on; "" if nothing is known to hinder it."""
        if job.state.finished:
            return ""
        return self._ask("GET", _job_path(job.id), read=_read_waiting)[1]

    def workers(self) -> Sequence[WorkerStatus]:
        """Return the workers of the last weeks."""
        return self._ask("GET", "/v1/workers", read=lambda got: _each(got["workers"], read_worker))

    def drain(self, name: str) -> None:
        """Let workers take no more jobs. Raises BadInput."""
        self._ask("POST", f"/v1/workers/{urllib.parse.quote(name, safe='')}/drain")

    def resume(self, name: str) -> None:
        """Let workers take jobs again. Raises BadInput."""
        self._ask("POST", f"/v1/workers/{urllib.parse.quote(name, safe='')}/resume")

    def events(self, job_id: str, after: int = 0) -> Iterator[JobEvent]:
        """Yield a job's events after number `after`, until the job or the stream ends."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        stream = self._open("GET", f"{_job_path(job_id)}/events", headers=headers)
        with stream as answer, self._expecting_this_version():
            try:
                for data in _event_data(answer):
                    yield _read_event(job_id, data)
            except (OSError, http.client.HTTPException, ValueError):
                return  # the stream broke: the caller asks again

    def winners(self, device: str, engine: str, read: Callable[[Json], T]) -> Sequence[T]:
        """Return the current winners for a device and an engine, NAME or NAME==VERSION.

        `read` converts each winner.
        """
        path = f"/v1/winners?{urllib.parse.urlencode({'device': device, 'engine': engine})}"
        return self._ask("GET", path, read=lambda got: _each(got["winners"], read))

    def withdraw(self, problem: str, device: str, engine: str) -> None:
        """Withdraw the winners of a problem. Raises BadInput if the key may not."""
        of = urllib.parse.urlencode({"problem": problem, "device": device, "engine": engine})
        with self._open("DELETE", f"/v1/results?{of}"):
            pass

    def watches(self) -> Sequence[Json]:
        """Return the watches that were added, in order of their ids."""
        return self._ask("GET", "/v1/watches", read=lambda got: _each(got["watches"], _watch))

    def add_watch(self, watch: Mapping[str, Any]) -> Json:
        """Add a watch, a table of nightly.toml, and return it as stored."""
        return self._ask("POST", "/v1/watches", watch, read=_watch)

    def remove_watch(self, watch_id: int) -> None:
        """Remove a watch. Raises BadInput if there is none with that id."""
        with self._open("DELETE", f"/v1/watches/{watch_id}"):
            pass

    def stored(self, device: str | None) -> Iterator[Json]:
        """Yield the stored results of a device, or of all, by environment and problem."""
        check = partial(_checked, fields=_STORED, environment=_PLACE)
        return self._pages("/v1/coverage", "stored", check, device=device, limit=1000)

    def watched(self, device: str | None) -> Iterator[Json]:
        """Yield the watched problems of a device, or of all, in the watch list's order."""
        check = partial(_checked, fields=_WATCHED)
        return self._pages("/v1/coverage/watched", "watched", check, device=device, limit=100)

    def run_night(self, *, dry_run: bool, force: bool) -> Json:
        """Do tonight's round on the server and return its summary."""
        body, check = {"dry_run": dry_run, "force": force}, partial(_checked, fields=_SUMMARY)
        return self._ask("POST", "/v1/nights", body, timeout_s=NIGHT_S, read=check)

    def nights(self, limit: int) -> Sequence[Json]:
        """Return the newest nights with counts, the last first."""
        check = partial(_checked, fields=(*_NIGHT, "counts"))
        path = f"/v1/nights?limit={limit}"
        return self._ask("GET", path, read=lambda got: _each(got["nights"], check))

    def last_night(self) -> Json:
        """Return the last night with its summary. Raises BadInput before the first."""
        check = partial(_checked, fields=(*_NIGHT, "summary"))
        return self._ask("GET", "/v1/nights/last", read=check)

    def night_diff(self, before: date, now: date) -> Json:
        """Compare two finished nights. Raises BadInput for a day without a night."""
        check = partial(_checked, fields=("before", "now", "problems"))
        return self._ask("GET", f"/v1/nights/{now}/diff?since={before}", read=check)

    def _pages(
        self, path: str, name: str, read: Callable[[Any], Json], **query: object
    ) -> Iterator[Json]:
        given = {key: value for key, value in query.items() if value is not None}
        while True:
            page, given["after"] = self._ask(
                "GET",
                f"{path}?{urllib.parse.urlencode(given)}",
                read=lambda got: (_each(got[name], read), got["next"]),
            )
            yield from page
            if given["after"] is None:
                return

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] = NOTHING,
        *,
        timeout_s: float = TIMEOUT_S,
        read: Callable[[Any], T] = dict,  # type: ignore[assignment]
        pauses_s: Sequence[float] = (),
    ) -> T:
        """Send a request, and return its answer as `read` converts it.

        After each pause, a server that was away is asked again. Raises ServerUnavailable, too, for
        an answer that `read` does not know.
        """
        for pause_s in pauses_s:
            with contextlib.suppress(ServerUnavailable):
                return self._ask(method, path, body, headers, timeout_s=timeout_s, read=read)
            time.sleep(pause_s)
        with self._open(method, path, body, headers, timeout_s) as answer:
            try:
                values = json.loads(answer.read(LARGEST_ANSWER))
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise ServerUnavailable(f"{self._url}: no whole answer came: {error}") from None
        with self._expecting_this_version():
            return read(values)

    @contextlib.contextmanager
    def _expecting_this_version(self) -> Iterator[None]:
        try:
            yield
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            text = f"{self._url} does not answer as this version's service does: {error!r}"
            raise ServerUnavailable(text) from None

    @contextlib.contextmanager
    def _open(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] = NOTHING,
        timeout_s: float = TIMEOUT_S,
    ) -> Iterator[IO[bytes]]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, dict(headers), method=method)  # noqa: S310 (checked)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        if self._key:
            request.add_header("Authorization", f"Bearer {self._key}")
        try:
            with self._opener.open(request, timeout=timeout_s) as answer:
                yield answer
        except urllib.error.HTTPError as error:
            raise _translated(error, self._url) from None
        except (OSError, http.client.HTTPException) as error:
            reason = str(getattr(error, "reason", None) or error).strip()
            raise ServerUnavailable(f"{self._url} does not answer: {reason}") from None


def _each(values: Iterable[Any], read: Callable[[Any], T]) -> list[T]:
    return [read(one) for one in values]


def _read_waiting(values: Mapping[str, Any]) -> tuple[Job, str]:
    return _read_job(values), str(values.get("waiting", ""))


def _read_batch(values: Mapping[str, Any]) -> tuple[list[Submitted], list[str]]:
    """Return the answers of the accepted jobs, and why others were refused."""
    items = list(values["jobs"])
    refused = [str(item["problem"]["detail"]) for item in items if item["problem"]]
    return _each((item["job"] for item in items if not item["problem"]), _read_submitted), refused


def _read_submitted(values: Mapping[str, Any]) -> Submitted:
    estimated = values["estimated_gpu_s"]
    return Submitted(_read_job(values), bool(values["created"]), estimated_gpu_s=estimated)


def _job_body(request: JobRequest, priority: Priority) -> dict[str, Any]:
    body = request.as_json()
    body |= {"model": body.pop("problem"), "urgent": priority is Priority.URGENT}
    if request.model:
        body["name"] = request.model
    return body


def _job_path(job_id: str) -> str:
    return f"/v1/jobs/{urllib.parse.quote(job_id, safe='')}"


def _translated(error: urllib.error.HTTPError, url: str) -> Exception:
    try:
        problem = json.loads(error.read(1 << 16))
        kind, text = str(problem["type"]), str(problem["detail"])
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        kind, text = "", f"{error.code} {error.reason}"
    if error.code >= 500 or error.code == 429 or kind.endswith(":idempotency-key-in-use"):
        return ServerUnavailable(f"{url}: {text}")
    if error.code == 401:
        return BadInput(f"{url}: {text} (set {KEY_VARIABLE})")
    return UnknownJob(text) if error.code == 404 else BadInput(f"{url}: {text}")


def _event_data(answer: IO[bytes]) -> Iterator[Mapping[str, Any]]:
    for line in answer:
        name, _, value = line.decode().rstrip("\r\n").partition(": ")
        if name == "data":  # the server writes each event's data on one line
            yield json.loads(value)


def _read_event(job_id: str, values: Mapping[str, Any]) -> JobEvent:
    at = read_time(values["at"])
    return JobEvent(job_id, values["seq"], values["kind"], at, values["data"])


def _read_job(values: Mapping[str, Any]) -> Job:
    times = {
        name: read_time(values[name])
        for name in ("created_at", "updated_at", "started_at", "finished_at")
        if values[name] is not None
    }
    return Job(
        id=values["id"],
        request=read_if_possible(values["request"]),
        priority=Priority[values["priority"].upper()],
        state=JobState(values["state"]),
        client=values["client"],
        clients=tuple(values["clients"]),
        attempts=values["attempts"],
        owner="",  # the API does not tell which worker has the job, and until when
        lease_expires_at=None,
        cancel_requested=values["cancel_requested"],
        run_id=values["run_id"],
        error=values["error"],
        available_at=times["created_at"],
        created_at=times["created_at"],
        updated_at=times["updated_at"],
        started_at=times.get("started_at"),
        finished_at=times.get("finished_at"),
        cost=Cost(**cost) if (cost := values["cost"]) else None,
    )


def _checked(values: Json, fields: Sequence[str], **inner: Sequence[str]) -> Json:
    """Return the object. Raises KeyError if it, or an object in it, lacks one of these fields."""
    if lacking := [name for name in fields if name not in values]:
        raise KeyError(*lacking)
    for name, within in inner.items():
        _checked(values[name], within)
    return values


def _watch(values: Json) -> Json:
    return _checked(values, _WATCH, watch=_TABLE)
