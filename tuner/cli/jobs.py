"""List, show, follow, cancel and retry jobs of the local store or of a server."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli import complete
from tuner.cli.app import command_of, group, say, show
from tuner.cli.options import Json, OneDevice, Server
from tuner.devices.table import find_device
from tuner.errors import BadInput, ServerUnavailable, TunerError, UnknownJob, UnusableStore
from tuner.render import columns, folded, list_width, printable, table
from tuner.shell import command_line

if TYPE_CHECKING:  # `tuner --help` must not pay for SQLAlchemy
    from tuner.jobs.client import RemoteQueue
    from tuner.jobs.job import Job, JobEvent, JobRequest, UnreadableRequest
    from tuner.jobs.queue import JobQuery
    from tuner.store.jobs import LocalQueue
    from tuner.tuning.progress import LiveLine

    Queue = LocalQueue | RemoteQueue

FOLLOW_S = 0.5
LOST_S = 300.0  # give up when a server or database does not answer for this long
PAUSE_S = 10.0  # longest pause between two tries
ENDED_BADLY = ("dead", "failed")
NEWEST = 1000  # jobs among which the beginning of an id is looked for
TOLD_S = 10.0  # between two lines about trials
SHORT_ID = 12  # characters: ten are the time, two tell jobs of one moment apart
WHY = 90  # characters of a reason in a list

jobs = group(
    "jobs",
    "Submit, list, show, follow, cancel and retry jobs. Without a command: list them.",
    lists=True,
)

JobId = Annotated[
    str,
    typer.Argument(metavar="ID", help="The id that `jobs submit` printed, or its beginning."),
]
JobIds = Annotated[
    list[str],
    typer.Argument(metavar="ID...", help="Ids that `jobs submit` printed, or their beginnings."),
]


@contextlib.contextmanager
def open_jobs(server: str | None) -> Iterator[Queue]:
    """Open the queue of the local store, or of a server."""
    if server is not None:
        from tuner.jobs.client import RemoteQueue, api_key

        yield RemoteQueue(server, api_key(os.environ))
        return
    from tuner.store.connect import database_url
    from tuner.store.jobs import LocalQueue

    with LocalQueue.open(database_url(os.environ)) as jobs:
        yield jobs


@command_of(jobs, "list")
def list_jobs(
    device: OneDevice = None,
    model: Annotated[
        str | None,
        typer.Option(
            autocompletion=complete.models,
            help="Only for this model, or models with this in their names; default: all.",
        ),
    ] = None,
    client: Annotated[
        str | None, typer.Option(help="Only of this client, as a key's name; default: all.")
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            autocompletion=complete.states,
            help="Only queued, running, done, ...; may be repeated; default: all.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many jobs to list.")] = 50,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """List jobs, newest first."""
    from tuner.jobs.job import parse_state
    from tuner.jobs.queue import JobQuery

    query = JobQuery(
        device=find_device(device).name if device else None,
        model=model,
        client=client,
        states=frozenset(parse_state(one) for one in state or ()),
    )
    with open_jobs(server) as queue:
        found = queue.list_waiting(query, limit=limit)
    show(
        as_json,
        lambda: [_as_json(job, waiting) for job, waiting in found],
        lambda: _list_text(found),
        "" if found else _nothing(query, server),
    )


def _nothing(query: JobQuery, server: str | None) -> str:
    """Say that there is no job, and name the command that queues the first."""
    from tuner.jobs.queue import JobQuery

    at = ["--server", server] if server else []
    if query != JobQuery():
        every = command_line("tuner", "jobs", "list", *at)
        return f"no job matches these options: `{every}` lists all"
    first = command_line("tuner", "jobs", "submit", "MODEL", "--device", "GPU", *at)
    return f"there is no job: `{first}` queues the first"


@command_of(jobs, "show")
def show_job(job_id: JobId, server: Server = None, as_json: Json = False) -> None:
    """Show a job, why it waits, and how it failed."""
    with open_jobs(server) as queue:
        _show_job(queue, _job_called(queue, job_id), server, as_json)


@command_of(jobs, "follow")
def follow_job(job_id: JobId, server: Server = None, as_json: Json = False) -> None:
    """Print a job's events until it ends. Exit 1 if it ends in another state than done."""
    from tuner.jobs.job import JobState

    with open_jobs(server) as queue:
        found = _follow(queue, _job_called(queue, job_id))
        _show_job(queue, found, server, as_json)
    if found.state is not JobState.DONE:
        raise typer.Exit(1)


def _show_job(queue: Queue, found: Job, server: str | None, as_json: bool) -> None:
    """Print a job; of a job that is done, also the commands that show and export its result."""
    from tuner.jobs.job import JobState

    waiting = queue.waiting(found)
    error = "\n".join(map(printable, found.error.splitlines()))
    after = _next_step(found, server) if found.state is JobState.DONE else ""
    text = "\n\n".join(filter(None, (_job_table([(found, waiting)]), error, waiting, after)))
    show(as_json, lambda: _as_json(found, waiting), lambda: text)


