"""Tune problems of the shelf anew on this machine's GPU, and race both choices.

    python -m benchmarks.shelf_again OUT [--engine sglang==0.5.16] [--first 10] [--only TEXT]
                                         [--limit-s 300]

Each problem is tuned with an empty store, so nothing of the shelf is known. Then one process times
both choices of each point in turn. OUT/ENGINE-CARD-again.json has each time; the table says, for
each problem, how much longer the shelf's choice takes than the new choice: on average over the
sizes and at the worst size, both gemms of a layer together.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from tuner.devices.here import asked_here
from tuner.devices.table import Device, find_device
from tuner.engines.engine import Engine, find_engine
from tuner.families.fused_moe.problem import FusedMoe
from tuner.measure.gpu import GpuBench
from tuner.measure.workbench import Workbench
from tuner.problems.points import TRITON, Candidate, Point
from tuner.problems.results import MeasureKind, Winner
from tuner.store.exchange import ResultExchange
from tuner.store.shelf import winners_for
from tuner.tuning.report import RunReport
from tuner.tuning.request import Effort, Request, Source, prepare
from tuner.tuning.run import execute, open_source

ROUNDS = 9


def main() -> None:
    args = _arguments()
    stop_at = time.monotonic() + args.limit_s
    card, engine = find_device(asked_here("name")[0]), find_engine(args.engine)
    shelf: dict[FusedMoe, list[Winner]] = defaultdict(list)
    for winner in winners_for(card.name, engine.name, engine.version):
        if isinstance(winner.problem, FusedMoe) and args.only in winner.problem.spec():
            shelf[winner.problem].append(winner)
    step = max(1, len(shelf) // args.first)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"{engine.name}-{engine.version}-{card.name}-again.json"
    done: list[dict[str, Any]] = []
    with Workbench() as bench:
        for problem in list(shelf)[::step][: args.first]:
            if time.monotonic() > stop_at:
                break
            done.append(raced_again(problem, shelf[problem], card, engine, bench, args.out))
            path.write_text(json.dumps(done, indent=1) + "\n")
            print(line(done[-1]), flush=True)
    means = [one["mean"] for one in done]
    print(
        f"{len(done)} problems, {statistics.geometric_mean(means):.4f} on average, "
        f"{max(one['worst'] for one in done):.4f} at the worst size"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--engine", default="sglang==0.5.16")
    parser.add_argument("--first", type=int, default=10, help="so many problems, spread evenly")
    parser.add_argument("--only", default="", help="text in a problem")
    parser.add_argument("--limit-s", type=float, default=300.0)
    return parser.parse_args()


def raced_again(
    problem: FusedMoe,
    shelf: list[Winner],
    card: Device,
    engine: Engine,
    bench: Workbench,
    out: Path,
) -> dict[str, Any]:
    """Tune the problem and race both choices. Returns times in microseconds by size and gemm."""
    began = time.monotonic()
    database = out / "again.db"
    database.unlink(missing_ok=True)
    source = Source(MeasureKind.GPU, gpu="0")
    server = shelf[0].entry.server
    request = Request(problem, card, engine, source=source, effort=Effort.QUICK, server=server)
    prepared = prepare(request)
    times = open_source(request, bench)
    with ResultExchange.open(f"sqlite:///{database}") as store:
        report = execute(prepared, times, store)
    gpu = times.bench(prepared)
    assert isinstance(gpu, GpuBench)
    rows = []
    for point, pair in pairs(shelf, report):
        found = {}
        for one in dict.fromkeys(pair):
            gpu.submit([one])
            while some := gpu.poll(wait=True):
                found.update({trial.candidate: trial for trial in some})
        raced = gpu.race(list(dict.fromkeys(pair)), ROUNDS)
        old, new = (raced[one].median_us for one in pair)
        rows.append(
            {
                "M": point.batch_size,
                "gemm": str(point.part.value),
                "shelf_us": old,
                "new_us": new,
                "same": pair[0] == pair[1],
                "said": [trial.measurement.detail for trial in found.values()],
            }
        )
    ratios = by_size(rows)
    return {
        "problem": problem.spec(),
        "seconds": time.monotonic() - began,
        "driver": report.environment.driver,
        "mean": statistics.geometric_mean(ratios.values()),
        "worst": max(ratios.values()),
        "worst_at": max(ratios, key=ratios.__getitem__),
        "points": rows,
    }


def pairs(shelf: list[Winner], report: RunReport) -> list[tuple[Point, list[Candidate]]]:
    """Return, for each point, the shelf's candidate and the new candidate."""
    old = {winner.entry.point: winner.entry.config for winner in shelf}
    return [
        (entry.point, [Candidate(entry.point, c, TRITON) for c in (old[entry.point], entry.config)])
        for entry in report.entries
        if entry.point in old
    ]


def by_size(rows: list[dict[str, Any]]) -> dict[int, float]:
    """Return the shelf's time over the new time for each size, of both gemms together."""
    sums: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in rows:
        sums[row["M"]][0] += row["shelf_us"]
        sums[row["M"]][1] += row["new_us"]
    return {size: old / new for size, (old, new) in sums.items()}


def line(one: dict[str, Any]) -> str:
    same = sum(row["same"] for row in one["points"])
    return (
        f"{one['mean']:.4f} on average, {one['worst']:.4f} at M={one['worst_at']}, {same} of "
        f"{len(one['points'])} choices are the same, {one['seconds']:.0f} s: {one['problem']}"
    )


if __name__ == "__main__":
    main()
