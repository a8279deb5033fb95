"""Fused-MoE winners as the JSON files that an engine's loader reads, and how they reach servers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from tuner.devices.table import Device
from tuner.engines.config_files import (
    EntryFields,
    config_file_text,
    fields_on,
    read_config_file,
    read_lenient,
)
from tuner.errors import ExportRefused
from tuner.export.delivery import Delivery, PlannedFile
from tuner.export.files import PROVENANCE, provenance_row, read_sidecar, sidecar_fields
from tuner.export.selection import refuse_shared_files
from tuner.families.fused_moe.engine import MoeEngine
from tuner.families.fused_moe.problem import FusedMoe, Gemm, gemm_of
from tuner.problems.points import Config, Problem
from tuner.problems.results import Status, Winner

# The environment fields that an earlier measured row must share with the winners to be kept.
_OF_KERNELS = ("engine", "engine_version", "kernel_hash")


@dataclass(frozen=True)
class ConfigFileExport:
    """One engine file to write: a gemm of a problem for a device and a Triton version."""

    path: Path
    sidecar: Path
    problem: FusedMoe
    gemm: Gemm
    triton: str
    fields: EntryFields
    entries: Mapping[int, Config] = dataclasses.field(default_factory=dict)
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # the sidecar's JSON
    statuses: Mapping[int, Status] = dataclasses.field(default_factory=dict)

    def text(self) -> str:
        return config_file_text(self.entries, self.fields)

    def as_json(self) -> dict[str, Any]:
        """The fields of `tuner export --json` that only this family has."""
        return {"gemm": self.gemm.value, "batch_sizes": list(self.entries)}

    def rows(self) -> Iterator[dict[str, Any]]:
        """A bundle manifest's row for each entry."""
        content = json.loads(self.text())
        return manifest_rows(self.provenance, content)


