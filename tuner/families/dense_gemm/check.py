"""Check config files of dense GEMMs: whether entries compile and fit, and what sizes they serve."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tuner.compile import Farm, KernelCompiler
from tuner.compile.environment import triton_for
from tuner.devices.table import Device
from tuner.engines.config_files import read_config_file, read_lenient
from tuner.engines.dispatch import Runs, engine_runs
from tuner.engines.engine import Engine
from tuner.errors import MalformedConfigFile, UnsupportedKernel
from tuner.families.dense_gemm.cells import NULL, config_cells
from tuner.families.dense_gemm.companions import companions_of
from tuner.families.dense_gemm.engine import GemmEngine, gemm_engine
from tuner.families.dense_gemm.problem import BATCH_SIZES, DenseGemm, Gemm
from tuner.problems.dtypes import parse_dtype
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Compiled, Status, compiled_json
from tuner.render import folded, verdicts

FILE_OPTIONS: tuple[str, ...] = ()  # the names have all sizes
EXAMPLE_NAME = "N=2112,K=7168,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128, 128].json"
_NOTHING = Compiled(Status.OK)  # of an entry without a Triton kernel
DECODES = 64  # a server decodes batches of about this size and below


@dataclass(frozen=True)
class CheckedEntry:
    """One entry of one file."""

    file: str  # its path, or what the engine runs without one
    problem: DenseGemm
    batch_size: int
    config: Config  # as the file has it; empty: null
    compiled: Compiled | None  # None: null, so that the engine runs no Triton kernel here
    detail: str = ""

    @property
    def fits(self) -> bool:
        return self.compiled is None or self.compiled.ok

    @property
    def status(self) -> str:
        return self.compiled.status.value if self.compiled else NULL

    @property
    def why(self) -> str:
        said = self.compiled.detail if self.compiled else "the engine runs CUTLASS here"
        return "; ".join(filter(None, [said, self.detail]))


@dataclass(frozen=True)
class GemmFileCheck:
    """The results for every entry of every file."""

    device: Device
    entries: Sequence[CheckedEntry]
    warnings: Mapping[str, str]  # files that are likely to be slower than none
    runs: Sequence[Runs] = ()  # what the engine runs for these problems

    @property
    def fits(self) -> bool:
        return all(entry.fits for entry in self.entries)

    def as_json(self) -> dict[str, Any]:
        """The object that `tuner check --json` prints."""
        return {
            "device": self.device.name,
            "entries": [
                {
                    "file": entry.file,
                    "problem": entry.problem.spec(),
                    "batch_size": entry.batch_size,
                    "config": dict(entry.config) or None,
                    **compiled_json(entry.compiled or _NOTHING, self.device.shared_optin_bytes),
                    "status": entry.status,
                    "detail": entry.why,
                }
                for entry in self.entries
            ],
            "warnings": [{"file": f, "warning": text} for f, text in self.warnings.items()],
            "runs": [runs.as_json() for runs in self.runs],
        }

    def as_text(self) -> str:
        headers = ("M", "M N K blocks", "group", "warps", "stages", "further", "shared")
        lines = []
        for file in dict.fromkeys(entry.file for entry in self.entries):
            rows = [
                (
                    entry.batch_size,
                    *config_cells(entry.config),
                    entry.compiled.shared_bytes if entry.compiled else None,
                    "fits" if entry.fits and entry.compiled else entry.status,
                    entry.why,
                )
                for entry in self.entries
                if entry.file == file
            ]
            lines += [file, verdicts((*headers, "verdict", "detail"), rows)]
            if file in self.warnings:
                lines.append(f"warning: {self.warnings[file]}")
            lines.append("")
        bad = sum(not entry.fits for entry in self.entries)
        verdict = f"{bad} cannot run" if bad else "all can run"
        if few := len(self.warnings):
            verdict += f"; {few} {'file is' if few == 1 else 'files are'} likely slower than none"
        count = f"{len(self.entries)} entries on {self.device.name}: {verdict}"
        return folded("\n".join([*lines, self.device.shared_limit, count]))


def claims(name: str, engine: Engine) -> bool:
    """Whether a name is that of a dense GEMM's config file."""
    try:
        gemm_engine(engine).read_file_name(name)
    except MalformedConfigFile:
        return False
    return True


def check_files(
    files: Sequence[Path], device: Device, engine: Engine, options: Mapping[str, Any]
) -> GemmFileCheck:
    """Compile every entry of the files for the device.

    Raises MalformedConfigFile or BadProblem for a file whose name or content is not an engine's,
    before it compiles anything.
    """
    gemm = gemm_engine(engine)
    return _check([_read(path, gemm) for path in files], device, engine)


