"""Attention winners, as a store gives them back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone

from tuner.families.attention.problem import Attention, AttentionPart, parse_attention
from tuner.problems.points import Config, Point, Problem
from tuner.problems.results import (
    Compiled,
    Entry,
    Environment,
    Incumbent,
    MeasureKind,
    RunKey,
    Status,
    Totals,
    Winner,
)
from tuner.store.results import ResultStore

_SHAPE = "q_heads=32,kv_heads=4,Lq=128,Lv=128,dtype=bfloat16"
EXTEND = parse_attention(f"extend_attention:{_SHAPE}")
DECODE = parse_attention(f"decode_attention:{_SHAPE},kv_splits=8")
CHOSEN = replace(DECODE, kv_splits=None)  # its splits are chosen
MLA = parse_attention(
    "decode_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16,kv_splits=256"
)
ENVIRONMENT = Environment("NVIDIA_H200", "sglang", "0.5.16", "3.6.0", "kernels", driver="550")
_CONFIGS = {
    AttentionPart.EXTEND: {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 8, "num_stages": 2},
    AttentionPart.DECODE: {"BLOCK_N": 32, "BLOCK_H": 16, "num_warps": 8, "num_stages": 2},
    AttentionPart.REDUCE: {"num_warps": 8},
}


def point(part: AttentionPart, batch_size: int, new_tokens: int, cached_tokens: int) -> Point:
    return Point(batch_size, part, new_tokens, cached_tokens)


def entry(
    at: Point, status: Status = Status.OK, *, us: float = 100.0, own: bool = False, **changes: int
) -> Entry:
    """An entry whose time grows with the cached tokens. `own`: the engine's constants stay."""
    assert isinstance(at.part, AttentionPart)
    config = Config({**_CONFIGS[at.part], **changes})
    default = config if own else Config({**config, "num_warps": 1})
    time = us + at.cached_tokens / 1000
    return Entry(
        at,
        config,
        status,
        time,
        Compiled(Status.OK, shared_bytes=65536, n_regs=128, n_spills=0),
        {"default": Incumbent(default, Status.OK, us * 1.5 + at.cached_tokens / 1000)},
        "1.500x as fast as the engine's own constants",
    )


def usual(problem: Attention, status: Status = Status.OK) -> list[Entry]:
    """Entries at two sizes, each at two lengths of cache."""
    new = {AttentionPart.EXTEND: 512}
    points = [
        point(part, size, new.get(part, 1), cached)
        for part in problem.parts
        for size in (1, 8)
        for cached in (1024, 8000)
    ]
    return [entry(one, status) for one in points]


def chosen(
    status: Status = Status.OK, sizes: Sequence[int] = (1, 64), room: int = 64
) -> list[Entry]:
    """Entries with splits: 8 for a short cache and 32 for a long one; the engine's at 64."""
    found = []
    for part in CHOSEN.parts:
        for size in sizes:
            for cached, splits in ((1024, 8), (8192, 32)):
                own = size == 64
                numbers = {"KV_SPLITS": 0 if own else splits, "MAX_KV_SPLITS": 8 if own else room}
                at = point(part, size, 1, cached)
                found.append(entry(at, status, own=own, **numbers))
    return found


def fill(
    store: ResultStore,
    problem: Problem,
    entries: Sequence[Entry] | None = None,
    *,
    status: Status = Status.OK,
    **environment: str,
) -> None:
    """Publish entries, those of `usual` if None."""
    if entries is None:
        assert isinstance(problem, Attention)
        entries = chosen(status) if problem.chooses_splits else usual(problem, status)
    here = replace(ENVIRONMENT, **environment)
    measured = all(one.status is Status.OK for one in entries)
    kind = MeasureKind.GPU if measured else MeasureKind.PREDICT
    points = tuple(one.point for one in entries)
    run = store.begin_run(RunKey(problem, here, kind, "quick", 0, points, "s"))
    store.finish_run(run, entries, Totals())


def published(problem: Attention, one: Entry, **environment: str) -> Winner:
    here = replace(ENVIRONMENT, **environment)
    return Winner(problem, here, one, 1, datetime(2026, 11, 1, tzinfo=timezone.utc))