def manifest_rows(
    provenance: Mapping[str, Any], content: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """A row for each entry of a file. `content`: the file's JSON."""
    for size, row in provenance["entries"].items():
        yield {
            "problem": provenance["problem"],
            "gemm": provenance["gemm"],
            "batch_size": int(size),
            **{k: row[k] for k in ("status", "median_us", "reason", "environment")},
            "published_at": row["published_at"],
            "config": content[size],
        }


def plan_moe(
    winners: Sequence[Winner], engine: MoeEngine, device: Device, root: Path
) -> list[ConfigFileExport]:
    """The files to write under a root. Entries that an earlier export measured with the same
    kernels are not replaced by predicted ones.

    Raises ExportRefused if two problems need the same file, or if the engine would run up and
    down with different BLOCK_SIZE_M.
    """
    both = engine.has_down_files()  # otherwise one file and one configuration serve both gemms
    wanted = [w for w in winners if both or gemm_of(w.entry.point) is Gemm.UP]
    by_file = groupby(sorted(wanted, key=_file_key), key=_file_key)
    files = [_plan(list(group), engine, device, root) for _, group in by_file]
    refuse_shared_files((file.path, file.problem) for file in files)
    if both:
        refuse_unlike_blocks(files, engine, device, root)
    return files


def verify_moe(file: ConfigFileExport, engine: MoeEngine, device: Device, root: Path) -> None:
    """Raises ExportRefused if the engine's rules find another file or pick other entries."""
    found = engine.find_file(root, file.problem, device, file.gemm, file.triton)
    if found != file.path:
        raise ExportRefused(f"wrote {file.path}, but {engine.name}'s rules find {found}")
    fields = fields_on(engine.fields, device.target.backend)
    entries = read_config_file(found, fields).entries
    for batch_size, config in file.entries.items():
        picked = engine.pick(entries, batch_size)
        if picked != config:
            raise ExportRefused(f"{found}: {engine.name} picks {picked} at M={batch_size}")


def refuse_unlike_blocks(
    files: Sequence[ConfigFileExport], engine: MoeEngine, device: Device, root: Path
) -> None:
    """Raises ExportRefused if the engine would run up and down with different BLOCK_SIZE_M.

    It sorts a batch's tokens once for both gemms. Some versions stop at such a pair, others change
    down's BLOCK_SIZE_M, which nobody timed. If a gemm has no file in this export, the engine uses
    a file that exists already; without one it runs up by the heuristic and down by up's entry.
    """
    planned = {(file.problem, file.triton, file.gemm): file.entries for file in files}
    for problem, triton in dict.fromkeys((file.problem, file.triton) for file in files):
        up, down = (
            planned.get((problem, triton, gemm))
            or _entries_there(engine, problem, device, gemm, triton, root)
            for gemm in (Gemm.UP, Gemm.DOWN)
        )
        for size in sorted({*up, *down}) if down else ():
            first = (engine.pick(up, size) if up else engine.default_config(problem, device, size))[
                "BLOCK_SIZE_M"
            ]
            second = engine.pick(down, size)["BLOCK_SIZE_M"]
            if first != second:
                raise ExportRefused(
                    f"{problem.spec()} at M={size}: up has BLOCK_SIZE_M={first} and down has "
                    f"{second}, but {engine.name} sorts a batch once for both: tune both gemms "
                    "together ",
                    cli="(--gemm up,down), or choose other problems with --problem SPEC",
                    api='("gemms": ["up", "down"]), or choose another problem with problem=SPEC',
                    page="in a new job, or take the download of another result",
                )


def _entries_there(
    engine: MoeEngine, problem: FusedMoe, device: Device, gemm: Gemm, triton: str, root: Path
) -> Mapping[int, Config]:
    """The entries of the file that exists for a gemm that is not exported now; empty if none."""
    name = engine.file_name(problem, device, gemm)
    for folder in (root, engine.package_root):
        if (folder / "configs").is_dir():
            path = engine.find_file(folder, problem, device, gemm, triton)
            if path is not None and path.name == name:
                return read_lenient(path, engine.fields).entries
    return {}


def packaged_files(engine: MoeEngine) -> Iterator[tuple[Path, Path]]:
    """The files that the engine ships: (path under a root, path of the file)."""
    for path in sorted((engine.package_root / "configs").rglob("*.json")):
        yield path.relative_to(engine.package_root), path


def _file_key(winner: Winner) -> tuple[str, str, str]:
    return winner.problem.spec(), winner.environment.triton, gemm_of(winner.entry.point).value


def _plan(winners: list[Winner], engine: MoeEngine, device: Device, root: Path) -> ConfigFileExport:
    problem, triton = winners[0].problem, winners[0].environment.triton
    assert isinstance(problem, FusedMoe)  # `plan_moe` takes only this family's winners
    gemm = gemm_of(winners[0].entry.point)
    path = engine.config_dir(root, triton) / engine.file_name(problem, device, gemm)
    rows = {winner.entry.point.batch_size: provenance_row(winner) for winner in winners}
    file = ConfigFileExport(path, _sidecar(path, root), problem, gemm, triton, engine.fields)
    kept = _measured_earlier(file, max(winners, key=lambda winner: winner.published_at))
    rows |= {size: row for size, row in kept.items() if _is_weaker(rows.get(size), row)}
    entries = {size: Config(row["config"]) for size, row in sorted(rows.items())}
    provenance = {
        **sidecar_fields(path.name, config_file_text(entries, engine.fields)),
        "problem": problem.spec(),
        "gemm": gemm.value,
        "entries": {str(size): rows[size] for size in sorted(rows)},
    }
    statuses = {size: Status(rows[size]["status"]) for size in entries}
    return replace(file, entries=entries, provenance=provenance, statuses=statuses)


def _sidecar(path: Path, root: Path) -> Path:
    """`<root>/provenance/<folder under configs/>/<name>`; not all engines have configs/ there."""
    parts = path.relative_to(root).parts
    return root.joinpath(PROVENANCE, *(parts[1:] if parts[0] == "configs" else parts))


def _measured_earlier(file: ConfigFileExport, newest: Winner) -> dict[int, dict[str, Any]]:
    """The measured rows of an existing sidecar for this problem and the newest kernels.

    This is empty if the sidecar is not ours, or belongs to another problem with this file name.
    """
    provenance = read_sidecar(file.path, file.sidecar) or {}
    now = asdict(newest.environment)
    try:
        if (provenance["problem"], provenance["gemm"]) != (file.problem.spec(), file.gemm.value):
            return {}
        rows: dict[int, dict[str, Any]] = {int(k): v for k, v in provenance["entries"].items()}
        return {
            size: row
            for size, row in rows.items()
            if row["status"] == Status.OK.value
            and all(row["environment"][name] == now[name] for name in _OF_KERNELS)
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _is_weaker(row: Mapping[str, Any] | None, measured: Mapping[str, Any]) -> bool:
    return row is None or row["status"] != measured["status"]


@dataclass(frozen=True)
class MoeDelivery(Delivery):
    """Files that the engines' own loaders read."""

    layer: MoeEngine
    # Whether servers that are pointed at another root read no packaged file.
    replaces_packaged: bool

    @property
    def engine_root(self) -> Path:
        return self.layer.package_root

    @property
    def variable(self) -> str | None:
        return self.layer.config_dir_variable

    def asked(self, problem: Problem, device: Device) -> Sequence[str]:
        assert isinstance(problem, FusedMoe)
        gemms = Gemm if self.layer.has_down_files() else (Gemm.UP,)
        return [self.layer.file_name(problem, device, gemm) for gemm in gemms]

    def ships(self, problem: Problem, device: Device) -> bool:
        names = self.asked(problem, device)
        return any(path.name in names for path, _ in packaged_files(self.layer))

    def plan(
        self, winners: Sequence[Winner], device: Device, root: Path
    ) -> Sequence[ConfigFileExport]:
        return plan_moe(winners, self.layer, device, root)

    def verify(self, files: Iterable[PlannedFile], device: Device, root: Path) -> None:
        for file in files:
            assert isinstance(file, ConfigFileExport)  # `plan` made it
            verify_moe(file, self.layer, device, root)

    def packaged(self) -> Iterator[tuple[Path, Path]]:
        return packaged_files(self.layer) if self.replaces_packaged else super().packaged()
