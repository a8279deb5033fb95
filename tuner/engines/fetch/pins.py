"""Find the Triton that an engine's release pins: it names a torch, and that torch names
a Triton.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence

from packaging.requirements import Requirement

from tuner.engines.fetch.pip import ENGINE_PYTHON, engine_tags, find_wheel

TRITON = "triton"
# Extras that pull in an engine's CUDA dependencies, in the releases that have such extras.
_EXTRAS = ("", "srt", "all")


def released_with(requires: Sequence[Requirement]) -> str | None:
    """Return the version of Triton that an engine with these requirements runs; None if it pins
    none.

    Asks the index for the engine's torch. Raises UnknownEngine or EngineNotFetched if the index has
    no such torch or Triton, or does not answer.
    """
    triton, torch = _pin(requires, TRITON), _pin(requires, "torch")
    if triton is None and torch is not None:
        triton = _pin(find_wheel(str(torch), engine_tags()).requires, TRITON)
    if triton is None:
        return None
    exact = [part.version for part in triton.specifier if part.operator == "=="]
    if exact and not exact[0].endswith("*"):
        return exact[0]
    return find_wheel(str(triton), engine_tags()).version


def _pin(requires: Sequence[Requirement], name: str) -> Requirement | None:
    """Return the requirement that fixes the release of a package on servers, without its marker."""
    for extra in _EXTRAS:
        for one in requires:
            fixed = any(part.operator in ("==", "~=") for part in one.specifier)
            applies = one.marker is None or one.marker.evaluate(_environment(extra))
            if one.name == name and fixed and applies:
                return Requirement(f"{name}{one.specifier}")
    return None


def _environment(extra: str) -> dict[str, str]:
    """Return the markers' variables on the Linux servers that run engines."""
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
