"""Run the process that owns the GPU: `python -m tuner.measure.gpu_child`.

It reads JSON requests from stdin, a request a line, and answers each with a JSON line on stdout, in
order. It imports torch at start but touches the GPU only when it is set up, so that a spare process
can wait, warm, to replace a process that crashed. It may be set up again, for another problem.
After a CUDA error nothing on the device can be trusted, so the process answers and ends. Any other
error of a request is the answer to the request: {"error": "IndexError: ..."}. The process also ends
when its stdin closes.
"""

from __future__ import annotations

import gc
import math
import os
import time
from typing import Any, Protocol

import torch
import triton

from tuner.backends.registry import backends_of
from tuner.childprocess import ParentPipes
from tuner.errors import BadInput, GpuInUse
from tuner.measure.messages import read_point
from tuner.measure.this_gpu import (
    driver_version,
    local_name,
    local_target,
    lock_this_gpu,
    runtime_version,
)
from tuner.problems.points import TRITON, Point
from tuner.problems.registry import families, family_of, parse_problem
from tuner.problems.results import Status

Fields = dict[str, Any]


class Session(Protocol):
    """One problem on this process's GPU."""

    ready: Fields  # with "needed_bytes": the memory that the tensors of the largest point take

    def measure(self, request: Fields) -> Fields:
        """Check and time one candidate; the answer has the fields of a Measurement.

        "backend" of the request names the kernel's library. "best_us" is the median of the point's
        best so far; None for the first candidate.
        """

    def race(self, request: Fields) -> Fields:
        """Time several candidates of one point in turn.

        The answer has "measurements", first of "configs" and then of "backends".
        """


def main() -> None:
    parent = ParentPipes()
    torch.backends.cuda.matmul.allow_tf32 = False  # references need full float32 precision
    for family in families():  # import the modules of any problem before the GPU is touched
        family.module("gpu")
    parent.send({"imported": True})
    locked: int | None = None
    session: Session | None = None
    best_us: dict[Point, float] = {}
    while True:
        request = parent.receive()
        started = time.perf_counter()
        try:
            if request["op"] == "setup":
                if locked is None:  # before the first kernel runs
                    locked = lock_this_gpu()
                session = None
                best_us.clear()
                _free_memory()
                session = _open_session(request)
                reply = {**_gpu_facts(), **_backends(request), **session.ready}
            else:
                assert session is not None  # the parent sets a child up first
                reply = _work(session, request, best_us)
        except torch.OutOfMemoryError as error:
            parent.send({"status": "out_of_memory", "detail": _line(error)})
            os._exit(3)
        except BadInput as error:
            parent.send({"status": "bad_input", "detail": str(error)})
            os._exit(3)
        except GpuInUse as error:
            parent.send({"status": "in_use", "detail": str(error)})
            os._exit(3)
        except Exception as error:
            if request["op"] == "setup" or _spoiled():
                parent.send({"status": Status.CRASHED.value, "detail": _line(error)})
                os._exit(3)
            reply = {"error": _line(error)}
        parent.send({**reply, "seconds": time.perf_counter() - started})


def _work(session: Session, request: Fields, best_us: dict[Point, float]) -> Fields:
    """Answer a request. `best_us` has the median of each point's best, and is updated."""
    if request["op"] == "race":
        return session.race(request)
    if request.get("backend", TRITON) != TRITON:  # a library's time says nothing about candidates
        return session.measure({**request, "best_us": None})
    point = read_point(request)
    reply = session.measure({**request, "best_us": best_us.get(point)})
    if reply["median_us"] is not None:
        best_us[point] = min(reply["median_us"], best_us.get(point, math.inf))
    return reply


def _open_session(request: Fields) -> Session:
    problem = parse_problem(request["problem"])
    session: Session = family_of(problem).module("gpu").open_session(problem, request)
    return session


def _backends(request: Fields) -> Fields:
    """List the other backends of the problem. None is imported, so it costs nothing."""
    problem = parse_problem(request["problem"])
    some = backends_of(problem.family)
    # Backends of all kinds of problems in the family, so that results of one environment compare.
    family = [one for kind in family_of(problem).problems for one in backends_of(kind)]
    return {
        "backends": {one.name: one.version for one in some if not one.missing},
        "missing": {one.name: one.missing for one in some if one.missing},
        "packages": ", ".join(sorted({one.version for one in family if one.apart})),
    }


def _free_memory() -> None:
    """Give back the memory of the previous problem's tensors and graphs."""
    if torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


def _spoiled() -> bool:
    """Say whether the device has had an error, after which it cannot be trusted."""
    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except Exception:  # any error
        return True
    return False


def _gpu_facts() -> Fields:
    torch.ones(1, device="cuda").item()  # a device that is lost runs nothing, and says so here
    return {
        "device": local_name(),
        "arch": local_target().arch,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": runtime_version(),
        "driver": driver_version(),
        "free_bytes": torch.cuda.mem_get_info()[0],
    }


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:500]


if __name__ == "__main__":
    main()
