"""Run a compile process: `python -m tuner.compile.worker`.

It reads JSON jobs from stdin, a job a line, and answers each with a JSON line on stdout. It ends,
with every process that it started, when stdin closes: a killed parent leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import traceback
from pathlib import Path
from typing import Any

import triton

from tuner.childprocess import ParentPipes
from tuner.compile import cubin, hsaco, ptxas
from tuner.compile.kernel import compile_source, read_kernel
from tuner.devices.target import CUDA, HIP, Target
from tuner.problems.results import Status

# A platform's machine code in `CompiledKernel.asm`, and the reader of registers and spills.
_MACHINE_CODE = {CUDA: ("cubin", cubin.resources), HIP: ("hsaco", hsaco.resources)}
# A third of the weight of other processes: enough for processes that measure, and a compile still
# ends within its limit on a busy host.
_NICENESS = 5
TENSOR_MEMORY_COLUMNS = 512  # tensor memory of a block on sm_100; Triton cannot load more


def main() -> None:
    _yield_to_others()
    parent = ParentPipes()
    parent.send({"triton": triton.__version__})
    while True:
        parent.send(_run(parent.receive()))


def _yield_to_others() -> None:
    """Let the processes that measure on GPUs have a core each.

    On two H200s, whose compile processes share 32 cores, checks took half as long again as on a
    single H200.
    """
    os.nice(_NICENESS)
    with contextlib.suppress(OSError):  # a kernel that does not group processes by sessions
        Path("/proc/self/autogroup").write_text(str(_NICENESS))


def _run(job: dict[str, Any]) -> dict[str, Any]:
    """Return the compiler's verdict on a kernel, or why there is none.

    "unusable" is a fault of this machine. "broken" is a fault of this program, or of a source that
    does not even load. Every other kernel would meet it too, so neither says anything about this
    kernel.
    """
    start = time.perf_counter()
    try:
        found = _compile(Path(job["source"]), job["variant"], Target(**job["target"]))
    except MemoryError:
        raise  # not the kernel's fault: end, and let the parent report it
    except OSError as error:  # a full disk or a missing folder
        return {"unusable": _detail(error)}
    except Exception as error:
        return {"broken": f"{_detail(error)} ({_place(error)})"}
    return {**found, "borrowed": ptxas.borrowed(), "seconds": time.perf_counter() - start}


def _compile(path: Path, variant: dict[str, Any], target: Target) -> dict[str, Any]:
    ptxas.use_one_that_knows(target)
    source = read_kernel(path, variant)
    try:
        kernel = compile_source(source, variant["options"], target)
    except (MemoryError, OSError):
        raise
    except Exception as error:  # any error of Triton, its passes or ptxas about the kernel
        if ptxas.UNKNOWN in str(error):
            return {
                "broken": f"the ptxas of Triton {triton.__version__} does not know {target.name}: "
                "set TRITON_PTXAS_PATH to the ptxas of a newer CUDA, as servers on this GPU must"
            }
        return {"status": Status.COMPILE_ERROR.value, "detail": _detail(error)}
    kind, resources = _MACHINE_CODE[target.platform]
    n_regs, n_spills = resources(kernel.asm[kind])
    found: dict[str, Any] = {
        "shared_bytes": kernel.metadata.shared,
        "n_regs": n_regs,
        "n_spills": n_spills,
    }
    columns = getattr(kernel.metadata, "tmem_size", None) or 0
    if columns > TENSOR_MEMORY_COLUMNS:
        detail = f"needs {columns} columns of tensor memory, limit {TENSOR_MEMORY_COLUMNS}"
        return {**found, "status": Status.OUT_OF_RESOURCES.value, "detail": detail}
    return {**found, "status": Status.OK.value}


def _detail(error: Exception) -> str:
    """Return a line of the compiler's output: the first with "error" or "fatal", or the last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"\b(error|fatal)\b.*:", line)]
    return f"{type(error).__name__}: {(telling or lines or [''])[-1]}"[:500]


def _place(error: Exception) -> str:
    """Return the file and line that raised an error."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


if __name__ == "__main__":
    main()
