"""Check config files of dense GEMMs: whether entries compile and fit, and which sizes they
serve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.devices.table import Device
from tuner.engines.config_files import read_any_fields
from tuner.engines.engine import Engine
from tuner.errors import UnsupportedKernel
from tuner.families.check import (
    NO_FLAGS,
    Check,
    CheckedEntry,
    CheckGroup,
    EntryToCheck,
    check_groups,
    other_kernel,
)
from tuner.families.dense_gemm.engine import GemmEngine, GemmKernels, gemm_engine
from tuner.families.dense_gemm.problem import BATCH_SIZES, DenseGemm, DensePart
from tuner.families.dense_gemm.space import config_cells
from tuner.problems.dtypes import parse_dtype
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Compiled, Status

FILE_OPTIONS: tuple[str, ...] = ()  # the names have all sizes
EXAMPLE_NAME = "N=2112,K=7168,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128, 128].json"
DECODES = 64  # a server decodes batches of about this size and below


class GemmCheck(Check[CheckedEntry]):
    """The results for every entry of every file."""

    columns = ("M", "M N K blocks", "group", "warps", "stages", "further", "shared")

    def cells(self, entry: CheckedEntry) -> tuple[object, ...]:
        shared = entry.compiled.shared_bytes if entry.compiled else None
        return (entry.size, *config_cells(entry.config), shared)

    def fields(self, entry: CheckedEntry) -> dict[str, Any]:
        return {
            "file": entry.file,
            "problem": entry.problem.spec(),
            "batch_size": entry.size,
            "config": dict(entry.config) or None,
        }

    def as_json(self) -> dict[str, Any]:
        found = super().as_json()
        runs = found.pop("runs")
        warnings = [{"file": file, "warning": text} for file, text in self.warnings.items()]
        return {**found, "warnings": warnings, "runs": runs}


def claims(name: str, engine: Engine) -> bool:
    """Say whether a file name is the name of a dense GEMM's config file."""
    return gemm_engine(engine).claims(name)


def asked_names(problems: Sequence[DenseGemm], device: Device, engine: Engine) -> list[str]:
    """Return the names of the files for which the engine asks. Raises UnsupportedKernel."""
    gemm = gemm_engine(engine)
    return [gemm.file_name(problem, device) for problem in problems]


def check_files(
    files: Sequence[Path], device: Device, engine: Engine, options: Mapping[str, Any]
) -> GemmCheck:
    """Compile every entry of the files for the device.

    Raises MalformedConfigFile or BadProblem, before anything is compiled, if a file's name or
    content is not an engine's.
    """
    gemm = gemm_engine(engine)
    groups = [_group_of_file(path, gemm, device) for path in files]
    return check_groups(GemmCheck, groups, device, engine)


def check_problems(
    problems: Sequence[DenseGemm],
    device: Device,
    engine: Engine,
    flags: Mapping[str, str] = NO_FLAGS,
) -> GemmCheck:
    """Compile the entries that the engine would run for the problems: shipped entries or defaults.
    `flags` are the server's.

    If another library runs a problem that has no file, nothing of the problem is compiled, and a
    note says so. Raises UnsupportedKernel if the engine has no kernel for a problem.
    """
    gemm = gemm_engine(engine)
    groups = [_group_of_problem(problem, gemm, device, engine, flags) for problem in problems]
    return check_groups(GemmCheck, groups, device, engine, flags=flags)


def ladder_warning(sizes: Mapping[int, Config]) -> str:
    """Return a warning about the sizes of a file; empty if the sizes are good.

    An engine runs the entry of the nearest size. If a file begins far above the batches that a
    server decodes, all of these batches run a configuration for large batches.
    """
    least = min(sizes)
    if least <= DECODES:
        return ""
    return (
        f"every batch below {least} runs the entry for {least}; such a file was measured 3 to 33 % "
        "slower than none (sglang #20368): tune the small sizes too, or take the file away"
    )


def _group_of_file(path: Path, gemm: GemmEngine, device: Device) -> CheckGroup[DenseGemm]:
    key = gemm.read_file_name(path.name)
    # An unknown field makes an entry that cannot run. Any other fault makes the file malformed.
    entries = read_any_fields(path, gemm.fields_of(key)).entries
    problem = DenseGemm(key.N, key.K, parse_dtype(key.dtype), key.block)
    sizes = {size: entries[size] for size in sorted(entries)}
    return replace(_group(str(path), problem, sizes, gemm, device), warning=ladder_warning(entries))


def _group_of_problem(
    problem: DenseGemm, gemm: GemmEngine, device: Device, engine: Engine, flags: Mapping[str, str]
) -> CheckGroup[DenseGemm]:
    """Return the file that the engine ships for the problem, else its default.

    The group has no entries if another library than Triton runs the problem without a file.
    """
    path = gemm.find_file(gemm.package_root, problem, device)
    if path is not None:
        return _group_of_file(path, gemm, device)
    if group := other_kernel(problem, device, engine, flags):
        return group
    kernels = gemm.lift(device.target.platform)
    first: dict[Config, int] = {}  # the engine's default is the same for most sizes
    for size in BATCH_SIZES:
        first.setdefault(kernels.default_config(problem, size, device.target), size)
    name = f"{problem.spec()}: the default of {gemm.name} {gemm.version}"
    return _group(name, problem, {size: config for config, size in first.items()}, gemm, device)


def _group(
    name: str, problem: DenseGemm, entries: Mapping[int, Config], gemm: GemmEngine, device: Device
) -> CheckGroup[DenseGemm]:
    target = device.target
    kernels = gemm.lift(target.platform)
    # Raises for a problem whose launch cannot be followed: nothing is known of its entries.
    kernels.default_config(problem, 1, target)
    asked = [_asked(problem, size, entries[size], gemm, kernels, device) for size in entries]
    companions = kernels.companions(problem, target)
    return CheckGroup(name, problem, kernels.binder(problem, target), asked, companions)


def _asked(
    problem: DenseGemm,
    size: int,
    config: Config,
    gemm: GemmEngine,
    kernels: GemmKernels,
    device: Device,
) -> EntryToCheck:
    if not config:
        return EntryToCheck(
            DensePart.DENSE, size, config, None, detail="the engine runs CUTLASS here"
        )
    try:
        kernels.launches(problem, size, config, device.target)
    except UnsupportedKernel as error:
        refused = Compiled(Status.COMPILE_ERROR, detail=f"{error}: it stops the server")
        return EntryToCheck(DensePart.DENSE, size, config, None, refused)
    depth = config["BLOCK_SIZE_K"]
    loaded = gemm.effective(problem, config, device.target)["BLOCK_SIZE_K"]
    detail = f"the engine raises BLOCK_SIZE_K to {loaded}" if loaded != depth else ""
    candidate = Candidate(Point(size, DensePart.DENSE), config)
    return EntryToCheck(DensePart.DENSE, size, config, candidate, detail=detail)
