"""The command that runs a night: it queues outdated and missing problems."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli.app import command_of, refuse_foreign, show
from tuner.cli.coverage import item, nightly, open_watching
from tuner.cli.options import Json, Server
from tuner.errors import BadInput, ServerUnavailable, StoreFull, StoreUnreachable
from tuner.render import folded, table

if TYPE_CHECKING:
    from tuner.cli.coverage import Watching

LISTED = 30
AWAY = 75  # EX_TEMPFAIL of sysexits.h: what starts the command is to try again later


@command_of(nightly, "run")
def run_night(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the jobs to queue; default: queue them.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Do it again if it was done today; default: once.")
    ] = False,
    last: Annotated[
        bool, typer.Option("--last", help="Show the report of the last run; default: run.")
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
    """Queue missing and outdated problems, at most once a day.

    The watch list names them. Exit 1 if a watch or a job could not be queued, and 75 if the server
    or the store is away, or another process does the night.
    """
    refuse_foreign("workers")
    from workers.nightly import UNDER_WAY, errors_of

    if last + past + (dry_run or force) > 1:
        raise BadInput("--last and --list only show runs: leave the other options out")
    with _open_nights(server, watch_list) as watching:
        if past:
            found = watching.nights(LISTED)
            nothing = "" if found else "there was no night yet: `tuner nightly run` does a night"
            show(as_json, lambda: found, lambda: _nights_text(found), nothing)
            return
        summary = _last(watching) if last else watching.run_night(dry_run=dry_run, force=force)
    show(as_json, lambda: summary, lambda: _night_text(summary))
    if errors_of(summary) and not last:
        raise typer.Exit(1)
    if summary.get("skipped") == UNDER_WAY:  # whether it comes to its end is not known yet
        raise typer.Exit(AWAY)


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
    except (ServerUnavailable, StoreUnreachable, StoreFull) as error:
        error.exit_code = AWAY
        raise


def _last(watching: Watching) -> Mapping[str, Any]:
    """Return the summary of the last round, or the name and date of an unfinished round."""
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
    waits = [folded(f"its jobs wait: {why}") for why in summary.get("unmet") or ()]
    models = [report_line(one) for one in summary.get("models") or ()]
    parts = [folded(headline(summary)), *waits, *([""] if models else []), *models]
    return "\n".join([*parts, *([""] if items else []), *items])


def _detail(one: Mapping[str, Any]) -> str:
    model = one["model"] and f"{one['model']} "
    of = f"{model}on {one['device']}, {one['measure']}"
    return f"{of}; {one['why']}" if one.get("why") else of
