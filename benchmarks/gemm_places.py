"""How much the ratio of two GEMM configurations' times differs between two processes.

    python benchmarks/gemm_places.py race OUT.json [--shapes 2112x7168,512x7168]
    python benchmarks/gemm_places.py compare OUT1.json OUT2.json ...

`race` needs a GPU. It times the default, the shipped and the tuned entry and the three
fastest recorded ones in turn, at several numbers of places in memory and of rounds. `compare`
prints how far the ratios of two processes lie apart. The tuned entries are those of
benchmarks/results/h100.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gemm_recordings import recordings

from tuner.families.dense_gemm.problem import Gemm, parse_dense_gemm
from tuner.measure.messages import point_fields
from tuner.problems.points import Config, Point

TUNED = Path("benchmarks/results/h100/tune-deepseek-r1-sglang0.5.16.json")
RECORDINGS = sorted(Path("tests/data/recordings").glob("h100_N*_K*.csv.gz"))
SETTINGS = [(1, 16), (1, 64), (2, 32), (4, 16), (4, 32), (4, 64)]  # (places, rounds in all)
SIZES = (1, 8, 16, 64, 256, 1024, 4096)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["race", "compare"])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--shapes", default="2112x7168,7168x2048,3072x1536,512x7168")
    args = parser.parse_args()
    if args.part == "race":
        args.files[0].write_text(json.dumps(list(race(args.shapes.split(",")))) + "\n")
    else:
        compare([json.loads(path.read_text()) for path in args.files])


def race(shapes: Sequence[str]) -> Iterator[dict[str, Any]]:
    from tuner.families.dense_gemm import batch, gpu  # noqa: PLC0415  # they import torch

    recorded = dict(recordings(RECORDINGS))
    for shape in json.loads(TUNED.read_text())["shapes"]:
        problem = parse_dense_gemm(shape["problem"])
        if f"{problem.N}x{problem.K}" not in shapes:
            continue
        setup = {
            "engine": "sglang==0.5.16",
            "lifted_dir": tempfile.gettempdir(),
            "seed": 1,
            "points": [point_fields(Point(max(SIZES), Gemm.DENSE))],
        }
        session = gpu.GemmOnGpu(problem, setup)
        for row in (row for row in shape["sizes"] if row["M"] in SIZES):
            point = Point(row["M"], Gemm.DENSE)
            configs = [Config(fields) for fields in row["configs"].values()]
            if problem in recorded:
                trials = recorded[problem].trials.values()
                timed = [t for t in trials if t.candidate.point == point and t.measurement.timed]
                timed.sort(key=lambda trial: trial.measurement.median_us or math.inf)
                configs += [trial.candidate.config for trial in timed[:3]]
            request = {
                **point_fields(point),
                "configs": [dict(config) for config in dict.fromkeys(configs)],
            }
            times = {}
            for places, rounds in SETTINGS:
                batch.PLACES = places
                session._batches.__dict__.pop("_moved_weights", None)
                answer = session.race({**request, "rounds": 2 * rounds // places})
                times[f"{places}x{rounds}"] = [m["median_us"] for m in answer["measurements"]]
            yield {"problem": problem.spec(), "M": row["M"], "us": times}


def compare(files: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    print("| places | rounds in all | median | p90 | p99 | largest |")
    print("|---|---|---|---|---|---|")
    for places, rounds in SETTINGS:
        name = f"{places}x{rounds}"
        spread = sorted(
            abs(one - other)
            for rows in zip(*files, strict=True)
            for a, b in itertools.combinations(range(len(rows[0]["us"][name])), 2)
            for one, other in itertools.combinations([_ratio(r["us"][name], a, b) for r in rows], 2)
        )
        shown = (spread[int(len(spread) * share)] for share in (0.5, 0.9, 0.99))
        cells = " | ".join(f"{value:.2%}" for value in (*shown, spread[-1]))
        print(f"| {places} | {rounds} | {cells} |")


def _ratio(times_us: Sequence[float], a: int, b: int) -> float:
    return math.log(times_us[a] / times_us[b])


if __name__ == "__main__":
    main()
