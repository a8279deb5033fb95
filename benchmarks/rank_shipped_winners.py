"""Where the winners that an engine ships stand under the model, on cards without a recording.

Run from the repository's root:
    .venv/bin/python benchmarks/rank_shipped_winners.py [--vendor AMD] [--engine sglang==0.5.16]
Prints the second "Predict" table of docs/benchmarks.md. A file's name does not say the hidden
size nor the top-k; 4,096 (7,168 from 128 experts on) and 8 (2 below 32 experts) stand in. Each
file is ranked with itself and its twins on other cards left out of the corpus. A rank is a
percentile among the legal configurations: 0 is the best, and a random one is at 50.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from tuner.devices.table import Device, devices
from tuner.engines.config_files import AMD_OPTIONS
from tuner.engines.engine import find_engine
from tuner.errors import BadProblem
from tuner.families.fused_moe.engine import ShippedFile, moe_engine
from tuner.families.fused_moe.predict.predictor import Predictor
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.families.fused_moe.space import space_for
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config, Point

BATCH_SIZES = (1, 16, 128, 1024, 4096)


@dataclass(frozen=True)
class Rank:
    """A shipped winner among the legal configurations."""

    percentile: float
    excess: float  # predicted time over the best predicted - 1


def problem_of(file: ShippedFile) -> FusedMoe | None:
    key = file.key
    dtype = Dtype(key.dtype) if key.dtype else Dtype.BFLOAT16
    grouped = dtype is Dtype.INT4_W4A16
    channels = key.per_channel_quant or (dtype is Dtype.INT8_W8A8 and not key.block_shape)
    try:
        return FusedMoe(
            key.E,
            key.intermediate_size,
            7168 if key.E >= 128 else 4096,
            min(key.E, 8 if key.E >= 32 else 2),
            dtype,
            (0, 128) if grouped else key.block_shape,
            channels,
        )
    except BadProblem:
        return None


def ranks(
    file: ShippedFile, problem: FusedMoe, device: Device, predictor: Predictor
) -> Iterator[Rank]:
    """Of the entries at BATCH_SIZES; of the sum of both gemms, as such files are tuned."""
    gemms = (Gemm.DOWN,) if file.key.gemm is Gemm.DOWN else (Gemm.UP, Gemm.DOWN)
    legal = set.intersection(*(set(space_for(problem, device, g).configs()) for g in gemms))
    for batch_size in BATCH_SIZES:
        entry = file.entries.get(batch_size)
        # The model knows nothing of the options of AMD's compiler, so tiles alone are ranked.
        winner = Config({k: v for k, v in (entry or {}).items() if k not in AMD_OPTIONS})
        if winner not in legal:
            continue
        scores: dict[Config, float] = defaultdict(float)
        for gemm in gemms:
            for config, score in predictor.estimate_all(Point(batch_size, gemm), legal).items():
                scores[config] += score
        if winner in scores:
            better = sum(score < scores[winner] for score in scores.values())
            best = min(scores.values())
            yield Rank(100 * better / len(scores), scores[winner] / best - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vendor", default="NVIDIA", help="the first word of the cards' names")
    parser.add_argument("--engine", default="sglang==0.5.16")
    asked = parser.parse_args()
    by_name = {device.name: device for device in devices() if device.vendor == asked.vendor}
    shipped = moe_engine(find_engine(asked.engine)).shipped(nvidia_only=False)
    files = [f for f in shipped if f.entries and f.key.device.startswith(asked.vendor)]
    groups: dict[tuple[str, str], list[tuple[Rank, Rank]]] = defaultdict(list)
    for file in files:
        device, problem = by_name.get(file.key.device), problem_of(file)
        if device is None or problem is None:
            continue
        others = [
            f for f in files if not (abs(f.key.E - file.key.E) <= 1 and f.key.N == file.key.N)
        ]
        alone = ranks(file, problem, device, Predictor(device, problem))
        both = ranks(file, problem, device, Predictor(device, problem, others))
        groups[problem.dtype.value, device.target.name].extend(zip(alone, both, strict=True))
    print("| dtype | arch | entries | model alone: median rank | within 10 % of it | + corpus |")
    print("|---|---|---|---|---|---|")
    for dtype, arch in sorted(groups, key=lambda group: (group[0], len(group[1]), group[1])):
        found = groups[dtype, arch]
        if found:
            _row(dtype, arch, found)
    _row("all", "", [pair for found in groups.values() for pair in found])


def _row(dtype: str, arch: str, found: list[tuple[Rank, Rank]]) -> None:
    medians = [statistics.median(pair[i].percentile for pair in found) for i in (0, 1)]
    close = sum(pair[0].excess <= 0.1 for pair in found) / len(found)
    print(
        f"| {dtype} | {arch} | {len(found)} | {medians[0]:.1f} % | {close:.0%} "
        f"| {medians[1]:.1f} % |"
    )


if __name__ == "__main__":
    main()
