"""The engine's config folder for a bundle, with the provenance of every entry."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tuner.deploy.bundle.environment import CONFIG_VARIABLES
from tuner.deploy.cluster import Cluster
from tuner.deploy.preflight.capture import hash_folder
from tuner.devices.table import Device
from tuner.engines.engine import Engine
from tuner.engines.launch import config_folder_since
from tuner.engines.versions import release_of
from tuner.engines.vllm import package as vllm
from tuner.errors import ExportRefused
from tuner.export import deliveries_for, export, packaged_to_carry
from tuner.export.delivery import PlannedFile
from tuner.export.files import PROVENANCE, provenance_row
from tuner.export.selection import refuse_shared_files
from tuner.families.fused_moe.export import manifest_rows
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.problems.points import Config, Problem
from tuner.problems.records import Winner
from tuner.problems.results import Status


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
    exported: Sequence[PlannedFile]
    hash: str  # the preflight computes the same hash on a node


def config_folder(
    winners: Sequence[Winner],
    cluster: Cluster,
    engine: Engine,
    device: Device,
) -> ConfigFolder:
    """The folder for the cluster's engine. `engine` is the engine whose kernels were tuned.

    Raises ExportRefused where there is nothing to ship, or where the cluster's release reads no
    folder but its own.
    """
    if not winners:
        raise ExportRefused(
            f"the store has no winners for {device.name}: run `tuner tune MODEL --device "
            f"{device.name}` first"
        )
    _refuse_old_release(cluster)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        if cluster.engine.name == engine.name:
            tuned, files_there = _overlay(winners, engine, device, root)
        else:
            tuned, files_there = _vllm(winners, device, root), []
        paths = sorted(p for p in root.rglob("*") if p.is_file())
        files = {p.relative_to(root).as_posix(): p.read_bytes() for p in paths}
        return ConfigFolder(files, tuned, files_there, hash_folder(root))


def _refuse_old_release(cluster: Cluster) -> None:
    """Raises ExportRefused for an image whose servers read no config folder but their own."""
    name, version = cluster.engine.name, cluster.engine.release
    since = config_folder_since(name)
    if since and version and release_of(version) < release_of(since):
        raise ExportRefused(
            f"{name} {version} reads no {CONFIG_VARIABLES[name]}, which {name} has since {since}: "
            f"set engine.image to {since} or later, or copy the files into the image's package"
        )


def _own_folder_text(name: str, engine: Engine, device: Device) -> str:
    return (
        f"{name} only reads its own config folder: set engine.image to a later release, or run "
        f"`tuner export --into-engine --engine {engine.name}=={engine.version} --device "
        f"{device.name}` in its image"
    )


def _overlay(
    winners: Sequence[Winner], engine: Engine, device: Device, root: Path
) -> tuple[list[TunedFile], list[PlannedFile]]:
    deliveries = deliveries_for(winners, engine)
    for delivery in deliveries:
        if delivery.variable is None:
            raise ExportRefused(_own_folder_text(f"{engine.name} {engine.version}", engine, device))
    beside = packaged_to_carry(deliveries, root)
    files = export(winners, engine, device, root, beside=beside)
    tuned = [
        TunedFile(f.path.relative_to(root).as_posix(), f.problem, list(f.rows())) for f in files
    ]
    return tuned, files


def _vllm(winners: Sequence[Winner], device: Device, root: Path) -> list[TunedFile]:
    """Write vLLM's files, with the entries of the up product.

    vLLM uses one configuration for both products. Entries that repeat sglang's default are left
    out, because vLLM has its own default.
    """
    chosen: dict[str, list[Winner]] = {}
    for winner in winners:
        problem, entry = winner.problem, winner.entry
        tuned = entry.status is not Status.INCUMBENT
        if isinstance(problem, FusedMoe) and entry.point.part is Gemm.UP and tuned:
            chosen.setdefault(vllm.config_file_name(problem, device), []).append(winner)
    if not chosen:
        raise ExportRefused(f"no winner for {device.name} chooses better than the engine's default")
    return [_vllm_file(name, group, root) for name, group in sorted(chosen.items())]


def _vllm_file(name: str, winners: Sequence[Winner], root: Path) -> TunedFile:
    refuse_shared_files((root / name, winner.problem) for winner in winners)
    problem = winners[0].problem
    entries = {w.entry.point.batch_size: Config(w.entry.config) for w in winners}
    triton = ", ".join(sorted({w.environment.triton for w in winners}))
    text = vllm.config_file_text(entries, triton)
    rows = {w.entry.point.batch_size: provenance_row(w) for w in winners}
    provenance = {
        "file": name,
        "tool": f"engine-tuner {version('engine-tuner')}",
        "problem": problem.spec(),
        "gemm": Gemm.UP.value,
        "entries": {str(size): rows[size] for size in sorted(rows)},
    }
    (root / name).write_text(text, encoding="utf-8")
    (root / PROVENANCE).mkdir(exist_ok=True)
    (root / PROVENANCE / name).write_text(json.dumps(provenance, indent=2) + "\n", encoding="utf-8")
    return TunedFile(name, winners[0].problem, list(manifest_rows(provenance, json.loads(text))))
