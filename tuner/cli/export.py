"""The commands that write stored winners: as an engine's files, and as pictures."""

from __future__ import annotations

import re
from collections import Counter
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.app import command, open_results, say, show
from tuner.cli.coverage import open_watching
from tuner.cli.family_options import FamilyChoice, with_model_options
from tuner.cli.options import (
    ClusterFile,
    DeviceOrHere,
    DtypeName,
    EngineSpec,
    Json,
    OneModel,
    ProblemSpecs,
    ResultsServer,
    ServerArgs,
    Tp,
)
from tuner.cli.plan import asked_by_cluster, given_words
from tuner.cli.problems import asked_model, divided, problems_to_ship
from tuner.errors import BadInput
from tuner.problems.registry import parse_problem
from tuner.shell import command_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.cli.problems import TargetOptions
    from tuner.devices.table import Device
    from tuner.engines.engine import Engine
    from tuner.export.diff import ExportDiff
    from tuner.problems.points import Problem
    from tuner.problems.results import Winner
    from tuner.store.night_diff import NightDiff


_NIGHT = re.compile(r"\d{4}-\d\d-\d\d")


@command
@with_model_options
def export(
    context: typer.Context,
    model: OneModel = "",
    device: DeviceOrHere = "",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write to; default: configs_out.")
    ] = None,
    into_engine: Annotated[
        bool, typer.Option("--into-engine", help="Write into the engine's folder; default: --out.")
    ] = False,
    allow_predicted: Annotated[
        bool,
        typer.Option(
            "--allow-predicted", help="Export predicted entries too; default: leave them out."
        ),
    ] = False,
    engine: EngineSpec = "sglang",
    server_args: ServerArgs = "",
    problem: ProblemSpecs = None,
    tp: Tp = 1,
    *,
    choice: FamilyChoice,
    dtype: DtypeName = None,
    cluster: ClusterFile = None,
    server: ResultsServer = None,
    as_json: Json = False,
) -> None:
    """Write the stored winners as the files that the engine loads, if they are faster than the
    server's own choice. If the store has no winner, take it from the shelf that this program
    brings.

    Say for each problem: leave it, these files, or these files and these flags. If all problems are
    to be left alone, write nothing, and exit with 0.
    """
    from tuner.devices.here import device_or_here
    from tuner.engines.engine import find_engine
    from tuner.export.export import export_device
    from tuner.export.selection import left_out_lines

    if out is not None and into_engine:
        raise BadInput("--out and --into-engine exclude each other: give one of them")
    if not model and cluster is None and (tp != 1 or dtype or choice.names or choice.values):
        raise BadInput("--tp, --dtype and similar options are for a model: tuner export MODEL")
    card = device_or_here(device)
    if cluster is not None:
        given = {
            "--problem": problem,
            repr(model): model,
            "--engine": engine != "sglang",
            "--server-args": server_args,
        }
        found, wanted, flags = asked_by_cluster(cluster, card, choice, given)
        asked = None
    else:
        found = find_engine(engine)
        asked, flags = asked_model(model, server_args, card, found, tp, dtype)
        wanted = problems_to_ship(problem or (), asked, choice)
        flags = divided(flags, found.name, choice)
    winners = _stored(context, wanted, card, found, asked, choice)
    result = export_device(
        winners,
        card,
        found,
        None if into_engine else out or Path("configs_out"),
        allow_predicted=allow_predicted,
        wanted=wanted,
        named=[parse_problem(spec) for spec in problem or ()],
        flags=flags,
    )
    for line in left_out_lines(result.left_out):
        say(line)
    show(as_json, result.as_json, result.as_text)
    if result.files and not as_json and not into_engine:
        proof = command_line("tuner", "load-proof", str(result.root), "server.log")
        say(f"next, with the log of a server that was started so: {proof}")


def _stored(
    context: typer.Context,
    wanted: Sequence[Problem],
    card: Device,
    engine: Engine,
    asked: TargetOptions | None,
    choice: FamilyChoice,
) -> Sequence[Winner]:
    """Return the current winners of a card and an engine. Raises ExportRefused if there are none
    for the `wanted` problems of a model (`asked`) or a cluster file: it names the command that
    tunes what this command line asks for.
    """
    from tuner.export.selection import no_winners, winners_of

    given = context.params
    with open_results(given["server"]) as store:
        found = store.winners(device=card.name, engine=engine.name, engine_version=engine.version)
    if not wanted or given["problem"] or winners_of(found, wanted):
        return found
    words = list(given_words(context, ("out", "into_engine", "allow_predicted")))
    every = asked is not None and not (choice.names or asked.target.is_one)
    first, or_else = ["tune", *words, *["--all"] * every], ""
    if not given["server"]:
        or_else = _of_other_releases(wanted, card, engine)
    else:  # `jobs submit` takes no cluster file
        first = ["jobs", "submit", *words] if asked else []
    raise no_winners(card, engine, wanted[0].spec(), first=first, or_else=or_else)


