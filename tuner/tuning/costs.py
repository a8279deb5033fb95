"""What a run costs: GPU seconds, the idle ones of them, and CPU seconds."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tuner.problems.results import Totals
from tuner.tuning.request import TRIES, Effort

# What a run takes beside its tries: the first kernels compile, references are computed, and other
# backends are loaded, compiled and timed. Eight quick runs of 3 to 36 points on one H100 took 97 s
# in all, and these two figures make it 94 s (benchmarks/results/h100/leave-qwen3-32b-fp8.txt).
START_S = 9.0
# The R1 job on one H100, with nothing compiled: 27.4 s for 1,440 tries (docs/results.md).
_TRY_S = (27.4 - START_S) / 1440


class Meter:
    """Counts from when it is made. Its figures become a run's totals."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._own_cpu = time.process_time()

    def count(self, totals: Totals, busy_s: float = 0.0, opened_at: float | None = None) -> None:
        """Add the cost until now. Since `opened_at` (of `time.perf_counter`), a GPU was the run's
        own; it was busy for `busy_s` seconds. Before, processes only imported their libraries.
        """
        now = time.perf_counter()
        gpu_s = 0.0 if opened_at is None else now - max(self._began, opened_at)
        own_cpu_s = time.process_time() - self._own_cpu
        totals.extra["gpu_s"] = gpu_s
        totals.extra["gpu_idle_s"] = max(0.0, gpu_s - busy_s)
        totals.extra["cpu_s"] = totals.compile_s + own_cpu_s


def cost_line(totals: Totals) -> str:
    """The cost in one line; "" for a run without a GPU."""
    cost = totals.extra
    if not cost.get("gpu_s"):
        return ""
    return (
        f"{cost['gpu_s']:.1f} s of GPUs, {cost['gpu_idle_s']:.1f} s of them idle; "
        f"{cost['cpu_s']:.1f} s of CPUs"
    )


def work_line(totals: Sequence[Totals], *, predicted: bool = False) -> str:
    """What one or several runs compiled and timed together. Problems may share kernels.

    `predicted`: a model gave the times, and nothing was measured.
    """
    cached = sum(one.extra.get("kernels_cached", 0) for one in totals)
    known = f" and {cached:.0f} from the cache" if cached else ""
    compiled = sum(one.configs_compiled for one in totals)
    times = sum(one.measurements for one in totals)
    return (
        f"{compiled} kernel{'s' * (compiled != 1)} compiled{known}, "
        f"{times} time{'s' * (times != 1)} {'predicted' if predicted else 'taken'}, "
        f"{sum(one.wall_s for one in totals):.1f} s in all"
    )


def typical_gpu_s(points: int, effort: Effort) -> float | None:
    """The GPU seconds of a run, by the number of its tries; None if it tries everything."""
    return START_S + points * TRIES[effort] * _TRY_S if effort in TRIES else None


def estimate_line(gpu_s: float, device: str) -> str:
    """An estimate in words: about 22 s of one NVIDIA_H200."""
    text = f"{gpu_s:.0f} s" if gpu_s < 600 else f"{gpu_s / 60:.0f} minutes"
    return f"about {text} of one {device}"
