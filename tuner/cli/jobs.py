"""The commands that submit, list, follow and cancel jobs, in the local store or on a server."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli.app import command, print_json, say, show
from tuner.cli.family_options import FamilyChoice, with_family_options
from tuner.cli.options import (
    DeviceName,
    DtypeName,
    EffortName,
    EngineSpec,
    Json,
    Measure,
    Seed,
    Server,
    Target,
    Tp,
)
from tuner.cli.targets import Asked, resolve, selection_of
from tuner.render import printable

if TYPE_CHECKING:  # `tuner --help` must not pay for SQLAlchemy
    from tuner.errors import TunerError
    from tuner.jobs.client import Queue
    from tuner.jobs.job import Job, JobEvent, JobRequest, Priority

FOLLOW_S = 0.5
LOST_S = 300.0  # give up when a server or database does not answer for this long
PAUSE_S = 10.0  # longest pause between two tries
ENDED_BADLY = ("dead", "failed")
WHY = 60  # characters of a job's error in a list

JobId = Annotated[str, typer.Argument(metavar="ID", help="The id that `submit` printed.")]


@contextlib.contextmanager
def open_jobs(server: str | None) -> Iterator[Queue]:
    """The queue of the local store, or of a server."""
    if server is not None:
        from tuner.jobs.client import RemoteQueue, api_key

        yield RemoteQueue(server, api_key(os.environ))
        return
    from tuner.store import JobStore, database_url

    with JobStore.open(database_url(os.environ)) as jobs:
        yield jobs


@command
@with_family_options
def submit(
    target: Target,
    device: DeviceName,
    choice: FamilyChoice,
    tp: Tp = 1,
    dtype: DtypeName = None,
    measure: Measure = "gpu",
    effort: EffortName = "standard",
    engine: EngineSpec = "sglang",
    seed: Seed = 0,
    urgent: Annotated[
        bool, typer.Option("--urgent", help="Run before waiting jobs; default: after them.")
    ] = False,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Queue tuning jobs for a worker, one for each problem of a model, and print their ids."""
    from tuner.devices.table import find_device
    from tuner.jobs.job import JobRequest, Priority
    from tuner.tuning.request import parse_effort

    name, version = _engine(engine)
    found = resolve(Asked(target, find_device(device), name, version, tp, dtype), choice)
    requests = [
        JobRequest(
            problem=problem,
            device=device,
            engine=engine,
            measure=measure if server else _absolute(measure),
            selection=selection_of(found.family, problem, choice),
            effort=parse_effort(effort),
            wide=choice.values.get("wide"),
            seed=seed,
            model=target if found.is_model and ":" not in target else "",
        )
        for problem in found.problems
    ]
    for note in found.notes:
        say(note)
    priority = Priority.URGENT if urgent else Priority.NORMAL
    with open_jobs(server) as jobs:
        posted = [_post(jobs, request, priority, as_json) for request in requests]
    if as_json:
        print_json(posted[0] if len(posted) == 1 else {"jobs": posted})


