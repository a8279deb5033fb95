"""Report a night's changes to each watched model: new, stale, faster and left alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tuner.jobs.job import JobRequest
from workers.coverage import WatchState, WatchStatus
from workers.watches import LeftAlone

MOST_REASONS = 20  # of problems left alone, for each model and device

Place = tuple[str, str]  # a watched model and a device


def model_reports(
    watched: Sequence[WatchStatus], again: Sequence[JobRequest], left_alone: Sequence[LeftAlone]
) -> list[dict[str, Any]]:
    """Return for each watched model on each device how many problems are in each state, as JSON.

    `again` are the requests that are measured again though nothing has changed.
    """
    counts: dict[Place, Counter[WatchState]] = defaultdict(Counter)
    for one in watched:
        counts[one.request.model, one.request.device][one.standing] += 1
    measured = Counter((one.model, one.device) for one in again)
    reasons: dict[Place, dict[tuple[str, str], None]] = defaultdict(dict)
    for left in left_alone:
        reasons[left.model, left.device][left.what, left.why] = None
    return [
        {
            "model": model,
            "device": device,
            "new": counts[model, device][WatchState.MISSING],
            "stale": counts[model, device][WatchState.STALE],
            "again": measured[model, device],
            "faster": 0,  # as long as no job is done
            "up_to_date": counts[model, device][WatchState.TUNED] - measured[model, device],
            "left_alone": [
                {"what": what, "why": why} for what, why in [*reasons[model, device]][:MOST_REASONS]
            ],
        }
        for model, device in sorted({*counts, *reasons})
    ]


def with_faster(
    summary: Mapping[str, Any], outcomes: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Add to a night's summary how many problems of each model became faster."""
    faster = Counter((one["model"], one["device"]) for one in outcomes if one["faster"])
    models = summary.get("models") or ()  # earlier programs wrote none
    return {
        **summary,
        "models": [{**one, "faster": faster[one["model"], one["device"]]} for one in models],
    }


def report_line(one: Mapping[str, Any]) -> str:
    """Say a night's changes to a model on a device in one line."""
    left = len(one["left_alone"])
    said = {"new": one["new"], "stale": one["stale"], "measured again": one["again"]}
    said |= {"up to date": one["up_to_date"], "left alone": left, "faster": one.get("faster", 0)}
    counts = ", ".join(f"{count} {words}" for words, count in said.items() if count)
    return f"{one['model']} on {one['device']}: {counts}"
