"""Advise on the server flag for exported decode files without a table of KV splits.

Such a file holds for one number of splits, which is fixed when a server starts: a server ignores
the files for other numbers. If several were measured, the best is known, but only the operator can
set it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tuner.bindings.sglang.attention.export import AttentionFileExport
from tuner.bindings.sglang.attention.kv_splits import KV_SPLITS_FLAG
from tuner.export.delivery import ServerFlags
from tuner.families.attention.problem import ENGINE_KV_SPLITS, Attention
from tuner.problems.results import Status

# Each number is measured in a separate run, so a smaller gain over the default does not count.
MARGIN = 1.01

_Rows = dict[tuple[str, int, int], Mapping[str, Any]]  # (part, sequences, cached tokens)


def advised_flags(files: Sequence[AttentionFileExport]) -> list[ServerFlags]:
    """Return advice for each decode problem that has files for other splits than the default."""
    alike: dict[tuple[Attention, str], list[AttentionFileExport]] = {}
    for file in files:
        # The engine ignores the flag for latent attention, and a table of splits needs none.
        if file.problem.kv_splits and not file.problem.shares_kv:
            alike.setdefault((replace(file.problem, kv_splits=1), file.triton), []).append(file)
    return [
        _advice(sorted(group, key=_splits))
        for group in alike.values()
        if any(file.problem.kv_splits != ENGINE_KV_SPLITS for file in group)
    ]


def with_advised_flags(files: Sequence[AttentionFileExport]) -> list[AttentionFileExport]:
    """Return the files; for each decode problem the best file carries its server flag."""
    flags = {(one.problem, one.triton): one.flags for one in advised_flags(files)}
    return [file.with_flags(flags.get((file.problem, file.triton), {})) for file in files]


def _splits(file: AttentionFileExport) -> int:
    return file.problem.most_splits


def _advice(group: Sequence[AttentionFileExport]) -> ServerFlags:
    files = {_splits(file): file for file in group}
    if len(files) == 1:
        return _advise(group[0], "no other number of splits was tuned")
    *some, last = files
    listed = f"{', '.join(map(str, some))} and {last} splits"
    usual = files.get(ENGINE_KV_SPLITS)
    means = _means(files)
    if means is None:
        why = f"{listed} were not measured at the same points by the same software"
        if usual:
            return _advise(usual, f"{why}, so the engine's own stay")
        return ServerFlags(group[0].problem, group[0].triton, {}, why)
    best = min(means, key=lambda splits: means[splits])
    if usual is None or best == ENGINE_KV_SPLITS:
        return _advise(files[best], f"of {listed} the fastest")
    gain = means[ENGINE_KV_SPLITS] / means[best]
    if gain < MARGIN:
        return _advise(usual, f"{best} splits are hardly faster")
    return _advise(files[best], f"{gain:.3f}x as fast as with {ENGINE_KV_SPLITS} splits")


def _advise(file: AttentionFileExport, reason: str) -> ServerFlags:
    flags: dict[str, int | str] = {KV_SPLITS_FLAG: _splits(file)}
    return ServerFlags(file.problem, file.triton, flags, reason)


def _means(files: Mapping[int, AttentionFileExport]) -> dict[int, float] | None:
    """Return the geometric mean of decode's microseconds (both kernels), by number of splits.

    None if the files cannot be compared: other points, other software, or predictions.
    """
    rows = {splits: dict(_rows(file)) for splits, file in files.items()}
    first = next(iter(rows.values()))
    environment = next(iter(first.values()))["environment"]
    for one in rows.values():
        measured = all(_measured_in(environment, row) for row in one.values())
        if one.keys() != first.keys() or not measured:
            return None
    return {splits: _mean(one) for splits, one in rows.items()}


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
