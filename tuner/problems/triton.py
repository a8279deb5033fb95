"""Facts about Triton that need no import: its default options, settings, and folders."""

from __future__ import annotations

# The options that `triton.compile` uses for CUDA where a configuration has none.
TRITON_DEFAULTS = {"num_warps": 4, "num_stages": 3}
_HIP_DEFAULTS = {"num_warps": 4, "num_stages": 2}
PTXAS_SETTINGS = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")  # say where ptxas is


def triton_defaults(backend: str) -> dict[str, int]:
    """The options that `triton.compile` uses for "cuda" or "hip" where a configuration has none."""
    return dict(_HIP_DEFAULTS if backend == "hip" else TRITON_DEFAULTS)


def version_folder(version: str) -> str:
    """The name of a version's folder: "3.6.0" -> "triton_3_6_0"."""
    return f"triton_{version.replace('.', '_')}"


def folder_version(name: str) -> str:
    """The version in a folder's name; the inverse of `version_folder`."""
    return name.removeprefix("triton_").replace("_", ".")
