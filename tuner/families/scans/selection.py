"""Select the prompts for which a scan is tuned: numbers of sequences and their tokens."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from tuner.errors import BadInput
from tuner.families.scans.scan import ScanProblem, chunks_of
from tuner.problems.options import Field, Record, WholeNumber, WordOrRecords
from tuner.problems.points import Point, Problem

USUAL = "usual"
# (sequences, tokens of each): a short prompt, two long prompts, and a batch.
USUAL_PROMPTS = ((1, 1024), (1, 8192), (1, 32768), (8, 2048))
_SEQUENCES, _TOKENS, _MOST = WholeNumber(ge=1, le=4096), WholeNumber(ge=1, le=1 << 20), 64


@dataclass(frozen=True)
class PromptSelection:
    """Some prompts, or the usual prompts. Raises BadInput for impossible prompts."""

    prompts: tuple[tuple[int, int], ...] = ()  # (sequences, tokens of each); (): the usual prompts

    @property
    def given(self) -> bool:
        return bool(self.prompts)

    def points(self, problem: Problem) -> frozenset[Point]:
        return frozenset(
            Point(sequences, part, tokens)
            for sequences, tokens in self.prompts or USUAL_PROMPTS
            for part in problem.parts
        )

    def as_json(self) -> dict[str, Any]:
        found = [{"sequences": n, "tokens": tokens} for n, tokens in sorted(self.prompts)]
        return {"prompts": found or None}


def read_selection(problem: Problem, values: Mapping[str, Any]) -> PromptSelection:
    """Read the field `prompts`: USUAL, a list, or none. Raises BadInput."""
    asked = values.get("prompts") or USUAL
    if isinstance(asked, str):
        return PromptSelection()
    scan = cast(ScanProblem, problem)  # the registry pairs problems with selections
    found = sorted({(row["sequences"], row["tokens"]) for row in asked})
    for sequences, tokens in found:
        if sequences > 1 and tokens % scan.chunk_size:
            near = chunks_of(scan, tokens) * scan.chunk_size
            raise BadInput(
                f"several sequences are tuned with whole chunks of {scan.chunk_size} tokens: "
                f"write {sequences}x{near} for {sequences}x{tokens}"
            )
    return PromptSelection(tuple(found))


def fields_of(points: Collection[Point]) -> dict[str, Any]:
    """Return the fields that name some points."""
    return {"prompts": [{"sequences": p.batch_size, "tokens": p.new_tokens} for p in points]}


def parse_prompts(text: str) -> str | Sequence[Mapping[str, int]]:
    """Read `1x8192,8x2048`, or the word USUAL. Raises BadInput."""
    if text == USUAL:
        return text
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,4})x(\d{1,7})", part.strip(), re.ASCII)
        sequences, tokens = (int(n) for n in match.groups()) if match else (0, 0)
        if not (1 <= sequences <= 4096 and 1 <= tokens <= 1 << 20):
            raise BadInput(f"prompts are sequences x tokens, like 1x8192,8x2048: not {part!r}")
        found.append({"sequences": sequences, "tokens": tokens})
    if len(found) > _MOST:
        raise BadInput(f"{len(found)} prompts are too many: name {_MOST} at most")
    return found


PROMPTS = WordOrRecords(
    (USUAL,),
    Record(
        "PromptsIn",
        "Prompts of one batch, all of one length.",
        (Field("sequences", _SEQUENCES), Field("tokens", _TOKENS, "Tokens of each sequence.")),
    ),
    _MOST,
    parse_prompts,
)
