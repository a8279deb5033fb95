"""Predictions for attention against the H200 sweep: what they choose, and what that would cost.

Run from the repository's root:
    .venv/bin/python benchmarks/predict_attention_on_sweep.py [OUT.json]
Prints the tables of docs/predict.md, "Attention".
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.devices.table import find_device
from tuner.families.attention.predict.predictor import CLEAR_GAIN, AttentionPredictor
from tuner.families.attention.predict.steps import AttentionConstants
from tuner.families.attention.problem import Attention, Stage, parse_attention
from tuner.families.attention.space import smaller_configs
from tuner.measure.recording import read_trials
from tuner.problems.points import Config, Point
from tuner.problems.results import Trial

SWEEP = Path("benchmarks/results/h200/attention_sweep.csv.gz")
RESULT = Path("benchmarks/results/predict_attention.json")
# Attention's own constants were set on these shapes alone: (query heads, key heads, Lq).
SET_ON = {(32, 8, 128), (32, 8, 64), (16, 1, 576)}
THRESHOLDS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
MOST_LOST = 1.02  # times the engine's constants: what a threshold should not let pass
NEAR = 2.5  # times the best: beyond, nobody cares how well slow configurations are told apart
SMALL_LIMIT = 101_376  # bytes of shared memory: a block's on sm_86, sm_89 and sm_120

Score = Callable[[Attention, Trial], float]


@dataclass(frozen=True)
class Verdict:
    """One point: the engine's own constants, what was predicted to be best, and what was."""

    problem: Attention
    point: Point
    own: Trial
    chosen: Trial
    best: Trial
    gain: float  # predicted, of the chosen one over the engine's constants
    bias: float  # geometric mean of score / time within NEAR
    error: float  # standard deviation of log(score / time) there

    @property
    def to_own(self) -> float:
        return time_us(self.chosen) / time_us(self.own)

    @property
    def held_out(self) -> bool:
        return (self.problem.q_heads, self.problem.kv_heads, self.problem.Lq) not in SET_ON

    def applied(self, threshold: float) -> float:
        """Time over the engine's constants', which stay where the gain is not clear."""
        return self.to_own if 1 / self.gain < 1 - threshold else 1.0


def main() -> None:
    own = own_configs()
    trials = {
        problem: list(read_trials(SWEEP, problem).trials.values())
        for problem in dict.fromkeys(problem for problem, _ in own)
    }
    verdicts = judge(trials, own, predicted(AttentionConstants()))
    print("| problem | point | own us | best us | chosen | us | of own | predicted |")
    print("|---|---|---|---|---|---|---|---|")
    for v in verdicts:
        print(line(v))
    found = {"points": [as_json(v) for v in verdicts], **summaries(verdicts)}
    found["sensitivity"] = sensitivity(trials, own)
    found["without_room"] = without_room(trials, own)
    for name in ("groups", "thresholds", "left_out", "sensitivity", "without_room"):
        print(f"\n{name}")
        for row in found[name]:
            print("  ", row)
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULT
    out.write_text(json.dumps(found, indent=1) + "\n")


def own_configs() -> dict[tuple[Attention, Point], Config]:
    """The engine's constants at each point of the sweep."""
    with gzip.open(SWEEP, "rt", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["is_default"] == "1"]
    found = {}
    for row in rows:
        sizes = [int(row[name]) for name in ("batch_size", "new_tokens", "cached_tokens")]
        point = Point(sizes[0], Stage(row["part"]), *sizes[1:])
        pairs = (pair.partition("=") for pair in row["config"].split(","))
        config = Config({name: int(value) for name, _, value in pairs})
        found[parse_attention(row["problem"]), point] = config
    return found


def predicted(constants: AttentionConstants) -> Score:
    """What a prediction run chooses by."""
    device = find_device("H200")
    models: dict[Attention, AttentionPredictor] = {}

    def score(problem: Attention, trial: Trial) -> float:
        if problem not in models:
            models[problem] = AttentionPredictor(device, problem, constants)
        measured = models[problem].measure(trial.candidate, trial.compiled)
        return measured.median_us or math.inf

    return score


def judge(
    trials: Mapping[Attention, Sequence[Trial]],
    own: Mapping[tuple[Attention, Point], Config],
    score: Score,
    limit_bytes: float = math.inf,
) -> list[Verdict]:
    verdicts = []
    for (problem, point), config in own.items():
        here = [t for t in trials[problem] if t.candidate.point == point and t.measurement.timed]
        mine = next(t for t in here if t.candidate.config == config)
        some = [t for t in here if (t.compiled.shared_bytes or 0) <= limit_bytes]
        scores = {id(t): score(problem, t) for t in here}
        chosen = min(some, key=lambda t: (scores[id(t)], t.candidate.config.key))
        best = min(some, key=time_us)
        near = [t for t in some if time_us(t) <= NEAR * time_us(best)]
        logs = [math.log(scores[id(t)] / time_us(t)) for t in near]
        gain = scores[id(mine)] / scores[id(chosen)]
        bias, error = math.exp(statistics.mean(logs)), statistics.pstdev(logs)
        verdicts.append(Verdict(problem, point, mine, chosen, best, gain, bias, error))
    return verdicts


def time_us(trial: Trial) -> float:
    return trial.measurement.median_us or math.inf


