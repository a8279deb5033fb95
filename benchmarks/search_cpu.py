"""The CPU seconds that a search takes, for DeepSeek-R1's layer at TP 8.

Run from the repository's root, on one core and on all:
    taskset -c 0 .venv/bin/python benchmarks/search_cpu.py [OUT.json]
    .venv/bin/python benchmarks/search_cpu.py [OUT.json]
The job has all batch sizes and the wide space, as on a GPU. Nothing is compiled or measured: a
candidate's time is made up from its text, so that another version of the search asks the same.
`asked` is a hash of all candidates in their order.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import sys
import time
from pathlib import Path

from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.problems.points import Candidate
from tuner.problems.registry import parse_problem
from tuner.problems.results import MeasureKind, Measurement, Status
from tuner.tuning.request import Source
from tuner.tuning.run import open_run
from tuner.tuning.run_request import Request

LAYER = "fused_moe:E=256,N=256,K=7168,top_k=8,dtype=fp8_w8a8,block_shape=128x128"


def made_up_us(candidate: Candidate) -> float:
    """A bowl whose bottom moves with the batch size, with a fixed error for each configuration."""
    bottom = 3 + math.log2(candidate.point.batch_size) / 10
    octaves = sum(abs(math.log2(max(value, 1)) - bottom) for value in candidate.config.values())
    error = random.Random(candidate.config.key).random() / 5
    return 1 + 10 * octaves * (1 + error)


def main() -> None:
    request = Request(
        problem=parse_problem(LAYER),
        device=find_device("H200"),
        engine=find_engine("sglang==0.5.16"),
        source=Source(MeasureKind.GPU),
    )
    run = open_run(request)
    started = time.process_time()
    search = run._search()
    before = time.process_time() - started
    asked, rounds = hashlib.sha256(), []
    tries = 0
    while True:
        started = time.process_time()
        candidates = search.ask()
        rounds.append(round(time.process_time() - started, 2))
        if not candidates:
            break
        tries += len(candidates)
        for candidate in candidates:
            asked.update(f"{candidate.point} {candidate.config.key}\n".encode())
            search.tell(candidate, Measurement(Status.OK, made_up_us(candidate)))
    found = {
        "points": len(run.points),
        "tries": tries,
        "before_the_first_try_s": round(before, 2),
        "rounds_s": rounds,
        "cpu_s": round(before + sum(rounds), 2),
        "asked": asked.hexdigest(),
    }
    print(json.dumps(found, indent=1))
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
