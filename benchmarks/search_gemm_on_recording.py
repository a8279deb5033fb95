"""The search of a dense GEMM on exhaustive recordings: regret, tries and kernels.

Run from the repository's root:
    .venv/bin/python benchmarks/search_gemm_on_recording.py RECORDING... [--device H100]
                     [--engine sglang==0.5.16] [--runs 5]
`gemm_gpu.py record` makes recordings. The shipped files of a recording's own shape are left out of
the seeds and of the incumbents. `search_on_recording.py` does this for fused MoE, whose two gemms
and budgets differ; what both share is `Search` itself.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from gemm_recordings import best_us, recordings, time_us
from predict_on_recording import geomean

from tuner.devices.table import Device, find_device
from tuner.engines.engine import Engine, find_engine
from tuner.families.dense_gemm.engine import gemm_engine
from tuner.families.dense_gemm.predict.predictor import GemmPredictor
from tuner.families.dense_gemm.problem import DenseGemm, Gemm
from tuner.families.dense_gemm.seeds import seeds_for
from tuner.families.dense_gemm.space import gemm_space, space_at
from tuner.families.dense_gemm.tuning import BUDGETS, FORESEEN
from tuner.measure.recording import TrialRecording
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Measurement, Status
from tuner.tuning.request import Effort
from tuner.tuning.search import Search


@dataclass(frozen=True)
class Outcome:
    """One search on one recording."""

    regrets: dict[Point, float]  # the best time that was found / the best time - 1
    tries: int
    kernels: int  # distinct configurations


def search(
    problem: DenseGemm,
    recording: TrialRecording,
    device: Device,
    engine: Engine,
    effort: Effort,
    seed: int,
) -> Outcome:
    """Points that were not recorded whole make the regret look smaller than it is."""
    gemm, points = gemm_engine(engine), list(recording.points)
    kernels, predictor = gemm.lift(), GemmPredictor(device, problem)
    choices = kernels.choices(problem, device.target)
    space = gemm_space(
        problem, device, choices, lambda c: gemm.effective(problem, c, device.target)
    )
    narrowed = {p: space_at(space, problem, device, p.batch_size) for p in points}
    own = {p: kernels.default_config(problem, p.batch_size, device.target) for p in points}
    seeds = seeds_for(
        narrowed,
        problem,
        device,
        space,
        gemm.shipped(),
        known={p: [config] for p, config in own.items()},
        foreseen={p: predictor.shortlist(p, narrowed[p].configs(), FORESEEN) for p in points},
        without=[(problem.N, problem.K)],
    )
    proposing = Search(
        {Gemm.DENSE: space},
        points,
        seeds,
        BUDGETS[effort],
        seed,
        narrowed,
        predictor.estimate_all,
    )
    asked = [Candidate(point, config) for point, config in own.items()]
    found: dict[Candidate, float | None] = {}
    while asked:
        for candidate in asked:
            found[candidate] = us = time_us(recording, candidate.point, candidate.config)
            status = Status.OK if us is not None else Status.NOT_RECORDED
            proposing.tell(candidate, Measurement(status, us))
        asked = proposing.ask()
    regrets = {
        p: min(us for c, us in found.items() if c.point == p and us) / best_us(recording, p) - 1
        for p in points
    }
    configs: set[Config] = {candidate.config for candidate in found}
    return Outcome(regrets, len(found), len(configs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recordings", nargs="+", type=Path)
    parser.add_argument("--device", default="H100")
    parser.add_argument("--engine", default="sglang==0.5.16")
    parser.add_argument("--effort", type=Effort, default=Effort.STANDARD)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    device, engine = find_device(args.device), find_engine(args.engine)
    print("| problem | points | regret | worst run | worst point | tries | kernels |")
    print("|---|---|---|---|---|---|---|")
    for problem, recording in recordings(args.recordings):
        runs = [
            search(problem, recording, device, engine, args.effort, seed)
            for seed in range(args.runs)
        ]
        means = [geomean(1 + r for r in one.regrets.values()) - 1 for one in runs]
        worst = max((r, p.batch_size) for one in runs for p, r in one.regrets.items())
        print(
            f"| {problem.spec()} | {len(recording.points)} "
            f"| {geomean(1 + m for m in means) - 1:.2%} | {max(means):.2%} "
            f"| {worst[0]:.1%} at M={worst[1]} | {runs[0].tries} "
            f"| {max(one.kernels for one in runs)} |"
        )


if __name__ == "__main__":
    main()
