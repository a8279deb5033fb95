"""Check whether every entry of engine config files compiles and fits on a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.compile import Farm, KernelCompiler
from tuner.compile.environment import triton_for
from tuner.devices.table import Device
from tuner.engines.config_files import fields_on, launch_config, read_config_file
from tuner.engines.dispatch import Runs, engine_runs
from tuner.engines.engine import Engine
from tuner.errors import BadProblem, MalformedConfigFile, UnsupportedKernel
from tuner.families.fused_moe.engine import FileKey, MoeEngine, MoeKernels, moe_engine
from tuner.families.fused_moe.problem import FusedMoe, Gemm, gemm_of
from tuner.kernels.binding import Binding, Constant
from tuner.problems.dtypes import Dtype, parse_dtype
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Compiled, compiled_json
from tuner.render import folded, verdicts
from tuner.tuning.report import config_cells, config_json

# File names lack K and top_k. Shared memory depends on K only if a block does not divide it, and
# never on top_k. The defaults are the values of the models that most files are for.
DEFAULT_HIDDEN_SIZE = 7168
DEFAULT_TOP_K = 8
FILE_OPTIONS = ("hidden_size", "top_k")
_Parts = list[tuple[Path, Candidate]]
_LARGE = 1024  # a file that ends below it leaves prefill steps to an entry for decode steps
EXAMPLE_NAME = "E=256,N=64,device_name=NVIDIA_L40S,dtype=fp8_w8a8.json"


@dataclass(frozen=True)
class CheckedEntry:
    """One entry of one file, compiled for a device."""

    file: Path
    gemm: Gemm
    batch_size: int
    config: Config
    compiled: Compiled


@dataclass(frozen=True)
class ConfigFileCheck:
    """The results for every entry of every file."""

    device: Device
    entries: Sequence[CheckedEntry]
    runs: Sequence[Runs] = ()  # what the engine runs for the files' problems
    notes: Sequence[str] = ()  # what was assumed, and which files were not checked

    @property
    def fits(self) -> bool:
        return all(entry.compiled.ok for entry in self.entries)

    def as_json(self) -> dict[str, Any]:
        """The object that `tuner check --json` prints."""
        return {
            "device": self.device.name,
            "entries": [
                {
                    "file": str(entry.file),
                    "gemm": entry.gemm.value,
                    "batch_size": entry.batch_size,
                    "config": config_json(entry.config),
                    **compiled_json(entry.compiled, self.device.shared_optin_bytes),
                }
                for entry in self.entries
            ],
            "runs": [runs.as_json() for runs in self.runs],
        } | ({"notes": list(self.notes)} if self.notes else {})

    def as_text(self) -> str:
        headers = ("gemm", "M", "M N K blocks", "group", "warps", "stages", "shared")
        lines = []
        for file in dict.fromkeys(entry.file for entry in self.entries):
            rows = [
                (
                    entry.gemm.value,
                    entry.batch_size,
                    *config_cells(entry.config),
                    entry.compiled.shared_bytes,
                    "fits" if entry.compiled.ok else entry.compiled.status.value,
                    entry.compiled.detail,
                )
                for entry in self.entries
                if entry.file == file
            ]
            lines += [str(file), verdicts((*headers, "verdict", "detail"), rows), ""]
        bad = sum(not entry.compiled.ok for entry in self.entries)
        verdict = f"{bad} cannot run" if bad else "all can run"
        if not self.entries:
            verdict = "none was checked"
        count = f"{len(self.entries)} entries on {self.device.name}: {verdict}"
        return folded("\n".join([*lines, *self.notes, self.device.shared_limit, count]))


def claims(name: str, engine: Engine) -> bool:
    """Whether a name is that of a fused-MoE config file."""
    try:
        key = moe_engine(engine).read_file_name(name)
    except MalformedConfigFile:
        return False
    return bool(key.dtype or not key.block_shape)  # no engine asks for blocks of 16-bit weights


def check_files(
    files: Sequence[Path], device: Device, engine: Engine, options: Mapping[str, Any]
) -> ConfigFileCheck:
    """Compile every entry of the files for the device, for the gemms that each file serves.

    `options` may have hidden_size and top_k, which file names lack. A file without `_down` serves
    both gemms unless it has a `_down` file beside it and the engine reads such files.

    Raises MalformedConfigFile or BadProblem for a file whose name or content is not an engine's,
    before it compiles anything.
    """
    layer = moe_engine(engine)
    kernels = layer.lift(device.target.backend)
    read = [_read(path, layer, options, device.target.backend) for path in files]
    notes, plans = _checkable(read, kernels, device, options)
    notes += [*_changed(plans, kernels, device, engine), *_beyond(plans)]
    with Farm(triton=triton_for(engine)) as farm:
        compilers = [
            KernelCompiler(farm, kernels.binder(problem, device.target), device)
            for problem, _ in plans
        ]
        for compiler, (_, parts) in zip(compilers, plans, strict=True):
            compiler.compile_ahead(candidate for _, candidate in parts)  # no core waits for a file
        entries = [
            entry
            for compiler, (_, parts) in zip(compilers, plans, strict=True)
            for entry in _compile(compiler, parts)
        ]
    runs = engine_runs(engine.name, engine.version, (problem for problem, _ in plans), device)
    return ConfigFileCheck(device, entries, runs, notes)


def _checkable(
    plans: Sequence[tuple[FusedMoe, _Parts]],
    kernels: MoeKernels,
    device: Device,
    options: Mapping[str, Any],
) -> tuple[list[str], list[tuple[FusedMoe, _Parts]]]:
    """What is assumed of weights with groups, and the files that can be checked.

    The launcher may refuse such weights or run a compiled kernel, which is no fault of a file.
    """
    notes, found = [], []
    for problem, parts in plans:
        if not (problem.grouped and problem.block_shape and parts):
            found.append((problem, parts))
            continue
        path = parts[0][0]
        K = "" if "hidden_size" in options else f", K={problem.K} (--hidden-size)"
        notes.append(
            f"assumed for {path.name}: groups of {problem.block_shape[1]} along K{K}, because "
            "its name has neither"
        )
        bound, refused = _bound(problem, parts, kernels, device)
        if refused:
            notes.append(
                f"not checked: {len(refused)} of {len(parts)} launches of {path.name}: {refused[0]}"
            )
        if bound:
            found.append((problem, [part for part, _ in bound]))
    return notes, found


def _bound(
    problem: FusedMoe, parts: _Parts, kernels: MoeKernels, device: Device
) -> tuple[list[tuple[tuple[Path, Candidate], Binding]], list[UnsupportedKernel]]:
    """The entries as the engine's launcher binds them, and why it refuses the others."""
    bound: list[tuple[tuple[Path, Candidate], Binding]] = []
    refused: list[UnsupportedKernel] = []
    for part in parts:
        point, config = part[1].point, part[1].config
        try:
            found = kernels.bind(problem, gemm_of(point), point.batch_size, config, device.target)
            bound.append((part, found))
        except UnsupportedKernel as error:
            refused.append(error)
    return bound, refused


