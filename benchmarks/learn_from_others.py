"""Whether stored trials of other keys make a search better.

Run from the repository's root:
    .venv/bin/python benchmarks/learn_from_others.py [--runs 12] [--off 0.02] [--out FILE]
Each key of `held_out.py` is searched with what a store would hold of the other keys of its family:
the trials of a search of each. The search knows nothing of them (alone), tries the best one of each
key among its first seeds (seeds), or has the trials as further data of its surrogate (trials).
With `--off`, each recorded time is off by a random factor of this standard deviation, which differs
between runs. So the figures rest on many problems, and not on the luck at a few points.
Prints the table of docs/benchmarks.md and writes every regret to
benchmarks/results/learn_from_others.json.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path

import optuna
from held_out import (
    RECORDINGS,
    SEEN,
    UNSEEN,
    Case,
    Found,
    cell,
    gemm_case,
    moe_case,
    off_by,
    ours,
    regrets,
    tried,
)

from tuner.problems.points import Config, Point
from tuner.tuning.search import _HOPELESS, Search
from tuner.tuning.track import _PER_PREDICTED, _PER_SIZE, Track

RESULTS = Path("benchmarks/results/learn_from_others.json")
SHARES = (0.6, 1.0)  # of the tries and kernels that `tune` has
WAYS = ("alone", "seeds", "trials", "both")
# N and K of each key, in octaves, and its dtype. Another dtype counts like three octaves.
SHAPES = {
    "h200_E256_N256_K7168_top8_fp8w8a8_b128": (8.0, 12.8, 3),
    "h200_E256_N64_K7168_top8_int8w8a8": (6.0, 12.8, 0),
    "h100_N2112_K7168_fp8w8a8_b128": (11.0, 12.8, 0),
    "h100_N3072_K1536_fp8w8a8_b128": (11.6, 10.6, 0),
    "h100_N5120_K4096_fp8w8a8_b128": (12.3, 12.0, 0),
    "h100_N7168_K2048_fp8w8a8_b128": (12.8, 11.0, 0),
}
# How much an octave between two keys counts in the surrogate's distance. Chosen on the seen keys.
PER_OCTAVE = 0.5


@dataclass(frozen=True)
class Stored:
    """A trial of another key."""

    config: Config
    batch_size: int
    slower: float  # log(time / best time at its point)
    predicted: float  # octaves from the best predicted time there, by the other key's device model
    away: float  # octaves between the keys


class Knowing(Search):
    """The search, whose surrogate has stored trials of other keys as further data."""

    def __init__(
        self, case: Case, seed: int, stored: Mapping[Point, Sequence[Sequence[Stored]]]
    ) -> None:
        """`stored`: at each point, the trials of each other key."""
        points = list(case.at)
        super().__init__(case.spaces, points, case.seeds, case.budget, seed, case.at, case.model)
        self._stored = stored
        self._tracks = [
            FarTrack(t.point, t.space, t.seeds, t.sample, t.model) for t in self._tracks
        ]

    def _known(self, track: Track, round_: int) -> Iterator[tuple[list[float], float]]:
        """A last coordinate is how far away a trial's key is."""
        yield from super()._known(track, round_)
        for one in chain.from_iterable(self._stored[track.point]):
            if track.space.legal(one.config):
                place = track.place(one.config)[: len(track.space.axes)]
                place += [_PER_SIZE * math.log2(one.batch_size), 0.0, 0.0]
                place += [_PER_PREDICTED * one.predicted, PER_OCTAVE * one.away]
                yield place, min(one.slower, _HOPELESS)


class FarTrack(Track):
    """A point whose own trials are at no distance."""

    def _place(self, config: Config) -> list[float]:
        return [*super()._place(config), 0.0]


@cache
def case_of(name: str, off: float, run: int) -> Case:
    """A recording; with `off`, its times as they are in this run."""
    path = RECORDINGS / f"{name}.csv.gz"
    case = moe_case(path) if "_E" in name else gemm_case(path)
    return off_by(case, off, f"{name} {run}") if off else case


@cache
def found_at(name: str, off: float, run: int) -> Found:
    """What a search of another key tried. Its seed is none that this key is searched with."""
    return ours(case_of(name, off, run), 1_000 + run)


def stored_at(name: str, point: Point, off: float, run: int) -> Iterator[list[Stored]]:
    """The trials of each other key of the family at its nearest batch size, the best one first."""
    for other in (*SEEN, *UNSEEN):
        if other == name or ("_E" in other) != ("_E" in name):
            continue
        away = math.dist(SHAPES[name], SHAPES[other])
        found = found_at(other, off, run)
        alike = [p for p in found if p.part is point.part]
        near = min(alike, key=lambda p: abs(math.log2(p.batch_size / point.batch_size)))
        times = {c: us for c, us in found[near].items() if math.isfinite(us)}
        ranked = sorted(times, key=lambda config: times[config])
        predicted = case_of(other, off, run).model(near, ranked)
        least = min(predicted.values())
        yield [
            Stored(
                config,
                near.batch_size,
                math.log(times[config] / times[ranked[0]]),
                math.log2(predicted.get(config, least) / least),
                away,
            )
            for config in ranked
        ]


def search(case: Case, way: str, stored: Mapping[Point, list[list[Stored]]], seed: int) -> Found:
    """What a search with one of `WAYS` tries."""
    if way in ("seeds", "both"):
        first = {
            point: [some[0].config for some in sorted(of, key=lambda some: some[0].away)]
            for point, of in stored.items()
        }
        case = replace(case, seeds={p: [*first[p], *case.seeds[p]] for p in case.at})
    if way in ("alone", "seeds"):
        return ours(case, seed)
    return tried(case, Knowing(case, seed, stored))


def run(name: str, off: float, runs: int, share: float) -> dict[str, list[list[float]]]:
    """The regrets at the points of a key, for each way and random seed."""
    found: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for seed in range(runs):
        case = case_of(name, off, seed)
        whole = case.budget
        fewer = int(share * whole.per_point), int(share * whole.kernels)
        case = replace(case, budget=replace(whole, per_point=fewer[0], kernels=fewer[1]))
        stored = {point: list(stored_at(name, point, off, seed)) for point in case.at}
        for way in WAYS:
            found[way].append(regrets(case, search(case, way, stored, seed)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--off", type=float, default=0.0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    names = (*SEEN, *UNSEEN)
    rows: dict[str, dict[str, dict[str, list[list[float]]]]] = {}
    for share in SHARES:
        rows[str(share)] = {}
        for name in names:
            found = run(name, options.off, options.runs, share)
            rows[str(share)][name] = found
            print(share, name, {way: cell(some) for way, some in found.items()}, flush=True)
    kept = {"runs": options.runs, "off": options.off, "regrets": rows}
    options.out.write_text(json.dumps(kept))
    groups = {
        f"{kind}, {group}": [name for name in some if ("_E" in name) == (kind == "MoE")]
        for group, some in (("seen", SEEN), ("unseen", UNSEEN))
        for kind in ("MoE", "GEMM")
    }
    print(f"\n| tries | | {' | '.join(groups)} |\n{'|---' * (len(groups) + 2)}|")
    for share, found_at_all in rows.items():
        for way in WAYS:
            some = [[r for n in of for r in found_at_all[n][way]] for of in groups.values()]
            print(f"| {float(share):.0%} | {way} | {' | '.join(map(cell, some))} |")


if __name__ == "__main__":
    main()
