"""What the benchmarks on a GPU share: runs as `tuner tune` does them, races, and their gains."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tuner.compile import KernelCompiler
from tuner.compile.candidates import Binder, Companions
from tuner.compile.environment import triton_for
from tuner.devices.table import Device, find_device
from tuner.engines.engine import Engine
from tuner.measure.gpu import GpuBench, open_gpu_bench
from tuner.measure.workbench import Workbench
from tuner.problems.points import TRITON, Candidate, Point, Problem
from tuner.problems.results import Entry, Incumbent
from tuner.store import Store
from tuner.tuning.report import Report
from tuner.tuning.run import open_run
from tuner.tuning.run_request import Request

RACE_ROUNDS = 31  # of the last comparison; its times chose nothing
Row = dict[str, Any]


class Text(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of a file's docstring."""


def this_device() -> Device:
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return find_device(names.splitlines()[0].strip().replace(" ", "_"))


def spec_of(engine: Engine) -> str:
    return f"{engine.name}=={engine.version}"


def given_sizes(text: str | None, default: Sequence[int]) -> tuple[int, ...]:
    """The numbers of `1,16,64`."""
    return tuple(int(size) for size in text.split(",")) if text else tuple(default)


def tuned(requests: Sequence[Request], database: Path) -> tuple[list[Report], list[float], float]:
    """The reports, the seconds of each run, and those of all, with one set of processes."""
    database.unlink(missing_ok=True)
    reports: list[Report] = []
    took: list[float] = []
    started = time.perf_counter()
    with Workbench() as workbench:
        runs = [open_run(request, workbench) for request in requests]
        for run in runs:
            run.start_early()
        for request, run in zip(requests, runs, strict=True):
            begun = time.perf_counter()
            with run, Store.open(f"sqlite:///{database.resolve()}") as store:
                reports.append(run.run(store, progress=lambda trial: None))
            took.append(time.perf_counter() - begun)
            print(f"{request.problem.spec()}: {took[-1]:.1f} s", reports[-1].totals, flush=True)
    whole_s = time.perf_counter() - started
    print(f"all of it: {whole_s:.1f} s", flush=True)
    return reports, took, whole_s


def open_bench(
    problem: Problem,
    device: Device,
    engine: Engine,
    points: Sequence[Point],
    workbench: Workbench,
    bind: Binder,
    companions: Companions | None = None,
) -> GpuBench:
    """A bench on the first GPU, with the workbench's processes."""
    farm = workbench.farm(spare_cores=1, triton=triton_for(engine))
    return open_gpu_bench(
        KernelCompiler(farm, bind, device, companions),
        farm,
        engine=spec_of(engine),
        problem=problem,
        device=device,
        gpu="0",
        routing=None,
        points=points,
        workbench=workbench,
    )


def tritons(entry: Entry) -> dict[str, Incumbent]:
    """An entry's incumbents that are Triton's."""
    return {name: one for name, one in entry.incumbents.items() if one.backend == TRITON}


def raced(bench: GpuBench, entry: Entry) -> Row:
    """The times of what the engine runs and of the tuned configuration at a size, in turn."""
    named = {n: one.config for n, one in tritons(entry).items() if one.median_us}
    named["tuned"] = entry.config
    candidates = [Candidate(entry.point, config) for config in dict.fromkeys(named.values())]
    done = bench.race(candidates, RACE_ROUNDS)
    times = {candidate.config: time_ for candidate, time_ in done.items()}
    return {
        "M": entry.point.batch_size,
        "us": {n: times[c].median_us for n, c in named.items() if c in times},
        "min_us": {n: times[c].min_us for n, c in named.items() if c in times},
        "configs": {n: dict(c) for n, c in named.items()},
        "reason": entry.reason,
    }


def summary(
    rows: Iterable[Row], names: Sequence[str], sizes: Sequence[tuple[str, int, int]]
) -> dict[str, Any]:
    """Geometric means of the gains, and the smallest one.

    `names`: what the tuned configuration is compared with. `sizes`: words for batch sizes, and the
    least and the most of them.
    """
    found: dict[str, Any] = {}
    kept = list(rows)
    for name in names:
        for label, least, most in sizes:
            gains = [
                row["us"][name] / row["us"]["tuned"]
                for row in kept
                if least <= row["M"] <= most and {name, "tuned"} <= set(row["us"])
            ]
            if gains:
                found[f"over {name}, {label}"] = {
                    "geomean": statistics.geometric_mean(gains),
                    "least": min(gains),
                    "points": len(gains),
                }
    return found
