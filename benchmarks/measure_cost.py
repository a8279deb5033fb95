"""Where the milliseconds of a measurement go, on this machine's GPU.

    python benchmarks/measure_cost.py OUT.json [--problem SPEC] [--engine sglang==0.5.16] [--few 4]

Compiles a few configurations of a fused-MoE layer, and measures each of them at each batch size in
this process, as a run's measuring process does. The kernels are in Triton's cache by then. Prints
the milliseconds of a measurement at each point, and how many of them each step takes: `replays` is
the GPU's own work, the rest is what surrounds it. `race` is what a race takes for each finalist,
and `per point` what a point takes before its first measurement: its tensors, references and
routings. OUT.json has the same figures.

A graph has ten launches. `--few` asks what fewer would cost in certainty: each configuration is
timed ten times with a graph of all launches and with one of so many, spread evenly over them.
`noise` is the standard deviation of a time, and `apart` how far the two graphs disagree about the
ratio of two configurations, at most; both are shares.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from gpu_runs import Row, Text

from tuner.families.fused_moe import gpu
from tuner.families.fused_moe.gpu import MoeOnGpu, open_session, spread_evenly
from tuner.families.fused_moe.layer import PointInputs
from tuner.families.fused_moe.problem import BATCH_SIZES, FusedMoe, Gemm
from tuner.measure import timing
from tuner.measure.messages import point_fields
from tuner.measure.timing import LAUNCHES, BoundKernel, time_graph
from tuner.problems.points import Config, Point
from tuner.problems.registry import parse_problem
from tuner.tuning.tune import RACE_ROUNDS

R1 = "fused_moe:E=256,N=256,K=7168,top_k=8,dtype=fp8_w8a8,block_shape=128x128"
CONFIGS = [
    Config(
        {
            "BLOCK_SIZE_M": block_m,
            "BLOCK_SIZE_N": 128,
            "BLOCK_SIZE_K": 128,
            "GROUP_SIZE_M": 16,
            "num_warps": 4,
            "num_stages": stages,
        }
    )
    for block_m in (16, 64)
    for stages in (3, 4)
]
TIMES = range(10)
# Where the functions of a step are looked up. A measurement is in each of them once.
STEPS: dict[str, tuple[Any, str]] = {
    "load": (gpu, "load"),
    "arguments": (PointInputs, "launches"),
    "check": (gpu, "check"),
    "capture": (gpu, "capture"),
    "replays": (gpu, "time_graph"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Text)
    parser.add_argument("out", type=Path)
    parser.add_argument("--problem", default=R1)
    parser.add_argument("--engine", default="sglang==0.5.16")
    parser.add_argument("--few", type=int, default=4, help="launches of the shorter graph")
    options = parser.parse_args()
    problem = parse_problem(options.problem)
    assert isinstance(problem, FusedMoe)
    points = [Point(size, gemm) for gemm in Gemm for size in BATCH_SIZES]
    with tempfile.TemporaryDirectory() as folder:
        request: Row = {
            "engine": options.engine,
            "lifted_dir": folder,
            "routing": None,
            "seed": 20,
            "thorough": True,
        }
        session = open_session(problem, {**request, "points": [point_fields(p) for p in points]})
        rows = [_row(session, point) | _certainty(session, point, options.few) for point in points]
    for row in rows:
        print(row)
    mean = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0] if name != "point"}
    print("mean of the points:", {name: round(value, 4) for name, value in mean.items()})
    options.out.write_text(json.dumps({"problem": options.problem, "mean": mean, "points": rows}))


def _row(session: MoeOnGpu, point: Point) -> dict[str, Any]:
    """The milliseconds of a measurement and of its steps, on average over the configurations."""
    kernels = [session._kernel(point, config) for config in CONFIGS]
    point_ms = _point_ms(session, point, kernels)
    _measure(session, point, CONFIGS)  # loads the kernels of torch as well
    timing._compiled.cache_clear()
    seconds = dict.fromkeys([*STEPS, "whole"], 0.0)
    with contextlib.ExitStack() as patched:
        for step, (owner, name) in STEPS.items():
            counted = _counted(getattr(owner, name), seconds, step)
            patched.enter_context(mock.patch.object(owner, name, counted))
        _counted(_measure, seconds, "whole")(session, point, CONFIGS)
    found = {step: 1e3 * taken / len(CONFIGS) for step, taken in seconds.items()}
    return {"point": str(point), **found, "race": _race_ms(session, point), "per point": point_ms}


def _point_ms(session: MoeOnGpu, point: Point, kernels: Sequence[BoundKernel]) -> float:
    """The milliseconds until the first of some kernels can be checked and timed."""
    started = time.perf_counter()
    inputs = session._layer.inputs(point)
    for kernel, config in zip(kernels, CONFIGS, strict=True):
        inputs.launches(kernel, config)
    assert inputs.references
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - started)


def _counted(
    function: Callable[..., object], seconds: dict[str, float], step: str
) -> Callable[..., object]:
    """The function, which adds what it takes to the step's seconds."""

    def counted(*args: object, **named: object) -> object:
        started = time.perf_counter()
        try:
            return function(*args, **named)
        finally:
            seconds[step] += time.perf_counter() - started

    return counted


def _race_ms(session: MoeOnGpu, point: Point) -> float:
    """The milliseconds that a race of the configurations takes, for each of them."""
    configs = [dict(config) for config in CONFIGS]
    started = time.perf_counter()
    session.race({**point_fields(point), "configs": configs, "rounds": RACE_ROUNDS})
    return 1e3 * (time.perf_counter() - started) / len(CONFIGS)


def _certainty(session: MoeOnGpu, point: Point, few: int) -> Row:
    """How sure times are with graphs of all launches and of `few`."""
    means, noise = {}, {}
    for name, number in (("all", LAUNCHES), ("few", few)):
        graphs = []
        for config in CONFIGS:
            kernel = session._kernel(point, config)
            launches = session._layer.inputs(point).launches(kernel, config)
            graphs.append(timing.capture(kernel, spread_evenly(launches, number), least=number))
        measured = [[time_graph(graph, None) for graph in graphs] for _ in TIMES]
        times = [[one.median_us or 0.0 for one in row] for row in measured]
        logs = [[math.log(us) for us in column] for column in zip(*times, strict=True)]
        means[name] = [statistics.fmean(some) for some in logs]
        noise[f"noise, {name}"] = statistics.fmean(statistics.stdev(some) for some in logs)
    differences = [short - whole for short, whole in zip(means["few"], means["all"], strict=True)]
    return noise | {"apart": max(differences) - min(differences)}


def _measure(session: MoeOnGpu, point: Point, configs: Sequence[Config]) -> None:
    best_us = None
    for config in configs:
        request = {**point_fields(point), "config": dict(config), "best_us": best_us}
        answer = session.measure(request)
        assert answer["status"] == "ok", answer
        best_us = min(best_us or answer["median_us"], answer["median_us"])


if __name__ == "__main__":
    main()
