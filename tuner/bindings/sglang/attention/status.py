"""Which attention files a server in this environment would use, and why.

This needs no GPU, and imports nothing of the engine. Checks that need a GPU or triton are
reported as pending where there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tuner.bindings.sglang.attention.backend import BACKEND_FLAG
from tuner.bindings.sglang.attention.kv_splits import KV_SPLITS_FLAG, engine_kv_splits
from tuner.bindings.sglang.plugin.file_checks import FileCheck, check_file
from tuner.bindings.sglang.plugin.files import (
    CONFIG_DIR_VARIABLE,
    FOLDER,
    AttentionFile,
    attention_root,
    find_attention_files,
)
from tuner.bindings.sglang.plugin.kernels import KERNELS, PLUGIN
from tuner.bindings.sglang.plugin.splits import SplitsTable
from tuner.devices.table import Device, devices
from tuner.engines.engine import Engine
from tuner.errors import TunerError
from tuner.export.presence import (
    FilesStatus,
    facts_here,
    file_json,
    files_status,
    no_plugins,
    server_json,
)
from tuner.families.attention.engine import attention_engine
from tuner.families.attention.problem import ENGINE_KV_SPLITS, Attention, AttentionPhase


@dataclass(frozen=True)
class AttentionStatus(FilesStatus[FileCheck[AttentionFile]]):
    """What servers would do with attention files."""

    engine: Engine
    device: Device | None
    flags: Mapping[str, int | str]

    heading = "problem"

    def without_file(self) -> list[str]:
        """The phases that every model has, and for which no file is used though others are."""
        used = {check.file.problem.phase for check in self.checks if check.used and check.file}
        return [
            p.value
            for p in (AttentionPhase.EXTEND, AttentionPhase.DECODE)
            if used and p not in used
        ]

    def as_json(self) -> dict[str, Any]:
        return {
            **server_json(self.engine, self.device),
            **self.root_json(),
            "files": self.files_json(),
            "without_file": self.without_file(),
            "server_flags": dict(self.flags),
            "environment": dict(self.environment),
        }

    def closing(self) -> list[str]:
        missing, lines = self.without_file(), []
        if missing:
            lines.append(f"{' and '.join(missing)}: no file; sglang's own constants run")
        if any(check.used for check in self.checks):
            lines.append(f"used by servers that run with: {_command_line(self.flags)}")
        return lines

    def notes(self, check: FileCheck[AttentionFile]) -> list[str]:
        other = _file_flags(check, self.engine).items() - self.flags.items()
        notes = [f"with {_command_line(dict(other))}"] if other else []
        if check.file and check.file.splits:
            notes.append(_chosen(check.file.splits))
        return notes

    def files_json(self) -> list[dict[str, Any]]:
        flags = [_file_flags(one, self.engine) if one.used else {} for one in self.checks]
        return [file_json(one, some) for one, some in zip(self.checks, flags, strict=True)]


def attention_status(
    engine: Engine, device: Device | None, root: Path | None, environ: Mapping[str, str]
) -> AttentionStatus:
    """Check the files under a root. `root` None: the root that the environment names.

    Raises BadInput if the root is not a folder.
    """
    about = "attention", CONFIG_DIR_VARIABLE, FOLDER
    found = files_status(
        engine,
        PLUGIN,
        environ,
        root,
        attention_root(environ),
        about,
        lambda folder: _checks(find_attention_files(folder), engine, device),
        "" if no_plugins(engine) else _unfit(engine),
    )
    return AttentionStatus(
        **vars(found),
        engine=engine,
        device=device,
        flags=_flags([check for check in found.checks if check.used], engine),
    )


def _checks(
    paths: Sequence[Path], engine: Engine, device: Device | None
) -> list[FileCheck[AttentionFile]]:
    advised: dict[Attention, int] = {}  # splits, by problem without its splits

    def splits(problem: Attention) -> frozenset[int] | None:
        if not _latent(problem, engine):
            known = advised.get(_any_splits(problem))
        elif device is None:
            known = None
        else:
            known = _engine_splits(problem, engine, device)
        return None if known is None else frozenset({known})

    here = facts_here(engine, device, lambda: attention_engine(engine).lift().hash)
    facts = replace(here, kv_splits=splits)
    files = [check.file for path in paths if (check := check_file(path, facts)).used and check.file]
    # A server has one number of splits, so it uses one of the files that differ only in it: the
    # file that asks for a server flag, else the file for the default number.
    for file in sorted(files, key=_advised_first):
        if file.problem.kv_splits:
            advised.setdefault(_any_splits(file.problem), file.problem.kv_splits)
    return [check_file(path, facts) for path in paths]


def _advised_first(file: AttentionFile) -> tuple[bool, bool]:
    return KV_SPLITS_FLAG not in file.server_flags, file.problem.kv_splits != ENGINE_KV_SPLITS


def _chosen(splits: SplitsTable) -> str:
    return f"chooses up to {splits.most} KV splits" if splits.most else "keeps sglang's KV splits"


def _any_splits(problem: Attention) -> Attention:
    return replace(problem, kv_splits=1)


def _latent(problem: Attention, engine: Engine) -> bool:
    """Whether the engine ignores the flag for splits and uses as many as fit the GPU."""
    alone = _engine_splits(problem, engine, None)
    return alone != _engine_splits(problem, engine, devices()[0])


def _engine_splits(problem: Attention, engine: Engine, device: Device | None) -> int:
    return engine_kv_splits(
        latent=problem.shares_kv,
        engine_version=engine.version,
        sm_count=device.sm_count if device else None,
    )


def _unfit(engine: Engine) -> str:
    """Why the plugin could not hook any of the engine's kernels; empty if it could hook one."""
    kernels = attention_engine(engine).lift()
    reasons = []
    for kernel in KERNELS:
        phase = AttentionPhase(kernel.module.partition("_")[0])
        try:
            parameters = kernels.lifted(phase).parameters(kernel.name)
        except TunerError as error:
            reasons.append(str(error))
            continue
        reasons.append(kernel.unfit([parameter.name for parameter in parameters]))
    return f"{engine.name} {engine.version}: {'; '.join(reasons)}" if all(reasons) else ""


def _file_flags(check: FileCheck[AttentionFile], engine: Engine) -> dict[str, int | str]:
    """The flags that a server needs to use one file."""
    assert check.file is not None
    problem, flags = check.file.problem, {BACKEND_FLAG: "triton"}
    splits = problem.kv_splits
    if splits and splits != ENGINE_KV_SPLITS and not _latent(problem, engine):
        return {**flags, KV_SPLITS_FLAG: splits, **check.file.server_flags}
    return {**flags, **check.file.server_flags}


def _flags(used: Sequence[FileCheck[AttentionFile]], engine: Engine) -> dict[str, int | str]:
    """The flags on which all files agree."""
    wanted = [_file_flags(check, engine) for check in used]
    both = {name: {flags[name] for flags in wanted if name in flags} for f in wanted for name in f}
    return {name: next(iter(values)) for name, values in both.items() if len(values) == 1}


def _command_line(flags: Mapping[str, int | str]) -> str:
    return " ".join(f"{name} {value}" for name, value in flags.items())
