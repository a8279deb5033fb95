"""The commands that list, show, forget, export and import results."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.app import command_of, group, open_results, say, show
from tuner.cli.coverage import nothing_stored, open_watching
from tuner.cli.options import DeviceOrHere, EngineSpec, Json, OneDevice, ResultsServer
from tuner.cli.runs import waiting
from tuner.devices.table import find_device
from tuner.errors import BadInput, UnsupportedKernel
from tuner.problems.points import UNKNOWN_SERVER
from tuner.problems.registry import family_of, parse_problem
from tuner.render import list_width, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.devices.table import Device
    from tuner.measure.workbench import Workbench
    from tuner.problems.points import Problem
    from tuner.problems.results import Winner
    from tuner.store.exchange import ResultExchange
    from tuner.store.remote import StoredResults
    from tuner.store.result_files import RunResult
    from tuner.tuning.request import PreparedRun

_OWN = "left out: the store has measured entries of its own"

results = group("results", "List, show, forget, export and import results.")

StoredProblem = Annotated[
    str, typer.Argument(metavar="PROBLEM", help="A problem, as `tuner results list` names it.")
]


@command_of(results, "list")
def list_results(
    device: OneDevice = None, server: ResultsServer = None, as_json: Json = False
) -> None:
    """List the stored results by problem, device and engine."""
    from tuner.problems.results import counted

    name = find_device(device).name if device else None
    with open_watching(server) as stored:
        rows = list(stored.stored(name))
    cells = [
        (
            row["problem"],
            row["device"],
            f"{row['environment']['engine']} {row['environment']['engine_version']}",
            row["standing"],
            counted(row["points"]),
            row["newest"][:10],
        )
        for row in rows
    ]
    heads = ("problem", "device", "engine", "state", "entries", "newest")
    show(
        as_json,
        lambda: rows,
        lambda: table(heads, cells, drop=("newest", "state"), width=list_width()),
        "" if rows else nothing_stored(name),
    )


@command_of(results, "show")
def show_result(
    problem: StoredProblem,
    device: DeviceOrHere = "",
    engine: EngineSpec = "sglang",
    server: ResultsServer = None,
    as_json: Json = False,
) -> None:
    """Show a problem's entries: times, gain and roofline."""
    from tuner.devices.here import device_or_here
    from tuner.pictures.rows import rows_of
    from tuner.pictures.write import as_text, engines_of

    card = device_or_here(device)
    with open_results(server) as store:
        winners = _winners_of(store, parse_problem(problem), card, engine)
    rows = rows_of(winners[0].problem, winners, card)
    show(
        as_json,
        lambda: {
            "problem": problem,
            "engines": engines_of(winners),
            "rows": [row.as_json() for row in rows],
        },
        lambda: as_text(winners[0].problem, rows, winners),
    )


@command_of(results, "forget")
def forget_result(
    problem: StoredProblem,
    device: DeviceOrHere = "",
    engine: Annotated[str, typer.Option(help="NAME of the engine, e.g. vllm.")] = "sglang",
    server: ResultsServer = None,
) -> None:
    """Forget the results of a problem on a device.

    They are forgotten in all versions of an engine. Trials stay stored, and the problem is tuned
    anew on request.
    """
    from tuner.devices.here import device_or_here
    from tuner.engines.engine import parse_spec

    card, (name, version) = device_or_here(device), parse_spec(engine)
    if version:
        raise BadInput(f"--engine {engine}: results of all versions are forgotten: write {name}")
    with open_results(server) as store:
        found = _winners_of(store, parse_problem(problem), card, name)
        store.withdraw(found[0].problem, card.name, name)
    say(f"forgot the results of {problem} on {card.name} with {name}")


def _winners_of(
    store: StoredResults, problem: Problem, card: Device, engine: str
) -> Sequence[Winner]:
    """Return the current winners of a problem. Raises BadInput if there are none."""
    from tuner.engines.engine import parse_spec

    name, version = parse_spec(engine)
    some = store.winners(device=card.name, engine=name, engine_version=version)
    if found := [one for one in some if one.problem == problem]:
        return found
    raise BadInput(
        f"the store has no results for {problem.spec()} on {card.name} with {engine}: "
        "`tuner results list` lists its results"
    )