def summaries(verdicts: Sequence[Verdict]) -> dict[str, list[dict[str, Any]]]:
    tiled = [v for v in verdicts if v.point.part is not Stage.REDUCE]
    groups = {
        "all with tiles": tiled,
        "constants set on": [v for v in tiled if not v.held_out],
        "held out": [v for v in tiled if v.held_out],
        "held out, extend": [v for v in tiled if v.held_out and v.point.part is not Stage.DECODE],
        "held out, decode": [v for v in tiled if v.held_out and v.point.part is Stage.DECODE],
        "reduce": [v for v in verdicts if v.point.part is Stage.REDUCE],
    }
    return {
        "groups": [{"group": name, **summary(some, CLEAR_GAIN)} for name, some in groups.items()],
        "thresholds": [{"threshold": t, **summary(verdicts, t)} for t in THRESHOLDS],
        "left_out": [left_out(verdicts, problem) for problem in {v.problem: 0 for v in verdicts}],
    }


def summary(verdicts: Sequence[Verdict], threshold: float) -> dict[str, Any]:
    """Times over the engine's own constants'; kept: where those stayed."""
    applied = [v.applied(threshold) for v in verdicts]
    return {
        "points": len(verdicts),
        "room": _geomean([time_us(v.best) / time_us(v.own) for v in verdicts]),
        "first_choice": _geomean([v.to_own for v in verdicts]),
        "first_choice_worst": round(max(v.to_own for v in verdicts), 3),
        "applied": _geomean(applied),
        "worst": round(max(applied), 3),
        "kept": sum(1 / v.gain >= 1 - threshold for v in verdicts),
        "regret": _geomean([time_us(v.chosen) / time_us(v.best) for v in verdicts]),
    }


def left_out(verdicts: Sequence[Verdict], problem: Attention) -> dict[str, Any]:
    """The least threshold that loses nothing on the other problems, applied to this one."""
    others = [v for v in verdicts if v.problem != problem]
    mine = [v for v in verdicts if v.problem == problem]
    fine = [t for t in THRESHOLDS if summary(others, t)["worst"] <= MOST_LOST]
    threshold = min(fine, default=THRESHOLDS[-1])
    return {"problem": problem.spec(), "threshold": threshold, **summary(mine, threshold)}


def sensitivity(
    trials: Mapping[Attention, Sequence[Trial]], own: Mapping[tuple[Attention, Point], Config]
) -> list[dict[str, Any]]:
    """Each of attention's constants 50 % smaller and larger."""
    rows = []
    for field in dataclasses.fields(AttentionConstants):
        if field.name == "common":
            continue
        value = getattr(AttentionConstants(), field.name)
        row: dict[str, Any] = {"constant": field.name, "value": value}
        for name, factor in (("less", 0.5), ("more", 1.5)):
            changed = dataclasses.replace(AttentionConstants(), **{field.name: value * factor})
            found = summary(judge(trials, own, predicted(changed)), CLEAR_GAIN)
            row |= {name: found["applied"], f"{name}_worst": found["worst"]}
        rows.append(row)
    return rows


def without_room(
    trials: Mapping[Attention, Sequence[Trial]], own: Mapping[tuple[Attention, Point], Config]
) -> list[dict[str, Any]]:
    """Where the engine's constants pass a smaller limit: the safe rule, and the prediction."""
    rows = []
    for v in judge(trials, own, predicted(AttentionConstants()), SMALL_LIMIT):
        if (v.own.compiled.shared_bytes or 0) <= SMALL_LIMIT:
            continue
        here = {t.candidate.config: t for t in trials[v.problem] if t.candidate.point == v.point}
        safe = next(
            here[config]
            for config in smaller_configs(v.own.candidate.config)
            if (here[config].compiled.shared_bytes or 0) <= SMALL_LIMIT
        )
        rows.append(
            {
                "problem": v.problem.spec(),
                "point": v.point.size,
                "best_us": round(time_us(v.best), 1),
                "predicted_us": round(time_us(v.chosen), 1),
                "safe": safe.candidate.config.key,
                "safe_us": round(time_us(safe), 1),
            }
        )
    return rows


def line(v: Verdict) -> str:
    chosen = ", ".join(f"{n}" for n in v.chosen.candidate.config.values())
    name = v.problem.spec().replace("_attention", "").replace(",dtype=bfloat16", "")
    star = " *" if v.held_out else ""
    return (
        f"| {name}{star} | {v.point} | {time_us(v.own):.1f} | {time_us(v.best):.1f} | {chosen} "
        f"| {time_us(v.chosen):.1f} | {v.to_own:.3f} | {1 / v.gain:.3f} |"
    )


def as_json(v: Verdict) -> dict[str, Any]:
    return {
        "problem": v.problem.spec(),
        "held_out": v.held_out,
        **v.point.as_json(),
        "own_us": round(time_us(v.own), 2),
        "best_us": round(time_us(v.best), 2),
        "chosen_us": round(time_us(v.chosen), 2),
        "chosen": v.chosen.candidate.config.key,
        "best": v.best.candidate.config.key,
        "predicted_gain": round(v.gain, 3),
        "bias": round(v.bias, 3),
        "error": round(v.error, 3),
    }


def _geomean(values: Sequence[float]) -> float:
    return round(statistics.geometric_mean(values), 3)


if __name__ == "__main__":
    main()
