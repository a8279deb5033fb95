"""Everything that the plugin would apply in a server in this environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.bindings.vllm.plugin import left_alone
from tuner.devices.table import Device
from tuner.engines.vllm.package import VLLM
from tuner.export.file_checks import FileCheck, Plugin
from tuner.export.presence import FilesStatus, heading, server_json
from tuner.families.scans.files import ScanFile
from tuner.families.scans.status import scan_files_json, scan_status
from tuner.render import folded

PLUGIN = Plugin("vllm.general_plugins", "tuner_kernels", "VLLM_PLUGINS", empty_means_none=True)


@dataclass(frozen=True)
class ServerStatus:
    """The answer of `tuner status`: vLLM finds its other files without the plugin."""

    engine: VLLM
    device: Device | None
    scan: FilesStatus[FileCheck[ScanFile]]

    @property
    def ok(self) -> bool:
        """Whether a file is used, or there are none."""
        return self.scan.ok

    def as_json(self) -> dict[str, Any]:
        return {
            **server_json(self.engine, self.device),
            **self.scan.root_json(),
            "files": scan_files_json(self.scan),
            "environment": dict(self.scan.environment),
        }

    def as_text(self) -> str:
        return folded(f"{heading(self.engine, self.device)}\n{self.scan.as_text()}")


def server_status(
    engine: VLLM, device: Device | None, root: Path | None, environ: Mapping[str, str]
) -> ServerStatus:
    """Check all files under a root. `root` None: the root that the environment names.

    Raises BadInput if the root is not a folder.
    """
    found = scan_status(engine, PLUGIN, device, root, environ, left_alone(environ))
    return ServerStatus(engine, device, found)
