"""Check whether every entry of engine config files compiles and fits on a device."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.devices.table import Device, find_device
from tuner.engines.config_files import fields_on, launch_config, misnamed, read_config_file
from tuner.engines.engine import Engine, triton_for
from tuner.errors import BadProblem, MalformedConfigFile, UnknownDevice, UnsupportedKernel
from tuner.families.check import (
    Check,
    CheckedEntry,
    CheckGroup,
    EntryToCheck,
    UnreadFile,
    check_groups,
    not_among,
)
from tuner.families.fused_moe.engine import MoeEngine, MoeFileKey, moe_engine
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.kernels.binding import Binding, Constant
from tuner.problems.dtypes import Dtype, parse_dtype
from tuner.problems.points import Candidate, Point
from tuner.tuning.report import config_cells, config_json

# File names lack K and top_k. Shared memory depends on K only if a block does not divide it, and
# never on top_k. The defaults are the values of the models that most files are for.
DEFAULT_HIDDEN_SIZE = 7168
DEFAULT_TOP_K = 8
FILE_OPTIONS = ("hidden_size", "top_k")
_LARGE = 1024  # a file that ends below it leaves prefill steps to an entry for decode steps
_FOLDER = re.compile(r"(.*)/configs/triton_[\d_]+")
EXAMPLE_NAME = "E=256,N=64,device_name=NVIDIA_L40S,dtype=fp8_w8a8.json"


class MoeCheck(Check[CheckedEntry]):
    """The results for every entry of every file."""

    columns = ("gemm", "M", "M N K blocks", "group", "warps", "stages", "shared")

    def cells(self, entry: CheckedEntry) -> tuple[object, ...]:
        shared = entry.compiled.shared_bytes if entry.compiled else None
        return (entry.part.value, entry.size, *config_cells(entry.config), shared)

    def fields(self, entry: CheckedEntry) -> dict[str, Any]:
        return {
            "file": entry.file,
            "gemm": entry.part.value,
            "batch_size": entry.size,
            "config": config_json(entry.config),
        }

    def as_json(self) -> dict[str, Any]:
        return super().as_json() | ({"notes": list(self.notes)} if self.notes else {})


def claims(name: str, engine: Engine) -> bool:
    """Say whether a file name is the name of a fused-MoE config file."""
    layer = moe_engine(engine)
    try:
        layer.read_any_name(name)
    except MalformedConfigFile:
        return False
    return not misnamed(name)


def asked_names(problems: Sequence[FusedMoe], device: Device, engine: Engine) -> list[str]:
    """Return the names of the files for which the engine asks. Raises UnsupportedKernel."""
    layer = moe_engine(engine)
    gemms = list(Gemm) if layer.has_down_files() else [Gemm.UP]
    return [layer.file_name(problem, device, gemm) for problem in problems for gemm in gemms]


def check_files(
    files: Sequence[Path], device: Device, engine: Engine, options: Mapping[str, Any]
) -> MoeCheck:
    """Compile every entry of the files for the device, for the gemms that each file serves.

    `options` may have hidden_size and top_k, which file names lack. A file without `_down` serves
    both gemms unless it has a `_down` file beside it and the engine reads such files. Raises
    MalformedConfigFile or BadProblem, before anything is compiled, if a file's name or content is
    not an engine's.
    """
    layer = moe_engine(engine)
    read = [_group_of_file(path, layer, options, device) for path in files]
    notes, groups = _checkable(read, options)
    notes += [*_changed(groups, engine), *_beyond(groups)]
    unread = list(_never_read(groups, layer, device))
    return replace(check_groups(MoeCheck, groups, device, engine, notes), unread=unread)


def _never_read(
    groups: Sequence[CheckGroup[FusedMoe]], layer: MoeEngine, checked: Device
) -> Iterator[UnreadFile]:
    """Yield files that this release never reads, whatever the model."""
    triton = triton_for(layer.engine)
    for group in groups:
        path = Path(group.name)
        key = layer.read_any_name(path.name)
        if not key.device:
            why = "its name has no GPU, and a server asks for a name with its GPU"
            yield UnreadFile(group.name, (), f"{path.name} is never read: {why}.")
            continue
        # Without a folder of a Triton, or without the release's own Triton, folders tell nothing.
        below = None if triton.note else _FOLDER.fullmatch(path.absolute().parent.as_posix())
        try:
            known = find_device(key.device)
        except UnknownDevice:  # the table has not all GPUs
            known = checked
        device = replace(known, name=key.device)
        try:
            asked = layer.file_name(group.problem, device, key.gemm)
        except UnsupportedKernel as error:
            yield UnreadFile(group.name, (), f"{path.name} is never read: {error}.")
            continue
        if key.per_channel_quant == group.problem.per_channel_quant:
            yield from not_among([path], [asked], f"{layer.name} {layer.version}")
        if below:
            yield from _elsewhere(group, Path(below[1]), layer, device, triton.version)


def _elsewhere(
    group: CheckGroup[FusedMoe], root: Path, layer: MoeEngine, device: Device, triton: str
) -> Iterator[UnreadFile]:
    """Yield the group's file if the engine reads another file below `root`, or none."""
    path = Path(group.name).absolute()
    gemm = layer.read_any_name(path.name).gemm
    try:
        found = layer.find_file(root, group.problem, device, gemm, triton)
    except MalformedConfigFile:
        return  # another folder stops the engine
    if found is None or (found.parent, found.name) != (path.parent, path.name):
        does = f"reads {found}" if found else "does not look into its folder"
        who = f"{layer.name} {layer.version} with Triton {triton}"
        why = f"{who} {does}: {group.name} is never read."
        yield UnreadFile(group.name, (str(found),) if found else (), why)


