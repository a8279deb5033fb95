"""vLLM's fused-MoE layers on one GPU: tuned against the engine, and through its own Python.

    python benchmarks/vllm_moe_gpu.py tune OUT [--engine vllm==0.33.0] [--layers NAME,NAME]
    python benchmarks/vllm_moe_gpu.py layer OUT [--engine vllm==0.33.0] [--layers NAME,NAME]

`tune` tunes each layer as `tuner tune` does, both gemms together, with one set of processes. Then
it times the engine's default, its shipped entry and the tuned one in turn, each as the sum of both
gemms: OUT/tune-ENGINE.json. The winners are exported to OUT/configs-ENGINE. "other" is the entry
that the engine ships for `--beside`, for cards without a file.

`layer` runs the engine's own Python for the whole layer, with `vllm_stand_ins` in place of what is
compiled: with the exported files through VLLM_TUNED_CONFIG_FOLDER, with the package's files and
without files, in turn: OUT/layer-ENGINE.json has the times and the errors.

OUT is a folder. TUNER_ENGINE_PATH names a folder of unpacked packages.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from gpu_runs import (
    RACE_ROUNDS,
    Text,
    given_sizes,
    open_bench,
    spec_of,
    summary,
    this_device,
    tuned,
)
from vllm_stand_ins import served_layer

from tuner.devices.table import Device, find_device
from tuner.engines.config_files import read_lenient
from tuner.engines.engine import Engine, find_engine
from tuner.export import export_device
from tuner.families.fused_moe.engine import moe_engine
from tuner.families.fused_moe.engine_layer import EngineLayer, compare
from tuner.families.fused_moe.problem import BATCH_SIZES, FusedMoe, Gemm, parse_fused_moe
from tuner.families.fused_moe.selection import MoeSelection
from tuner.measure.gpu import GpuBench
from tuner.measure.workbench import Workbench
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Entry
from tuner.store import Store
from tuner.tuning.request import parse_effort, parse_source
from tuner.tuning.run_request import Request

BLOCKS = "dtype=fp8_w8a8,block_shape=128x128"
LAYERS = {
    "deepseek-r1-tp8": f"fused_moe:E=256,N=256,K=7168,top_k=8,{BLOCKS}",
    "qwen3-30b-a3b": "fused_moe:E=128,N=768,K=2048,top_k=8,dtype=bfloat16",
    "qwen3-235b-a22b-fp8-tp4": f"fused_moe:E=128,N=384,K=4096,top_k=8,{BLOCKS}",
}
# Words for batch sizes, and the least and the most of them.
SIZES = [("M <= 64", 0, 64), ("M > 64", 65, 1 << 30), ("all", 0, 1 << 30)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Text)
    parser.add_argument("part", choices=["tune", "layer"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", help=f"of {', '.join(LAYERS)}; default: all")
    parser.add_argument("--batch-sizes", help="e.g. 1,16,64; default: the engine's 18")
    parser.add_argument("--engine", default="vllm==0.33.0")
    parser.add_argument("--effort", default="standard")
    parser.add_argument("--beside", default="H200", help="a card whose shipped file is timed too")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    {"tune": tune, "layer": layer}[args.part](args)


def problems_of(args: argparse.Namespace) -> list[FusedMoe]:
    names = args.layers.split(",") if args.layers else list(LAYERS)
    return [parse_fused_moe(LAYERS[name]) for name in names]


def sizes_of(args: argparse.Namespace) -> tuple[int, ...]:
    return given_sizes(args.batch_sizes, BATCH_SIZES)


# Tuning


def tune(args: argparse.Namespace) -> None:
    device, engine = this_device(), find_engine(args.engine)
    problems = problems_of(args)
    out = args.out / f"tune-{engine.name}{engine.version}.json"
    database = args.out / f"tune-{engine.name}{engine.version}.db"
    requests = [_request(problem, device, engine, args) for problem in problems]
    reports, took, whole_s = tuned(requests, database)
    found: dict[str, Any] = {
        "device": device.name,
        "engine": spec_of(engine),
        "environment": reports[0].as_json()["environment"],
        "whole_s": whole_s,
        "layers": [],
    }
    with Store.open(f"sqlite:///{database.resolve()}") as store:
        root = args.out / f"configs-{engine.name}{engine.version}"
        export_device(store, device, engine, root, allow_predicted=False)
    with Workbench() as workbench:
        for problem, report, seconds in zip(problems, reports, took, strict=True):
            rows = list(both_raced(problem, device, engine, report.entries, args.beside, workbench))
            found["layers"].append(
                {
                    "problem": problem.spec(),
                    "seconds": seconds,
                    "totals": report.as_json()["totals"],
                    "sizes": rows,
                    "summary": gains(rows),
                }
            )
            out.write_text(json.dumps(found, indent=1) + "\n")  # what is done is kept
            print(problem.spec(), json.dumps(gains(rows), indent=1), flush=True)
    found["summary"] = gains([row for one in found["layers"] for row in one["sizes"]])
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["summary"], indent=1))


def _request(
    problem: FusedMoe, device: Device, engine: Engine, args: argparse.Namespace
) -> Request:
    return Request(
        problem=problem,
        device=device,
        engine=engine,
        source=parse_source("gpu"),
        selection=MoeSelection(sizes_of(args)),
        effort=parse_effort(args.effort),
    )


def both_raced(
    problem: FusedMoe,
    device: Device,
    engine: Engine,
    entries: Sequence[Entry],
    beside: str,
    workbench: Workbench,
) -> Iterator[dict[str, Any]]:
    """The times of both gemms at each tuned size, by the name of what was launched."""
    tuned_entries = [entry for entry in entries if entry.median_us is not None]
    points = [entry.point for entry in tuned_entries]
    sizes = sorted({point.batch_size for point in points})
    with closing(_bench(problem, device, engine, points, workbench)) as bench:
        for size in sizes:
            at = {e.point.part: e for e in tuned_entries if e.point.batch_size == size}
            up = at[Gemm.UP]
            named = {name: one.config for name, one in up.incumbents.items() if one.median_us}
            named |= _beside(problem, engine, beside, size)
            named["tuned"] = up.config
            assert at[Gemm.DOWN].config == up.config
            times = _both(bench, size, list(dict.fromkeys(named.values())))
            yield {
                "M": size,
                "us": {name: sum(times[c]) for name, c in named.items() if c in times},
                "gemms": {name: times[c] for name, c in named.items() if c in times},
                "configs": {name: dict(c) for name, c in named.items()},
                "reason": up.reason,
            }


def _both(bench: GpuBench, size: int, configs: Sequence[Config]) -> dict[Config, list[float]]:
    """The microseconds of up and down for each configuration that both could run."""
    found: dict[Config, list[float]] = {}
    for gemm in (Gemm.UP, Gemm.DOWN):
        candidates = [Candidate(Point(size, gemm), config) for config in configs]
        for candidate, time_ in bench.race(candidates, RACE_ROUNDS).items():
            if time_.median_us is not None:
                found.setdefault(candidate.config, []).append(time_.median_us)
    return {config: times for config, times in found.items() if len(times) == 2}


def _beside(problem: FusedMoe, engine: Engine, card: str, size: int) -> dict[str, Config]:
    layer_ = moe_engine(engine)
    other = find_device(card)
    path = layer_.find_file(layer_.package_root, problem, other, Gemm.UP, "")
    if path is None:
        return {}
    return {"other": layer_.pick(read_lenient(path, layer_.fields).entries, size)}


def _bench(
    problem: FusedMoe,
    device: Device,
    engine: Engine,
    points: Sequence[Point],
    workbench: Workbench,
) -> GpuBench:
    bind = moe_engine(engine).lift(device.target.backend).binder(problem, device.target)
    return open_bench(problem, device, engine, points, workbench, bind)


def gains(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The gains at small, large and all M."""
    return summary(rows, ("default", "shipped", "other"), SIZES)


# The whole layer


def layer(args: argparse.Namespace) -> None:
    engine = find_engine(args.engine)
    major, minor = torch.cuda.get_device_capability()
    served = served_layer(engine.root, torch.cuda.get_device_name(), 10 * major + minor)
    name = f"{engine.name}{engine.version}"
    out, root = args.out / f"layer-{name}.json", args.out / f"configs-{name}"
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "engine": spec_of(engine),
        "layers": [],
    }
    for problem in problems_of(args):
        on_tensors = EngineLayer(served, problem)
        rows = []
        for size in sizes_of(args):
            rows.append(compare(on_tensors, size, root.resolve()))
            print(problem.spec(), rows[-1], flush=True)
        renamed = [{"M": row.pop("batch_size"), **row} for row in rows]
        found["layers"].append(
            {
                "problem": problem.spec(),
                "sizes": renamed,
                "summary": gains(renamed),
                "worst error by default's": max(
                    row["error"]["tuned"] / row["error"]["default"] for row in renamed
                ),
            }
        )
        out.write_text(json.dumps(found, indent=1) + "\n")
        print(json.dumps(found["layers"][-1]["summary"]), flush=True)
        del on_tensors
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
