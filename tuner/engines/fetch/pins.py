"""Which Triton an engine's release pins: it names a torch, and that torch names a Triton."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from packaging.requirements import Requirement

from tuner.engines.fetch.pip import ENGINE_PYTHON, engine_tags, find_wheel

TRITON = "triton"
# Extras that pull in an engine's CUDA dependencies, in the releases that have such extras.
_EXTRAS = ("", "srt", "all")


def released_with(requires: Sequence[Requirement]) -> str | None:
    """The version of Triton that an engine with these requirements runs; None if it pins none.

    The index is asked for the engine's torch. Raises UnknownEngine or EngineNotFetched if it has
    no such torch or Triton, or does not answer.
    """
    triton, torch = _pin(requires, TRITON), _pin(requires, "torch")
    if triton is None and torch is not None:
        triton = _pin(find_wheel(torch, engine_tags()).requires, TRITON)
    return find_wheel(triton, engine_tags()).version if triton else None


def _pin(requires: Sequence[Requirement], name: str) -> str | None:
    """The requirement of a package that fixes its release, as text for pip."""
    for extra in _EXTRAS:
        for one in requires:
            fixed = any(part.operator in ("==", "===", "~=") for part in one.specifier)
            applies = one.marker is None or one.marker.evaluate(_environment(extra))
            if one.name == name and fixed and applies:
                return f"{name}{one.specifier}"
    return None


def _environment(extra: str) -> dict[str, str]:
    """The markers' variables on the Linux servers that run engines."""
    return {
        "extra": extra,
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": platform.machine(),
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{ENGINE_PYTHON}.0",
        "python_version": ENGINE_PYTHON,
        "sys_platform": "linux",
    }