@command_of(jobs, "cancel")
def cancel_jobs(
    job_ids: JobIds,
    everyone: Annotated[
        bool, typer.Option("--everyone", help="End it for the other clients that wait for it too.")
    ] = False,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Cancel jobs, unless other clients wait for them too. Their trials stay in the store."""
    with open_jobs(server) as queue:
        called = [_job_called(queue, job_id) for job_id in job_ids]
        found = [queue.cancel(one.id, everyone=everyone) for one in called]
    _show_changed(found, _cancelled_text, as_json)


@command_of(jobs, "retry")
def retry_jobs(job_ids: JobIds, server: Server = None, as_json: Json = False) -> None:
    """Queue dead, failed or cancelled jobs again. Their trials count."""
    with open_jobs(server) as queue:
        called = [_job_called(queue, job_id) for job_id in job_ids]
        found = [queue.retry(one.id) for one in called]
    _show_changed(found, _state_text, as_json)


def _show_changed(found: Sequence[Job], text: Callable[[Job], str], as_json: bool) -> None:
    """Print jobs that were cancelled or queued again; a single job as a single JSON object."""
    objects = [one.as_json() for one in found]
    show(
        as_json,
        lambda: objects[0] if len(objects) == 1 else {"jobs": objects},
        lambda: "\n".join(map(text, found)),
    )


def _state_text(found: Job) -> str:
    return f"{found.id} is {found.state.value}"


def _cancelled_text(found: Job) -> str:
    if found.state.finished:
        return _state_text(found)
    if found.cancel_requested:
        return f"{_state_text(found)}: its worker was asked to stop"
    others = ", ".join(found.clients)
    return f"{found.id} goes on for {others}; --everyone ends it for all"


def _job_called(queue: Queue, job_id: str) -> Job:
    """Return the job with an id, or with an id that begins so. Raises UnknownJob and BadInput."""
    try:
        return queue.get(job_id)
    except UnknownJob:
        called = [one for one in queue.list(limit=NEWEST) if one.id.startswith(job_id)]
        if not called:
            raise
        if len(called) > 1:
            ids = ", ".join(one.id for one in called[:3])
            raise BadInput(
                f"{len(called)} jobs begin with {job_id}: {ids}: write more of the id"
            ) from None
        return called[0]


def _follow(queue: Queue, found: Job) -> Job:
    """Print each event of a job once, and its trials in a line, until it ends."""
    with contextlib.closing(_TrialsLine()) as trials:
        return _followed(queue, found, trials)


def _followed(queue: Queue, found: Job, trials: _TrialsLine) -> Job:
    """Tell of a job until it ends. Short outages are waited out."""
    seen, outage = 0, _Outage()
    reason = ""
    while True:
        try:
            found = queue.get(found.id)  # read before its events, so that no event is missed
            for event in queue.events(found.id, after=seen):
                seen = event.seq
                reason = str(event.data.get("reason", ""))
                if not trials.takes(event):
                    say(_event_line(event))
            waiting = queue.waiting(found)
            if waiting != reason and waiting:  # its workers have gone since
                say(f"waiting: {waiting}")
            reason = waiting
        except (ServerUnavailable, UnusableStore) as error:
            outage.wait(error)
            continue
        outage = _Outage()
        if found.state.finished:
            return found
        time.sleep(FOLLOW_S)


def _next_step(found: Job, server: str | None) -> str:
    """Name the commands that show the result of a done job, and that make files of it."""
    request = found.request
    options = ["--device", request.device, "--engine", request.engine]
    options += ["--problem", request.spec]
    options += ["--server", server] if server else []
    predicted = ["--allow-predicted"] if request.measure == "predict" else []
    report = command_line("tuner", "report", *options)
    return f"its gain: {report}\nits files: {command_line('tuner', 'export', *options, *predicted)}"


class _TrialsLine:
    """Tell of a job's trials in a line: drawn on a terminal, printed every TOLD_S elsewhere."""

    def __init__(self) -> None:
        self._line: LiveLine | None = None
        self._tried = self._most = 0
        self._best = ""

    def takes(self, event: JobEvent) -> bool:
        """Return whether an event is of trials; any other event ends the line."""
        from tuner.jobs.job import PLANNED

        if event.kind != "trials":
            self.close()
            self._most = int(event.data["to_try"]) if event.kind == PLANNED else self._most
            return False
        self._tried += int(event.data["tried"])
        for at, time_us in event.data["best_us"].items():
            self._best = f"; best {at} {time_us:.1f} us"
        if self._line is None:
            from tuner.tuning.progress import LiveLine

            self._line = LiveLine(sys.stderr, self._text, self._done, every_s=TOLD_S)
        return True

    def close(self) -> None:
        """End the line, and leave its text."""
        if self._line is not None:
            self._line.close()
            self._line = None
            say(self._text(columns()))

    def _text(self, width: int) -> str:
        most = f" of at most {self._most}" if self._tried < self._most else ""
        return printable(f"trials: {self._tried}{most} tried{self._best}")[:width]

    def _done(self) -> tuple[int, int]:
        return self._tried, max(self._tried, self._most)


class _Outage:
    """Wait through an outage, with longer and longer pauses, until LOST_S have passed."""

    def __init__(self) -> None:
        self._pause_s, self._gives_up_at = FOLLOW_S, 0.0

    def wait(self, error: TunerError) -> None:
        """Wait before another try. Raises the error when the outage has lasted too long."""
        if not self._gives_up_at:
            self._gives_up_at = time.monotonic() + LOST_S
            say(f"{error}; trying again for {LOST_S:g} s")
        if time.monotonic() + self._pause_s > self._gives_up_at:
            raise error
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, PAUSE_S)


