"""The table of KV splits of a decode file, out of the rows of its sidecar.

A row stands for one kernel at one number of sequences. Both kernels of a number of sequences were
chosen together, so their rows have the same splits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.engines.sglang.plugin.splits import SplitsRow, SplitsTable
from tuner.errors import ExportRefused
from tuner.families.attention.problem import Attention, BucketKey
from tuner.families.attention.splits import KV_SPLITS, MAX_KV_SPLITS
from tuner.problems.points import Config

Rows = Mapping[BucketKey, Mapping[str, Any]]  # the sidecar's rows


def at_launch(config: Config) -> Config:
    """What the points of one number of sequences share: all but the splits of a length."""
    if not config.get(KV_SPLITS):  # none, or the engine's own rule
        return config
    return config.replace(**{KV_SPLITS: 1})


def splits_fields(config: Config) -> dict[str, int]:
    """The sidecar's fields of a point's splits; 0 splits: the engine's own rule."""
    if KV_SPLITS not in config:
        return {}
    return {"kv_splits": config[KV_SPLITS], "room": config[MAX_KV_SPLITS]}


def kv_splits_of(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A bundle manifest's field of the splits by cached tokens, for a row's points."""
    found = {str(p["cached_tokens"]): p["kv_splits"] for p in points if "kv_splits" in p}
    return {"kv_splits": found} if found else {}


def splits_table(problem: Attention, rows: Rows) -> SplitsTable | None:
    """The table; None if the problem does not choose its splits.

    Raises ExportRefused if the kernels of a number of sequences have different splits.
    """
    if not problem.chooses_splits:
        return None
    found: dict[int, SplitsRow] = {}
    for bucket, row in rows.items():
        one = _row(bucket[1], row["points"])
        if found.setdefault(one.batch_size, one) != one:
            raise ExportRefused(
                f"{problem.spec()}: the kernels for {one.batch_size} sequences have different "
                "numbers of KV splits: tune them in one run"
            )
    return SplitsTable(tuple(found[size] for size in sorted(found)))


def _row(batch_size: int, points: Sequence[Mapping[str, Any]]) -> SplitsRow:
    by_length = sorted((p["cached_tokens"], p["kv_splits"]) for p in points)
    if not all(splits for _, splits in by_length):
        return SplitsRow(batch_size, 0, ())
    return SplitsRow(batch_size, points[0]["room"], tuple(by_length))
