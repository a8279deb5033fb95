"""The engine's config folder for a bundle, with the provenance of every entry."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.deploy.cluster import Cluster
from tuner.deploy.preflight.capture import hash_folder
from tuner.devices.table import Device
from tuner.engines.engine import Engine
from tuner.errors import ExportRefused, UnknownModel
from tuner.export import deliveries_for, export, packaged_to_carry
from tuner.export.delivery import PlannedFile
from tuner.export.selection import LeftOut
from tuner.families.fused_moe.problem import FusedMoe
from tuner.models.table import find_preset
from tuner.problems.points import Problem
from tuner.problems.records import Winner


@dataclass(frozen=True)
class TunedFile:
    """A config file with tuned entries."""

    path: str  # below the config folder
    rows: Sequence[Mapping[str, Any]]  # the manifest's row for each entry


@dataclass(frozen=True)
class ConfigFolder:
    """The config folder that the engine reads."""

    files: Mapping[str, bytes]  # path below the folder -> content
    tuned: Sequence[TunedFile]
    exported: Sequence[PlannedFile]
    hash: str  # the preflight computes the same hash on a node


def config_folder(
    winners: Sequence[Winner],
    cluster: Cluster,
    engine: Engine,
    device: Device,
    left_out: Sequence[LeftOut] = (),
) -> ConfigFolder:
    """The folder for the cluster's engine, `engine`.

    `left_out` has the problems that must not be shipped. Raises ExportRefused where there is
    nothing to ship, nothing for the cluster's model, or where the engine only reads its own folder.
    """
    _check_winners(winners, left_out, cluster, engine, device)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        tuned, files_there = _overlay(winners, engine, device, root)
        paths = sorted(p for p in root.rglob("*") if p.is_file())
        files = {p.relative_to(root).as_posix(): p.read_bytes() for p in paths}
        return ConfigFolder(files, tuned, files_there, hash_folder(root))


def _check_winners(
    winners: Sequence[Winner],
    left_out: Sequence[LeftOut],
    cluster: Cluster,
    engine: Engine,
    device: Device,
) -> None:
    """A model known by name must have winners at the cluster's tp and ep."""
    tune = f"--device {device.name} --engine {engine.name}=={engine.version}"
    if not winners:
        raise ExportRefused(
            f"the store has no winners for {device.name} with {engine.name} {engine.version}; "
            f"winners for other engines are not its own: run `tuner tune MODEL {tune}` first"
        )
    try:
        model = find_preset(cluster.model.name)
    except UnknownModel:
        return
    if not model.E:  # no fused-MoE layer that a file would be for
        return
    parallel = cluster.parallel
    # Expert-parallel ranks hold whole experts; the other ranks hold a slice of each expert.
    columns = model.intermediate // (parallel.tp // parallel.ep)

    def fits(problem: Problem) -> bool:
        return isinstance(problem, FusedMoe) and (columns, model.hidden) == (problem.N, problem.K)

    if any(fits(winner.problem) for winner in winners):
        return
    fitting = f"fits {model.name} at tp={parallel.tp} ep={parallel.ep} (N={columns})"
    for one in left_out:
        if fits(one.problem):
            raise ExportRefused(
                f"the only problem that {fitting} is left out: {one.problem.spec()} was predicted, "
                "not measured: measure it, or pass --allow-predicted"
            )
    raise ExportRefused(
        f"no winner for {device.name} {fitting}: run `tuner tune {model.name} --tp {parallel.tp} "
        f"--ep {parallel.ep} {tune}` first"
    )


def _overlay(
    winners: Sequence[Winner], engine: Engine, device: Device, root: Path
) -> tuple[list[TunedFile], list[PlannedFile]]:
    deliveries = deliveries_for(winners, engine)
    if any(delivery.variable is None for delivery in deliveries):
        raise ExportRefused(
            f"{engine.name} {engine.version} only reads its own config folder: use "
            "`tuner export --into-engine` in its image"
        )
    beside = packaged_to_carry(deliveries, root)
    files = export(winners, engine, device, root, beside=beside)
    tuned = [TunedFile(f.path.relative_to(root).as_posix(), list(f.rows())) for f in files]
    return tuned, files
