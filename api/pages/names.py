"""Words for the API's answers: devices, problems, states, and the steps of a job."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from tuner.jobs.job import UnreadableRequest
from tuner.models.served_as import with_sizes
from tuner.models.table import presets
from tuner.problems.registry import parse_problem
from tuner.render import gain_text

_STATUSES = {
    "ok": "measured",
    "incumbent": "the engine's own",
    "out_of_resources": "does not fit",
    "wrong_result": "wrong result",
    "compile_error": "does not compile",
    "compile_timeout": "compiled too long",
    "timed_out": "ran too long",
    "not_recorded": "not in the recording",
    "untuned": "the engine's own",
    "set_aside": "set aside",
    "nothing": "nothing here",
    "leased": "starting",
    "dead": "given up",
}
# The kinds of a job's events, as its page calls them; other kinds are their own words.
_STEPS = {
    "submitted": "posted",
    "waiting": "waits",
    "leased": "taken by a worker",
    "running": "began to try",
    "planned": "planned",
    "requeued": "given back",
    "refused": "refused by a worker",
    "retried": "queued again",
    "cancel_requested": "asked to stop",
}
_STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
MOST_BEST = 2  # best times that a step of trials names
_FIELDS = {"top_k": "top", "per_channel_quant": "per channel"}


def device_short(name: str) -> str:
    """Return a GPU's name without its vendor: H100 80GB HBM3."""
    return name.removeprefix("NVIDIA_").replace("_", " ")


def engine_words(text: str) -> str:
    """Return an engine and its version: sglang 0.5.16."""
    return text.replace("==", " ")


def status_words(status: str) -> str:
    """Return a status or state in words."""
    return _STATUSES.get(status, status.replace("_", " "))


def problem_words(text: str) -> str:
    """Return a problem's text, easier to read: fused moe · E 256 · N 64 · int8_w8a8."""
    kind, _, fields = text.partition(":")
    words = [_field_words(field) for field in fields.split(",") if field]
    return " · ".join([kind.replace("_", " "), *words])


def words_of_count(count: int, noun: str) -> str:
    """Return a number of things in words: 1 job, 2,000 jobs."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def gain_words(gain: float | None) -> str:
    """Return a gain cut to two decimals, as everywhere: 1.88×. "" without a gain."""
    return "" if gain is None else gain_text(gain).replace("x", "×")


def step_words(kind: str) -> str:
    """Return the kind of a job's event in words."""
    return _STEPS.get(kind, kind.replace("_", " "))


@lru_cache(maxsize=4096)
def model_words(model: str, problem: str) -> str:
    """Return the name of a job's model, or of its problem if no model was named.

    A model of the table has the tensor-parallel sizes that lead to the problem: deepseek-r1 TP 8.
    """
    if not model or model == problem:
        return problem_words(problem)
    if not problem or model not in {preset.name for preset in presets()}:
        return model
    return with_sizes(model, parse_problem(problem))


_REQUEST = ("problem", "device", "engine", "measure", "effort", "seed")  # fields on pages


def readable(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job; if its request cannot be read, with a text for each of its values."""
    if not job.get("unreadable"):
        return dict(job)
    stored = UnreadableRequest(job["request"], job["unreadable"])
    return {**job, "request": {"model": "", **{name: stored.text(name) for name in _REQUEST}}}


def _field_words(field: str) -> str:
    name, _, value = field.partition("=")
    if name == "dtype":
        return value
    if name in ("block", "block_shape"):
        return f"blocks {value.replace('x', '×')}"
    return f"{_FIELDS.get(name, name.replace('_', ' '))} {value}".strip()


def steps_of(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the kind, time, text and number of trials of each step, the newest first.

    Trials that follow each other are one step.
    """
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
        return f"at most {words_of_count(data['to_try'], 'configuration')} and the engine's own"
    said = data.get("reason") or data.get("error") or data.get("owner") or data.get("client") or ""
    return str(said)


def plain(value: object) -> object:
    """Return a value without characters that control text or turn its direction."""
    if not isinstance(value, str) or not _STEERS.search(value):
        return value
    return type(value)(_STEERS.sub("\N{REPLACEMENT CHARACTER}", value))