def _group_of_file(
    path: Path, engine: MoeEngine, options: Mapping[str, Any], device: Device
) -> CheckGroup[FusedMoe]:
    key, platform = engine.read_any_name(path.name), device.target.platform
    K, top_k = options.get("hidden_size", DEFAULT_HIDDEN_SIZE), options.get("top_k", DEFAULT_TOP_K)
    try:
        problem = _problem(key, K, top_k)
    except BadProblem as error:
        raise BadProblem(f"{path.name}: {error}") from None
    entries = read_config_file(path, fields_on(engine.fields, platform)).entries
    gemms = [key.gemm]
    if key.gemm is Gemm.UP:
        down_file = path.with_name(f"{path.stem}_down.json")
        if not (engine.has_down_files() and down_file.exists()):
            gemms.append(Gemm.DOWN)
    full = {size: launch_config(entries[size], platform) for size in sorted(entries)}
    asked = [
        EntryToCheck(gemm, size, config, Candidate(Point(size, gemm), config))
        for gemm in gemms
        for size, config in full.items()
    ]
    return CheckGroup(
        str(path), problem, engine.lift(platform).binder(problem, device.target), asked
    )


def _checkable(
    groups: Sequence[CheckGroup[FusedMoe]], options: Mapping[str, Any]
) -> tuple[list[str], list[CheckGroup[FusedMoe]]]:
    """Return notes about weights with groups, and the files that can be checked.

    If the launcher refuses such weights or runs a compiled kernel, the file is not at fault.
    """
    notes, found = [], []
    for group in groups:
        problem, name = group.problem, Path(group.name).name
        if not (problem.grouped and problem.block_shape):
            found.append(group)
            continue
        K = "" if "hidden_size" in options else f", K={problem.K} (--hidden-size)"
        notes.append(
            f"assumed for {name}: groups of {problem.block_shape[1]} along K{K}, because "
            "its name has neither"
        )
        bound, refused = _bound(group)
        if refused:
            many = len(group.entries)
            notes.append(f"not checked: {len(refused)} of {many} launches of {name}: {refused[0]}")
        if bound:
            found.append(replace(group, entries=[asked for asked, _ in bound]))
    return notes, found


def _bound(
    group: CheckGroup[FusedMoe],
) -> tuple[list[tuple[EntryToCheck, Binding]], list[UnsupportedKernel]]:
    """Return the entries as the engine's launcher binds them, and why it refuses the others."""
    bound: list[tuple[EntryToCheck, Binding]] = []
    refused: list[UnsupportedKernel] = []
    for asked in group.entries:
        assert asked.candidate is not None  # `_group_of_file` gives each entry a candidate
        try:
            bound.append((asked, group.binder(asked.candidate)[1]))
        except UnsupportedKernel as error:
            refused.append(error)
    return bound, refused


def _beyond(groups: Sequence[CheckGroup[FusedMoe]]) -> Iterator[str]:
    """Yield notes on files that begin late or end early: which entry runs at the sizes beyond."""
    for group in groups:
        sizes = sorted({asked.size for asked in group.entries})
        few = [f"smaller sizes run the entry of M={sizes[0]}"] if sizes[0] > 1 else []
        few += [f"larger sizes run the entry of M={sizes[-1]}"] if sizes[-1] < _LARGE else []
        if few:
            yield f"{Path(group.name).name}: {', and '.join(few)}"


def _changed(groups: Sequence[CheckGroup[FusedMoe]], engine: Engine) -> list[str]:
    """Return notes on entries that the engine's launcher changes before it runs them, such as a
    block along K that is longer than the block of quantisation.
    """
    sizes: dict[tuple[str, str, object, object], dict[int, None]] = {}
    for group in groups:
        bound, _ = _bound(group)  # the compiler reports refused entries
        for asked, kernel in bound:
            for name in ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"):
                runs, written = kernel.arguments.get(name), asked.config[name]
                if isinstance(runs, Constant) and runs.value != written:
                    change = (Path(group.name).name, name, written, runs.value)
                    sizes.setdefault(change, {})[asked.size] = None
    return [
        f"{file}: {engine.name} {engine.version} clamps {name} {written} and runs {runs} at "
        f"M={', '.join(map(str, some))}"
        for (file, name, written, runs), some in sizes.items()
    ]


def _problem(key: MoeFileKey, hidden_size: int, top_k: int) -> FusedMoe:
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
