"""Tell whether two compiled kernels are the same machine code, launched in the same way."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tuner.compile.elf import sections

# Sections that the GPU or the driver reads. The others are names, and which line of the source an
# instruction is from: that changes with every release of an engine.
_SECTIONS = (
    *(".text", ".rodata", ".rela.text"),
    *(".nv.constant", ".nv.global", ".nv.info", ".nv.shared"),
)
# What Triton's launcher takes from the metadata. A Triton that does not know one of them lacks it.
_LAUNCH = (
    *("num_warps", "num_ctas", "cluster_dims", "shared", "tmem_size", "tensordesc_meta"),
    *("launch_pdl", "launch_cooperative_grid", "global_scratch_size", "profile_scratch_size"),
)


def machine_code_hash(binary: bytes, metadata: Any) -> str:  # noqa: ANN401 (Triton's own tuple)
    """A sha256 that is equal where a cubin or hsaco, and how it is launched, are equal."""
    found = hashlib.sha256()
    for name in _SECTIONS:
        for section in sections(binary, name.encode()):
            found.update(f"{name} {len(section)} ".encode() + section)
    launch = {name: getattr(metadata, name, None) for name in _LAUNCH}
    found.update(json.dumps(launch, default=str).encode())
    return found.hexdigest()
