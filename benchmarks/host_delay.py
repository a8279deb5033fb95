"""How far a late host falsifies the time of a CUDA graph, by how long the GPU is kept busy before.

    python benchmarks/host_delay.py OUT.json

A graph has ten additions, of operands of 256 KiB to 512 MiB. Each is replayed 200 times, with 0 to
300,000 cycles of `torch.cuda._sleep` before the first event, on an idle host and beside processes
that take its cores. Needs a GPU. `tuner.measure.timing.HOLD_CYCLES` was chosen by this.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

from tuner.measure.timing import LAUNCHES, elapsed_us

REPLAYS = 200
OPERANDS = (1 << 18, 1 << 23, 1 << 26, 1 << 29)  # bytes
HOLDS = (0, 50_000, 100_000, 150_000, 200_000, 300_000)  # cycles of the GPU's clock
PAUSE_S = 0.0003  # between replays, as a tuner's child has


def main() -> None:
    cores = len(os.sched_getaffinity(0))
    graphs = {size: graph_of(size) for size in OPERANDS}
    rows = []
    for busy in (0, cores - 1, cores + cores // 2):
        spin = [sys.executable, "-c", "while True: sum(range(10000))"]
        processes = [subprocess.Popen(spin) for _ in range(busy)]
        for size, graph in graphs.items():
            for hold in HOLDS:
                rows.append([busy, size, hold, *spread([timed(graph, hold) for _ in range(203)])])
                print(*rows[-1], flush=True)
        for process in processes:
            process.kill()
    Path(sys.argv[1]).write_text(json.dumps({"gpu": torch.cuda.get_device_name(), "rows": rows}))


def graph_of(size: int) -> torch.cuda.CUDAGraph:
    source = torch.randn(size // 4, device="cuda")
    target = torch.empty_like(source)
    torch.add(source, 1.0, out=target)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            torch.add(source, 1.0, out=target)
    return graph


def timed(graph: torch.cuda.CUDAGraph, hold: int) -> float:
    """Microseconds per launch of one replay."""
    time.sleep(PAUSE_S)
    if hold:
        torch.cuda._sleep(hold)
    return elapsed_us(graph.replay) / LAUNCHES


def spread(times_us: list[float]) -> list[float]:
    """Least and median us, the width of the middle 60 % in %, two percentiles over the median."""
    times = sorted(times_us[-REPLAYS:])
    middle = times[REPLAYS // 2]
    width = 100 * (times[REPLAYS * 4 // 5] - times[REPLAYS // 5]) / middle
    tails = [times[REPLAYS * percent // 100] / middle for percent in (95, 99)]
    return [round(value, 3) for value in (times[0], middle, width, *tails)]


if __name__ == "__main__":
    main()
