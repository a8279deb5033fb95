"""The commands for watches, their state, and stored results."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli import complete
from tuner.cli.app import command_of, group, refuse_foreign, say, show
from tuner.cli.options import (
    EffortName,
    EngineSpec,
    Families,
    Json,
    Measure,
    OneDevice,
    Server,
    ServerArgs,
)
from tuner.devices.table import find_device
from tuner.problems.options import parse_batch_sizes
from tuner.render import columns, printable

if TYPE_CHECKING:
    from tuner.jobs.client import RemoteQueue
    from workers.local_watching import LocalWatching
    from workers.settings import Settings

    Watching = LocalWatching | RemoteQueue

AGAIN = "may be given again"

nightly = group(
    "nightly", "Keep models tuned: a watch names models, and a night queues their jobs."
)
watches = group(
    "watches",
    "List, add and remove watches: models that are kept tuned. Without a command: list them.",
    of=nightly,
    lists=True,
)


@contextlib.contextmanager
def open_watching(server: str | None, settings: Settings | None = None) -> Iterator[Watching]:
    """Open the watches, coverage and nights of the local store, or of a server."""
    if server is not None:
        import os

        from tuner.jobs.client import RemoteQueue, api_key

        yield RemoteQueue(server, api_key(os.environ))
        return
    refuse_foreign("workers")
    from tuner.store.database import Database
    from workers.local_watching import LocalWatching
    from workers.settings import read_settings

    settings = settings or read_settings()
    with Database.open(settings.database_url) as store:
        yield LocalWatching(settings, store)


@command_of(watches, "list")
def list_watches(server: Server = None, as_json: Json = False) -> None:
    """List the watches that were added; a nightly.toml may have more."""
    with open_watching(server) as watching:
        found = watching.watches()
    nothing = "" if found else "no watch was added: `tuner nightly watches add` adds a watch"
    show(as_json, lambda: found, lambda: "\n".join(map(_watch_text, found)), nothing)


@command_of(watches, "add")
def add_watch(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL|PROBLEM...",
            autocompletion=complete.models,
            help="Models of `tuner list models`, or problems.",
        ),
    ],
    device: Annotated[
        list[str],
        typer.Option(autocompletion=complete.devices, help=f"For this GPU; {AGAIN}."),
    ],
    tp: Annotated[
        list[int] | None, typer.Option(help=f"Tensor-parallel size; {AGAIN}; default: 1.")
    ] = None,
    ep: Annotated[
        list[int] | None, typer.Option(help=f"Expert-parallel size; {AGAIN}; default: 1.")
    ] = None,
    dtype: Annotated[
        list[str] | None, typer.Option(help=f"Dtype of weights; {AGAIN}; default: the model's.")
    ] = None,
    batch_sizes: Annotated[
        str | None, typer.Option(help="Of a fused-MoE layer, e.g. 1,2,4; default: the engine's.")
    ] = None,
    engine: EngineSpec = "sglang",
    measure: Measure = "gpu",
    effort: EffortName = "standard",
    server_args: ServerArgs = "",
    family: Families = "",
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Keep every combination of these tuned. An equal watch is not added twice."""
    from tuner.jobs.workers import JobRequirements
    from tuner.targets import read_family_names

    lists = {"models": models, "devices": device, "tp": tp, "ep": ep, "dtypes": dtype}
    watch: dict[str, Any] = {name: value for name, value in lists.items() if value}
    watch |= {"engine": engine, "measure": measure, "effort": effort}
    if names := read_family_names(family):
        watch["families"] = names if isinstance(names, str) else list(names)
    if server_args:
        watch["server_args"] = server_args
    if batch_sizes:
        watch["batch_sizes"] = parse_batch_sizes(batch_sizes)
    with open_watching(server) as watching:
        added = watching.add_watch(watch)
        workers = watching.workers()
    table = added["watch"]
    for card in table["devices"]:
        need = JobRequirements(card, table["measure"] == "gpu", table["engine"])
        if why := need.unmet(workers, datetime.now(timezone.utc)):
            say(f"its jobs will wait: {why}")
    show(as_json, lambda: added, lambda: _watch_text(added))


