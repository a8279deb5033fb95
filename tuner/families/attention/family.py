"""Register attention, and read the points that a request asks for.

Importing this module loads no heavy module.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tuner.devices.roofline import roofline_us
from tuner.devices.table import Device
from tuner.families.attention.problem import (
    ATTENTION_PROBLEMS,
    Attention,
    AttentionPart,
    AttentionPhase,
    parse_attention,
    same_shape,
)
from tuner.families.attention.splits import ragged
from tuner.families.attention.workloads import (
    MAX_BATCH,
    MAX_CACHED,
    MAX_NEW,
    MAX_POINTS,
    MAX_WEIGHT,
    USES,
    Workload,
    WorkPoint,
    default_workload,
    parse_workload,
    read_points,
    usual_workload,
)
from tuner.problems.options import (
    COUNT,
    DP,
    Field,
    Number,
    Option,
    Record,
    WholeNumber,
    WordOrRecords,
)
from tuner.problems.points import ChartPosition, Point, Problem
from tuner.problems.registry import Family

_BYTES = 2  # of a number of queries, keys, values, outputs: 16 bits
_SPLIT_BYTES = 4  # of a number of a split's result


def place(problem: Attention, point: Point) -> ChartPosition:
    """Place a point: decode by sequences, the other phases by new tokens.

    Decode's two kernels are one line, because the second kernel combines the splits of the first.
    """
    cached = f"{point.cached_tokens:,} cached tokens"
    if problem.phase is AttentionPhase.DECODE:
        return ChartPosition(f"decode, {cached}", point.batch_size, "sequences")
    sequences = f"{point.batch_size} sequence{'s' * (point.batch_size != 1)}"
    chart = f"{problem.phase.value}, {sequences}, {cached}"
    return ChartPosition(chart, point.new_tokens, "new tokens (of the longest sequence)")


def least_us(problem: Attention, point: Point, device: Device) -> float:
    """Return the least microseconds of a launch; see `roofline_us`.

    All cached keys and values are read from memory. The sequences have the lengths with which the
    point is measured (`ragged`, seed 0).
    """
    if point.part is AttentionPart.REDUCE:
        return _reduce_us(problem, point, device)
    lengths = ragged(problem, point, 0)
    pairs = sum(
        _pairs(problem, new, cached)
        for new, cached in zip(lengths.new, lengths.cached, strict=True)
    )
    row = problem.Lq + problem.Lv
    latent_row = problem.Lq if problem.shares_kv else row  # a latent value is part of its key
    rows = sum(lengths.new)
    new_keys = (
        0 if problem.phase is AttentionPhase.DECODE else rows
    )  # decode reads them from the cache
    return roofline_us(
        device,
        problem.dtype,
        operations=2.0 * pairs * problem.q_heads * row,
        cold_bytes=float(sum(lengths.cached) * problem.kv_heads * latent_row * _BYTES),
        warm_bytes=float((rows * problem.q_heads + new_keys * problem.kv_heads) * row * _BYTES),
    )


def _pairs(problem: Attention, new: int, cached: int) -> int:
    """Return the number of pairs of a query and a key that it sees, in a sequence."""
    if problem.phase is AttentionPhase.DECODE:
        return cached  # the new token among them
    if problem.phase is AttentionPhase.PREFILL:
        return new * new
    if not problem.window:
        return new * cached + new * (new + 1) // 2
    most = problem.window + 1  # a query sees itself as well
    growing = max(0, min(new, most - cached))  # the queries that see all keys before them
    return growing * cached + growing * (growing + 1) // 2 + (new - growing) * most


def _reduce_us(problem: Attention, point: Point, device: Device) -> float:
    """Return the least microseconds of decode's second kernel, for sequences in a single part; the
    engine may choose more parts.
    """
    numbers = point.batch_size * problem.q_heads * problem.Lv
    return roofline_us(
        device,
        problem.dtype,
        operations=2.0 * numbers,
        cold_bytes=0.0,
        warm_bytes=float(numbers * (_SPLIT_BYTES + _BYTES)),
    )


def held_bytes(problem: Attention, point: Point) -> int:
    """Return the least bytes of the card's memory that a launch needs: queries, and the longest
    cache.

    The other sequences may be shorter, so their caches do not count.
    """
    row = problem.Lq if problem.shares_kv else problem.Lq + problem.Lv
    queries = point.batch_size * problem.q_heads * (problem.Lq + problem.Lv)
    return (point.cached_tokens * problem.kv_heads * row + queries) * _BYTES


def wait_s(problem: Attention) -> float:
    """Return the seconds that a search waits for extend's kernels; wider heads compile longer.

    A search asks for few kernels at a time. With 16 cores and an H100, runs of 576 and 192 columns
    took 25 and 11 s.
    """
    return 0.038 * problem.Lq if problem.phase is AttentionPhase.EXTEND else 0.0


@dataclass(frozen=True)
class AttentionSelection:
    """A workload: the name of a use ("": the default, or the recording's points), or the points
    themselves, because a worker does not have the user's file.
    """

    workload: str | tuple[WorkPoint, ...] = ""

    @property
    def given(self) -> bool:
        return bool(self.workload)

    def workload_of(self, problem: Attention) -> Workload | None:
        """Return the workload that was given, or None. Raises MalformedWorkload for an unknown
        use.
        """
        if not self.workload:
            return None
        if isinstance(self.workload, str):
            return default_workload(problem.phase, self.workload)
        return Workload("the workload", self.workload)

    def points(self, problem: Problem) -> frozenset[Point]:
        assert isinstance(problem, Attention)  # the registry pairs problems with selections
        work = self.workload_of(problem) or usual_workload(problem.phase)
        return frozenset(
            Point(at.batch_size, part, at.new_tokens, at.cached_tokens)
            for at in work.for_problem(problem).points
            for part in problem.parts
        )

    def as_json(self) -> dict[str, Any]:
        if isinstance(self.workload, str):
            return {"workload": self.workload or None}
        return {"workload": [asdict(point) for point in self.workload]}


def read_selection(problem: Problem, values: Mapping[str, Any]) -> AttentionSelection:
    """Read the field `workload`: a use, a list of points, or none. Raises MalformedWorkload."""
    assert isinstance(problem, Attention)  # the registry pairs problems with selections
    workload = values.get("workload") or ""
    if not isinstance(workload, str):
        workload = Workload("the workload", read_points(workload)).of(problem.phase).points
    chosen = AttentionSelection(workload)
    chosen.points(problem)  # refuses an unknown use, and a use without points of this phase
    return chosen


def fields_of(points: Collection[Point]) -> dict[str, Any]:
    """Return the fields that name some points. Their weights are equal."""
    sizes = {(point.batch_size, point.new_tokens, point.cached_tokens) for point in points}
    return {"workload": [asdict(WorkPoint(*size)) for size in sorted(sizes)]}


def parse_workload_option(text: str) -> str | list[dict[str, Any]]:
    """Return the name of a use, or the points of the TOML file at a path. Raises
    MalformedWorkload.
    """
    workload = parse_workload(text)
    return workload if isinstance(workload, str) else [asdict(at) for at in workload.points]


_POINT = Record(
    "WorkPointIn",
    "One size to tune attention for.",
    (
        Field("batch_size", WholeNumber(ge=1, le=MAX_BATCH)),
        Field(
            "new_tokens",
            WholeNumber(ge=1, le=MAX_NEW),
            "Of the longest sequence; 1 means decode.",
            default=1,
        ),
        Field(
            "cached_tokens", WholeNumber(ge=0, le=MAX_CACHED), "Average per sequence.", default=0
        ),
        Field(
            "weight",
            Number(gt=0, le=MAX_WEIGHT),
            "Weight of this size, relative to the others.",
            default=1.0,
        ),
    ),
)
WORKLOAD = WordOrRecords(USES, _POINT, MAX_POINTS, parse_workload_option)


FAMILY = Family(
    name="attention",
    title="attention",
    problems=ATTENTION_PROBLEMS,
    example="decode_attention:q_heads=..,kv_heads=..,Lq=..,Lv=..,dtype=..",
    parse=parse_attention,
    parts=AttentionPart,
    shaping=(
        DP,
        Option(
            "page_size",
            "--page-size",
            COUNT,
            "Tokens a page of the KV cache; default: 1.",
            description="Tokens per page of the KV cache.",
        ),
        Option(
            "kv_splits",
            "--kv-splits",
            COUNT,
            "Decode: most parts that a cache is split into; default: as the engine runs.",
            description="Decode: most parts of a cache; default: as the engine runs.",
        ),
    ),
    selecting=(
        Option(
            "workload",
            "--workload",
            WORKLOAD,
            "chat, long-context, offline, or a TOML file of points; for any family a server's log, "
            "a trace or results of a benchmark; default: chat.",
            description="Attention only: a use by name, or its points; default: chat.",
        ),
    ),
    searching=(),
    read_selection=read_selection,
    fields_of=fields_of,
    place=place,
    least_us=least_us,
    held_bytes=held_bytes,
    package="tuner.families.attention",
    predicts=False,
    wait_s=wait_s,
    alike=same_shape,
)
