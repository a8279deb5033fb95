"""A compile process: `python -m tuner.compile.worker`.

Reads JSON jobs from stdin, one a line, and answers each with a JSON line on stdout. It ends, with
every process that it started, when stdin closes: a killed parent leaves nothing behind.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import triton

from tuner.childprocess import ParentPipes
from tuner.compile import cubin, hsaco
from tuner.compile.kernel import cache_files, compile_kernel
from tuner.compile.machine_code import machine_code_hash
from tuner.devices.target import CUDA, HIP, Target
from tuner.problems.results import Status

# A backend's machine code in `CompiledKernel.asm`, and what reads registers and spills from it.
_MACHINE_CODE = {CUDA: ("cubin", cubin.resources), HIP: ("hsaco", hsaco.resources)}
TENSOR_MEMORY_COLUMNS = 512  # tensor memory of a block on sm_100; Triton cannot load more


def main() -> None:
    parent = ParentPipes()
    parent.send({"triton": triton.__version__})
    while True:
        parent.send(_run(parent.receive()))


def _run(job: dict[str, Any]) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        found = _compile(Path(job["source"]), job["variant"], Target(**job["target"]))
    except MemoryError:
        raise  # not the kernel's fault: end, and let the parent report it
    except OSError as error:  # a full disk or a missing folder: every other kernel would fail too
        return {"broken": _detail(error)}
    except Exception as error:
        found = {"status": Status.COMPILE_ERROR.value, "detail": _detail(error)}
    return {**found, "seconds": time.perf_counter() - start}


def _compile(source: Path, variant: dict[str, Any], target: Target) -> dict[str, Any]:
    kernel = compile_kernel(source, variant, target)
    kind, resources = _MACHINE_CODE[target.backend]
    n_regs, n_spills = resources(kernel.asm[kind])
    found: dict[str, Any] = {
        "shared_bytes": kernel.metadata.shared,
        "n_regs": n_regs,
        "n_spills": n_spills,
    }
    found["code"] = machine_code_hash(kernel.kernel, kernel.metadata)
    found["files"] = cache_files(kernel)
    columns = getattr(kernel.metadata, "tmem_size", None) or 0
    if columns > TENSOR_MEMORY_COLUMNS:
        detail = f"needs {columns} columns of tensor memory, limit {TENSOR_MEMORY_COLUMNS}"
        return {**found, "files": [], "status": Status.OUT_OF_RESOURCES.value, "detail": detail}
    return {**found, "status": Status.OK.value}


def _detail(error: Exception) -> str:
    """One line of the compiler's output: the first with "error" or "fatal", or the last one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"\b(error|fatal)\b.*:", line)]
    return f"{type(error).__name__}: {(telling or lines or [''])[-1]}"[:500]


if __name__ == "__main__":
    main()
