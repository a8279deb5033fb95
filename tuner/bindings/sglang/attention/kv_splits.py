"""Compute the number of KV splits: how many parts sglang splits a sequence's cache into at decode,
at most.

A server flag sets it (`KV_SPLITS_FLAG`, 8 by default), unless the plugin gives the server a table
(`plugin/splits.py`). Releases from 0.5.12 on raise it for latent attention, because a single key
head gives the GPU too few blocks. The new number is the GPU's processors, or the context's parts of
32 tokens if these are fewer, each rounded up to a power of two. Source: `_mla_decode_kv_splits_cap`
in layers/attention/triton_backend.py of 0.5.12, 0.5.16 and 0.5.23; 0.4.4 and 0.5.2 have no such
function.

A decode file's table of splits is made from the rows of its sidecar. A row stands for a kernel at a
number of sequences. Both kernels of a number of sequences were chosen together, so their rows have
the same splits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.bindings.sglang.plugin.splits import SplitsRow, SplitsTable
from tuner.engines.engine import release_of
from tuner.errors import ExportRefused
from tuner.families.attention.problem import ENGINE_KV_SPLITS, Attention, BucketKey
from tuner.families.attention.splits import KV_SPLITS, MAX_KV_SPLITS
from tuner.problems.points import Config

KV_SPLITS_FLAG = "--triton-attention-num-kv-splits"
LATENT_SINCE = (0, 5, 12)
PLUGINS_SINCE = (0, 5, 12)  # the first examined release with plugins


def engine_kv_splits(*, latent: bool, engine_version: str | None, sm_count: int | None) -> int:
    """Return the most splits that sglang uses on a GPU with `sm_count` processors, without flags
    and with a long context.

    The default of the flag, if the version or the GPU is None. Raises BadProblem for text that is
    not a version.
    """
    if engine_version is None or not sm_count or not latent:
        return ENGINE_KV_SPLITS
    if release_of(engine_version) < LATENT_SINCE:
        return ENGINE_KV_SPLITS
    return max(ENGINE_KV_SPLITS, 1 << (sm_count - 1).bit_length())


def takes_kv_splits(engine_version: str | None) -> bool:
    """Say whether the plugin can give a release other numbers of splits. None: the newest release.

    Raises BadProblem for text that is not a version.
    """
    return engine_version is None or release_of(engine_version) >= PLUGINS_SINCE


Rows = Mapping[BucketKey, Mapping[str, Any]]  # the sidecar's rows


def at_launch(config: Config) -> Config:
    """Return the part of a configuration that the points of a number of sequences share: all but
    the splits of a length.
    """
    if not config.get(KV_SPLITS):  # none, or the engine's own rule
        return config
    return config.replace(**{KV_SPLITS: 1})


def splits_fields(config: Config) -> dict[str, int]:
    """Return the sidecar's fields of a point's splits; 0 splits: the engine's own rule."""
    if KV_SPLITS not in config:
        return {}
    return {"kv_splits": config[KV_SPLITS], "room": config[MAX_KV_SPLITS]}


def kv_splits_of(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a bundle manifest's field of the splits by cached tokens, for a row's points."""
    found = {str(p["cached_tokens"]): p["kv_splits"] for p in points if "kv_splits" in p}
    return {"kv_splits": found} if found else {}


def splits_table(problem: Attention, rows: Rows) -> SplitsTable | None:
    """Return the table; None if the problem does not choose its splits.

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
