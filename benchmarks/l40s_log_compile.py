"""Compiles the jobs of l40s_log.py with whatever Triton is on the path, from 3.1 on.

Prints one line of JSON.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGET = GPUTarget("cuda", 89, 32)
KEPT = ("engine", "shape", "custom_mask", "patched", "blocks")


def main() -> None:
    rows = []
    for job in json.loads(Path(sys.argv[1]).read_text()):
        known = job["variant"]["options"]
        options = {name: known[name] for name in ("num_warps", "num_stages")}
        kernel = triton.compile(source(job), target=TARGET, options=options)
        kept = {name: job[name] for name in KEPT}
        rows.append({"triton": triton.__version__, **kept, "shared_bytes": kernel.metadata.shared})
    print(json.dumps(rows))


def source(job: dict[str, Any]) -> ASTSource:
    """Its arguments changed after 3.1."""
    variant = job["variant"]
    function = getattr(load(Path(job["source"])), variant["function"])
    names, constants = list(variant["signature"]), variant["constants"]
    divisible = [names.index(name) for name in variant["divisible"]]
    if not triton.__version__.startswith("3.1."):
        values = {(names.index(name),): value for name, value in constants.items()}
        marks = {(place,): [["tt.divisibility", 16]] for place in divisible}
        return ASTSource(function, variant["signature"], values, marks)
    types = {names.index(n): kind for n, kind in variant["signature"].items() if n not in constants}
    values = {names.index(name): value for name, value in constants.items()}
    ones = [place for place, value in values.items() if value is not True and value == 1]
    marks = triton.compiler.compiler.AttrsDescriptor(tuple(divisible), tuple(ones))
    return ASTSource(function, types, values, marks)


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("lifted", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