def _beyond(plans: Sequence[tuple[FusedMoe, _Parts]]) -> Iterator[str]:
    """What runs at sizes beside those of a file that begins late or ends early."""
    for _, parts in plans:
        for path in dict.fromkeys(path for path, _ in parts):
            sizes = sorted({c.point.batch_size for one, c in parts if one == path})
            few = [f"smaller sizes that of M={sizes[0]}"] if sizes[0] > 1 else []
            few += [f"larger sizes that of M={sizes[-1]}"] if sizes[-1] < _LARGE else []
            if few:
                yield f"{path.name}: the nearest entry counts: {' and '.join(few)}"


def _changed(
    plans: Sequence[tuple[FusedMoe, _Parts]], kernels: MoeKernels, device: Device, engine: Engine
) -> list[str]:
    """Entries that the engine's launcher changes before it runs them, such as a block along K that
    is longer than the block of quantisation.
    """
    sizes: dict[tuple[str, str, object, object], dict[int, None]] = {}
    for problem, parts in plans:
        bound, _ = _bound(problem, parts, kernels, device)  # the compiler tells what is refused
        for (path, candidate), kernel in bound:
            config, size = candidate.config, candidate.point.batch_size
            for name in ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"):
                runs = kernel.arguments.get(name)
                if isinstance(runs, Constant) and runs.value != config[name]:
                    sizes.setdefault((path.name, name, config[name], runs.value), {})[size] = None
    return [
        f"{file}: {engine.name} {engine.version} clamps {name} {written} and runs {runs} at "
        f"M={', '.join(map(str, some))}"
        for (file, name, written, runs), some in sizes.items()
    ]


def _read(
    path: Path, engine: MoeEngine, options: Mapping[str, Any], backend: str
) -> tuple[FusedMoe, _Parts]:
    key = engine.read_file_name(path.name)
    K, top_k = options.get("hidden_size", DEFAULT_HIDDEN_SIZE), options.get("top_k", DEFAULT_TOP_K)
    try:
        problem = _problem(key, K, top_k)
    except BadProblem as error:
        raise BadProblem(f"{path.name}: {error}") from None
    entries = read_config_file(path, fields_on(engine.fields, backend)).entries
    gemms = [key.gemm]
    if key.gemm is Gemm.UP:  # the engine ignores USE_TMA in these files
        entries = {size: config.replace(USE_TMA=0) for size, config in entries.items()}
        down_file = path.with_name(f"{path.stem}_down.json")
        if not (engine.has_down_files() and down_file.exists()):
            gemms.append(Gemm.DOWN)
    return problem, [
        (path, Candidate(Point(size, gemm), launch_config(entries[size], backend)))
        for gemm in gemms
        for size in sorted(entries)
    ]


def _problem(key: FileKey, hidden_size: int, top_k: int) -> FusedMoe:
    dtype = parse_dtype(key.dtype) if key.dtype else Dtype.BFLOAT16
    block = key.block_shape
    if block is None and dtype is Dtype.INT4_W4A16:
        block = (0, 128)  # file names leave out groups along k
    per_channel = key.per_channel_quant or (dtype is Dtype.INT8_W8A8 and block is None)
    return FusedMoe(
        E=key.E,
        N=key.intermediate_size,
        K=hidden_size,
        top_k=min(top_k, key.E),
        dtype=dtype,
        block_shape=block,
        per_channel_quant=per_channel,
    )


def _compile(compiler: KernelCompiler, parts: _Parts) -> Iterator[CheckedEntry]:
    compiler.submit([candidate for _, candidate in parts])
    results: dict[Candidate, Compiled] = {}
    while batch := compiler.poll(wait=True):
        results.update(batch)
    for path, candidate in parts:
        point = candidate.point
        yield CheckedEntry(
            path, gemm_of(point), point.batch_size, candidate.config, results[candidate]
        )
