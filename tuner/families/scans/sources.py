"""Where engines' kernels of the scan are. sglang's and vLLM's have one origin, and kept its names.

Servers lift the kernels too, so this module is light.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tuner.errors import UnsupportedKernel
from tuner.families.chunk_scan.problem import ScanKernel
from tuner.kernels.lift import Lifted, lift_files

FILES = {
    ScanKernel.CUMSUM: "ssd_chunk_state.py",
    ScanKernel.STATE: "ssd_chunk_state.py",
    ScanKernel.PASSING: "ssd_state_passing.py",
    ScanKernel.BMM: "ssd_bmm.py",
    ScanKernel.SCAN: "ssd_chunk_scan.py",
}
Launchers = Mapping[ScanKernel, Mapping[str, str]]
# The launchers of each part, with the kernel that each launches.
LAUNCHERS: Launchers = {
    ScanKernel.CUMSUM: {"_chunk_cumsum_fwd": "_chunk_cumsum_fwd_kernel"},
    ScanKernel.STATE: {"_chunk_state_fwd": "_chunk_state_fwd_kernel"},
    ScanKernel.PASSING: {"_state_passing_fwd": "_state_passing_fwd_kernel"},
    ScanKernel.BMM: {"_bmm_chunk_fwd": "_bmm_chunk_fwd_kernel"},
    ScanKernel.SCAN: {"_chunk_scan_fwd": "_chunk_scan_fwd_kernel"},
}


def lift_kernels(
    origin: str, root: Path, folder: Path, launchers: Launchers, backend: str
) -> Lifted:
    """The kernels that launchers in a folder below an engine's root launch. `origin`: the engine
    and its version, for messages. Raises UnsupportedKernel.
    """
    if not (folder / FILES[ScanKernel.SCAN]).is_file():
        raise UnsupportedKernel(f"{origin} has no kernels for Mamba-2 prompts")
    files: dict[Path, list[str]] = {}
    for part, some in launchers.items():
        files.setdefault(folder / FILES[part], []).extend(some.values())
    return lift_files(files, root, origin, backend)
