"""The marks with which engines say what a step does.

sglang 0.5.12 and later: `step[DECODE bs=8]`, `step[EXTEND bs=1 toks=512]`
(srt/utils/profile_utils.py, build_step_span_name). vLLM 0.15.1 and later:
`execute_context_1(512)_generation_8(8)`, and with detailed_trace_annotation
`execute_520_context_1(sq512sk512..)_generation_8(sq8sk..)` (v1/worker/gpu_worker.py,
annotate_profile).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