def check_problems(problems: Sequence[DenseGemm], device: Device, engine: Engine) -> GemmFileCheck:
    """Compile what the engine would run for the problems: its shipped files, or its defaults.

    Raises UnsupportedKernel if the engine has no kernel for a problem.
    """
    gemm = gemm_engine(engine)
    plans = [_shipped_or_default(problem, device, gemm) for problem in problems]
    return _check(plans, device, engine)


def _check(plans: Sequence[_Plan], device: Device, engine: Engine) -> GemmFileCheck:
    gemm = gemm_engine(engine)
    with Farm(triton=triton_for(engine)) as farm:
        entries = [entry for plan in plans for entry in _checked(farm, gemm, device, plan)]
    of_files = [plan for plan in plans if plan.is_file]
    warnings = {plan.file: text for plan in of_files if (text := ladder_warning(plan.entries))}
    runs = engine_runs(engine.name, engine.version, (plan.problem for plan in plans), device)
    return GemmFileCheck(device, entries, warnings, runs)


def ladder_warning(sizes: Mapping[int, Config]) -> str:
    """What is wrong with the sizes of a file; empty if nothing is.

    An engine runs the entry of the nearest size. A file that begins far above the batches that a
    server decodes makes all of them run a configuration for large ones.
    """
    least = min(sizes)
    if least <= DECODES:
        return ""
    return (
        f"every batch below {least} runs the entry for {least}; such a file was measured 3 to 33 % "
        "slower than none (sglang #20368): tune the small sizes too, or take the file away"
    )


@dataclass(frozen=True)
class _Plan:
    file: str
    problem: DenseGemm
    entries: Mapping[int, Config]
    is_file: bool = True


def _read(path: Path, gemm: GemmEngine) -> _Plan:
    key = gemm.read_file_name(path.name)
    fields = gemm.fields(key)
    # An unknown field makes an entry that cannot run. Any other fault makes the file malformed.
    unknown = {n for e in read_lenient(path, fields).entries.values() for n in e} - {*fields.names}
    lenient = replace(fields, names=(*fields.names, *sorted(unknown)))
    entries = read_config_file(path, lenient).entries
    problem = DenseGemm(key.N, key.K, parse_dtype(key.dtype), key.block)
    return _Plan(str(path), problem, {size: entries[size] for size in sorted(entries)})


def _shipped_or_default(problem: DenseGemm, device: Device, gemm: GemmEngine) -> _Plan:
    path = gemm.find_file(gemm.package_root, problem, device)
    if path is not None:
        return _read(path, gemm)
    kernels = gemm.lift(device.target.backend)
    first: dict[Config, int] = {}  # the engine's default is the same for most sizes
    for size in BATCH_SIZES:
        first.setdefault(kernels.default_config(problem, size, device.target), size)
    name = f"{problem.spec()}: the default of {gemm.name} {gemm.version}"
    return _Plan(name, problem, {size: config for config, size in first.items()}, is_file=False)


def _checked(farm: Farm, gemm: GemmEngine, device: Device, plan: _Plan) -> Iterator[CheckedEntry]:
    target, problem = device.target, plan.problem
    kernels = gemm.lift(target.backend)
    # Refuses a problem whose launch cannot be followed: then nothing is known of its entries.
    kernels.default_config(problem, 1, target)
    refused: dict[int, Compiled] = {}
    asked: dict[Candidate, int] = {}
    for size, config in plan.entries.items():
        if not config:
            continue
        try:
            kernels.launches(problem, size, config, target)
        except UnsupportedKernel as error:
            detail = f"{error}: it stops the server"
            refused[size] = Compiled(Status.COMPILE_ERROR, detail=detail)
        else:
            asked[Candidate(Point(size, Gemm.DENSE), config)] = size
    compiler = KernelCompiler(
        farm,
        kernels.binder(problem, target),
        device,
        companions_of(kernels, problem, target),
    )
    compiler.submit(asked)
    compiled = dict(refused)
    while batch := compiler.poll(wait=True):
        compiled |= {asked[candidate]: result for candidate, result in batch}
    for size, config in plan.entries.items():
        depth = config.get("BLOCK_SIZE_K", 0)
        raised = size not in refused and depth and gemm.effective(problem, config, target)
        loaded = raised["BLOCK_SIZE_K"] if raised else depth
        detail = f"the engine raises BLOCK_SIZE_K to {loaded}" if loaded != depth else ""
        yield CheckedEntry(plan.file, problem, size, config, compiled.get(size), detail)