def _of_other_releases(wanted: Sequence[Problem], card: Device, engine: Engine) -> str:
    """Say for which other releases of an engine the shelf has winners for some problems."""
    from tuner.store.shelf import published_for

    found = published_for([card.name], [engine.name], set(wanted))
    of = {(one.environment.engine_version, one.problem) for one in found}
    return "".join(
        f"; the shelf has winners for {count} of {len(set(wanted))} problems with --engine "
        f"{engine.name}=={version}"
        for version, count in Counter(version for version, _ in of).items()
        if version != engine.version
    )


@command
def diff(
    old: Annotated[
        Path,
        typer.Argument(metavar="OLD", help="Folder of an earlier export, or a night: 2026-11-24."),
    ],
    new: Annotated[
        Path,
        typer.Argument(metavar="NEW", help="Folder of a later export, or a night: 2026-11-25."),
    ],
    server: ResultsServer = None,
    as_json: Json = False,
) -> None:
    """Compare two exports (files, entries, gains) or two nights (jobs, times)."""
    from tuner.export.diff import diff_exports

    found: ExportDiff | NightDiff
    if _NIGHT.fullmatch(str(old)) and _NIGHT.fullmatch(str(new)):
        found = _diff_nights(str(old), str(new), server)
    elif server:
        raise BadInput(
            f"a server compares nights: name two days, as 2026-11-24, not {old} and {new}; for "
            f"folders, run `{command_line('tuner', 'export', '--server', server)}` at two times"
        )
    else:
        found = diff_exports(old, new)
    show(as_json, found.as_json, found.as_text)


def _diff_nights(old: str, new: str, server: str | None) -> NightDiff:
    from tuner.store.night_diff import NightDiff

    try:
        before, now = date.fromisoformat(old), date.fromisoformat(new)
    except ValueError as error:
        raise BadInput(f"{old} and {new} must be days, as 2026-11-24: {error}") from None
    with open_watching(server) as watching:
        return NightDiff.from_json(watching.night_diff(before, now))


@command
@with_model_options
def report(
    context: typer.Context,
    model: OneModel = "",
    device: DeviceOrHere = "",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write the page to.")] = Path(
        "report_out"
    ),
    engine: EngineSpec = "sglang",
    server_args: ServerArgs = "",
    problem: ProblemSpecs = None,
    tp: Tp = 1,
    *,
    choice: FamilyChoice,
    dtype: DtypeName = None,
    server: ResultsServer = None,
    as_json: Json = False,
) -> None:
    """Draw the stored winners: the engine's time, the tuned time and the roofline, by batch size.

    Write a page of HTML, which holds its pictures.
    """
    from tuner.devices.here import device_or_here
    from tuner.engines.engine import find_engine
    from tuner.export.choice import wanted_winners
    from tuner.export.files import write_all
    from tuner.export.servers import for_servers
    from tuner.pictures.rows import by_problem, rows_of
    from tuner.pictures.write import as_text, page_of

    card, found = device_or_here(device), find_engine(engine)
    asked, flags = asked_model(model, server_args, card, found, tp, dtype)
    wanted = problems_to_ship(problem or (), asked, choice)
    named = [parse_problem(spec) for spec in problem or ()]
    stored = _stored(context, wanted, card, found, asked, choice)
    winners = wanted_winners(wanted, stored, card, found, named)
    winners = for_servers(
        winners, card, (found.name, found.version), divided(flags, found.name, choice)
    )
    page = out / f"device_name={card.name}.html"
    write_all(out, {page: page_of(winners, card).encode()})
    winners_of = by_problem(winners)
    rows = {one: rows_of(one, some, card) for one, some in winners_of.items()}
    show(
        as_json,
        lambda: {
            "device": card.name,
            "page": str(page),
            "problems": [
                {"problem": one.spec(), "rows": [row.as_json() for row in some]}
                for one, some in rows.items()
            ],
        },
        lambda: "\n\n".join(as_text(one, some, winners_of[one]) for one, some in rows.items()),
    )
    say(f"drawn in {page}")
