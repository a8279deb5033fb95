"""The commands that run workers and the nightly round."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from tuner.cli.app import command, refuse_foreign, show
from tuner.cli.options import Json


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
    from workers.gpus import detect_gpus
    from workers.settings import read_settings

    run_fleet(read_settings(), detect_gpus(), device, processes)


@command
def nightly(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be queued; default: queue it.")
    ] = False,
    last: Annotated[
        bool, typer.Option("--last", help="Show what the last run did; default: run.")
    ] = False,
    watch_list: Annotated[
        Path | None, typer.Option(help="A nightly.toml; default: the file in TUNER_NIGHTLY.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Queue missing and outdated problems of the watch list, at most once a day."""
    refuse_foreign("workers")
    from dataclasses import replace

    from tuner.errors import BadInput
    from workers.nightly import last_night, run_nightly
    from workers.settings import read_settings

    settings = read_settings()
    if watch_list is not None:
        settings = replace(settings, nightly=watch_list)
    if last:
        found = last_night(settings)
        if found is None:
            raise BadInput("there was no night yet: run `tuner nightly` first")
        summary = found
    else:
        summary = run_nightly(settings, dry_run=dry_run)
    show(as_json, lambda: summary, lambda: _night_text(summary))


def _night_text(summary: Mapping[str, Any]) -> str:
    from tuner.render import table

    title = f"{summary['schedule']} of {summary['date']}"
    if "skipped" in summary:
        return f"{title}: {summary['skipped']}"
    if "watched" not in summary:
        return f"{title}: not finished"
    rows = [
        (kind, one["device"], one["model"], one["problem"], one["measure"], one.get("why", ""))
        for kind in ("missing", "stale", "revalidated")
        for one in summary[kind]
    ]
    rows += [("error", "", one["what"], "", "", one["why"]) for one in summary["errors"]]
    counts = f"{title}: {summary['watched']} watched, {len(rows)} to do"
    if "submitted" in summary:
        counts += f", {len(summary['submitted'])} queued, {len(summary['waiting'])} waiting before"
    headers = ("what", "device", "model", "problem", "measure", "why")
    return counts + (f"\n\n{table(headers, rows)}" if rows else "")
