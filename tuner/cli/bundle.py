"""The command that packs tuned configs for a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli import complete
from tuner.cli.app import command, open_results, say, show
from tuner.cli.family_options import FamilyChoice
from tuner.cli.options import Captures, Json, ResultsServer
from tuner.cli.problems import asked_model, problems_to_ship
from tuner.devices.table import Device, find_device
from tuner.errors import BadInput, ExportRefused
from tuner.problems.registry import parse_problem
from tuner.shell import command_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tuner.deploy.cluster import Cluster
    from tuner.engines.engine import Engine
    from tuner.engines.logs.served import CompletedHints
    from tuner.problems.points import Problem
    from tuner.problems.results import Winner
    from tuner.store.remote import StoredResults


@command
def bundle(
    device: Annotated[
        str,
        typer.Option(
            autocompletion=complete.devices, help="The GPU, e.g. L40S; default: as --log says."
        ),
    ] = "",
    cluster: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The cluster.toml to bundle for; required.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|DIR",
            help="Archive to write, or a folder to write it to; default: CLUSTER-DEVICE.tar.gz.",
        ),
    ] = None,
    node: Captures = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Log or launch command of the servers as they run now: it completes --device "
            "and the cluster file; default: none.",
        ),
    ] = None,
    allow_predicted: Annotated[
        bool,
        typer.Option("--allow-predicted", help="Include predicted entries; default: leave out."),
    ] = False,
    allow_missing: Annotated[
        bool,
        typer.Option(
            "--allow-missing",
            help="Bundle without all files that the servers ask for; default: refuse.",
        ),
    ] = False,
    engine: Annotated[
        str, typer.Option(help="Engine of the winners; default: the cluster file's.")
    ] = "",
    problem: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROBLEM",
            help="Bundle this problem, whatever the servers ask for; may be given again; default: "
            "the problems of the cluster's model.",
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            autocompletion=complete.models,
            help="The model whose problems to bundle; default: the cluster's.",
        ),
    ] = "",
    server: ResultsServer = None,
    as_json: Json = False,
) -> None:
    """Pack tuned configs, launch scripts and checks for a cluster.

    Exit 1 if the captured nodes have errors; the bundle is written all the same.
    """
    if cluster is None or not (device or log):
        raise BadInput("a bundle needs --cluster cluster.toml, and --device or --log")
    from tuner.deploy.bundle.asked_files import render_files
    from tuner.deploy.bundle.build import build_bundle, write_bundle
    from tuner.deploy.bundle.manifest import sha256
    from tuner.deploy.cluster import read_cluster
    from tuner.deploy.preflight import parse_nodes, run_preflight
    from tuner.engines.engine import find_engine

    wanted = read_cluster(cluster)
    runs = _servers(log, device, engine) if log else None
    if runs and not (device or runs.device()):
        raise BadInput(runs.missing(wanted.engine.name))
    card = (runs.device() if runs else None) or find_device(device)
    found = find_engine(engine or _spec(wanted, runs))
    preflight = run_preflight(parse_nodes(node), wanted.expected(card.name)) if node else None
    tune = command_line("tuner", "tune", "--cluster", str(cluster), "--device", card.name)
    winners = _winners(card, found, tune, server)
    built = build_bundle(
        winners,
        wanted,
        found,
        card,
        allow_predicted=allow_predicted,
        allow_missing=allow_missing,
        wanted=_wanted(wanted, card, found, problem or (), model),
        named=[parse_problem(spec) for spec in problem or ()],
        preflight=preflight,
    )
    path = Path(f"{built.name}.tar.gz")
    path = out / path if out and out.is_dir() else out or path
    write_bundle(built, path)
    for finding in preflight.findings if preflight else ():
        where = ", ".join(finding.nodes)
        say(f"{finding.severity.value}: {where}: {finding.message}; fix: {finding.fix}")
    for note in (*built.notes, *(_differences(wanted, card, found, runs) if runs else ())):
        say(f"note: {note}")
    say(render_files(built.compared, card))
    digest = sha256(built.archive)
    shown = {"path": str(path), "sha256": digest, **built.manifest}
    show(as_json, lambda: shown, lambda: f"{path}  {digest}")
    if preflight and not preflight.ok:
        say("the bundle is written; mend the errors above before you launch it")
        raise typer.Exit(1)


def _servers(logs: Sequence[Path], device: str, engine: str) -> CompletedHints:
    """Read the servers of the logs; the command line's engine and device go first."""
    from tuner.deploy.load_proof import facts_of
    from tuner.engines.logs.served import CompletedHints, Hints, check_hints

    hints = Hints(engine, device)
    check_hints(hints)
    return CompletedHints(hints, facts_of(logs))


def _spec(cluster: Cluster, runs: CompletedHints | None) -> str:
    """Return the engine of the cluster file, in the log's version if the file names none."""
    name = cluster.engine.name
    return cluster.engine.spec if cluster.engine.release or not runs else runs.spec(name)


def _differences(
    cluster: Cluster, device: Device, engine: Engine, runs: CompletedHints
) -> Iterator[str]:
    """Yield a line for each fact of the log that differs from the cluster file."""
    from tuner.deploy.load_proof import other_server

    made_for = {"engine": engine.name, "version": engine.version, "device": device.name}
    made_for |= {"tp": str(cluster.parallel.tp), "ep": str(cluster.parallel.ep)}
    return other_server(runs.facts, made_for)


def _winners(device: Device, engine: Engine, tune: str, server: str | None) -> Sequence[Winner]:
    """Return the stored winners. Raises ExportRefused if there are none; `tune` makes them."""
    name, version = engine.name, engine.version
    with open_results(server) as store:
        found = store.winners(device=device.name, engine=name, engine_version=version)
        if not found:
            _refuse_other_versions(store, device, engine, tune)
    return found


def _wanted(
    cluster: Cluster, device: Device, engine: Engine, specs: Sequence[str], model: str
) -> Sequence[Problem]:
    """Return the problems of `--problem` and `--model`; none if neither is given."""
    parallel = cluster.parallel
    asked, _ = asked_model(model, "", device, engine, parallel.tp, None)
    return problems_to_ship(specs, asked, FamilyChoice((), {"ep": parallel.ep}))


def _refuse_other_versions(store: StoredResults, device: Device, engine: Engine, tune: str) -> None:
    """Raise ExportRefused: the store has no winners, or winners of other versions alone.

    `tune` is the command that makes them.
    """
    from tuner.engines.engine import version_order

    others = store.winners(device=device.name, engine=engine.name)
    versions = sorted({one.environment.engine_version for one in others}, key=version_order)
    if not versions:
        raise ExportRefused(
            f"the store has no winners for {device.name} with {engine.name} {engine.version}: run "
            f"`{tune}` first"
        )
    spec = f"{engine.name}=={engine.version}"
    raise ExportRefused(
        f"the store has no winners for {device.name} with {spec}, only with "
        f"{', '.join(versions)}: run `{tune}`, or set engine.image to {engine.name} {versions[-1]}"
    )
