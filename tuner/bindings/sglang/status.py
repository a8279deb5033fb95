"""Everything that the plugin would apply in a server in this environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.bindings.sglang.attention.status import AttentionStatus, attention_status
from tuner.bindings.sglang.dense_gemm.delivery import gemm_status
from tuner.bindings.sglang.plugin.file_checks import FileCheck
from tuner.bindings.sglang.plugin.gemm_files import GemmFile
from tuner.bindings.sglang.plugin.kernels import PLUGIN
from tuner.devices.table import Device
from tuner.engines.sglang.package import SGLang
from tuner.export.presence import FilesStatus, heading, no_plugins
from tuner.families.scans.files import ScanFile
from tuner.families.scans.status import scan_files_json, scan_status
from tuner.render import folded


@dataclass(frozen=True)
class ServerStatus:
    """The answer of `tuner status`."""

    attention: AttentionStatus
    gemm: FilesStatus[FileCheck[GemmFile]]
    scan: FilesStatus[FileCheck[ScanFile]]

    @property
    def ok(self) -> bool:
        """Whether the engine loads plugins, and uses a file of each family that has any."""
        others = self.attention.ok and self.gemm.ok and self.scan.ok
        return others and not no_plugins(self.attention.engine)

    def as_json(self) -> dict[str, Any]:
        """The fields of `tuner status`, whose variable, root, trouble and flags are
        attention's, with the files of all families.
        """
        attention, gemm = self.attention.as_json(), self.gemm
        environment = {**attention["environment"], **gemm.environment, **self.scan.environment}
        files = [{**file, "family": "attention"} for file in attention["files"]]
        files += [{**file, "family": "dense_gemm"} for file in gemm.files_json()]
        files += scan_files_json(self.scan)
        return {
            **attention,
            "files": files,
            "environment": environment,
            "gemm": gemm.root_json(),
        }

    def as_text(self) -> str:
        lines = [heading(self.attention.engine, self.attention.device)]
        lines += [self.attention.as_text(), "", self.gemm.as_text()]
        if self.scan.root is not None:
            lines += ["", self.scan.as_text()]
        return folded("\n".join(lines))


def server_status(
    engine: SGLang, device: Device | None, root: Path | None, environ: Mapping[str, str]
) -> ServerStatus:
    """Check all files under a root. `root` None: the roots that the environment names.

    Raises BadInput if a root is not a folder.
    """
    return ServerStatus(
        attention_status(engine, device, root, environ),
        gemm_status(engine, device, root, environ),
        scan_status(engine, PLUGIN, device, root, environ),
    )
