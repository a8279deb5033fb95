"""How long `tuner profile` takes to read a large trace, and how much memory.

    python benchmarks/profile_reader.py --out benchmarks/results/profile_reader.json

The trace is made up: events as torch's profiler writes them, a decode step from a CUDA graph and a
prefill step in turn, 2 GB before gzip. It says nothing about coverage by families.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from profile_traces import CUBLAS, DECODE, MOE, NCCL, REDUCE, TraceWriter  # noqa: E402

_READ = """
import resource, sys, time
from pathlib import Path
from tuner.profile import read
start = time.process_time()
profile = read([Path(sys.argv[1])])
calls = sum(kernel.calls for kernel in profile.kernels)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(time.process_time() - start, peak, calls)
"""


def write_large(path: Path, size_bytes: int) -> tuple[int, int]:
    """Write a trace of at least that many bytes of JSON: (bytes, events)."""
    step = TraceWriter()
    layers = [(CUBLAS, 8.0), (DECODE, 20.0), (REDUCE, 3.0), (MOE, 30.0), (NCCL, 9.0)] * 100
    step.step(*layers, mark="step[DECODE bs=64]", graph=True)
    step.step(*layers, mark="step[EXTEND bs=1 toks=8192]")
    texts = [json.dumps(event, indent=2) for event in step.events]
    written = events = 0
    with gzip.open(path, "wt", compresslevel=1, encoding="utf-8") as out:
        head = '{"schemaVersion": 1,\n"deviceProperties": [{"id": 0, "name": "NVIDIA H100"}],\n'
        written += out.write(head + '"traceEvents": [\n')
        while written < size_bytes:
            for text in texts:
                written += out.write(("" if not events else ",\n") + text)
                events += 1
        written += out.write("\n]}")
    return written, events


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--bytes", type=int, default=2_000_000_000)
    options.add_argument("--out", type=Path)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.trace.json.gz"
        size, events = write_large(path, asked.bytes)
        start = time.perf_counter()
        answer = subprocess.run(
            [sys.executable, "-c", _READ, str(path)], capture_output=True, text=True, check=True
        )
        wall_s = time.perf_counter() - start
        cpu_s, peak_bytes, kernels = answer.stdout.split()
        found = {
            "bytes": size,
            "gzipped_bytes": path.stat().st_size,
            "events": events,
            "kernels": int(kernels),
            "cpu_s": round(float(cpu_s), 1),
            "wall_s": round(wall_s, 1),
            "peak_bytes": int(peak_bytes),
        }
    print(json.dumps(found, indent=2))
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
