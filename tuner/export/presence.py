"""Whether an engine's servers in this environment would load the plugin, and find files for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from tuner.devices.table import Device
from tuner.engines.engine import Engine, engine_triton, installed_triton
from tuner.errors import BadInput, CompilerUnavailable
from tuner.export.file_checks import FileCheck, Plugin, RuntimeFacts
from tuner.render import table
from tuner.shell import export_line


def missing_plugin(plugin: Plugin, environ: Mapping[str, str]) -> str:
    """Why servers would not load the plugin; empty if they would."""
    if plugin.name not in {point.name for point in entry_points(group=plugin.group)}:
        return "this Python does not know the plugin: install engine-tuner beside the engine"
    named = environ.get(plugin.variable)
    allowed = [name.strip() for name in (named or "").split(",")]
    chosen = named is not None if plugin.empty_means_none else any(allowed)
    if chosen and plugin.name not in allowed:
        return f"{plugin.variable} leaves out {plugin.name}"
    return ""


def no_plugins(engine: Engine) -> str:
    """Why this version of the engine has no plugins at all; empty if it has."""
    if engine.loads_plugins():
        return ""
    return (
        f"{engine.name} {engine.version} has no plugins; the first tested version with plugins is "
        "0.5.12"
    )


def triton_of(engine: Engine) -> str | None:
    """Return the Triton that the engine's servers run; if that is not known, the installed one."""
    if runs := engine_triton(engine):
        return runs
    try:
        return installed_triton()
    except CompilerUnavailable:
        return None


def facts_here(
    engine: Engine, device: Device | None, kernel_hash: Callable[[], str]
) -> RuntimeFacts:
    """Return what files are compared with in this environment."""
    return RuntimeFacts(
        engine=engine.name,
        engine_version=engine.version,
        device=device.name if device else None,
        triton=triton_of(engine),
        kernel_hash=kernel_hash,
    )


C = TypeVar("C", bound=FileCheck[Any])


def server_json(engine: Engine, device: Device | None) -> dict[str, Any]:
    """What `tuner status --json` says of the servers."""
    return {
        "engine": {"name": engine.name, "version": engine.version, "root": str(engine.root)},
        "device": device.name if device else None,
        "triton": triton_of(engine),
    }


def heading(engine: Engine, device: Device | None) -> str:
    """The first lines of `tuner status`."""
    here = f"GPU: {device.name if device else 'not known here'}"
    triton = triton_of(engine) or "none"
    return f"{engine.name} {engine.version} ({engine.root})\n{here}; triton: {triton}"


def file_json(check: FileCheck[Any], server_flags: Mapping[str, int | str]) -> dict[str, Any]:
    """What `tuner status --json` says of a file. `server_flags`: what a server needs to use it."""
    file = check.file
    return {
        "path": str(check.path),
        "problem": file.problem.spec() if file else None,
        "device": file.device if file else None,
        "engine_version": file.engine_version if file else None,
        "triton": file.triton if file else None,
        "entries": len(file.entries) if file else 0,
        "used": check.used,
        "reason": check.reason or None,
        "waits": list(check.waits),
        "server_flags": dict(server_flags),
    }


@dataclass(frozen=True)
class FilesStatus(Generic[C]):
    """What servers would do with files of one family."""

    what: str  # the family's word: "GEMM"
    names: str  # the variable that can name a root
    folder: str  # below a root

    variable: str | None  # the variable that names the root; None if the root was given or is unset
    root: Path | None
    trouble: str  # why a server would use none of the files; empty if it may use some
    checks: Sequence[C]
    environment: Mapping[str, str]  # variables that a server still needs

    heading: ClassVar[str] = ""  # of the table's first column; default: `what`

    @property
    def ok(self) -> bool:
        """Whether a file is used, or there are none."""
        return not self.checks or any(check.used for check in self.checks)

    def files_json(self) -> list[dict[str, Any]]:
        return [file_json(check, {}) for check in self.checks]

    def root_json(self) -> dict[str, Any]:
        return {
            "variable": self.variable,
            "root": str(self.root) if self.root else None,
            "trouble": self.trouble or None,
        }

    def as_text(self) -> str:
        if self.root is None and self.trouble:
            return f"no {self.what} file would be used: {self.trouble}"
        if self.root is None:
            return f"no {self.what} files: set {self.names} to where they are"
        named = f" ({self.variable})" if self.variable else ""
        lines = [f"files under {self.root / self.folder}{named}: {len(self.checks)}"]
        if self.trouble:
            lines.append(f"none would be used: {self.trouble}")
        if self.checks:
            rows = [self._row(check) for check in self.checks]
            lines += ["", table((self.heading or self.what, "entries", "would be", "why"), rows)]
        for line in self.closing():
            lines += ["", line]
        if any(check.used for check in self.checks):
            lines += [export_line(name, value) for name, value in self.environment.items()]
        return "\n".join(lines)

    def closing(self) -> list[str]:
        """What stands below the table."""
        used = any(check.used for check in self.checks)
        return ["they count where servers run the engine's Triton kernel"] if used else []

    def notes(self, check: C) -> list[str]:
        """What stands beside a file that is used."""
        return []

    def _row(self, check: C) -> tuple[object, ...]:
        name = check.file.title if check.file else check.path.name
        entries = len(check.file.entries) if check.file else None
        if not check.used:
            return name, entries, "refused", "" if check.reason == self.trouble else check.reason
        waits = [f"waits for {', '.join(check.waits)}"] if check.waits else []
        why = "; ".join([*self.notes(check), *waits])
        return name, entries, "pending" if check.waits else "used", why


def files_status(
    engine: Engine,
    plugin: Plugin,
    environ: Mapping[str, str],
    root: Path | None,
    named: tuple[str, Path] | None,
    about: tuple[str, str, str],
    check: Callable[[Path], Sequence[C]],
    unfit: str = "",
) -> FilesStatus[C]:
    """Return what servers would do with the files under a root.

    `root`: the root that the user gave; None: the one that the environment names, if it does, which
    is `named` with its variable. `about`: the first fields of `FilesStatus`. `check`: checks the
    files under a folder. `unfit`: why the plugin would do nothing in such a server. Raises BadInput
    if the root is not a folder.
    """
    variable, folder = (None, root) if root else (named or (None, None))
    if folder and not folder.is_dir():
        source = f"{variable} names {folder}, which" if variable else str(folder)
        raise BadInput(f"{source} is not a folder")
    trouble = no_plugins(engine) or unfit or missing_plugin(plugin, environ)
    checks = check(folder) if folder else []
    if trouble:
        checks = [replace(one, reason=one.reason or trouble) for one in checks]
    used = any(one.used for one in checks)
    environment = {about[1]: str(root.resolve())} if used and root else {}
    return FilesStatus(*about, variable, folder, trouble, checks, environment)
