"""vLLM's Mamba-2 state update on one GPU: tuned against the engine.

    python benchmarks/state_update_gpu.py OUT [--layers NAME,NAME] [--engine vllm==0.33.0]

Tunes each layer as `tuner tune --mamba` does, with one set of processes, and then times the
engine's default, its shipped entry and the tuned one in turn: OUT/state-update-ENGINE.json. Two of
the layers share a file's name, so nothing is exported. OUT is a folder. TUNER_ENGINE_PATH names a
folder of unpacked packages.

`--dry-run` opens the runs and prints what they would try; it needs no GPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from gpu_runs import Text, given_sizes, open_bench, raced, spec_of, summary, this_device, tuned

from tuner.devices.table import Device, find_device
from tuner.engines.engine import Engine, find_engine
from tuner.families.state_update.engine import state_engine
from tuner.families.state_update.family import StateSelection
from tuner.families.state_update.problem import BATCH_SIZES, StateUpdate, parse_state_update
from tuner.measure.gpu import GpuBench
from tuner.measure.workbench import Workbench
from tuner.problems.points import Point
from tuner.tuning.request import parse_effort, parse_source
from tuner.tuning.run import open_run
from tuner.tuning.run_request import Request

# One rank: 64 heads of 64 in 8 groups at TP 1 and TP 4, 128 heads in 1 group at TP 1.
SIZES_OF_A_HEAD = "head_dim=64,state_size=128"
LAYERS = {
    "heads64-float32": f"heads=64,{SIZES_OF_A_HEAD},groups=8,cache_dtype=float32",
    "heads16-float32": f"heads=16,{SIZES_OF_A_HEAD},groups=2,cache_dtype=float32",
    "heads128-bfloat16": f"heads=128,{SIZES_OF_A_HEAD},groups=1,cache_dtype=bfloat16",
}
SIZES = [("sequences <= 64", 0, 64), ("sequences > 64", 65, 1 << 30)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Text)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", help=f"of {', '.join(LAYERS)}; default: all")
    parser.add_argument("--batch-sizes", help="e.g. 1,16,64; default: the tuner's 11")
    parser.add_argument("--engine", default="vllm==0.33.0")
    parser.add_argument("--effort", default="standard")
    parser.add_argument("--dry-run", metavar="DEVICE", help="what would be tried on a card")
    args = parser.parse_args()
    engine = find_engine(args.engine)
    device = find_device(args.dry_run) if args.dry_run else this_device()
    requests = [request_of(problem, device, engine, args) for problem in problems_of(args)]
    if args.dry_run:
        for request in requests:
            print(request.problem.spec(), open_run(request).tries)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    tune(requests, device, engine, args.out)


def problems_of(args: argparse.Namespace) -> list[StateUpdate]:
    names = args.layers.split(",") if args.layers else list(LAYERS)
    return [parse_state_update(f"state_update:{LAYERS[name]}") for name in names]


def request_of(
    problem: StateUpdate, device: Device, engine: Engine, args: argparse.Namespace
) -> Request:
    return Request(
        problem=problem,
        device=device,
        engine=engine,
        source=parse_source("gpu"),
        selection=StateSelection(given_sizes(args.batch_sizes, BATCH_SIZES)),
        effort=parse_effort(args.effort),
    )


def tune(requests: Sequence[Request], device: Device, engine: Engine, folder: Path) -> None:
    name = f"{engine.name}{engine.version}"
    database, out = folder / f"state-update-{name}.db", folder / f"state-update-{name}.json"
    reports, took, whole_s = tuned(requests, database)
    found: dict[str, Any] = {
        "device": device.name,
        "engine": spec_of(engine),
        "environment": reports[0].as_json()["environment"],
        "whole_s": whole_s,
        "layers": [],
    }
    with Workbench() as workbench:
        for request, report, seconds in zip(requests, reports, took, strict=True):
            assert isinstance(request.problem, StateUpdate)
            points = [entry.point for entry in report.entries]
            bench = bench_of(request.problem, device, engine, points, workbench)
            with closing(bench):
                rows = [raced(bench, entry) for entry in report.entries]
            found["layers"].append(
                {
                    "problem": request.problem.spec(),
                    "seconds": seconds,
                    "totals": report.as_json()["totals"],
                    "sizes": rows,
                }
            )
            out.write_text(json.dumps(found, indent=1) + "\n")  # what is done is kept
    every = [row for layer in found["layers"] for row in layer["sizes"]]
    found["summary"] = summary(every, ("default", "shipped"), SIZES)
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["summary"], indent=1))


def bench_of(
    problem: StateUpdate,
    device: Device,
    engine: Engine,
    points: Sequence[Point],
    workbench: Workbench,
) -> GpuBench:
    bind = state_engine(engine).lift(device.target.backend).binder(problem, device.target)
    return open_bench(problem, device, engine, points, workbench, bind)


if __name__ == "__main__":
    main()
