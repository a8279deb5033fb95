"""Make the files of chunked scans from winners, with their sidecars."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, cast

from tuner.devices.table import Device
from tuner.engines.config_files import PROVENANCE
from tuner.engines.engine import Engine
from tuner.export.delivery import (
    Delivery,
    ExportFile,
    check_readable,
    is_plugin_file,
    read_back,
    server_facts,
)
from tuner.export.file_checks import check_with
from tuner.export.files import provenance_row, sidecar_fields
from tuner.families.scans.files import (
    CONFIG_DIR_VARIABLE,
    FOLDER,
    ScanEntry,
    ScanFile,
    family_of_file,
    file_name,
    read_scan_file,
)
from tuner.families.scans.scan import ScanKernel, ScanProblem
from tuner.problems.points import Point, Problem
from tuner.problems.results import Status, Winner

_TOLD = (  # in manifests of bundles
    *("part", "batch_size", "new_tokens", "status", "median_us", "reason"),
    *("environment", "published_at", "config"),
)


@dataclass(frozen=True)
class ScanFileExport:
    """A file to write: a problem for a device and a Triton version."""

    path: Path
    file: ScanFile
    provenance: Mapping[str, Any]  # the sidecar's JSON

    missing = ()  # no engine has files of its own, whose sizes it could lack

    @property
    def problem(self) -> ScanProblem:
        return self.file.problem

    @property
    def triton(self) -> str:
        return self.file.triton

    @property
    def sidecar(self) -> Path:
        """Return `<root>/provenance/chunk_scan/<Triton's folder>/<name>`."""
        root, folder = self.path.parents[2], self.path.parent.name
        return root / PROVENANCE / FOLDER / folder / self.path.name

    @property
    def statuses(self) -> Mapping[Point, Status]:
        return {entry.point: entry.status for entry in self.file.entries}

    def text(self) -> str:
        return self.file.text()

    def as_json(self) -> dict[str, Any]:
        """Return the fields of `tuner export --json` that only this family has."""
        sizes = dict.fromkeys((e.point.batch_size, e.point.new_tokens) for e in self.file.entries)
        return {"prompts": [{"sequences": n, "tokens": tokens} for n, tokens in sizes]}

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a bundle manifest's row for each entry."""
        for row in self.provenance["entries"]:
            yield {"problem": self.problem.spec(), **{name: row[name] for name in _TOLD}}


@dataclass(frozen=True)
class ScanDelivery(Delivery):
    """Files under a root for servers with this package's plugin: no engine reads such files."""

    engine: Engine

    note = "the files of chunked scans are for servers with engine-tuner installed"
    variable = CONFIG_DIR_VARIABLE
    by_plugin = True

    def asked(self, problem: Problem, device: Device) -> Sequence[str]:
        return [file_name(_scan(problem), device.name)]

    def obstacle(self, *, into_engine: bool) -> str:
        if into_engine:
            return f"{self.engine.name} reads no files of chunked scans from its package"
        if self.engine.loads_plugins():
            return ""
        version = f"{self.engine.name} {self.engine.version}"
        return f"{version} loads no plugins, and files of chunked scans need one"

    def files(
        self, winners: Sequence[Winner], device: Device, root: Path
    ) -> Sequence[ScanFileExport]:
        by_file = groupby(sorted(winners, key=_key), key=_key)
        files = [_built(list(group), root) for _, group in by_file]
        for file in files:
            check_readable(file, partial(_verify, file))
        return files

    def verify(self, files: Iterable[ExportFile], device: Device, root: Path) -> None:
        for file in files:
            assert isinstance(file, ScanFileExport)  # `files` made it
            _verify(file, file.path)

    def refusal(self, path: Path, triton: str | None) -> str | None:
        if not is_plugin_file(path, FOLDER):
            return None
        facts = server_facts(self.engine, family_of_file(path), triton)
        found = check_with(path, read_scan_file, facts, lambda file: "")
        return self.obstacle(into_engine=False) or found.reason


def _verify(file: ScanFileExport, written: Path) -> None:
    read_back(file.path.name, written, read_scan_file, file.file)


def _key(winner: Winner) -> tuple[str, str]:
    return winner.problem.spec(), winner.environment.triton


def _built(winners: list[Winner], root: Path) -> ScanFileExport:
    newest = max(winners, key=lambda winner: winner.published_at)
    made = newest.environment
    texts = (made.device, made.engine, made.engine_version, made.triton, made.kernel_hash)
    empty = ScanFile(_scan(newest.problem), *texts, entries=())
    # A file holds for one version of the kernels. Winners for other versions are out of date.
    current = [one for one in winners if one.environment.kernel_hash == made.kernel_hash]
    current.sort(key=lambda one: one.entry.point)
    entries = [ScanEntry(one.entry.point, one.entry.config, one.entry.status) for one in current]
    file = replace(empty, entries=tuple(entries))
    path = file.path_under(root)
    provenance = {
        **sidecar_fields(path.name, file.text()),
        "problem": file.problem.spec(),
        "entries": [{**one.entry.point.as_json(), **provenance_row(one)} for one in current],
    }
    return ScanFileExport(path, file, provenance)


def _scan(problem: Problem) -> ScanProblem:
    assert all(isinstance(part, ScanKernel) for part in problem.parts)
    return cast(ScanProblem, problem)  # these files are for no other families
