"""A process that adds trials until it is done or killed; also the samples that its tests use.

`python store_writer.py URL BATCHES` prints "ready", waits for a line, opens the store, and prints
the number of each batch once the store has it.
"""

import sys

from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import (
    Compiled,
    Environment,
    MeasureKind,
    Measurement,
    RunKey,
    Status,
    Trial,
)
from tuner.store.database import Database
from tuner.store.results import ResultStore

PROBLEM = FusedMoe(E=256, N=64, K=7168, top_k=8, dtype=Dtype.INT8_W8A8, per_channel_quant=True)
ENVIRONMENT = Environment("NVIDIA_L40S", "sglang", "0.5.16", "3.6.0", kernel_hash="ab" * 32)
POINTS = (Point(1, Gemm.UP), Point(1, Gemm.DOWN))
KEY = RunKey(
    problem=PROBLEM,
    environment=ENVIRONMENT,
    measure=MeasureKind.REPLAY,
    effort="quick",
    seed=0,
    points=POINTS,
    space="sglang",
    recording="cd" * 32,
)
BATCH = 100


def trial(number: int) -> Trial:
    """A trial of its own for each number."""
    candidate = Candidate(POINTS[number % 2], Config({"BLOCK_SIZE_M": 16, "num_stages": number}))
    return Trial(
        candidate,
        Compiled(Status.OK, shared_bytes=number),
        Measurement(Status.OK, median_us=number + 0.5, min_us=float(number), samples=3),
    )


def number_of(stored: Trial) -> int:
    return stored.candidate.config["num_stages"]


def batch(number: int) -> list[Trial]:
    return [trial(number * BATCH + i) for i in range(BATCH)]


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(url: str, batches: int) -> None:
    say("ready")
    sys.stdin.readline()
    with Database.open(url) as store:
        run = ResultStore(store).begin_run(KEY)
        for number in range(batches):
            ResultStore(store).add_trials(run, batch(number))
            say(str(number))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
