"""When each kernel of a trace ran and which launch it came from, kept compactly.

The marks with which engines say what a step does.

sglang 0.5.12 and later: `step[DECODE bs=8]`, `step[EXTEND bs=1 toks=512]`
(srt/utils/profile_utils.py, build_step_span_name). vLLM 0.15.1 and later:
`execute_context_1(512)_generation_8(8)`, and with detailed_trace_annotation
`execute_520_context_1(sq512sk512..)_generation_8(sq8sk..)` (v1/worker/gpu_worker.py,
annotate_profile).
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.errors import MalformedTrace
from tuner.profile.events import trace_items
from tuner.profile.profile import Phase

_SGLANG = re.compile(r"step\[(?P<mode>\w+) bs=(?P<sequences>\d{1,7})(?: toks=(?P<tokens>\d{1,9}))?")
_VLLM = re.compile(
    r"execute_(?:\d+_)?context_(?P<prompts>\d{1,7})\((?:sq)?(?P<tokens>\d{1,9})"
    r"[^)]*\)_generation_(?P<sequences>\d{1,7})\("
)
# sglang's ForwardMode; speculation's steps belong to decode.
_MODES: Mapping[str, Phase] = {
    "EXTEND": Phase.PREFILL,
    "SPLIT_PREFILL": Phase.PREFILL,
    "DLLM_EXTEND": Phase.PREFILL,
    "MIXED": Phase.MIXED,
    "DECODE": Phase.DECODE,
    "TARGET_VERIFY": Phase.DECODE,
    "DRAFT_EXTEND": Phase.DECODE,
    "DRAFT_EXTEND_V2": Phase.DECODE,
}


@dataclass(frozen=True)
class TracedStep:
    """A step in a trace, from `start` to `end` in microseconds."""

    phase: Phase
    sequences: int
    new_tokens: int  # of prompts
    start: float
    end: float
    device: int  # of a mark on a GPU
    engine: str  # that writes such marks

    @property
    def size(self) -> tuple[Phase, int, int]:
        return self.phase, self.sequences, self.new_tokens


def read_mark(name: str, start: float, end: float, device: int) -> TracedStep | None:
    """The step that an annotation marks; None for other annotations."""
    if found := _SGLANG.match(name):
        phase = _MODES.get(found["mode"])
        if phase is None:
            return None
        return TracedStep(
            phase, int(found["sequences"]), int(found["tokens"] or 0), start, end, device, "sglang"
        )
    if found := _VLLM.match(name):
        prompts, decoding = int(found["prompts"]), int(found["sequences"])
        if not prompts + decoding:
            return None
        phase = Phase.MIXED if prompts and decoding else Phase.PREFILL if prompts else Phase.DECODE
        return TracedStep(
            phase, prompts + decoding, int(found["tokens"]), start, end, device, "vllm"
        )
    return None


class Marks:
    """Finds the step at a moment."""

    def __init__(self, marks: Sequence[TracedStep]) -> None:
        self.marks = sorted(marks, key=lambda mark: (mark.start, -mark.end))
        self.starts = [mark.start for mark in self.marks]

    def at(self, moment: float) -> int | None:
        """The position of the last step that began by then, if it has not ended."""
        found = bisect_right(self.starts, moment) - 1
        return found if found >= 0 and moment <= self.marks[found].end else None


# Categories of events, as Kineto writes them (libkineto: include/ActivityType.h).
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_GRAPH_LAUNCHES = ("cudaGraphLaunch", "hipGraphLaunch")
_LATEST = 1e18  # microseconds
_MARKS = {"gpu_user_annotation": True, "user_annotation": False}


@dataclass
class Timeline:
    """Kernels of a trace, in the order of the file. Times are microseconds.

    The arrays run in parallel. A correlation is the number that a launch and its kernels share; all
    kernels of a CUDA graph have that of the graph's launch.
    """

    starts: array[float] = field(default_factory=lambda: array("d"))
    ends: array[float] = field(default_factory=lambda: array("d"))
    names: array[int] = field(default_factory=lambda: array("i"))  # positions in `known`
    correlations: array[int] = field(default_factory=lambda: array("q"))  # -1: none
    devices: array[int] = field(default_factory=lambda: array("i"))
    known: list[str] = field(default_factory=list)
    launched_at: dict[int, float] = field(default_factory=dict)  # by correlation
    graphs: set[int] = field(default_factory=set)  # correlations of graphs' launches
    gpu_marks: list[TracedStep] = field(default_factory=list)
    cpu_marks: list[TracedStep] = field(default_factory=list)
    device: str = ""  # the GPU's name


def read_timeline(path: Path) -> Timeline:
    """The timeline of a trace. Raises MalformedTrace."""
    found = Timeline()
    numbers: dict[str, int] = {}
    events = 0
    for name, value in trace_items(path):
        if name == "traceEvents":
            events += 1
            if isinstance(value, dict):
                _take(value, found, numbers)
        elif name == "deviceProperties":
            found.device = _device(value)
    if not events:
        raise MalformedTrace(
            f"{path} holds no events: give a trace that torch's profiler wrote, *.json or *.json.gz"
        )
    found.known = list(numbers)
    return found


def _take(event: Mapping[str, Any], found: Timeline, numbers: dict[str, int]) -> None:
    kind, name = event.get("cat"), event.get("name")
    if not isinstance(kind, str) or not isinstance(name, str):
        return
    if kind in _ON_GPU:
        _take_kernel(event, name, found, numbers)
    elif kind in _LAUNCHES:
        start, correlation = _number(event.get("ts")), _whole(_args(event).get("correlation"))
        if start is not None and correlation is not None:
            found.launched_at[correlation] = start
            if name.startswith(_GRAPH_LAUNCHES):
                found.graphs.add(correlation)
    elif kind in _MARKS and (span := _span(event)):
        mark = read_mark(name, *span, _place(event))
        if mark:
            (found.gpu_marks if _MARKS[kind] else found.cpu_marks).append(mark)


def _take_kernel(
    event: Mapping[str, Any], name: str, found: Timeline, numbers: dict[str, int]
) -> None:
    span, args = _span(event), _args(event)
    if span is None:
        return
    correlation = _whole(args.get("correlation"))
    found.starts.append(span[0])
    found.ends.append(span[1])
    found.names.append(numbers.setdefault(name, len(numbers)))
    found.correlations.append(-1 if correlation is None else correlation)
    found.devices.append(_place(event))
    if correlation is not None and _whole(args.get("graph id")):
        found.graphs.add(correlation)


def _span(event: Mapping[str, Any]) -> tuple[float, float] | None:
    """Start and end; None for an event without a duration."""
    start, duration = _number(event.get("ts")), _number(event.get("dur"))
    if start is None or duration is None or duration < 0:
        return None
    return start, start + duration


def _place(event: Mapping[str, Any]) -> int:
    """The GPU that an event on a GPU is shown at. Merged traces have several."""
    device = _whole(_args(event).get("device"))
    place = _whole(event.get("pid")) if device is None else device
    return place if place is not None and 0 <= place < 1 << 31 else 0


def _args(event: Mapping[str, Any]) -> Mapping[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _device(value: object) -> str:
    first = value[0] if isinstance(value, list) and value else None
    name = first.get("name") if isinstance(first, dict) else None
    return name if isinstance(name, str) else ""


def _number(value: object) -> float | None:
    if type(value) is float:  # nearly always
        return value if -_LATEST < value < _LATEST else None  # also refuses NaN
    if isinstance(value, str):  # some tools write times as text
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if -_LATEST < number < _LATEST else None


def _whole(value: object) -> int | None:
    return value if type(value) is int and -(1 << 62) < value < 1 << 62 else None
