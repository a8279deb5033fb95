"""The commands for the operator of a service: workers and the store. `keys` adds the commands of
keys.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.app import command_of, group, say, show
from tuner.cli.jobs import open_jobs
from tuner.cli.options import Json, Server
from tuner.render import list_width, table
from tuner.shell import command_line

if TYPE_CHECKING:
    from tuner.jobs.workers import WorkerStatus

LOOK_EVERY_S = 1.0

admin = group("admin", "Manage API keys, workers and the store.")


@command_of(admin, "migrate")
def migrate() -> None:
    """Create the store, or upgrade its schema. Other commands do this too when they open it."""
    from tuner.store.connect import database_url, place_of
    from tuner.store.database import Database

    url = database_url(os.environ)
    Database.open(url).close()
    say(f"the store {place_of(url)} has this program's schema")


@command_of(admin, "prune")
def prune(
    days: Annotated[int, typer.Option(min=30, help="Delete rows older than this.")],
    as_json: Json = False,
) -> None:
    """Delete old jobs, nights, and runs with their trials. Rows that results need stay."""
    from datetime import timedelta

    from tuner.store.connect import database_url
    from tuner.store.prune import Pruning

    with Pruning.open(database_url(os.environ)) as store:
        gone = store.prune(timedelta(days=days))
    show(as_json, lambda: gone, lambda: "deleted " + ", ".join(f"{n} {k}" for k, n in gone.items()))


WorkerName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A worker's name or id, or a host for all of its workers."),
]

workers = group(
    "workers",
    "List workers, drain and resume them. Without a command: list them.",
    of=admin,
    lists=True,
)


@command_of(workers, "list")
def list_workers(server: Server = None, as_json: Json = False) -> None:
    """List workers: their abilities, their jobs and their states."""
    with open_jobs(server) as queue:
        found = queue.workers()
    first = "no worker was seen in the last two weeks: start `tuner worker` on a host with GPUs"
    nothing = "" if found else first
    show(as_json, lambda: [one.as_json() for one in found], lambda: _table(found), nothing)


@command_of(workers, "drain")
def drain(
    name: WorkerName,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return when no worker of that name has a job.")
    ] = False,
    server: Server = None,
) -> None:
    """Let workers finish their jobs and take no more."""
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
        again = command_line("tuner", "admin", "workers", "resume", name)
        typer.echo(f"{name} is drained: restart it, or run `{again}`")


@command_of(workers, "resume")
def resume(name: WorkerName, server: Server = None) -> None:
    """Let workers take jobs again that were drained or set aside."""
    with open_jobs(server) as queue:
        queue.resume(name)
    typer.echo(f"{name} takes jobs")


def _table(found: Sequence[WorkerStatus]) -> str:
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