def _event_line(event: JobEvent) -> str:
    from tuner.jobs.job import PLANNED

    data: dict[str, Any] = dict(event.data)
    if event.kind == PLANNED:
        text = f"at most {data['to_try']} configurations, and the engine's own"
    else:
        shown = ("reason", "owner", "run_id")
        text = ", ".join(f"{name} {data[name]}" for name in shown if name in data)
    return printable(f"{event.at:%H:%M:%S} {event.kind}" + (f": {text}" if text else ""))


def _as_json(found: Job, waiting: str) -> dict[str, Any]:
    return {**found.as_json(), **({"waiting": waiting} if waiting else {})}


def _list_text(found: Sequence[tuple[Job, str]]) -> str:
    """List the jobs, and why some of them wait or ended badly: in a pipe in a column, so that a job
    is a line; on a terminal, which has no room for the column, below the table.
    """
    whys = {job.id: why for job, waiting in found if (why := _why(job, waiting))}
    if not whys or list_width() is not None:
        return _job_table(found, whys)
    shown, lines = _shown_ids(found), dict[str, list[str]]()
    for job, waiting in found:
        if job.id in whys:
            lines.setdefault(f"{_state(job, waiting)}: {whys[job.id]}", []).append(shown[job.id])
    told = [f"{line} ({_ids(ids)})" for line, ids in lines.items()]
    return folded("\n".join([_job_table(found), "", *map(printable, told)]))


def _shown_ids(found: Sequence[tuple[Job, str]]) -> dict[str, str]:
    """Return the ids as a list shows them: on a terminal, beginnings that differ."""
    ids = [job.id for job, _ in found]
    length = SHORT_ID if list_width() is None and len(ids) > 1 else max(map(len, ids), default=0)
    while len({one[:length] for one in ids}) < len(ids):
        length += 1
    return {one: one[:length] for one in ids}


def _ids(ids: Sequence[str]) -> str:
    return ids[0] if len(ids) == 1 else f"{len(ids)} jobs, the first {ids[0]}"


def _state(found: Job, waiting: str) -> str:
    """Return the job's state for people: a held job that does not go on is stalled."""
    from tuner.jobs.job import HELD

    return "stalled" if waiting and found.state in HELD else found.state.value


def _job_table(found: Sequence[tuple[Job, str]], whys: Mapping[str, str] | None = None) -> str:
    """Tabulate the jobs; with `whys`, by id, also a column of reasons."""
    from tuner.jobs.workers import ago

    columns = ("job", "state", "device", "model or problem", "measure", "attempts", "age")
    headers = (*columns, "why") if whys else columns
    ids, now = _shown_ids(found), datetime.now(timezone.utc)
    rows = [
        (
            ids[job.id],
            _state(job, waiting),
            job.request.device,
            _name(job.request),
            job.request.measure.partition(":")[0],
            job.attempts,
            ago(now - job.created_at),
            *([whys.get(job.id, "")] if whys else []),
        )
        for job, waiting in found
    ]
    drop, whole = ("attempts", "measure"), ("job", "device", "age")
    return table(headers, rows, drop=drop, width=list_width(), whole=whole)


def _name(request: JobRequest | UnreadableRequest) -> str:
    """Name the model and its tp with the problem, or on a terminal with the problem's kind."""
    from tuner.jobs.job import JobRequest
    from tuner.models.served_as import with_sizes

    if not (isinstance(request, JobRequest) and request.model):
        return request.spec
    of = request.problem.family if list_width() is None else request.problem.spec()
    return f"{with_sizes(request.model, request.problem)} {of}"


def _why(job: Job, waiting: str) -> str:
    """Say in short why a job waits or failed: `tuner jobs show ID` says it in full."""
    ended = job.error if job.state.value in ENDED_BADLY else ""
    text = ended or waiting
    return text if len(text) <= WHY else text[: WHY - 3] + "..."