@command_of(watches, "remove")
def remove_watch(
    watch_id: Annotated[
        int, typer.Argument(metavar="ID", help="As `tuner nightly watches` lists it.")
    ],
    server: Server = None,
) -> None:
    """Remove a watch. Its stored results stay."""
    with open_watching(server) as watching:
        watching.remove_watch(watch_id)


@command_of(nightly, "coverage")
def coverage(
    device: OneDevice = None,
    watched: Annotated[
        bool, typer.Option("--watched", help="Show watched models; default: stored results.")
    ] = False,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Show which problems are tuned and which are stale.

    With --watched, also show which are missing.
    """
    name = find_device(device).name if device else None
    with open_watching(server) as watching:
        rows = list(watching.watched(name) if watched else watching.stored(name))
    row_text = _watched_text if watched else _stored_text
    nothing = "" if rows else nothing_stored(name, watched=watched)
    show(as_json, lambda: rows, lambda: _sections(map(row_text, rows)), nothing)


def nothing_stored(device: str | None, *, watched: bool = False) -> str:
    """Say that no result is stored, or that no problem is watched, and how to begin."""
    first = "nightly watches add" if watched else "tune"
    what = f"nothing is {'watched' if watched else 'stored'}" + (f" for {device}" if device else "")
    return f"{what}: begin with `tuner {first}`"


def _watch_text(row: Mapping[str, Any]) -> str:
    watch = row["watch"]
    said = [f"{name} {_listed(watch[name])}" for name in ("tp", "ep") if watch[name] != [1]]
    said += [_listed(watch["dtypes"])] if watch["dtypes"] else []
    said += [f"batch sizes {_listed(watch['batch_sizes'])}"] if watch["batch_sizes"] else []
    said += [watch["engine"], watch["measure"], watch["effort"]]
    said += [f"families {', '.join(some)}"] if (some := _families(watch)) else []
    said += [f"servers with {watch['server_args']}"] if watch.get("server_args") else []
    said += [f"without {problem}" for problem in watch.get("hidden", ())]
    what = f"{_listed(watch['models'])} on {_listed(watch['devices'])}"
    added = f"added by {row['client']} on {row['created_at'][:10]}"
    return item(f"{row['id']:<3}", what, f"{'; '.join(said)}; {added}")


def _families(watch: Mapping[str, Any]) -> Sequence[str]:
    given = watch.get("families", ())
    return [given] if isinstance(given, str) else given


def _stored_text(row: Mapping[str, Any]) -> tuple[str, str]:
    from tuner.problems.results import counted

    place = row["environment"]
    heading = f"{row['device']}, {place['engine']} {place['engine_version']}"
    heading += f", triton {place['triton']}"
    for name in ("torch", "driver"):
        heading += f", {name} {place[name][:20]}" if place[name] else ""
    points = counted(row["points"])
    detail = f"{points}; last on {row['newest'][:10]}" + (f"; {row['why']}" if row["why"] else "")
    return heading, item(f"{row['standing']:<7}", row["problem"], detail)


def _watched_text(row: Mapping[str, Any]) -> tuple[str, str]:
    heading = ", ".join(filter(None, (row["device"], row["engine"], row["measure"])))
    model, problem = row["model"], row["problem"]
    detail = "; ".join(filter(None, (model if problem not in ("", model) else "", row["why"])))
    standing = row["standing"].replace("_", " ")
    return heading, item(f"{standing:<7}", problem or model, detail)


def _sections(texts: Iterable[tuple[str, str]]) -> str:
    """Write items below their headings."""
    groups = groupby(texts, key=lambda one: one[0])
    return "\n\n".join(
        "\n".join([printable(heading), *(text for _, text in group)]) for heading, group in groups
    )


def item(first: str, what: str, detail: str) -> str:
    """Write an item, and its detail, if it has any, below it.

    A problem's text that is wider than the terminal goes on after a comma.
    """
    what, width = printable(what), columns() - len(first) - 2
    if len(what) > width:
        rows = textwrap.wrap(what.replace(",", ", "), width)
        what = "\n".join(row.replace(", ", ",") for row in rows)
    text = f"{what}\n{printable(detail)}" if detail else what
    return f"{first}  {textwrap.indent(text, ' ' * (len(first) + 2)).lstrip()}"


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))
