"""The commands that run the service: the API, workers, and the nightly round."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli.app import app, command, guarded, refuse_foreign, say, show
from tuner.cli.coverage import item, open_watching
from tuner.cli.jobs import open_jobs
from tuner.cli.options import Json, Server
from tuner.errors import BadInput, ServerUnavailable, StoreUnreachable
from tuner.render import list_width, table
from tuner.shell import command_line

if TYPE_CHECKING:
    from tuner.jobs.queue import Watching
    from tuner.jobs.workers import WorkerStatus


@command
def serve(
    host: Annotated[
        str, typer.Option(help="Address to listen on; beyond loopback, make a key first.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="TCP port; 0 takes a free one.")
    ] = 8765,
    worker: Annotated[
        bool | None,
        typer.Option(
            "--worker/--no-worker",
            help="Run jobs in this process too; default: unless TUNER_BROKER_URL is set.",
        ),
    ] = None,
    no_auth: Annotated[
        bool,
        typer.Option("--no-auth", help="Let all programs of this machine in without a key."),
    ] = False,
) -> None:
    """Serve the HTTP API, and run its jobs. Without any key in the store, make a first one."""
    from dataclasses import replace

    refuse_foreign("api")
    refuse_foreign("workers")
    try:
        from api.serve import serve as run
        from api.settings import read_api_settings
    except ModuleNotFoundError as error:
        raise BadInput(f"no {error.name} here: pip install 'engine-tuner[api]'") from None

    settings = replace(read_api_settings(), no_auth=no_auth)
    workers = settings.service.broker_url is None if worker is None else worker
    run(settings, host, port, workers=workers, say=typer.echo)


@command
def migrate() -> None:
    """Create the store, or upgrade its schema. Other commands do this too when they open it."""
    refuse_foreign("workers")
    from tuner.store.connect import place_of
    from tuner.store.database import Database
    from workers.settings import read_settings

    settings = read_settings()
    Database.open(settings.database_url).close()
    say(f"the store {place_of(settings.database_url)} has this program's schema")


@command
def prune(
    days: Annotated[int, typer.Option(min=30, help="Delete what is older; default: none.")],
    as_json: Json = False,
) -> None:
    """Delete old jobs, nights, and runs with their trials. What results need stays."""
    from datetime import timedelta

    refuse_foreign("workers")
    from tuner.store.prune import Pruning
    from workers.settings import read_settings

    with Pruning.open(read_settings().database_url) as store:
        gone = store.prune(timedelta(days=days))
    show(as_json, lambda: gone, lambda: "deleted " + ", ".join(f"{n} {k}" for k, n in gone.items()))


LISTED = 30
AWAY = 75  # EX_TEMPFAIL of sysexits.h: what starts the command may try again later


@command
def worker(
    device: Annotated[
        list[str] | None,
        typer.Option(help="Without a GPU here: replay and predict for this GPU; default: all."),
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, max=256, help="Without a GPU here: how many jobs at once.")
    ] = 1,
) -> None:
    """Run queued jobs on this machine: one process per GPU, or --processes without a GPU."""
    refuse_foreign("workers")
    from workers.fleet import run_fleet
    from workers.machine import detect_gpus
    from workers.settings import read_settings

    run_fleet(read_settings(), detect_gpus(), device, processes)


@command
def nightly(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be queued; default: queue it.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Do it again if it was done today; default: once.")
    ] = False,
    last: Annotated[
        bool, typer.Option("--last", help="Show what the last run did; default: run.")
    ] = False,
    past: Annotated[
        bool, typer.Option("--list", help=f"List the last {LISTED} runs; default: run.")
    ] = False,
    watch_list: Annotated[
        Path | None, typer.Option(help="A nightly.toml; default: the file in TUNER_NIGHTLY.")
    ] = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Queue missing and outdated problems of the watch list, at most once a day.

    Exit 1 if a watch or a job could not be queued, and 75 if the server or the store is away.
    """
    refuse_foreign("workers")
    from workers.nightly import errors_of

    if last + past + (dry_run or force) > 1:
        raise BadInput("--last and --list only show runs: leave the other options out")
    with _open_nights(server, watch_list) as watching:
        if past:
            found = watching.nights(LISTED)
            show(as_json, lambda: found, lambda: _nights_text(found))
            return
        summary = _last(watching) if last else watching.run_night(dry_run=dry_run, force=force)
    show(as_json, lambda: summary, lambda: _night_text(summary))
    if errors_of(summary) and not last:
        raise typer.Exit(1)


@contextlib.contextmanager
def _open_nights(server: str | None, watch_list: Path | None) -> Iterator[Watching]:
    from dataclasses import replace

    from workers.settings import read_settings

    if server is not None and watch_list is not None:
        raise BadInput(f"{server} has its own watch list: leave --watch-list out, or add watches")
    settings = read_settings() if server is None else None
    if settings is not None and watch_list is not None:
        settings = replace(settings, nightly=watch_list)
    try:
        with open_watching(server, settings) as watching:
            yield watching
    except (ServerUnavailable, StoreUnreachable) as error:
        error.exit_code = AWAY
        raise


def _last(watching: Watching) -> Mapping[str, Any]:
    """The summary of the last round; of one that was not finished, its name and date."""
    night = watching.last_night()
    return night["summary"] or {"schedule": night["schedule"], "date": night["date"]}


def _nights_text(nights: Sequence[Mapping[str, Any]]) -> str:
    from workers.nightly import KINDS

    def row(night: Mapping[str, Any]) -> tuple[object, ...]:
        counts, ended = night["counts"], night["finished_at"]
        if counts is None:
            return (night["date"], *(None,) * 7, "-")
        shown = [counts[name] for name in ("watched", *KINDS, "submitted", "waiting")]
        errors = counts["errors"] + counts["not_submitted"]
        return (night["date"], *shown, errors, ended[11:16] if ended else "-")

    headers = ("date", "watched", *KINDS, "queued", "waiting", "errors", "ended")
    return table(headers, list(map(row, nights)))


def _night_text(summary: Mapping[str, Any]) -> str:
    from workers.night_report import report_line
    from workers.nightly import KINDS, errors_of, headline

    found = [
        (kind, one["problem"], _detail(one)) for kind in KINDS for one in summary.get(kind, ())
    ]
    found += [("error", one["what"], one["why"]) for one in errors_of(summary)]
    widest = max((len(kind) for kind, *_ in found), default=0)
    items = [item(kind.ljust(widest), what, detail) for kind, what, detail in found]
    waits = [f"its jobs wait: {why}" for why in summary.get("unmet") or ()]
    models = [report_line(one) for one in summary.get("models") or ()]
    parts = [headline(summary), *waits, *([""] if models else []), *models]
    return "\n".join([*parts, *([""] if items else []), *items])


def _detail(one: Mapping[str, Any]) -> str:
    model = one["model"] and f"{one['model']} "
    of = f"{model}on {one['device']}, {one['measure']}"
    return f"{of}; {one['why']}" if one.get("why") else of


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
        again = command_line("tuner", "workers", "resume", name)
        typer.echo(f"{name} is drained: restart it, or run `{again}`")


@workers.command("resume")
@guarded
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
