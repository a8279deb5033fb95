"""The steps of a job as its page lists them: trials that follow each other are one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from api.pages.names import words_of_count

MOST_BEST = 2  # best times that a step of trials names


def steps_of(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The kind, the time, the text and the number of trials of each step, the newest first."""
    steps: list[dict[str, Any]] = []
    for event in events:
        kind, data = event["kind"], event["data"]
        if kind != "trials":
            steps.append({"kind": kind, "at": event["at"], "said": _said(kind, data), "tried": 0})
            continue
        before = steps[-1] if steps and steps[-1]["kind"] == "trials" else None
        if before is None:
            before = {"kind": kind, "tried": 0, "best": {}}
            steps.append(before)
        before["tried"] += data["tried"]
        before["best"] |= data.get("best_us", {})
        before |= {"at": event["at"], "said": _trials(before["tried"], before["best"])}
    return steps[::-1]


def _trials(tried: int, best: Mapping[str, float]) -> str:
    newest = list(best.items())[-MOST_BEST:]
    return "; ".join([f"{tried:,} tried", *(f"{point} {time:.4g} µs" for point, time in newest)])


def _said(kind: str, data: Mapping[str, Any]) -> str:
    if kind == "planned":
        return f"at most {words_of_count(data['to_try'], 'configuration')}"
    said = data.get("reason") or data.get("error") or data.get("owner") or data.get("client") or ""
    return str(said)
