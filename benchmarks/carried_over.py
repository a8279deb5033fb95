"""How many entries of a tuned layer need no new time when the engine is upgraded.

    python benchmarks/carried_over.py --to sglang==0.5.16 > benchmarks/results/carried_over.json

The earlier result is a recording of `tuner tune` on an H200. Its finalists, and what the new
release would run without files of ours, are compiled for both releases, each with its own Triton.
The code that decides in `tuner tune` which entries stand decides it here too. No GPU is needed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path

from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.families.fused_moe.recording import read_recording
from tuner.measure.workbench import Workbench
from tuner.problems.points import Candidate
from tuner.problems.records import EarlierRun, Run, RunState
from tuner.problems.results import Compiled, MeasureKind, Trial, untimed
from tuner.tuning.request import Source
from tuner.tuning.revalidate import Revalidation
from tuner.tuning.run import TuningRun, open_run
from tuner.tuning.run_request import Request

RECORDING = Path("benchmarks/results/h200/r1.csv.gz")  # DeepSeek-R1 at TP 8, fp8, both gemms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="old", default="sglang==0.5.12")
    parser.add_argument("--to", dest="new", default="sglang==0.5.16")
    parser.add_argument("--recording", type=Path, default=RECORDING)
    args = parser.parse_args()
    recording = read_recording(args.recording)
    started = time.perf_counter()
    with Workbench() as workbench:
        old, new = (
            open_run(
                Request(
                    recording.problem,
                    find_device("H200"),
                    find_engine(spec),
                    Source(MeasureKind.REPLAY, args.recording),
                ),
                workbench,
            )
            for spec in (args.old, args.new)
        )
        out = revalidate(old, new, list(recording.trials.values()))
    out["wall_s"] = round(time.perf_counter() - started, 1)
    print(json.dumps(out, indent=1))
    print({name: out[name] for name in ("entries", "carried_over", "candidates")}, file=sys.stderr)


def revalidate(old: TuningRun, new: TuningRun, recorded: list[Trial]) -> dict[str, object]:
    entries = old._plan().chooser.choose(recorded)
    key = old._run_key()
    now = datetime.now(timezone.utc)
    run = Run(1, key, RunState.DONE, "", None, now, now)
    listed = Revalidation(EarlierRun(run, recorded, entries), new._plan()).candidates()
    candidates = list(dict.fromkeys([*new._plan().incumbent_candidates(), *listed]))
    before, after = compile_all(old, candidates), compile_all(new, candidates)
    coded = [
        replace(trial, compiled=before[trial.candidate])
        for trial in recorded
        if trial.candidate in before
    ]
    earlier = Revalidation(EarlierRun(run, coded, entries), new._plan())
    known = {one.candidate: one for one in coded}
    tried = {
        c: replace(known[c], compiled=after[c]) if c in known else untimed(c, after[c])
        for c in candidates
    }
    held = {trial.candidate.point for trial in earlier.final(tried)}
    same = sum(earlier.known(c, after[c]) is not None for c in candidates)
    return {
        "from": asdict(old.environment),
        "to": asdict(new.environment),
        "entries": len(new.points),
        "carried_over": len(held),
        "candidates": len(candidates),
        "candidates_with_the_same_code": same,
        "incumbents_that_are_new": sum(c not in known for c in candidates),
        "raced_again": [str(point) for point in new.points if point not in held],
    }


def compile_all(run: TuningRun, candidates: Iterable[Candidate]) -> dict[Candidate, Compiled]:
    compiler = run._compiler
    compiler.submit(candidates)
    found: dict[Candidate, Compiled] = {}
    while batch := compiler.poll(wait=True):
        found.update(batch)
    return found


if __name__ == "__main__":
    main()
