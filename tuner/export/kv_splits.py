"""Which server flags the exported decode files are worth.

The number of KV splits is the server's to choose, not a launch's: a file is for one number, and a
server uses those that were made for its own. Where several numbers were measured the best one is
known, but only the operator can set it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.export.attention import AttentionFileExport, server_flags
from tuner.problems import ENGINE_KV_SPLITS, Attention, Phase
from tuner.results import Status

# Each number is measured in a run of its own, so a smaller gain over the engine's own is none.
MARGIN = 1.01

_Rows = dict[tuple[str, int, int], Mapping[str, Any]]  # (part, sequences, cached tokens)


@dataclass(frozen=True)
class ServerFlags:
    """What to start a server with for a decode problem's files."""

    problem: Attention
    flags: Mapping[str, int | str]  # none: the engine's own choice is best, or no other is known
    reason: str

    def as_json(self) -> dict[str, Any]:
        problem, flags = self.problem.spec(), dict(self.flags)
        return {"problem": problem, "flags": flags, "reason": self.reason}

    def __str__(self) -> str:
        words = " ".join(f"{name} {value}" for name, value in self.flags.items())
        return f"{self.problem.spec()}: {words or 'no flag'}; {self.reason}"


def advised_flags(files: Sequence[AttentionFileExport]) -> list[ServerFlags]:
    """Advice for each decode problem that has files for other splits than the engine's own."""
    alike: dict[tuple[Attention, str], list[AttentionFileExport]] = {}
    for file in files:
        # Latent attention is split as the engine likes, whatever a flag says.
        if file.problem.phase is Phase.DECODE and not file.problem.shares_kv:
            alike.setdefault((replace(file.problem, kv_splits=1), file.triton), []).append(file)
    return [
        _advice(sorted(group, key=lambda file: file.problem.kv_splits))
        for group in alike.values()
        if any(file.problem.kv_splits != ENGINE_KV_SPLITS for file in group)
    ]


def _advice(files: Sequence[AttentionFileExport]) -> ServerFlags:
    problems = [file.problem for file in files]
    if len(files) == 1:
        only = problems[0]
        return ServerFlags(only, server_flags(only), "the file does not count without it")
    numbers = [str(problem.kv_splits) for problem in problems]
    listed = f"{', '.join(numbers[:-1])} and {numbers[-1]} splits"
    means = _means(files)
    if means is None:
        why = f"{listed} were not measured at the same points by the same software"
        return ServerFlags(problems[0], {}, why)
    best = min(problems, key=lambda problem: means[problem])
    why = f"of {listed} the fastest"
    usual = replace(best, kv_splits=ENGINE_KV_SPLITS)
    if usual in means and best != usual:
        gain = means[usual] / means[best]
        if gain < MARGIN:
            best, why = usual, f"{best.kv_splits} splits are hardly faster"
        else:
            why = f"{gain:.3f}x as fast as {ENGINE_KV_SPLITS} splits"
    return ServerFlags(best, server_flags(best), why)


def _means(files: Sequence[AttentionFileExport]) -> dict[Attention, float] | None:
    """The geometric mean of a decode's microseconds, both stages together, for each file.

    None where the files cannot be compared: other points, other software, or predictions.
    """
    rows = [dict(_rows(file)) for file in files]
    places, environment = rows[0].keys(), next(iter(rows[0].values()))["environment"]
    for one in rows:
        if one.keys() != places or not all(_measured_in(environment, r) for r in one.values()):
            return None
    return {file.problem: _mean(one) for file, one in zip(files, rows, strict=True)}


def _rows(file: AttentionFileExport) -> Iterator[tuple[tuple[str, int, int], Mapping[str, Any]]]:
    for bucket in file.provenance["entries"]:
        for point in bucket["points"]:
            yield (bucket["part"], bucket["batch_size"], point["cached_tokens"]), point


def _measured_in(environment: object, row: Mapping[str, Any]) -> bool:
    timed = row["median_us"] is not None and row["status"] != Status.PREDICTED.value
    return timed and row["environment"] == environment


def _mean(rows: _Rows) -> float:
    total: dict[tuple[int, int], float] = {}
    for (_, batch_size, cached_tokens), row in rows.items():
        size = batch_size, cached_tokens
        total[size] = total.get(size, 0.0) + row["median_us"]
    return math.exp(sum(map(math.log, total.values())) / len(total))
