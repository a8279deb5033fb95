"""How far replays of a candidate lie apart, and how many of them the search does without.

Run from the repository's root:
    .venv/bin/python benchmarks/replays_saved.py
A recording has the median and the fastest of a candidate's replays. The candidates of two searches
are counted with the recorded times: with a limit of 1.15 times the best, as it was before, and with
the one of `tuner.measure.timing`. Writes benchmarks/results/replays_saved.json.
"""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

from held_out import RECORDINGS, SEEN, UNSEEN, Case, moe_case, ours

from tuner.measure.timing import ENOUGH_US, LAUNCHES, REPLAYS, SPREAD

BEFORE = 1.15
SEARCHES = 2
RESULTS = Path("benchmarks/results/replays_saved.json")


def spreads(case: Case) -> dict[str, float]:
    """By point: what 99 of 100 candidates keep of (median - fastest) / median."""
    found: dict[str, list[float]] = {}
    for candidate, trial in case.trials.items():
        measured = trial.measurement
        if measured.median_us and measured.min_us:
            here = found.setdefault(str(candidate.point), [])
            here.append(1 - measured.min_us / measured.median_us)
    return {point: statistics.quantiles(some, n=100)[-1] for point, some in found.items()}


def replays(case: Case, limit: float) -> float:
    """Replays for each candidate that runs, if those beyond `limit` times the best get one."""
    counts = []
    for seed in range(SEARCHES):
        for times in ours(case, seed).values():
            best = math.inf
            for us in times.values():
                if us < math.inf:
                    enough = math.ceil(ENOUGH_US / LAUNCHES / us)
                    counts.append(1 if us > best * limit else min(REPLAYS, enough))
                    best = min(best, us)
    return statistics.fmean(counts)


def main() -> None:
    found = {}
    for name in (SEEN[0], UNSEEN[0]):
        case = moe_case(RECORDINGS / f"{name}.csv.gz")
        before, now = replays(case, BEFORE), replays(case, 1 / (1 - SPREAD))
        found[name] = {"spreads": spreads(case), "before": before, "now": now}
        worst = max(found[name]["spreads"].values())
        print(f"{name}: {worst:.1%} at the worst point; {before:.2f} -> {now:.2f} replays")
    RESULTS.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
