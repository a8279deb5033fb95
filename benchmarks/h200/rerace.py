"""Winners of several runs and the incumbents, timed once more, in turn, in one process.

    python benchmarks/h200/rerace.py PROBLEM DEVICE OUT.json NAME=RUN.json ...

RUN.json is what `tuner tune --json` printed. Needs the GPU.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tuner.compile import Farm, KernelCompiler
from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.engines.sglang.fused_moe.binding import lift_fused_moe
from tuner.families.fused_moe.problem import Gemm
from tuner.measure.gpu import open_gpu_bench
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.registry import parse_problem

ROUNDS = 31


def contenders(runs: dict[str, dict]) -> dict[Point, dict[str, Config]]:
    """Each point's configurations by name; the incumbents are those that the first run saw."""
    found: dict[Point, dict[str, Config]] = {}
    for run, report in runs.items():
        for entry in report["entries"]:
            here = found.setdefault(Point(entry["batch_size"], Gemm(entry["gemm"])), {})
            here[run] = Config(entry["config"])
            for name, incumbent in entry["incumbents"].items():
                if incumbent["status"] == "ok":
                    here.setdefault(name, Config(incumbent["config"]))
    return found


def main() -> None:
    problem, device = parse_problem(sys.argv[1]), find_device(sys.argv[2])
    pairs = [argument.split("=", 1) for argument in sys.argv[4:]]
    runs = {name: json.loads(Path(path).read_text()) for name, path in pairs}
    by_point = contenders(runs)
    engine = find_engine("sglang")
    rows = []
    with Farm() as farm:
        bind = lift_fused_moe(engine).binder(problem, device.target)
        compiler = KernelCompiler(farm, bind, device)
        bench = open_gpu_bench(
            compiler,
            farm,
            engine=f"{engine.name}=={engine.version}",
            problem=problem,
            device=device,
            gpu="0",
            routing=None,
            points=list(by_point),
        )
        compiler.submit(
            {Candidate(p, c): None for p, named in by_point.items() for c in named.values()}
        )
        while compiler.poll(wait=True):
            pass
        for point, named in sorted(by_point.items()):
            candidates = [Candidate(point, config) for config in sorted(set(named.values()))]
            times = {c.config: us for c, us in bench.race(candidates, ROUNDS).items()}
            us = {name: times[config].median_us for name, config in named.items()}
            rows.append({"batch_size": point.batch_size, "gemm": point.part.value, "us": us})
        bench.close()
    Path(sys.argv[3]).write_text(json.dumps({"problem": problem.spec(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
