"""Fused-MoE predictions beside the engine's own choice: what a threshold would win and lose.

Run from the repository's root:
    .venv/bin/python benchmarks/predict_moe_thresholds.py [OUT.json]
Prints the tables of docs/predict.md, "When a prediction replaces the engine's choice".

At each batch size of a recording, the chooser of a prediction run chooses up and down together,
among all recorded configurations. The incumbent is what the engine's heuristic runs, or the entry
that the engine ships, or, as the hardest test, each pair in turn of the TUNED fastest
configurations of each gemm and BLOCK_SIZE_M, as if somebody had tuned it. Files for the
recording's own key and its twins are left out of the corpus.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from predict_on_recording import corpus_without

from tuner.devices.table import Device, find_device
from tuner.engines.engine import find_engine
from tuner.families.fused_moe.baselines import baseline_configs
from tuner.families.fused_moe.choose import Policy, choose
from tuner.families.fused_moe.engine import MoeEngine, moe_engine
from tuner.families.fused_moe.predict.predictor import Predictor
from tuner.families.fused_moe.problem import Gemm
from tuner.families.fused_moe.recording import Recording, read_recording
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Trial

RECORDINGS = {
    "fp8": Path("tests/data/recordings/h200_E256_N256_K7168_top8_fp8w8a8_b128.csv.gz"),
    "int8": Path("tests/data/recordings/h200_E256_N64_K7168_top8_int8w8a8.csv.gz"),
    "fp8, search": Path("benchmarks/results/h200/r1.csv.gz"),
}
RESULT = Path("benchmarks/results/predict_moe_thresholds.json")
TRITON = "3.6.0"
THRESHOLDS = (0.0, 0.02, 0.05, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3)
TUNED = 10  # configurations of each gemm and BLOCK_SIZE_M that stand as tuned baseline_configs
NOISE = 0.004  # of a GPU's times: what is slower by less is not truly slower

Pair = dict[Gemm, Config]


@dataclass(frozen=True)
class Verdict:
    """One batch size under one threshold; times are the recorded ones, up and down together."""

    recording: str
    incumbent: str  # "default", "shipped" or "tuned"
    threshold: float
    batch_size: int
    replaced: bool
    chosen_us: float
    incumbent_us: float
    best_us: float
    predicted: float  # predicted time of the chosen pair over the incumbent's

    @property
    def ratio(self) -> float:
        return self.chosen_us / self.incumbent_us


def main() -> None:
    verdicts = [verdict for name, path in RECORDINGS.items() for verdict in judge(name, path)]
    rows = [row for which in ("default", "shipped", "tuned") for row in summaries(verdicts, which)]
    print("| incumbent | recording | threshold | replaced | slower | worst | time | regret |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['incumbent']} | {row['recording']} | {row['threshold']:.0%} "
            f"| {row['replaced']} of {row['points']} | {row['slower']} | {row['worst']:.3f} "
            f"| {row['time']:.3f} | {row['regret']:.1%} |"
        )
    found = {"summaries": rows, "points": [as_json(v) for v in verdicts if v.incumbent != "tuned"]}
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULT
    out.write_text(json.dumps(found, indent=1) + "\n")


def judge(name: str, path: Path) -> Iterator[Verdict]:
    recording, engine = read_recording(path), moe_engine(find_engine("sglang==0.5.16"))
    device = recording.device or find_device("H200")
    corpus = corpus_without(recording, engine.shipped())
    predictor = Predictor(device, recording.problem, corpus)
    timed = [t for t in recording.trials.values() if t.compiled.ok and t.measurement.timed]
    predicted = [replace(t, measurement=predictor.measure(t.candidate, t.compiled)) for t in timed]
    known = {t.candidate: t.measurement.median_us or 0.0 for t in timed}
    scores = {t.candidate: t.measurement.median_us or 0.0 for t in predicted}
    yield from judge_tuned(name, known, scores, chosen(predicted, bare(recording), 0.0))
    for which, points in incumbents_of(engine, recording, device).items():
        for threshold in THRESHOLDS:
            pairs = chosen(predicted, points, threshold)
            for size, pair in pairs.items():
                own = {gemm: points[Point(size, gemm)][which] for gemm in pair}
                yield Verdict(
                    name,
                    which,
                    threshold,
                    size,
                    pair != own,
                    total(known, size, pair),
                    total(known, size, own),
                    best(known, size),
                    total(scores, size, pair) / total(scores, size, own),
                )


def bare(recording: Recording) -> dict[Point, Mapping[str, Config]]:
    """The points without an incumbent: the first choice, whatever it would replace."""
    return {point: {} for point in recording.points}


def judge_tuned(
    name: str,
    known: Mapping[Candidate, float],
    scores: Mapping[Candidate, float],
    first: Mapping[int, Pair],
) -> Iterator[Verdict]:
    """Pairs that are among the truly fastest, each as if it were the incumbent."""
    for size, pair in first.items():
        least = best(known, size)
        us, score = total(known, size, pair), total(scores, size, pair)
        for own in fastest_pairs(known, size):
            own_us, gain = total(known, size, own), score / total(scores, size, own)
            for threshold in THRESHOLDS:
                replaced = own != pair and gain < 1 - threshold
                chosen_us = us if replaced else own_us
                yield Verdict(
                    name, "tuned", threshold, size, replaced, chosen_us, own_us, least, gain
                )


def fastest_pairs(known: Mapping[Candidate, float], size: int) -> Iterator[Pair]:
    blocks: dict[int, dict[Gemm, list[Config]]] = {}
    for candidate in sorted(known, key=lambda c: (known[c], c.config.key)):
        if candidate.point.batch_size == size:
            block = blocks.setdefault(candidate.config["BLOCK_SIZE_M"], {})
            block.setdefault(candidate.point.part, []).append(candidate.config)
    for block in blocks.values():
        for up in block.get(Gemm.UP, [])[:TUNED]:
            for down in block.get(Gemm.DOWN, [])[:TUNED]:
                yield {Gemm.UP: up, Gemm.DOWN: down}


def incumbents_of(
    engine: MoeEngine, recording: Recording, device: Device
) -> dict[str, dict[Point, Mapping[str, Config]]]:
    """By kind, the incumbents of the recording's points, all of which the recording has timed."""
    sizes = {point.batch_size for point in recording.points}
    every = baseline_configs(engine, recording.problem, device, TRITON, tuple(Gemm), sizes)
    found: dict[str, dict[Point, Mapping[str, Config]]] = {}
    for point in recording.points:
        for which, config in every[point].items():
            found.setdefault(which, {})[point] = {which: config}
    return found


