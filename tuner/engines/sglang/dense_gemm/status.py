"""Which GEMM files a server in this environment would use, and why.

This needs no GPU, and imports nothing of the engine. Checks that need a GPU or triton are
reported as pending where there is none.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tuner.devices.table import Device
from tuner.engines.sglang.dense_gemm.files import SGLangDenseGemm
from tuner.engines.sglang.package import SGLang
from tuner.engines.sglang.plugin.file_checks import FileCheck, RuntimeFacts, check_gemm_file
from tuner.engines.sglang.plugin.gemm_files import (
    CONFIG_DIR_VARIABLE,
    FOLDER,
    GemmFile,
    find_gemm_files,
    gemm_root,
)
from tuner.engines.sglang.presence import (
    checked_root,
    file_json,
    missing_plugin,
    no_plugins,
    triton_of,
)
from tuner.render import table


@dataclass(frozen=True)
class GemmStatus:
    """What servers would do with GEMM files."""

    variable: str | None  # the variable that names the root; None if the root was given or is unset
    root: Path | None
    trouble: str  # why a server would use none of the files; empty if it may use some
    checks: Sequence[FileCheck[GemmFile]]
    environment: Mapping[str, str]  # variables that a server still needs

    @property
    def ok(self) -> bool:
        """Whether a file is used, or there are none."""
        return not self.checks or any(check.used for check in self.checks)

    def files_json(self) -> list[dict[str, Any]]:
        return [file_json(check, {}) for check in self.checks]

    def as_text(self) -> str:
        if self.root is None and self.trouble:
            return f"no GEMM file would be used: {self.trouble}"
        if self.root is None:
            return f"no GEMM files: set {CONFIG_DIR_VARIABLE} to where they are"
        named = f" ({self.variable})" if self.variable else ""
        lines = [f"files under {self.root / FOLDER}{named}: {len(self.checks)}"]
        if self.trouble:
            lines.append(f"none would be used: {self.trouble}")
        if self.checks:
            rows = [self._row(check) for check in self.checks]
            lines += ["", table(("GEMM", "entries", "would be", "why"), rows)]
        if any(check.used for check in self.checks):
            lines += ["", "they count where sglang runs its Triton kernel"]
            lines += [f"export {k}={shlex.quote(v)}" for k, v in self.environment.items()]
        return "\n".join(lines)

    def _row(self, check: FileCheck[GemmFile]) -> tuple[object, ...]:
        name = check.file.title if check.file else check.path.name
        entries = len(check.file.entries) if check.file else None
        if not check.used:
            return name, entries, "refused", "" if check.reason == self.trouble else check.reason
        if check.waits:
            return name, entries, "pending", f"waits for {', '.join(check.waits)}"
        return name, entries, "used", ""


def gemm_status(
    engine: SGLang, device: Device | None, root: Path | None, environ: Mapping[str, str]
) -> GemmStatus:
    """Check the files under a root. `root` None: the root that the environment names.

    Raises BadInput if the root is not a folder.
    """
    variable, folder = checked_root(root, gemm_root(environ))
    trouble = no_plugins(engine) or missing_plugin(environ)
    gemm = SGLangDenseGemm(engine)
    facts = RuntimeFacts(
        engine=engine.name,
        engine_version=engine.version,
        device=device.name if device else None,
        triton=triton_of(engine),
        kernel_hash=lambda: gemm.lift().hash,
    )
    paths = find_gemm_files(folder) if folder else []
    checks = [check_gemm_file(path, facts, gemm.launchers.reads_files) for path in paths]
    if trouble:
        checks = [replace(check, reason=check.reason or trouble) for check in checks]
    used = any(check.used for check in checks)
    environment = {CONFIG_DIR_VARIABLE: str(root.resolve())} if used and root else {}
    return GemmStatus(variable, folder, trouble, checks, environment)
