"""The tables of "On an H200" in docs/benchmarks.md, from benchmarks/results/h200/.

python benchmarks/h200/tables.py
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tuner.families.fused_moe.problem import BATCH_SIZES, Gemm
from tuner.families.fused_moe.recording import read_recording
from tuner.problems.points import Candidate, Config, Point

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "h200"
RECORDING = ROOT / "tests/data/recordings/h200_E256_N256_K7168_top8_fp8w8a8_b128.csv.gz"
JOBS = {
    "r1": "E=256, N=256, fp8 128x128 (the R1 job)",
    "r1-seed1": "the same, another seed",
    "r1-grid": "the same, sglang's own grid",
    "e257n256": "E=257, N=256, fp8 128x128",
    "e257n512": "E=257, N=512, fp8 128x128",
    "e128n768fp8": "E=128, N=768, fp8 128x128",
    "e128n768bf16": "E=128, N=768, bfloat16",
    "e256n64int8": "E=256, N=64, int8 per channel",
}
KEYS = ("r1", "e257n256", "e257n512", "e128n768fp8", "e128n768bf16", "e256n64int8")


def load(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return loaded


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    print()


def geomean(values: Iterable[float]) -> float:
    return statistics.geometric_mean(list(values))


def layer_us(name: str) -> dict[int, dict[str, float]]:
    """Up + down of each batch size by who chose, where both were timed; re-timed in turn."""
    found: dict[int, dict[str, list[float]]] = {}
    for row in load(f"{name}-again")["rows"]:
        for who, us in row["us"].items():
            found.setdefault(row["batch_size"], {}).setdefault(who, []).append(us)
    return {
        size: {who: sum(us) for who, us in by.items() if len(us) == len(Gemm)}
        for size, by in sorted(found.items())
    }


def jobs() -> None:
    rows = []
    for name, what in JOBS.items():
        totals = load(name)["totals"]
        phase = totals["extra"]["measuring_phase_s"]
        rows.append(
            (
                what,
                f"{totals['wall_s']:.1f}",
                f"{totals['measure_s']:.1f}",
                f"{totals['measure_s'] / phase:.0%}",
                totals["measurements"],
                totals["configs_compiled"],
            )
        )
    table(["job", "wall s", "GPU s", "busy", "measurements", "kernels compiled"], rows)


def procedure() -> None:
    sampled = load("procedure")
    by_size: dict[int, list[float]] = {}
    for row in sampled["rows"]:
        by_size.setdefault(row["batch_size"], []).append(row["seconds"])
    means = {size: statistics.fmean(some) for size, some in by_size.items()}
    whole_s = statistics.fmean(means.values()) * sampled["grid"] * len(BATCH_SIZES)
    totals = load("r1")["totals"]
    table(["batch size", "mean s a configuration"], ((s, f"{m:.2f}") for s, m in means.items()))
    print(
        f"{sampled['grid']} configurations x {len(BATCH_SIZES)} batch sizes: {whole_s / 3600:.1f} h"
        f" of one GPU; the R1 job: {totals['measure_s']:.0f} s of measuring"
        f" ({whole_s / totals['measure_s']:.0f}x), {totals['wall_s']:.0f} s of wall time"
        f" ({whole_s / totals['wall_s']:.0f}x)\n"
    )


def quality() -> None:
    recorded = {
        candidate: trial.measurement.median_us
        for candidate, trial in read_recording(RECORDING).trials.items()
        if trial.measurement.median_us
    }
    chosen = {
        Point(e["batch_size"], Gemm(e["gemm"])): Config(e["config"])
        for e in load("r1-grid")["entries"]
    }
    again = layer_us("r1")
    rows, regrets = [], []
    for size in sorted({candidate.point.batch_size for candidate in recorded}):
        ours = sum(recorded[Candidate(Point(size, g), chosen[Point(size, g)])] for g in Gemm)
        best = best_pair_us(recorded, size)
        regrets.append(ours / best)
        wide = again[size]["first"] / again[size]["grid"]
        rows.append((size, f"{best:.1f}", f"{ours:.1f}", f"{ours / best - 1:.2%}", f"{wide:.3f}"))
    table(["batch size", "recording's best us", "ours us", "regret", "wide over grid"], rows)
    print(f"geometric mean of the regrets: {geomean(regrets) - 1:.2%}\n")


def best_pair_us(recorded: dict[Candidate, float], size: int) -> float:
    best: dict[tuple[Gemm, int], float] = {}
    for candidate, us in recorded.items():
        if candidate.point.batch_size == size:
            key = candidate.point.part, candidate.config["BLOCK_SIZE_M"]
            best[key] = min(us, best.get(key, math.inf))
    blocks = {block for _, block in best}
    return min(sum(best.get((gemm, block), math.inf) for gemm in Gemm) for block in blocks)


def speedups() -> None:
    ratios: dict[str, dict[str, list[float]]] = {}
    cells: dict[int, list[str]] = {size: [] for size in BATCH_SIZES}
    for name in KEYS:
        for size, us in layer_us(name).items():
            over = {who: us[who] / us["first"] for who in ("shipped", "default") if who in us}
            for who, ratio in over.items():
                ratios.setdefault(name, {}).setdefault(who, []).append(ratio)
            said = " / ".join(f"{ratio:.2f}" for ratio in over.values())
            cells[size].append(f"{us['first']:.0f}: {said}")
    heads = [JOBS[name].removesuffix(" (the R1 job)") for name in KEYS]
    table(["batch size", *heads], ([size, *row] for size, row in cells.items()))
    rows = []
    for name in KEYS:
        row = [JOBS[name].removesuffix(" (the R1 job)")]
        for who in ("shipped", "default"):
            some = ratios[name].get(who)
            row += [f"{geomean(some):.3f}", f"{min(some):.3f}"] if some else ["none", ""]
        rows.append(row)
    table(["key", "over shipped: geomean", "least", "over default: geomean", "least"], rows)
    fp8 = [r for n in KEYS if "fp8" in JOBS[n] for r in ratios[n]["shipped"]]
    others = [r for n in KEYS[1:] if "fp8" in JOBS[n] for r in ratios[n]["shipped"]]
    print(f"all fp8 keys over shipped: {geomean(fp8):.3f}; without R1's: {geomean(others):.3f}\n")


def agreement() -> None:
    first, second = (
        {(e["batch_size"], e["gemm"]): Config(e["config"]) for e in load(name)["entries"]}
        for name in ("r1", "r1-seed1")
    )
    differ = sum(first[key] != second[key] for key in first)
    ratios = {size: us["second"] / us["first"] for size, us in layer_us("r1").items()}
    worst = max(ratios, key=lambda size: abs(ratios[size] - 1))
    print(
        f"{differ} of {len(first)} entries differ; times by at most"
        f" {abs(ratios[worst] - 1):.2%} (M={worst})\n"
    )
    wide = [us["grid"] / us["first"] for us in layer_us("r1").values()]
    print(f"wide space over grid: {geomean(wide):.3f}x, {min(wide):.3f} to {max(wide):.3f}\n")


def gate() -> None:
    names = ("tuned", "shipped", "default")
    rows = []
    for row in load("gate")["rows"]:
        us = row["us"]
        over = [f"{us[name] / us['tuned']:.3f}" for name in names[1:]]
        errors = " / ".join(f"{row['error'][name]:.4f}" for name in names)
        rows.append((row["batch_size"], *(f"{us[name]:.1f}" for name in names), *over, errors))
    head = ["batch size", *(f"{name} us" for name in names), "over shipped", "over default"]
    table([*head, "error: tuned / shipped / default"], rows)
    for name in names[1:]:
        ratios = [row["us"][name] / row["us"]["tuned"] for row in load("gate")["rows"]]
        print(f"whole layer over {name}: geomean {geomean(ratios):.3f}, least {min(ratios):.3f}\n")


def planted() -> None:
    result = load("planted")
    table(["status", "candidates"], sorted(result["statuses"].items()))
    said = ("unexpected", "exported_bad", "children_left")
    print({name: result[name] for name in said}, f"{result['wall_s']:.0f} s")
    print(
        f"children replaced: {result['children_replaced']:.0f}; GPU memory before and after:"
        f" {result['gpu_mib_before']} and {result['gpu_mib_after']} MiB"
    )


def main() -> None:
    for part in (jobs, procedure, quality, speedups, agreement, gate, planted):
        print(f"### {part.__name__}\n")
        part()


if __name__ == "__main__":
    main()