@command_of(results, "export")
def export_results(
    device: DeviceOrHere = "",
    engine: EngineSpec = "sglang",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write to.")] = Path(
        "results_out"
    ),
    as_json: Json = False,
) -> None:
    """Write the measured results of a card to files.

    There is a file for each card and engine, with the environment of the times.
    """
    from tuner.devices.here import device_or_here
    from tuner.engines.engine import find_engine
    from tuner.problems.results import MeasureKind, Status
    from tuner.store.connect import database_url
    from tuner.store.exchange import ResultExchange
    from tuner.store.result_files import write_results

    card, found = device_or_here(device), find_engine(engine)
    with ResultExchange.open(database_url(os.environ)) as store:
        winners = store.winners(device=card.name, engine=found.name, engine_version=found.version)
        runs = store.results(one for one in winners if one.status is not Status.PREDICTED)
    measured = [one for one in runs if one.key.measure is MeasureKind.GPU]
    if not measured:
        spec = f"{found.name} {found.version}"
        raise BadInput(
            f"the store has nothing measured on {card.name} with {spec}: run `tuner tune` there"
        )
    files = write_results(out, measured)
    show(as_json, lambda: {"files": list(map(str, files))}, lambda: "\n".join(map(str, files)))


@command_of(results, "import")
def import_results(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE..", help="Files that `results export` wrote.")
    ],
    as_json: Json = False,
) -> None:
    """Take results of other machines into the store.

    Each kernel is compiled here again first. If this machine has the card, the times are measured
    again too, and these are stored. If a result is not believed, nothing is stored.
    """
    from tuner.measure.workbench import Workbench
    from tuner.store.connect import database_url
    from tuner.store.exchange import ResultExchange
    from tuner.store.result_files import checked, read_results

    found = [checked(result) for path in files for result in read_results(path)]
    with Workbench() as workbench, ResultExchange.open(database_url(os.environ)) as store:
        with waiting(f"compiling the kernels of {len(found)} results"):
            new = [(one.key.problem.spec(), store.unmeasured(one)) for one in found]
            asked = [(spec, one, one and _believed(one, workbench)) for spec, one in new]
        done = [
            (spec, _taken(one, run, workbench, store) if one and run else _OWN)
            for spec, one, run in asked
        ]
    show(
        as_json,
        lambda: {"results": [{"problem": one, "done": did} for one, did in done]},
        lambda: "\n".join(f"{one}: {did}" for one, did in done),
    )


def _believed(result: RunResult, workbench: Workbench) -> PreparedRun:
    """Return the run that measures a result's problem. Raises BadInput if it is not believed."""
    from tuner.devices.here import gpu_of_kind
    from tuner.engines.engine import find_engine
    from tuner.problems.results import MeasureKind
    from tuner.tuning.claims import doubts
    from tuner.tuning.request import Effort, Request, Source, prepare, triton_version

    key, place = result.key, result.key.environment
    tuned = [entry.point for entry in result.entries if entry.point in key.points]
    engine, card = find_engine(f"{place.engine}=={place.engine_version}"), find_device(place.device)
    try:
        if not tuned:
            raise BadInput("it has no entry at a size that was tuned")
        request = Request(
            problem=key.problem,
            device=card,
            engine=engine,
            source=Source(MeasureKind.GPU, gpu=gpu_of_kind(card) or ""),
            selection=family_of(key.problem).selection_of(key.problem, tuned),
            effort=Effort.QUICK,
            server=next((entry.server for entry in result.entries if entry.server), UNKNOWN_SERVER),
        )
        prepared = prepare(request)
        here = triton_version(engine), prepared.kernel_hash
        if key.measure is not MeasureKind.GPU:
            doubt = "it was not measured on a GPU"
        elif here != (place.triton, place.kernel_hash):
            doubt = "it was measured with another Triton or other kernels than the engine's here"
        else:
            doubt = next(doubts(prepared, result.entries, workbench), "")
    except (BadInput, UnsupportedKernel) as error:
        doubt = str(error)
    if doubt:
        raise BadInput(f"{key.problem.spec()} is not believed: {doubt}; nothing was stored")
    return prepared


def _taken(
    result: RunResult, prepared: PreparedRun, workbench: Workbench, store: ResultExchange
) -> str:
    """Store a result, or the entries measured again on this machine. Return the outcome."""
    from tuner.render import gain_text
    from tuner.tuning.claims import measured_again
    from tuner.tuning.gains import gains, mean_gain
    from tuner.tuning.run import execute, open_source

    if not prepared.request.source.gpu:
        return (
            f"{store.add(result)} entries stored: compiled here, and not measured, because no "
            f"GPU that may be used here is an {result.key.environment.device}"
        )
    run = measured_again(prepared, result.entries)
    report = execute(run, open_source(prepared.request, workbench), store)
    said, here = (
        gain_text(mean_gain(one.ratio for one in gains(entries)) or 1.0)
        for entries in (result.entries, report.entries)
    )
    return f"measured again here, and stored: {here}, where {said} was said"
