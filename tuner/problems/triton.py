"""What is known of Triton without importing it: its default options, and folders named after it."""

from __future__ import annotations

# What `triton.compile` takes for CUDA where a configuration does not say.
TRITON_DEFAULTS = {"num_warps": 4, "num_stages": 3}


def version_folder(version: str) -> str:
    """The folder of a version's files: "3.6.0" -> "triton_3_6_0"."""
    return f"triton_{version.replace('.', '_')}"


def folder_version(name: str) -> str:
    """The version that a folder's name gives: `version_folder` the other way round."""
    return name.removeprefix("triton_").replace("_", ".")
