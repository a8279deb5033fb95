"""Writes small traces in the form in which torch's profiler writes them (libkineto's
output_json.cpp): launches on the CPU, kernels on the GPU, and what engines mark.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

MOE = "fused_moe_kernel"
EXTEND = "_fwd_kernel"
DECODE = "_fwd_grouped_kernel_stage1"
REDUCE = "_fwd_kernel_stage2"
CUBLAS = "nvjet_tst_128x64_64x10_2x1_v_bz_TNT"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
COPY = "Memcpy DtoD (Device -> Device)"
FLASH = (
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<"
    "flash::CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1> > > > > >(Params)"
)


class TraceWriter:
    """A server's steps, one after another. Times are microseconds."""

    def __init__(self, device: str = "NVIDIA H100 80GB HBM3") -> None:
        self.device = device
        self.events: list[dict[str, Any]] = []
        self.now = 4_462_543_123.25
        self.correlation = 100

    def idle(self, us: float) -> None:
        self.now += us

    def step(
        self, *kernels: tuple[str, float], mark: str = "", graph: bool = False, gap: float = 0.0
    ) -> None:
        """Kernels with their durations, `gap` apart. Their launches end before the first starts."""
        launch = self.now - 50
        self._operation("aten::mm", launch - 10)
        start, graph_launch = self.now, self._next()
        if graph:
            self._launch("cudaGraphLaunch", graph_launch, launch)
        for name, us in kernels:
            correlation = graph_launch if graph else self._next()
            if not graph:
                self._launch("cudaLaunchKernel", correlation, launch)
            self._kernel(name, us, correlation, 3 if graph else 0)
            self.now += us + gap
        if mark:
            self._mark("user_annotation", mark, launch - 5, 20, pid=812)
            self._mark("gpu_user_annotation", mark, start, self.now - start - gap, pid=0)

    def write(self, path: Path) -> Path:
        trace = {
            "schemaVersion": 1,
            "deviceProperties": [
                {"id": 0, "name": self.device, "computeMajor": 9, "computeMinor": 0, "numSms": 132}
            ],
            "cupti_version": 26,
            "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": 1759255878000000000,
            "traceEvents": [
                *self.events,
                {"name": "process_name", "ph": "M", "ts": 0.0, "pid": 812, "tid": 0,
                 "args": {"name": "python"}},
                {"ph": "i", "s": "t", "name": "Iteration Start: PyTorch Profiler", "pid": "Traces",
                 "tid": "Trace PyTorch Profiler", "ts": 1.0},
            ],
            "traceName": str(path.name),
        }  # fmt: skip
        data = json.dumps(trace, indent=2).encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return path

    def _next(self) -> int:
        self.correlation += 1
        return self.correlation

    def _operation(self, name: str, ts: float) -> None:
        self._add("cpu_op", name, ts, 8, 812, {"External id": 1, "Sequence number": 0})

    def _launch(self, name: str, correlation: int, ts: float) -> None:
        args = {"External id": 1, "cbid": 211, "correlation": correlation}
        self._add("cuda_runtime", name, ts, 4, 812, args)

    def _kernel(self, name: str, us: float, correlation: int, graph: int) -> None:
        kind = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        args = {"External id": 1, "device": 0, "context": 1, "stream": 7,
                "correlation": correlation, "grid": [64, 1, 1], "block": [128, 1, 1],
                "graph id": graph, "graph node id": graph and correlation}  # fmt: skip
        self._add(kind, name, self.now, us, 0, args)

    def _mark(self, kind: str, name: str, ts: float, us: float, pid: int) -> None:
        self._add(kind, name, ts, us, pid, {"External id": 2})

    def _add(self, kind: str, name: str, ts: float, dur: float, pid: int, args: Any) -> None:
        self.events.append({"ph": "X", "cat": kind, "name": name, "pid": pid, "tid": 7,
                            "ts": round(ts, 3), "dur": round(dur, 3), "args": args})  # fmt: skip
