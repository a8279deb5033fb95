"""The commands that check a cluster's nodes and servers, and compare benchmark results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.app import command, say, show
from tuner.cli.options import Captures, Json
from tuner.errors import BadInput
from tuner.render import folded
from tuner.shell import command_line

if TYPE_CHECKING:
    from tuner.deploy.preflight import Expected


@command
def preflight(
    node: Captures = None,
    cluster: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="cluster.toml, or a bundle's cluster.json; default: none."
        ),
    ] = None,
    capture: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Only capture this machine into DIR; default: check."),
    ] = None,
    image: Annotated[
        str, typer.Option(help="Image whose id is recorded; default: the cluster's.")
    ] = "",
    config_dir: Annotated[str, typer.Option(help="Folder of configs to hash; default: none.")] = "",
    as_json: Json = False,
) -> None:
    """Check nodes before an engine is launched on them: captured nodes, or this machine.

    Exit 1 if an error was found.
    """
    from tuner.deploy.preflight import capture as capture_into
    from tuner.deploy.preflight import captured_text, check_here, parse_nodes, render, run_preflight

    expected = _expected(cluster) if cluster else None
    if capture:
        image = image or (expected.image if expected else "")
        say(captured_text(capture, capture_into(capture, image, config_dir)))
        return
    if node:
        report = run_preflight(parse_nodes(node), expected)
    else:
        report = check_here(image, config_dir, expected)
    show(as_json, report.as_dict, lambda: folded(render(report)))
    if not report.ok:
        raise typer.Exit(1)


@command
def load_proof(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="[BUNDLE] LOG...",
            help="The bundle or exported folder, then log files of a server launch.",
        ),
    ],
    as_json: Json = False,
) -> None:
    """Show which config files a server loaded. Exit 1 if a tuned file that it asks for was not.

    The bundle (its archive, its folder, or the folder of `tuner export`) tells tuned files from the
    engine's own. E.g. `tuner load-proof l40s-4x8-NVIDIA_L40S.tar.gz server.log`.
    """
    from tuner.deploy.load_proof import is_deployed, prove_loads, read_deployed, render_proof

    first, *logs = files
    if not is_deployed(first):
        proof = prove_loads(files)
    elif logs:
        proof = prove_loads(logs, read_deployed(first))
    else:
        again = command_line("tuner", "load-proof", str(first), "LOG...")
        raise BadInput(f"give a server's log after {first}: {again}")
    show(as_json, proof.as_dict, lambda: render_proof(proof))
    if not proof.ok:
        raise typer.Exit(1)


@command
def bench_report(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="File or folder of results.")],
    after: Annotated[
        Path | None,
        typer.Argument(
            metavar="[AFTER]", help="File or folder of results; default: a table of BEFORE alone."
        ),
    ] = None,
    all_metrics: Annotated[
        bool,
        typer.Option("--all-metrics", help="Compare all metrics; default: a metric of each kind."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare benchmark results before and after, at equal load, or show the results of one run.

    Exit 1 if nothing was measured at equal load, or if requests of a compared run failed.
    E.g. `tuner bench-report after.txt` or `tuner bench-report before after`.
    """
    from tuner.deploy.bench_report import (
        as_dict,
        compare,
        read_results,
        render_summary,
        render_text,
        summarise,
        summary_dict,
    )

    read = {path: read_results(path) for path in (before, after or before)}
    for path, results in read.items():
        for note in results.notes(path):
            say(note)
    new = read[after or before].samples
    if after is None:
        summary = summarise(new)
        show(as_json, lambda: summary_dict(summary), lambda: render_summary(summary))
        return
    comparison = compare(read[before].samples, new)
    show(as_json, lambda: as_dict(comparison), lambda: render_text(comparison, every=all_metrics))
    if not comparison.pairs:
        say("nothing was measured at equal load on both sides, so nothing is compared")
    if not comparison.pairs or any(results.failures for results in read.values()):
        raise typer.Exit(1)


def _expected(path: Path) -> Expected:
    """Read a cluster.toml, or a bundle's cluster.json."""
    from tuner.deploy.cluster import read_cluster
    from tuner.deploy.preflight.facts import read_expected

    return read_expected(path) if path.suffix == ".json" else read_cluster(path).expected()
