"""Which attention files a server in this environment would use, and why.

This needs no GPU, and imports nothing of the engine. Checks that need a GPU or triton are
reported as pending where there is none.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tuner.devices.table import Device, devices
from tuner.engines.engine import Engine
from tuner.engines.sglang.attention.backend import BACKEND_FLAG
from tuner.engines.sglang.attention.kv_splits import KV_SPLITS_FLAG, engine_kv_splits
from tuner.engines.sglang.plugin.file_checks import FileCheck, RuntimeFacts, check_file, title
from tuner.engines.sglang.plugin.files import (
    CONFIG_DIR_VARIABLE,
    FOLDER,
    AttentionFile,
    attention_root,
    find_attention_files,
)
from tuner.engines.sglang.plugin.kernels import KERNELS
from tuner.engines.sglang.plugin.splits import SplitsTable
from tuner.engines.sglang.presence import (
    checked_root,
    file_json,
    missing_plugin,
    no_plugins,
    triton_of,
)
from tuner.errors import TunerError
from tuner.families.attention.engine import attention_engine
from tuner.families.attention.problem import ENGINE_KV_SPLITS, Attention, AttentionPhase
from tuner.render import table


@dataclass(frozen=True)
class AttentionStatus:
    """What servers would do with attention files."""

    engine: Engine
    device: str | None
    triton: str | None
    variable: str | None  # the variable that names the root; None if the root was given or is unset
    root: Path | None
    trouble: str  # why a server would use none of the files; empty if it may use some
    checks: Sequence[FileCheck[AttentionFile]]
    flags: Mapping[str, int | str]
    environment: Mapping[str, str]  # variables that a server still needs

    @property
    def ok(self) -> bool:
        """Whether a file is used, or there are none."""
        return not self.checks or any(check.used for check in self.checks)

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
            "engine": {
                "name": self.engine.name,
                "version": self.engine.version,
                "root": str(self.engine.root),
            },
            "device": self.device,
            "triton": self.triton,
            "variable": self.variable,
            "root": str(self.root) if self.root else None,
            "trouble": self.trouble or None,
            "files": [self._as_json(check) for check in self.checks],
            "without_file": self.without_file(),
            "server_flags": dict(self.flags),
            "environment": dict(self.environment),
        }

    def as_text(self) -> str:
        if self.root is None and self.trouble:
            return f"no attention file would be used: {self.trouble}"
        if self.root is None:
            return f"no attention files: set {CONFIG_DIR_VARIABLE} to where they are"
        lines = []
        named = f" ({self.variable})" if self.variable else ""
        lines.append(f"files under {self.root / FOLDER}{named}: {len(self.checks)}")
        if self.trouble:
            lines.append(f"none would be used: {self.trouble}")
        if self.checks:
            rows = [self._row(check) for check in self.checks]
            lines += ["", table(("problem", "entries", "would be", "why"), rows)]
        if missing := self.without_file():
            lines += ["", f"{' and '.join(missing)}: no file; sglang's own constants run"]
        if any(check.used for check in self.checks):
            lines += ["", f"used by servers that run with: {_command_line(self.flags)}"]
            lines += [f"export {k}={shlex.quote(v)}" for k, v in self.environment.items()]
        return "\n".join(lines)

    def _row(self, check: FileCheck[AttentionFile]) -> tuple[object, ...]:
        name = title(check.file.problem) if check.file else check.path.name
        entries = len(check.file.entries) if check.file else None
        if not check.used:
            why = "" if check.reason == self.trouble else check.reason
            return name, entries, "refused", why
        other = _file_flags(check, self.engine).items() - self.flags.items()
        notes = [f"with {_command_line(dict(other))}"] if other else []
        if check.file and check.file.splits:
            notes.append(_chosen(check.file.splits))
        notes += [f"waits for {', '.join(check.waits)}"] if check.waits else []
        return name, entries, "pending" if check.waits else "used", "; ".join(notes)

    def _as_json(self, check: FileCheck[AttentionFile]) -> dict[str, Any]:
        return file_json(check, _file_flags(check, self.engine) if check.used else {})


def attention_status(
    engine: Engine, device: Device | None, root: Path | None, environ: Mapping[str, str]
) -> AttentionStatus:
    """Check the files under a root. `root` None: the root that the environment names.

    Raises BadInput if the root is not a folder.
    """
    variable, folder = checked_root(root, attention_root(environ))
    trouble = _trouble(engine, environ)
    triton = triton_of(engine)
    paths = find_attention_files(folder) if folder else []
    checks = _checks(paths, engine, device, triton)
    if trouble:
        checks = [replace(c, reason=c.reason or trouble) for c in checks]
    used = [check for check in checks if check.used]
    return AttentionStatus(
        engine=engine,
        device=device.name if device else None,
        triton=triton,
        variable=variable,
        root=folder,
        trouble=trouble,
        checks=checks,
        flags=_flags(used, engine),
        environment={CONFIG_DIR_VARIABLE: str(root.resolve())} if used and root else {},
    )


def _checks(
    paths: Sequence[Path], engine: Engine, device: Device | None, triton: str | None
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

    facts = RuntimeFacts(
        engine=engine.name,
        engine_version=engine.version,
        device=device.name if device else None,
        triton=triton,
        kernel_hash=lambda: attention_engine(engine).lift().hash,
        kv_splits=splits,
    )
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


def _trouble(engine: Engine, environ: Mapping[str, str]) -> str:
    """Why the plugin would do nothing with any file; empty if it may use some."""
    if why := no_plugins(engine):
        return why
    if why := _unfit(engine):
        return f"{engine.name} {engine.version}: {why}"
    return missing_plugin(environ)


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
    return "; ".join(reasons) if all(reasons) else ""


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
