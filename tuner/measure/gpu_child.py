"""The process that owns the GPU: `python -m tuner.measure.gpu_child`.

Reads one JSON request a line on stdin and answers one JSON line each on stdout, in order. It
imports torch at once and touches the GPU only when it is set up, so that one can wait, warm,
to take over from another. After a CUDA error nothing on the device can be trusted: it answers
and ends. It also ends when its stdin does.
"""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
import triton

from tuner.compile.kernel import compile_kernel
from tuner.engines import find_engine
from tuner.errors import BadInput
from tuner.kernels.fused_moe import lift_fused_moe
from tuner.kernels.fused_moe_inputs import grid_size
from tuner.measure.layer import (
    WORST_ERROR,
    Layer,
    check,
    copy_bytes_per_us,
    padding_us,
)
from tuner.measure.routing import load_routing
from tuner.measure.timing import Kernel, capture, race, time_graph
from tuner.problems import Config, Gemm, Point, parse_fused_moe
from tuner.results import Measurement, Status

Request = dict[str, Any]


class Session:
    """One problem on this process's GPU."""

    def __init__(self, request: Request) -> None:
        properties = torch.cuda.get_device_properties(0)
        self._arch = properties.major * 10 + properties.minor
        self._kernels = lift_fused_moe(find_engine(request["engine"]))
        self._source = self._kernels.lifted.write(Path(request["lifted_dir"]))
        captured = load_routing(Path(request["routing"])) if request.get("routing") else None
        self._layer = Layer(
            parse_fused_moe(request["problem"]), request["seed"], properties.L2_cache_size, captured
        )
        self._copy_rate = copy_bytes_per_us()
        self._largest = request["largest_batch_size"]
        self.ready = {
            "device": torch.cuda.get_device_name(0).replace(" ", "_"),
            "arch": self._arch,
            "torch": torch.__version__,
            "triton": triton.__version__,
            "cuda": torch.version.cuda or "",
            "driver": _driver_version(),
            "free_bytes": torch.cuda.mem_get_info()[0],
            "needed_bytes": self._layer.needed_bytes(self._largest),
        }

    def measure(self, request: Request) -> dict[str, Any]:
        """One candidate: check it, then time it."""
        point, config = _point(request), Config(request["config"])
        inputs = self._layer.inputs(point)
        try:
            kernel = self._kernel(point, config)
            launches = inputs.launches(kernel, config)
            error = check(inputs, kernel, launches)
        except triton.runtime.errors.OutOfResources as refusal:
            return _answer(Measurement(Status.OUT_OF_RESOURCES, detail=str(refusal)))
        bound = WORST_ERROR[self._layer.problem.dtype]
        if not error <= bound:
            detail = f"differs from the reference by {error:.3g}, bound {bound}"
            return _answer(Measurement(Status.WRONG_RESULT, detail=detail))
        extra_us = padding_us(inputs, config, self._copy_rate)
        best_us = request.get("best_us")
        timed = time_graph(capture(kernel, launches), best_us and best_us - extra_us)
        return _answer(replace(timed, detail=f"worst error {error:.2g}"), extra_us)

    def race(self, request: Request) -> dict[str, Any]:
        """Several candidates of one point, timed in turn."""
        point = _point(request)
        inputs = self._layer.inputs(point)
        graphs = []
        for fields in request["configs"]:
            config = Config(fields)
            kernel = self._kernel(point, config)
            graphs.append(capture(kernel, inputs.launches(kernel, config)))
        samples = race(graphs, request["rounds"])
        return {
            "measurements": [
                _answer(
                    Measurement(Status.OK, statistics.median(s), min(s), len(s)),
                    padding_us(inputs, Config(fields), self._copy_rate),
                )
                for s, fields in zip(samples, request["configs"], strict=True)
            ],
            "cold_by": self._layer.cold_by(point),
        }

    def _kernel(self, point: Point, config: Config) -> Kernel:
        binding = self._kernels.bind(
            self._layer.problem, point.gemm, point.batch_size, config, self._arch
        )
        compiled = compile_kernel(self._source, binding.variant().as_json(), self._arch)
        return Kernel(compiled, binding, (grid_size(binding),))


def main() -> None:
    # Libraries print to stdout; the parent's pipe must carry answers alone.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, requests), daemon=True).start()
    torch.backends.cuda.matmul.allow_tf32 = False  # references are float32 to the last bit
    _send(answers, {"imported": True})
    session: Session | None = None
    while True:
        request = json.loads(requests.get())
        started = time.perf_counter()
        try:
            if request["op"] == "setup":
                session = Session(request)
                reply: dict[str, Any] = session.ready
            else:
                assert session is not None  # the parent sets a child up first
                work: Callable[[Request], dict[str, Any]] = getattr(session, request["op"])
                reply = work(request)
        except torch.OutOfMemoryError as error:
            _send(answers, {"status": "out_of_memory", "detail": _line(error)})
            os._exit(3)
        except BadInput as error:
            _send(answers, {"status": "bad_input", "detail": str(error)})
            os._exit(3)
        except Exception as error:  # a CUDA error sticks to the context; others are as unexpected
            _send(answers, {"status": Status.CRASHED.value, "detail": _line(error)})
            os._exit(3)
        _send(answers, {**reply, "seconds": time.perf_counter() - started})


def _read(stdin: BinaryIO, requests: queue.SimpleQueue[bytes]) -> None:
    for line in stdin:
        requests.put(line)
    os.killpg(0, signal.SIGKILL)  # the parent is gone, and a hung kernel must not outlive it


def _send(answers: BinaryIO, values: dict[str, Any]) -> None:
    answers.write(json.dumps(values).encode() + b"\n")
    answers.flush()


def _answer(measurement: Measurement, extra_us: float = 0.0) -> dict[str, Any]:
    """`extra_us`: what the candidate costs the engine beside its own launch."""
    median_us, min_us = measurement.median_us, measurement.min_us
    said = [measurement.detail, f"{extra_us:.2f} us for padded rows" if extra_us else ""]
    return {
        "status": measurement.status.value,
        "median_us": None if median_us is None else median_us + extra_us,
        "min_us": None if min_us is None else min_us + extra_us,
        "samples": measurement.samples,
        "detail": "; ".join(filter(None, said)),
    }


def _driver_version() -> str:
    """As the kernel module says it; torch does not know. Empty where it is not mounted."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return ""
    found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", text)
    return found[1] if found else ""


def _point(request: Request) -> Point:
    return Point(request["batch_size"], Gemm(request["gemm"]))


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:500]


if __name__ == "__main__":
    main()