@command
def jobs(
    device: Annotated[str | None, typer.Option(help="Only for this GPU; default: all.")] = None,
    model: Annotated[str | None, typer.Option(help="Only for this model; default: all.")] = None,
    state: Annotated[
        str | None, typer.Option(help="Only queued, running, done, ...; default: all.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many jobs to list.")] = 50,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """List jobs, newest first."""
    from tuner.devices.table import find_device
    from tuner.jobs.job import parse_state

    with open_jobs(server) as queue:
        found = queue.list(
            device=find_device(device).name if device else None,
            model=model,
            state=parse_state(state) if state else None,
            limit=limit,
        )
    show(as_json, lambda: [job.as_json() for job in found], lambda: _job_table(found, why=True))


@command
def job(
    job_id: JobId,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Print events until the job ends; default: show it once."),
    ] = False,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Show a job. With --follow, exit 1 if it ends in another state than done."""
    from tuner.jobs.job import JobState

    with open_jobs(server) as queue:
        found = queue.get(job_id)
        if follow:
            found = _follow(queue, found)
    reason = "\n".join(map(printable, found.error.splitlines()))
    text = _job_table([found]) + (f"\n\n{reason}" if reason else "")
    show(as_json, found.as_json, lambda: text)
    if follow and found.state is not JobState.DONE:
        raise typer.Exit(1)


@command
def cancel(job_id: JobId, server: Server = None, as_json: Json = False) -> None:
    """Cancel a job. Its trials stay in the store."""
    with open_jobs(server) as queue:
        found = queue.cancel(job_id)
    if as_json:
        print_json(found.as_json())
    elif found.state.finished:
        typer.echo(f"{found.id} is {found.state.value}")
    else:
        typer.echo(f"{found.id} is {found.state.value}: its worker was asked to stop")


@command
def retry(job_id: JobId, server: Server = None, as_json: Json = False) -> None:
    """Queue a dead, failed or cancelled job again. Its trials count."""
    with open_jobs(server) as queue:
        found = queue.retry(job_id)
    show(as_json, found.as_json, lambda: f"{found.id} is {found.state.value}")


def _follow(queue: Queue, found: Job) -> Job:
    """Print each event of a job once, until it ends. Short outages are waited out."""
    from tuner.errors import ServerUnavailable, UnusableStore

    seen, outage = 0, _Outage()
    while True:
        try:
            found = queue.get(found.id)  # read before its events, so that no event is missed
            for event in queue.events(found.id, after=seen):
                seen = event.seq
                say(_event_line(event))
        except (ServerUnavailable, UnusableStore) as error:
            outage.wait(error)
            continue
        outage = _Outage()
        if found.state.finished:
            return found
        time.sleep(FOLLOW_S)


class _Outage:
    """Waits through one outage, with longer and longer pauses, until LOST_S have passed."""

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
    data: dict[str, Any] = dict(event.data)
    if event.kind == "trials":
        best = ", ".join(f"{at} {time_us:.1f} us" for at, time_us in data["best_us"].items())
        text = f"{data['tried']} tried" + (f"; best {best}" if best else "")
    else:
        shown = ("reason", "owner", "run_id")
        text = ", ".join(f"{name} {data[name]}" for name in shown if name in data)
    return printable(f"{event.at:%H:%M:%S} {event.kind}" + (f": {text}" if text else ""))


def _job_table(found: Sequence[Job], *, why: bool = False) -> str:
    """The jobs, with `why` the reason of each that is dead or failed, if any is."""
    from tuner.render import table

    headers = ("job", "state", "device", "model or problem", "measure", "attempts", "created")
    why = why and any(job.state.value in ENDED_BADLY for job in found)
    rows = [
        (
            job.id,
            job.state.value,
            job.request.device,
            job.request.model or job.request.problem.spec(),
            job.request.measure.partition(":")[0],
            job.attempts,
            f"{job.created_at:%Y-%m-%d %H:%M:%S}",
            *([_why(job)] if why else []),
        )
        for job in found
    ]
    return table((*headers, *(["why"] if why else [])), rows)


def _why(job: Job) -> str:
    """Why a job ended without a result, in short: `tuner job ID` says it in full."""
    text = job.error if job.state.value in ENDED_BADLY else ""
    return text if len(text) <= WHY else text[: WHY - 3] + "..."


def _post(queue: Queue, request: JobRequest, priority: Priority, as_json: bool) -> dict[str, Any]:
    """Submit a job and return it as JSON.

    For text output its id is printed at once, because a later job may be refused.
    """
    answer = queue.submit(request, priority=priority)
    if not answer.created:
        say(f"the same job was submitted before: it is {answer.job.state.value}")
    if not as_json:
        typer.echo(answer.job.id)
    return {**answer.job.as_json(), "created": answer.created}


def _engine(spec: str) -> tuple[str, str | None]:
    """The engine's name and version; a named version need not be on this machine."""
    from tuner.engines.engine import find_engine, parse_spec
    from tuner.errors import UnknownEngine

    name, version = parse_spec(spec)
    try:
        return name, find_engine(spec).version
    except UnknownEngine:
        if version is None:
            raise
        return name, version


def _absolute(measure: str) -> str:
    """Make a recording's path absolute, because the worker runs in another folder."""
    from pathlib import Path

    kind, colon, file = measure.partition(":")
    return f"{kind}:{Path(file).absolute()}" if kind == "replay" and file else measure
