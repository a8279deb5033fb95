"""Write fused-MoE winners as the JSON files that an engine's loader reads, for its servers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tuner.devices.table import Device
from tuner.engines.config_files import (
    PROVENANCE,
    config_file_text,
    fields_on,
    read_lenient,
    read_written,
    shipped_at,
)
from tuner.engines.engine import engine_triton
from tuner.errors import ExportRefused, MalformedConfigFile
from tuner.export.delivery import Delivery, ExportFile
from tuner.export.sized_files import Content, SizedFile, build_files
from tuner.families.fused_moe.engine import MoeEngine
from tuner.families.fused_moe.problem import FusedMoe, Gemm, gemm_of
from tuner.problems.points import Config, Problem
from tuner.problems.results import Entry, Incumbent, Winner


class MoeFile(SizedFile):
    """An engine's file to write: a gemm of a problem for a device and a Triton version."""

    @property
    def gemm(self) -> Gemm:
        return Gemm(self.about["gemm"])

    def rows(self) -> Iterator[dict[str, Any]]:
        content = json.loads(self.written)
        for row in super().rows():
            yield {**row, "config": content[str(row["batch_size"])]}


@dataclass(frozen=True)
class MoeLayout:
    """The engine's own files, for a gemm."""

    layer: MoeEngine
    device: Device
    root: Path
    gemm: Gemm

    def path(self, problem: Problem, triton: str) -> Path:
        name = self.layer.file_name(_layer(problem), self.device, self.gemm)
        return self.layer.config_dir(self.root, triton) / name

    def sizes(self, problem: Problem, triton: str) -> Sequence[int]:
        return self.layer.sizes(_layer(problem), self.device, triton)

    def sidecar(self, path: Path) -> Path:
        """Return `<root>/provenance/<folder under configs/>/<name>`; not all engines have
        configs/.
        """
        parts = path.relative_to(self.root).parts
        return self.root.joinpath(PROVENANCE, *(parts[1:] if parts[0] == "configs" else parts))

    def text(self, content: Content) -> str:
        return config_file_text(content.entries, self.layer.fields)


def refuse_unlike_blocks(
    files: Sequence[MoeFile], engine: MoeEngine, device: Device, root: Path
) -> None:
    """Refuse files with which the engine would run up and down with different BLOCK_SIZE_M.

    The engine sorts a batch's tokens once for both gemms. Some versions stop at such a pair, others
    change down's BLOCK_SIZE_M, which nobody timed. If a gemm has no file in this export, the engine
    uses a file that exists already; without such a file it runs up by the heuristic and down by
    up's entry. Raises ExportRefused.
    """
    built = {(_layer(file.problem), file.triton, file.gemm): file.entries for file in files}
    for problem, triton in dict.fromkeys((problem, triton) for problem, triton, _ in built):
        up, down = (
            built.get((problem, triton, gemm))
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
                    "together"
                )


def _entries_there(
    engine: MoeEngine, problem: FusedMoe, device: Device, gemm: Gemm, triton: str, root: Path
) -> Mapping[int, Config]:
    """Return the entries of the existing file for a gemm that is not exported now; empty without a
    file.
    """
    name = engine.file_name(problem, device, gemm)
    for folder in (root, engine.package_root):
        if (folder / "configs").is_dir():
            path = engine.find_file(folder, problem, device, gemm, triton)
            if path is not None and path.name == name:
                return read_lenient(path, engine.fields).entries
    return {}


def packaged_files(engine: MoeEngine) -> Iterator[tuple[Path, Path]]:
    """Yield the files that the engine ships: (path under a root, path of the file)."""
    for path in sorted((engine.package_root / "configs").rglob("*.json")):
        if shipped := shipped_at(path):
            yield path.relative_to(engine.package_root), shipped


def _with_down(some: Sequence[Winner], winners: Sequence[Winner]) -> list[Winner]:
    """Return the winners of UP with the times of both gemms, which one entry serves."""
    down = {
        (one.problem, one.environment, one.entry.point.batch_size): one.entry
        for one in winners
        if gemm_of(one.entry.point) is Gemm.DOWN
    }

    def whole(up: Entry, other: Entry) -> Entry:
        incumbents = {
            name: replace(one, median_us=_sum(one, other.incumbents[name]))
            for name, one in up.incumbents.items()
            if name in other.incumbents
        }
        return replace(up, median_us=_sum(up, other), incumbents=incumbents)

    found = []
    for winner in some:
        key = winner.problem, winner.environment, winner.entry.point.batch_size
        other = down.get(key)
        found.append(replace(winner, entry=whole(winner.entry, other)) if other else winner)
    return found


def _sum(up: Entry | Incumbent, down: Entry | Incumbent) -> float | None:
    if up.median_us is None or down.median_us is None:
        return None
    return up.median_us + down.median_us


def _layer(problem: Problem) -> FusedMoe:
    assert isinstance(problem, FusedMoe)  # the only family that these files are for
    return problem


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

    def shipped_file(self, problem: Problem, device: Device) -> Path | None:
        """Find the shipped file; any file of that name, if the release's Triton is not known."""
        if triton := engine_triton(self.layer.engine):
            return self.layer.find_file(None, _layer(problem), device, Gemm.UP, triton)
        names = self.asked(problem, device)
        return next((at for path, at in packaged_files(self.layer) if path.name in names), None)

    def files(self, winners: Sequence[Winner], device: Device, root: Path) -> Sequence[MoeFile]:
        """Make the files; see `Delivery.files`.

        Raises ExportRefused also if the engine would run up and down with different BLOCK_SIZE_M.
        """
        layer = self.layer
        files: list[MoeFile] = []
        both = layer.has_down_files()  # otherwise one file and one configuration serve both gemms
        for gemm in (Gemm.DOWN, Gemm.UP) if both else (Gemm.UP,):
            some = [winner for winner in winners if gemm_of(winner.entry.point) is gemm]
            some = some if both else _with_down(some, winners)
            layout, about = MoeLayout(layer, device, root, gemm), {"gemm": gemm.value}
            files += build_files(some, layout, about=about, kind=MoeFile)
        files.sort(key=lambda file: (file.problem.spec(), file.triton, file.gemm.value))
        if both:
            refuse_unlike_blocks(files, layer, device, root)
        return files

    def verify(self, files: Iterable[ExportFile], device: Device, root: Path) -> None:
        layer, fields = self.layer, fields_on(self.layer.fields, device.target.platform)
        for file in files:
            assert isinstance(file, MoeFile)  # `files` made it
            found = layer.find_file(root, _layer(file.problem), device, file.gemm, file.triton)
            if found != file.path:
                raise ExportRefused(f"wrote {file.path}, but {layer.name}'s rules find {found}")
            entries = read_written(found, fields, file.own)
            for batch_size, config in file.entries.items():
                picked = layer.pick(entries, batch_size)
                if picked != config:
                    raise ExportRefused(f"{found}: {layer.name} picks {picked} at M={batch_size}")

    def read_at(self, file: ExportFile, device: Device, root: Path) -> tuple[Path, Path] | None:
        """Find the file, which may be of another Triton that the loader falls back to."""
        assert isinstance(file, MoeFile)  # `files` made it
        problem, gemm = _layer(file.problem), file.gemm
        with suppress(MalformedConfigFile):  # a folder at which servers stop
            path = self.layer.find_file(root, problem, device, gemm, file.triton)
            if path and path.name == file.path.name:
                return path, MoeLayout(self.layer, device, root, gemm).sidecar(path)
        return None

    def packaged(self) -> Iterator[tuple[Path, Path]]:
        return packaged_files(self.layer) if self.replaces_packaged else super().packaged()
