"""The command that draws stored winners."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tuner.cli.app import command, say, show
from tuner.cli.family_options import FamilyChoice, with_model_options
from tuner.cli.options import (
    DeviceName,
    DtypeName,
    EngineSpec,
    Json,
    ModelName,
    ProblemSpecs,
    ServerArgs,
    Tp,
)
from tuner.cli.targets import TargetOptions, problems_to_ship, settings_of


@command
@with_model_options
def report(
    device: DeviceName,
    choice: FamilyChoice,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the pictures.")] = Path(
        "report_out"
    ),
    engine: EngineSpec = "sglang",
    server_args: ServerArgs = "",
    problem: ProblemSpecs = None,
    model: ModelName = None,
    tp: Tp = 1,
    dtype: DtypeName = None,
    as_json: Json = False,
) -> None:
    """Draw the stored winners: the engine's time, the tuned one and the roofline, by batch size.

    Writes one page of HTML, and an SVG and a PNG for each problem.
    """
    from tuner.devices.table import find_device
    from tuner.draw.files import NO_PNG, can_write_png
    from tuner.engines.engine import find_engine
    from tuner.export import stored
    from tuner.export.advice import for_servers
    from tuner.export.files import write_all
    from tuner.pictures.rows import by_problem, rows_of
    from tuner.pictures.write import as_text, picture_pages
    from tuner.store import Store, database_url

    card, found = find_device(device), find_engine(engine)
    asked = TargetOptions(model, card, found.name, found.version, tp, dtype) if model else None
    wanted = problems_to_ship(problem or (), asked, choice)
    with Store.open(database_url(os.environ)) as store:
        winners = stored(store, card, found, wanted)
    winners = for_servers(winners, card, found, settings_of(server_args, model))
    files = {out / name: data for name, data in picture_pages(winners, card).items()}
    write_all(out, files)
    winners_of = by_problem(winners)
    rows = {one: rows_of(one, some, card) for one, some in winners_of.items()}
    page = next(iter(files))
    show(
        as_json,
        lambda: {
            "device": card.name,
            "page": str(page),
            "files": [str(path) for path in files],
            "problems": [
                {"problem": one.spec(), "rows": [row.as_json() for row in some]}
                for one, some in rows.items()
            ],
        },
        lambda: "\n\n".join(as_text(one, some, winners_of[one]) for one, some in rows.items()),
    )
    if not can_write_png():
        say(NO_PNG)
    say(f"drawn in {page}")
