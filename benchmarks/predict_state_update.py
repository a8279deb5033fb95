"""Ask the model of state updates about the winners that vLLM ships.

    python benchmarks/predict_state_update.py OUT.json [--engine vllm==0.33.0]

No times of this kernel were recorded, so this is all that the model can be held against: each entry
of the files for NVIDIA cards was the fastest of vLLM's own script. The model predicts every
configuration of the space at each entry's size. A row says how much longer the shipped winner, and
the engine's default, would take than the model's own best.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tuner.compile import Farm, KernelCompiler
from tuner.compile.environment import triton_for
from tuner.devices.table import find_device
from tuner.engines.engine import Engine, find_engine
from tuner.families.state_update.engine import ShippedFile, state_engine
from tuner.families.state_update.predict import CLEAR_GAIN, StatePredictor
from tuner.families.state_update.problem import StateUpdate, Update
from tuner.families.state_update.space import state_space
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Compiled

HEADS = 8  # of a rank: all keys of the files are multiples of it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--engine", default="vllm==0.33.0")
    args = parser.parse_args()
    engine = find_engine(args.engine)
    rows: list[dict[str, Any]] = []
    with Farm(triton=triton_for(engine)) as farm:
        for file in state_engine(engine).shipped(nvidia_only=False):
            if file.key.device.startswith("NVIDIA"):
                rows += asked(file, engine, farm)
    found = {"engine": args.engine, "summary": summary(rows), "rows": rows}
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["summary"], indent=1))


def asked(file: ShippedFile, engine: Engine, farm: Farm) -> Iterator[dict[str, Any]]:
    states, device = state_engine(engine), find_device(file.key.device)
    sizes = file.key.head_dim, file.key.state_size
    problem = StateUpdate(HEADS, *sizes, groups=1, cache_dtype=file.key.cache_dtype)
    predictor = StatePredictor(device, problem)
    binder = states.lift().binder(problem, device.target)
    compiler = KernelCompiler(farm, binder, device)
    one = {Candidate(Point(1, Update.STATE), c): c for c in state_space(problem, device).configs()}
    compiler.submit(one)
    compiled: dict[Config, Compiled] = {}
    while batch := compiler.poll(wait=True):
        compiled |= {one[candidate]: result for candidate, result in batch}
    for key, shipped in file.entries.items():
        point = Point(key // HEADS, Update.STATE)
        times = {c: predictor.predict_us(point, c, r) for c, r in compiled.items() if r.ok}
        best = min(times.values())
        default = states.incumbents(problem, device, point.batch_size)["default"]
        yield {
            "device": device.name,
            "cache_dtype": file.key.cache_dtype,
            "key": key,
            "shipped": dict(shipped),
            "shipped_by_best": times[shipped] / best,
            "default_by_best": times[default] / best,
        }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"entries": len(rows)}
    for name in ("shipped", "default"):
        ratios = [row[f"{name}_by_best"] for row in rows]
        found[name] = {
            "median": statistics.median(ratios),
            "most": max(ratios),
            "at most 5 % from the best": sum(ratio <= 1.05 for ratio in ratios),
            "the model would replace it": sum(ratio * (1 - CLEAR_GAIN) > 1 for ratio in ratios),
        }
    return found


if __name__ == "__main__":
    main()
