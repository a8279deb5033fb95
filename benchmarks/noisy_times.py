"""What a search loses where its times are noisy, on the fused-MoE recordings.

    .venv/bin/python benchmarks/noisy_times.py [--runs 10]

The search sees each recorded time with an error that is drawn anew, and a race then picks the truly
fastest of its FINALISTS. Prints the regret by the error's standard deviation, and writes all
regrets to benchmarks/results/noisy_times.json. `tuner.families.fused_moe.gpu` chooses the number of
launches in a graph by this.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

from held_out import RECORDINGS, SEEN, UNSEEN, Case, Found, cell, moe_case, off_by, ours

from tuner.problems.points import Candidate

NAMES = (SEEN[0], UNSEEN[0])
ERRORS = (0.0, 0.005, 0.01, 0.02)
FINALISTS = 6  # fewer than a run has
RESULTS = Path("benchmarks/results/noisy_times.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10)
    runs = range(parser.parse_args().runs)
    found: dict[str, dict[str, list[list[float]]]] = {}
    for name in NAMES:
        case = moe_case(RECORDINGS / f"{name}.csv.gz")
        found[name] = {
            str(error): [raced(case, ours(off_by(case, error, str(seed)), seed)) for seed in runs]
            for error in ERRORS
        }
        print(name, {error: cell(some) for error, some in found[name].items()}, flush=True)
    RESULTS.write_text(json.dumps({"runs": len(runs), "regrets": found}) + "\n")


def raced(case: Case, found: Found) -> list[float]:
    """By point, the regret of the truly fastest finalist."""
    regrets = []
    for point, times in found.items():
        finalists = sorted(times, key=lambda config: times[config])[:FINALISTS]
        true_us = [case.measure(Candidate(point, one)).median_us or math.inf for one in finalists]
        regrets.append(min(true_us) / min(case.times(point).values()) - 1)
    return regrets


if __name__ == "__main__":
    main()
