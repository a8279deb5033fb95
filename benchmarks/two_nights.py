"""How many entries two nights choose otherwise where nothing has changed.

Run from the repository's root:
    .venv/bin/python benchmarks/two_nights.py [--pairs 10]
Replays recordings through the loop of `tuner tune`, with the rules for a GPU. Recorded times repeat
exactly and a GPU's do not, so each time is off by a random factor (see `TRIED` and `RACED`). A pair
of nights has two seeds and two noises. Its second night either knows nothing of the first one
(alone), or has its entries in the store (after).
Prints the table of docs/benchmarks.md and writes every pair to benchmarks/results/two_nights.json.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import optuna
from held_out import ENGINE, RECORDINGS, SEEN, UNSEEN, Case, gemm_case, moe_case

from tuner.families.dense_gemm.predict.predictor import CLEAR_GAIN
from tuner.families.fused_moe.choose import MoeChooser
from tuner.families.fused_moe.engine import moe_engine
from tuner.families.fused_moe.recording import read_recording
from tuner.families.fused_moe.tuning import policy_for as moe_policy
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Compiled, Entry, MeasureKind, Measurement, Status, Totals, Trial
from tuner.tuning.pointwise import Baselines, pointwise_plan
from tuner.tuning.search import Search
from tuner.tuning.tune import Plan, tune

# Standard deviations of a time's logarithm. On an H200, the first time of a winner or an incumbent
# differs from its raced time by 0.3 % in the median (benchmarks/results/h200: r1.csv.gz, r1.json).
# On an H100 it is 0.42 % for the median of five replays (results/h100/measure-cost.json).
TRIED = 0.005
RACED = 0.0013  # the median of nine interleaved times; see RACE_ROUNDS
RESULTS = Path("benchmarks/results/two_nights.json")
Choices = Mapping[Point, Config]


class NoisyRecording:
    """A bench, a racer and a journal: a recording whose times are off by random factors."""

    def __init__(self, case: Case, noise: int) -> None:
        self._case = case
        self._rng = random.Random(f"noise {noise}")
        self._waiting: list[Candidate] = []
        self.totals = Totals()

    def submit(self, candidates: Sequence[Candidate]) -> None:
        self._waiting += candidates

    def poll(self, wait: bool) -> list[Trial]:
        waiting, self._waiting = self._waiting, []
        return [self._trial(candidate) for candidate in waiting]

    def race(self, candidates: Sequence[Candidate], rounds: int) -> dict[Candidate, Measurement]:
        return {c: self._off(self._case.measure(c), RACED) for c in candidates}

    def trials(self) -> Sequence[Trial]:
        return ()

    def add(self, trials: Sequence[Trial]) -> None:
        pass

    def _trial(self, candidate: Candidate) -> Trial:
        recorded = self._case.trials.get(candidate)
        if recorded is None:
            missing = Status.NOT_RECORDED
            return Trial(candidate, Compiled(missing), Measurement(missing))
        return replace(recorded, measurement=self._off(recorded.measurement, TRIED))

    def _off(self, measurement: Measurement, deviation: float) -> Measurement:
        if measurement.median_us is None:
            return measurement
        factor = math.exp(self._rng.gauss(0.0, deviation))
        return replace(measurement, median_us=measurement.median_us * factor)


def plan_of(case: Case, path: Path, previous: Choices) -> Plan:
    """The plan of a run on a GPU, without what the engine ships for the key."""
    points = list(case.at)
    if "_E" not in case.name:  # the first seed is the engine's default
        configs = {point: {"default": case.seeds[point][0]} for point in points}
        baselines = Baselines(configs, frozenset())
        return pointwise_plan(points, baselines, MeasureKind.GPU, CLEAR_GAIN, previous)
    recording = read_recording(path)
    engine = moe_engine(ENGINE)
    assert recording.device is not None
    configs = {
        p: {"default": engine.default_config(recording.problem, recording.device, p.batch_size)}
        for p in points
    }
    sizes = {point.batch_size for point in points}
    policy = moe_policy(MeasureKind.GPU, one_config=False)
    moe = MoeChooser(configs, policy, sizes, previous=previous)
    return Plan(points, configs, moe, previous)


def night(case: Case, path: Path, seed: int, previous: Choices) -> list[Entry]:
    search = Search(case.spaces, list(case.at), case.seeds, case.budget, seed, case.at, case.model)
    bench = NoisyRecording(case, seed)
    plan = plan_of(case, path, previous)
    return tune(plan, search, bench, bench.trials(), bench.add, lambda trial: None, racer=bench)


def compared(case: Case, first: Choices, second: Choices) -> dict[str, object]:
    """How many entries differ, and by how much the recorded times of a size do."""
    sizes: dict[str, list[float]] = {}
    for point in case.at:
        times = case.times(point)
        both = sizes.setdefault(point.size, [0.0, 0.0])
        both[0] += times[first[point]]
        both[1] += times[second[point]]
    return {
        "entries": len(first),
        "differ": sum(first[point] != second[point] for point in first),
        "times_differ": {size: after / before - 1 for size, (before, after) in sizes.items()},
    }


def pairs(case: Case, path: Path, count: int) -> dict[str, list[dict[str, object]]]:
    found: dict[str, list[dict[str, object]]] = {"alone": [], "after": []}
    for number in range(count):
        one = {e.point: e.config for e in night(case, path, 2 * number, {})}
        for name, known in (("alone", {}), ("after", one)):
            two = {e.point: e.config for e in night(case, path, 2 * number + 1, known)}
            found[name].append(compared(case, one, two))
    return found


def cells(some: Sequence[Mapping[str, object]]) -> list[str]:
    """Entries that differ, of all; of 36; the most of one pair; the largest difference of times."""
    differ = [int(str(one["differ"])) for one in some]
    every = sum(int(str(one["entries"])) for one in some)
    times = [abs(float(t)) for one in some for t in dict(one["times_differ"]).values()]  # type: ignore[call-overload]
    worst = f"{max(times):.2%}"
    return [f"{sum(differ)} of {every}", f"{36 * sum(differ) / every:.1f}", str(max(differ)), worst]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--only", nargs="*", help="recordings, without their endings")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    found = {}
    print("| recording | the second night | entries that differ | of 36 | most | times |")
    print("|---" * 6 + "|")
    for name in options.only or (*SEEN, *UNSEEN):
        path = RECORDINGS / f"{name}.csv.gz"
        case = moe_case(path) if "_E" in name else gemm_case(path)
        found[name] = pairs(case, path, options.pairs)
        for how, some in found[name].items():
            print(f"| {name} | {how} | {' | '.join(cells(some))} |", flush=True)
    about = {"tried": TRIED, "raced": RACED, "pairs": options.pairs}
    options.out.write_text(json.dumps({"about": about, "pairs": found}) + "\n")


if __name__ == "__main__":
    main()