def chosen(
    predicted: Sequence[Trial], points: Mapping[Point, Mapping[str, Config]], threshold: float
) -> dict[int, Pair]:
    sizes = {point.batch_size for point in points}
    found: dict[int, Pair] = {}
    for entry in choose(predicted, points, Policy(noise=threshold, tie=0.0), sizes):
        found.setdefault(entry.point.batch_size, {})[entry.point.part] = entry.config
    return found


def total(times: Mapping[Candidate, float], size: int, pair: Pair) -> float:
    return sum(times[Candidate(Point(size, gemm), config)] for gemm, config in pair.items())


def best(times: Mapping[Candidate, float], size: int) -> float:
    """The least recorded time of a pair that shares its BLOCK_SIZE_M."""
    least: dict[int, dict[Gemm, float]] = {}
    for candidate, time_us in times.items():
        if candidate.point.batch_size == size:
            block = least.setdefault(candidate.config["BLOCK_SIZE_M"], {})
            gemm = candidate.point.part
            block[gemm] = min(block.get(gemm, time_us), time_us)
    return min(sum(some.values()) for some in least.values() if len(some) == len(Gemm))


def summaries(verdicts: Sequence[Verdict], which: str) -> Iterator[dict[str, Any]]:
    for recording in (*RECORDINGS, "all"):
        for threshold in THRESHOLDS:
            some = [
                v
                for v in verdicts
                if (v.incumbent, v.threshold) == (which, threshold)
                and recording in (v.recording, "all")
            ]
            if some:
                yield {
                    "incumbent": which,
                    "recording": recording,
                    "threshold": threshold,
                    "points": len(some),
                    "replaced": sum(v.replaced for v in some),
                    "slower": sum(v.ratio > 1 + NOISE for v in some),
                    "worst": round(max(v.ratio for v in some), 3),
                    "time": round(statistics.geometric_mean(v.ratio for v in some), 3),
                    "regret": round(
                        statistics.geometric_mean(v.chosen_us / v.best_us for v in some) - 1, 4
                    ),
                }


def as_json(v: Verdict) -> dict[str, Any]:
    return {
        "recording": v.recording,
        "incumbent": v.incumbent,
        "threshold": v.threshold,
        "batch_size": v.batch_size,
        "replaced": v.replaced,
        "chosen_us": round(v.chosen_us, 2),
        "incumbent_us": round(v.incumbent_us, 2),
        "best_us": round(v.best_us, 2),
        "predicted": round(v.predicted, 3),
    }


if __name__ == "__main__":
    main()
