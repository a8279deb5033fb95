"""Fused-MoE winners -> the JSON files that the engine's own loader reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from tuner.devices import Device
from tuner.engines import Engine, config_file_text, read_config_file
from tuner.errors import ExportRefused
from tuner.export.files import (
    PROVENANCE,
    prove_writable,
    provenance_row,
    read_sidecar,
    replace_file,
    sidecar_fields,
)
from tuner.problems import Config, FusedMoe, Gemm
from tuner.results import Status
from tuner.store import Winner


@dataclass(frozen=True)
class ConfigFileExport:
    """One engine file to write: a gemm of a problem for a device and a Triton version."""

    path: Path
    problem: FusedMoe
    gemm: Gemm
    triton: str
    entries: Mapping[int, Config]
    provenance: Mapping[str, Any]  # the sidecar's JSON
    statuses: Mapping[int, Status]

    def text(self) -> str:
        return config_file_text(self.entries)

    @property
    def sidecar(self) -> Path:
        """`<root>/provenance/<folder under configs/>/<name>`."""
        parts = list(self.path.parts)
        last = len(parts) - 1 - parts[::-1].index("configs")
        return Path(*parts[:last], PROVENANCE, *parts[last + 1 :])

    def as_json(self) -> dict[str, Any]:
        """What `tuner export --json` says of this family's files alone."""
        return {"gemm": self.gemm.value, "batch_sizes": list(self.entries)}


def plan_moe(
    winners: Sequence[Winner], engine: Engine, device: Device, root: Path
) -> list[ConfigFileExport]:
    """The files to write under a root. What an earlier export measured stays in them where the
    winner was only predicted.
    """
    both = engine.has_down_files()  # without, one file and one configuration serve both gemms
    ours = [w for w in winners if isinstance(w.problem, FusedMoe)]
    wanted = [w for w in ours if both or w.entry.point.gemm is Gemm.UP]
    by_file = groupby(sorted(wanted, key=_file_key), key=_file_key)
    return [_plan(list(group), engine, device, root) for _, group in by_file]


def verify_moe(file: ConfigFileExport, engine: Engine, device: Device, root: Path) -> None:
    """Raises ExportRefused where the engine's rules do not find what was written."""
    found = engine.find_file(root, file.problem, device, file.gemm, file.triton)
    if found != file.path:
        raise ExportRefused(f"wrote {file.path}, but {engine.name}'s rules find {found}")
    entries = read_config_file(found).entries
    for batch_size, config in file.entries.items():
        picked = engine.pick(entries, batch_size)
        if picked != config:
            raise ExportRefused(f"{found}: {engine.name} picks {picked} at M={batch_size}")


def packaged_files(engine: Engine) -> Iterator[tuple[Path, Path]]:
    """The files that come with the engine: the path under `configs/`, and where each lies."""
    source = engine.package_root / "configs"
    for path in sorted(source.rglob("*.json")):
        yield path.relative_to(source), path


def carry_packaged(engine: Engine, root: Path) -> int:
    """Copy the files that come with the engine under `root`; returns how many were written.

    A root that replaces the packaged one must carry the packaged files too, or the engine loses
    them. Files that this tuner exported there are left alone.

    Raises UnwritableOutput where the folder cannot be written.
    """
    prove_writable(root)
    written = 0
    for relative, path in packaged_files(engine):
        target = root / "configs" / relative
        data = path.read_bytes()
        ours = (root / PROVENANCE / relative).exists()
        if not ours and not (target.exists() and target.read_bytes() == data):
            replace_file(target, data)
            written += 1
    return written


def _file_key(winner: Winner) -> tuple[str, str, str]:
    return winner.problem.spec(), winner.environment.triton, winner.entry.point.gemm.value


def _plan(winners: list[Winner], engine: Engine, device: Device, root: Path) -> ConfigFileExport:
    problem, triton = winners[0].layer, winners[0].environment.triton
    gemm = winners[0].entry.point.gemm
    path = engine.config_dir(root, triton) / engine.file_name(problem, device, gemm)
    rows = {winner.entry.point.batch_size: provenance_row(winner) for winner in winners}
    file = ConfigFileExport(path, problem, gemm, triton, {}, {}, {})
    kept = _measured_earlier(file)
    rows |= {size: row for size, row in kept.items() if _is_weaker(rows.get(size), row)}
    entries = {size: Config(row["config"]) for size, row in sorted(rows.items())}
    provenance = {
        **sidecar_fields(path.name, config_file_text(entries)),
        "problem": problem.spec(),
        "gemm": gemm.value,
        "entries": {str(size): rows[size] for size in sorted(rows)},
    }
    statuses = {size: Status(rows[size]["status"]) for size in entries}
    return ConfigFileExport(path, problem, gemm, triton, entries, provenance, statuses)


def _measured_earlier(file: ConfigFileExport) -> dict[int, dict[str, Any]]:
    """The measured rows of the sidecar that is there; none if it is not one of ours."""
    provenance = read_sidecar(file.path, file.sidecar) or {}
    try:
        rows: dict[int, dict[str, Any]] = {int(k): v for k, v in provenance["entries"].items()}
        return {size: row for size, row in rows.items() if row["status"] == Status.OK.value}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _is_weaker(row: Mapping[str, Any] | None, measured: Mapping[str, Any]) -> bool:
    return row is None or row["status"] != measured["status"]
