"""Make the files that servers read from the winners of dense GEMMs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tuner.devices.table import Device
from tuner.engines.config_files import launch_config, read_written
from tuner.errors import ExportRefused
from tuner.export.files import provenance_row
from tuner.export.sized_files import Layout, SizedFile, build_files
from tuner.families.dense_gemm.engine import GemmEngine
from tuner.families.dense_gemm.problem import DenseGemm
from tuner.problems.points import Config, Problem
from tuner.problems.results import Winner
from tuner.tuning.gains import reference


def build_gemm_files(
    winners: Sequence[Winner], engine: GemmEngine, device: Device, layout: Layout
) -> list[SizedFile]:
    """Return the files to write; see `build_files`. Raises UnsupportedKernel if the engine reads no
    file for a problem.
    """
    return build_files(winners, layout, lambda winner: _row(winner, engine, device))


def verify_gemm(file: SizedFile, engine: GemmEngine, device: Device, root: Path) -> None:
    """Check that the engine's rules find this file, in the engine's package, and run its entries.

    Raises ExportRefused if they find another file or run other entries.
    """
    problem = gemm_of(file.problem)
    found = engine.find_file(root, problem, device)
    if found != file.path:
        raise ExportRefused(f"wrote {file.path}, but {engine.name}'s rules find {found}")
    fields = engine.fields_of(engine.read_file_name(found.name))
    entries = read_written(found, fields, file.own)
    for size, config in file.entries.items():
        picked = engine.effective(problem, engine.pick(entries, size), device.target)
        if picked != config:
            raise ExportRefused(f"{found}: {engine.name} runs {picked} at M={size}")


def _row(winner: Winner, engine: GemmEngine, device: Device) -> dict[str, Any]:
    """Return the sidecar's row, with the entry that the kernel gets, which is the entry that was
    timed.

    Per channel, a file may have null if the engine's own choice stays. A null runs another kernel
    than Triton's: the default of the Triton kernel is an entry only if it was faster than that
    kernel.
    """
    problem = gemm_of(winner.problem)
    entry = engine.effective(problem, winner.entry.config, device.target)
    default = problem.block is None and winner.entry.config == _default(winner, engine, device)
    left_alone = default and not reference(winner.entry).without_us
    return {**provenance_row(winner), "config": {} if left_alone else dict(entry)}


def _default(winner: Winner, engine: GemmEngine, device: Device) -> Config:
    """Return the default of the engine's Triton kernel; the winner does not name it if its size was
    not tuned.
    """
    if known := winner.entry.incumbents.get("default"):
        return known.config
    problem, size = gemm_of(winner.problem), winner.entry.point.batch_size
    return launch_config(engine.default_config(problem, device, size), device.target.platform)


def gemm_of(problem: Problem) -> DenseGemm:
    """Return the problem as a DenseGemm; these files are for no other problem."""
    assert isinstance(problem, DenseGemm)
    return problem
