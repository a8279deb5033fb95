"""All jitted functions of an engine: which of them lift, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tuner.devices.target import CUDA
from tuner.errors import UnsupportedKernel
from tuner.kernels.branches import platform_probes
from tuner.kernels.lift import lift_from
from tuner.kernels.source import EngineSource


@dataclass(frozen=True)
class JittedFunction:
    """A function with `@triton.jit` at the top level of a file."""

    file: str  # relative to the engine's package
    name: str  # empty for a file that cannot be read
    refusal: str | None  # why it does not lift


def jitted_functions(root: Path, origin: str, backend: str = CUDA) -> Iterator[JittedFunction]:
    """Every jitted function below the package folder `root`, except in tests.

    What the engine defines for another platform alone is left out.
    """
    engine = EngineSource(root, origin, platform_probes(backend))
    for path in sorted(root.rglob("*.py")):
        file = path.relative_to(root)
        if {"test", "tests"} & {*file.parts} or not _may_jit(path):
            continue
        try:
            names = engine.kernels(engine.module(path))
        except UnsupportedKernel as error:
            yield JittedFunction(file.as_posix(), "", str(error))
            continue
        for name in names:
            yield JittedFunction(file.as_posix(), name, _refusal(engine, path, name))


def _refusal(engine: EngineSource, path: Path, name: str) -> str | None:
    try:
        lift_from(engine, {path: [name]})
    except UnsupportedKernel as error:
        return str(error).removeprefix(f"{engine.origin}: ")
    return None


def _may_jit(path: Path) -> bool:
    content = path.read_bytes()
    return b"jit" in content and b"triton" in content
