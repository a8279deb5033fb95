"""The commands that show workers, drain them before an upgrade, and resume them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.app import app, guarded, say, show
from tuner.cli.jobs import open_jobs
from tuner.cli.options import Json, Server

if TYPE_CHECKING:  # `tuner --help` must not pay for SQLAlchemy
    from collections.abc import Sequence

    from tuner.jobs.workers import WorkerStatus

LOOK_EVERY_S = 1.0

WorkerName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A worker's name or id, or a host for all of its workers."),
]

workers = typer.Typer(
    name="workers", help="List workers, drain and resume them.", invoke_without_command=True
)
app.add_typer(workers)


@workers.callback()
@guarded
def list_workers(context: typer.Context, server: Server = None, as_json: Json = False) -> None:
    """List workers: what each can do, and what it does now."""
    if context.invoked_subcommand is not None:
        return
    with open_jobs(server) as queue:
        found = queue.workers()
    show(as_json, lambda: [one.as_json() for one in found], lambda: _table(found))


@workers.command("drain")
@guarded
def drain(
    name: WorkerName,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return when no worker of that name has a job.")
    ] = False,
    server: Server = None,
) -> None:
    """Let workers finish their jobs and take no more, as before an upgrade."""
    with open_jobs(server) as queue:
        queue.drain(name)
        while True:
            busy = [one for one in queue.workers() if one.called(name) and one.doing == "draining"]
            if not (busy and wait):
                break
            time.sleep(LOOK_EVERY_S)
    for one in busy:
        say(f"{one.info.name} finishes job {one.job_id}")
    if not busy:
        typer.echo(f"{name} is drained: restart it, or run `tuner workers resume {name}`")


@workers.command("resume")
@guarded
def resume(name: WorkerName, server: Server = None) -> None:
    """Let workers take jobs again that were drained or set aside."""
    with open_jobs(server) as queue:
        queue.resume(name)
    typer.echo(f"{name} takes jobs")


def _table(found: Sequence[WorkerStatus]) -> str:
    from tuner.render import list_width, table

    headers = ("worker", "state", "engines", "job", "seen")
    rows = [
        (
            one.info.name,
            one.doing,
            ", ".join(engine.replace("==", " ") for engine in one.info.engines[:1])
            + (f" +{len(one.info.engines) - 1}" if len(one.info.engines) > 1 else ""),
            one.job_id or "",
            f"{one.seen_at:%m-%d %H:%M:%S}",
        )
        for one in found
    ]
    reasons = [f"{one.info.name}: {one.reason}" for one in found if one.doing == "set aside"]
    shown = table(headers, rows, width=list_width(), whole=("worker", "job"))
    return shown + "".join(f"\n\n{reason}" for reason in reasons)
