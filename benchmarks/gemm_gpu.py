"""Quantised dense GEMMs on one GPU: tuned against the engine, against cuBLAS, and exhaustively.

    python benchmarks/gemm_gpu.py tune OUT [--model deepseek-r1] [--engine sglang==0.5.16]
    python benchmarks/gemm_gpu.py beside OUT [--model deepseek-r1]
    python benchmarks/gemm_gpu.py record OUT [--shapes 2112x7168,7168x2048] [--limit-s 500]

`tune` tunes all shapes of a model as `tuner tune` does, with one set of processes, and then times
the engine's default, its shipped entry and the tuned one in turn: OUT/tune-MODEL-ENGINE.json.
`beside` times cuBLAS on the same shapes: OUT/beside-MODEL.json. `record` measures every legal
configuration: OUT/NxK.csv.gz, written anew after each batch size, so that a limit or a kill keeps
what is done. OUT is a folder. The engine is looked for as `find_engine` does: TUNER_ENGINE_PATH
names a folder of unpacked packages.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from gemm_beside import other_times, versions
from gpu_runs import Text, given_sizes, open_bench, raced, summary, this_device, tuned

from tuner.devices.table import Device
from tuner.engines.engine import Engine, find_engine
from tuner.families.dense_gemm.engine import gemm_engine
from tuner.families.dense_gemm.family import GemmSelection
from tuner.families.dense_gemm.problem import BATCH_SIZES, DenseGemm, Gemm
from tuner.families.dense_gemm.space import gemm_space, space_at
from tuner.measure.gpu import GpuBench
from tuner.measure.recording import write_trials
from tuner.measure.workbench import Workbench
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Trial
from tuner.tuning.request import parse_effort, parse_source
from tuner.tuning.run_request import Request

# (N, K) of one rank: DeepSeek-R1 at TP 8 with its shared experts, Qwen3-32B-FP8 at TP 2.
MODELS = {
    "deepseek-r1": [
        *((2112, 7168), (3072, 1536), (4096, 512), (7168, 2048)),
        *((4608, 7168), (7168, 2304), (512, 7168), (7168, 256)),
    ],
    "qwen3-32b": [(5120, 5120), (5120, 4096), (25600, 5120), (5120, 12800)],
}
SIZES = [("M <= 64", 0, 64), ("M > 64", 65, 1 << 30)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Text)
    parser.add_argument("part", choices=["tune", "beside", "record"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", choices=list(MODELS), default="deepseek-r1")
    parser.add_argument("--shapes", help="e.g. 2112x7168,7168x2048; default: the model's")
    parser.add_argument("--block", default="128x128", help="or 32x32")
    parser.add_argument("--dtype", default="fp8_w8a8", help="or int8_w8a8")
    parser.add_argument("--batch-sizes", help="e.g. 1,16,64; default: the engine's 18")
    parser.add_argument("--engine", default="sglang==0.5.16")
    parser.add_argument("--effort", default="standard")
    parser.add_argument("--limit-s", type=float, default=500.0, help="of `record`")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    {"tune": tune, "beside": beside, "record": record}[args.part](args)


def problems_of(args: argparse.Namespace) -> list[DenseGemm]:
    shapes = MODELS[args.model]
    if args.shapes:
        shapes = [(int(n), int(k)) for n, k in (s.split("x") for s in args.shapes.split(","))]
    n, k = map(int, args.block.split("x"))
    return [DenseGemm(N, K, Dtype(args.dtype), (n, k)) for N, K in shapes]


def sizes_of(args: argparse.Namespace) -> tuple[int, ...]:
    return given_sizes(args.batch_sizes, BATCH_SIZES)


# Tuning


def tune(args: argparse.Namespace) -> None:
    device, engine = this_device(), find_engine(args.engine)
    problems, sizes = problems_of(args), sizes_of(args)
    name = f"{args.model}-{engine.name}{engine.version}"
    out = args.out / f"tune-{name}.json"
    requests = [_request(problem, device, engine, sizes, args) for problem in problems]
    reports, took, whole_s = tuned(requests, args.out / f"tune-{name}.db")
    found: dict[str, Any] = {
        "device": device.name,
        "engine": f"{engine.name}=={engine.version}",
        "environment": reports[0].as_json()["environment"],
        "whole_s": whole_s,
        "shapes": [],
    }
    with Workbench() as workbench:
        for problem, report, seconds in zip(problems, reports, took, strict=True):
            points = [entry.point for entry in report.entries]
            with closing(_bench(problem, device, engine, points, workbench)) as bench:
                rows = [raced(bench, entry) for entry in report.entries]
            found["shapes"].append(
                {
                    "problem": problem.spec(),
                    "seconds": seconds,
                    "totals": report.as_json()["totals"],
                    "sizes": rows,
                }
            )
            out.write_text(json.dumps(found, indent=1) + "\n")  # what is done is kept
    every = [row for shape in found["shapes"] for row in shape["sizes"]]
    found["summary"] = summary(every, ("default", "shipped"), SIZES)
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["summary"], indent=1))


def _request(
    problem: DenseGemm,
    device: Device,
    engine: Engine,
    sizes: tuple[int, ...],
    args: argparse.Namespace,
) -> Request:
    return Request(
        problem=problem,
        device=device,
        engine=engine,
        source=parse_source("gpu"),
        selection=GemmSelection(sizes),
        effort=parse_effort(args.effort),
    )


def _bench(
    problem: DenseGemm,
    device: Device,
    engine: Engine,
    points: Sequence[Point],
    workbench: Workbench,
) -> GpuBench:
    kernels = gemm_engine(engine).lift(device.target.backend)
    bind = kernels.binder(problem, device.target)
    companions = kernels.companions(problem, device.target)
    return open_bench(problem, device, engine, points, workbench, bind, companions)


# Other kernels


def beside(args: argparse.Namespace) -> None:
    out = args.out / f"beside-{args.model}.json"
    found: dict[str, Any] = {"device": this_device().name, **versions(), "shapes": []}
    for problem in problems_of(args):
        rows = []
        for M in sizes_of(args):
            times, absent = other_times(problem.N, problem.K, M)
            rows.append({"M": M, "us": times, "absent": absent})
            print(problem.N, problem.K, M, {n: round(us, 1) for n, us in times.items()}, flush=True)
        found["shapes"].append({"problem": problem.spec(), "sizes": rows})
        out.write_text(json.dumps(found, indent=1) + "\n")


# Everything


def record(args: argparse.Namespace) -> None:
    """Each shape gets its share of the time that is left."""
    device, engine = this_device(), find_engine(args.engine)
    deadline = time.monotonic() + args.limit_s
    problems = problems_of(args)
    for at, problem in enumerate(problems):
        left = deadline - time.monotonic()
        until = time.monotonic() + left / (len(problems) - at)
        with Workbench() as workbench:  # one each: what a limit leaves undone ends with it
            _recorded(problem, device, engine, args, workbench, until)


def _recorded(
    problem: DenseGemm,
    device: Device,
    engine: Engine,
    args: argparse.Namespace,
    workbench: Workbench,
    until: float,
) -> None:
    path = args.out / f"{problem.N}x{problem.K}.csv.gz"
    tuned = gemm_engine(engine)
    choices = tuned.lift(device.target.backend).choices(problem, device.target)
    space = gemm_space(
        problem, device, choices, lambda c: tuned.effective(problem, c, device.target)
    )
    points = [Point(M, Gemm.DENSE) for M in sizes_of(args)]
    trials: list[Trial] = []
    with closing(_bench(problem, device, engine, points, workbench)) as bench:
        for point in points:
            configs = dict.fromkeys(
                [
                    *tuned.incumbents(problem, device, point.batch_size).values(),
                    *space_at(space, problem, device, point.batch_size).configs(),
                ]
            )
            done = _measured(bench, point, list(configs), until)
            trials += done
            write_trials(path, problem, trials)
            timed = [(t.measurement.median_us or 1e9, t.candidate.config.key) for t in done]
            best = min(timed, default=None)
            print(problem.N, problem.K, point, f"{len(done)} of {len(configs)}", best, flush=True)
            if len(done) < len(configs):
                print(f"{problem.spec()}: no time for more", file=sys.stderr)
                return


def _measured(
    bench: GpuBench, point: Point, configs: Sequence[Config], until: float
) -> list[Trial]:
    """The trials that were done in time. What is under way at the end is given up."""
    done: list[Trial] = []
    bench.submit([Candidate(point, config) for config in configs])
    while len(done) < len(configs) and time.monotonic() < until:
        done += bench.poll(wait=True)
    return done


if __name__ == "__main__":
    main()
