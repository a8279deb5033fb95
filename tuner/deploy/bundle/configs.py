"""Build the engine's config folder for a bundle, with the provenance of every entry."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.deploy.cluster import Cluster
from tuner.deploy.preflight.capture import hash_folder
from tuner.devices.table import Device
from tuner.engines.engine import Engine, release_of
from tuner.engines.settings import all_config_variables, config_folder_since, config_variables
from tuner.errors import ExportRefused
from tuner.export.advice import Advice
from tuner.export.choice import MadeFiles, writable
from tuner.export.delivery import ExportFile
from tuner.export.export import deliveries_for, export, packaged_to_carry
from tuner.export.selection import LeftOut
from tuner.problems.points import Problem
from tuner.problems.results import Winner
from tuner.shell import command_line


@dataclass(frozen=True)
class TunedFile:
    """A config file with tuned entries."""

    path: str  # below the config folder
    problem: Problem
    rows: Sequence[Mapping[str, Any]]  # the manifest's row for each entry


@dataclass(frozen=True)
class ConfigFolder:
    """The config folder that the engine reads."""

    files: Mapping[str, bytes]  # path below the folder -> content
    tuned: Sequence[TunedFile]
    exported: Sequence[ExportFile]
    variables: tuple[str, ...]  # that point servers at it
    hash: str  # the preflight computes the same hash on a node
    left_out: Sequence[LeftOut]  # whose files cannot be written


def config_folder(
    advice: Sequence[Advice],
    cluster: Cluster,
    engine: Engine,
    device: Device,
    named: Sequence[Problem] = (),
) -> ConfigFolder:
    """Return the folder for the cluster's engine, `engine`, with the files of the problems of
    `advice`.

    Without advice it is empty, and no variable points at it. Raises ExportRefused if one of the
    `named` problems is left out, or if the cluster's release reads no folder but its own.
    """
    if not advice:
        return ConfigFolder({}, (), (), (), "", ())
    _refuse_old_release(cluster)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        fitting, left_out, made = writable(advice, engine, device, root, named)
        winners = [winner for one in fitting for winner in one.winners]
        tuned, files_there = _overlay(winners, engine, device, root, made)
        paths = sorted(p for p in root.rglob("*") if p.is_file())
        files = {p.relative_to(root).as_posix(): p.read_bytes() for p in paths}
        variables = config_variables(engine.name, root)
        return ConfigFolder(files, tuned, files_there, variables, hash_folder(root), left_out)


def _refuse_old_release(cluster: Cluster) -> None:
    """Refuse an image whose servers read no config folder but their own. Raises ExportRefused."""
    name, version = cluster.engine.name, cluster.engine.release
    since = config_folder_since(name)
    if since and version and release_of(version) < release_of(since):
        variable, *_ = all_config_variables(name)
        raise ExportRefused(
            f"{name} {version} reads no {variable}, which {name} has since {since}: "
            f"set engine.image to {since} or later, or copy the files into the image's package"
        )


def _own_folder_text(name: str, engine: Engine, device: Device) -> str:
    spec = f"{engine.name}=={engine.version}"
    words = ("--into-engine", "--engine", spec, "--device", device.name)
    return (
        f"{name} only reads its own config folder: set engine.image to a later release, or run "
        f"`{command_line('tuner', 'export', *words)}` in its image"
    )


def _overlay(
    winners: Sequence[Winner], engine: Engine, device: Device, root: Path, made: MadeFiles
) -> tuple[list[TunedFile], list[ExportFile]]:
    deliveries = deliveries_for(winners, engine)
    for delivery in deliveries:
        if delivery.variable is None:
            raise ExportRefused(_own_folder_text(f"{engine.name} {engine.version}", engine, device))
    beside = packaged_to_carry(deliveries, root)
    files = export(winners, engine, device, root, beside=beside, made=made)
    tuned = [
        TunedFile(f.path.relative_to(root).as_posix(), f.problem, list(f.rows())) for f in files
    ]
    return tuned, files
