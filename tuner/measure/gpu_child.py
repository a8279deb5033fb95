"""The process that owns the GPU: `python -m tuner.measure.gpu_child`.

Reads one JSON request a line on stdin and answers one JSON line each on stdout, in order. It
imports torch at once and touches the GPU only when it is set up, so that one can wait, warm,
to take over from another. After a CUDA error nothing on the device can be trusted: it answers
and ends. It also ends when its stdin does.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
import triton

from tuner.childprocess import ParentPipes
from tuner.devices.target import cuda_target
from tuner.errors import BadInput
from tuner.problems.registry import family_of, parse_problem
from tuner.problems.results import Status

Fields = dict[str, Any]


class Session(Protocol):
    """One problem on this process's GPU."""

    ready: Fields  # with "needed_bytes", of the tensors that its points will have made

    def measure(self, request: Fields) -> Fields:
        """One candidate, checked and timed: the fields of a Measurement."""
        ...

    def race(self, request: Fields) -> Fields:
        """Several candidates of one point, timed in turn: "measurements"."""
        ...


def main() -> None:
    parent = ParentPipes()
    torch.backends.cuda.matmul.allow_tf32 = False  # references are float32 to the last bit
    parent.send({"imported": True})
    session: Session | None = None
    while True:
        request = parent.receive()
        started = time.perf_counter()
        try:
            if request["op"] == "setup":
                session = _open_session(request)
                reply = {**_gpu_facts(), **session.ready}
            else:
                assert session is not None  # the parent sets a child up first
                work: Callable[[Fields], Fields] = getattr(session, request["op"])
                reply = work(request)
        except torch.OutOfMemoryError as error:
            parent.send({"status": "out_of_memory", "detail": _line(error)})
            os._exit(3)
        except BadInput as error:
            parent.send({"status": "bad_input", "detail": str(error)})
            os._exit(3)
        except Exception as error:  # a CUDA error sticks to the context; others are as unexpected
            parent.send({"status": Status.CRASHED.value, "detail": _line(error)})
            os._exit(3)
        parent.send({**reply, "seconds": time.perf_counter() - started})


def _open_session(request: Fields) -> Session:
    problem = parse_problem(request["problem"])
    session: Session = family_of(problem).module("gpu").open_session(problem, request)
    return session


def _gpu_facts() -> Fields:
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": torch.cuda.get_device_name(0).replace(" ", "_"),
        "arch": cuda_target(properties.major, properties.minor).arch,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda or "",
        "driver": _driver_version(),
        "free_bytes": torch.cuda.mem_get_info()[0],
    }


def _driver_version() -> str:
    """As the kernel module says it; torch does not know. Empty where it is not mounted."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return ""
    found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", text)
    return found[1] if found else ""


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:500]


if __name__ == "__main__":
    main()
