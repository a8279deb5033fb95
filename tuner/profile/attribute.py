"""Gives each moment of a timeline to a kernel, or to a gap, in a phase."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tuner.profile.families import ATTENTION, family_of, phase_told_by
from tuner.profile.profile import Phase, Step
from tuner.profile.steps import Mark, Marks
from tuner.profile.timeline import Timeline

# A longer gap is no part of a step: the server had no request. Microseconds.
IDLE_US = 100_000.0

_BY_MARKS = "the engine's marks of its steps"
_BY_KERNELS = "CUDA graphs and the names of attention's kernels"
_BY_NOTHING = "nothing: the trace has no marks of steps, and one attention kernel for both phases"


@dataclass
class Totals:
    """Sums over timelines."""

    kernels: dict[tuple[str, str, Phase], tuple[int, float]] = field(default_factory=dict)
    gap_us: dict[Phase, float] = field(default_factory=dict)
    idle_us: float = 0.0
    steps: dict[tuple[Phase, int, int], tuple[int, float]] = field(default_factory=dict)
    ways: list[str] = field(default_factory=list)
    engine: str = ""

    def told_by(self) -> str:
        return "; ".join(dict.fromkeys(self.ways))

    def merged_steps(self) -> tuple[Step, ...]:
        steps = [Step(*size, count, us) for size, (count, us) in self.steps.items()]
        return tuple(sorted(steps, key=lambda step: (-step.time_us, step.phase, step.sequences)))


def attribute(timeline: Timeline, totals: Totals) -> None:
    """Add a timeline's kernels, gaps and steps to the totals."""
    order = sorted(range(len(timeline.starts)), key=timeline.starts.__getitem__)
    marks, at = _marked(timeline, order)
    if marks:
        totals.ways.append(_BY_MARKS)
        totals.engine = marks[0].engine
        phases: list[Phase | None] = [
            None if position is None else marks[position].phase for position in at
        ]
        _add_steps(timeline, order, marks, at, totals)
    else:
        phases = list(_told_by_kernels(timeline, order))
        totals.ways.append(_BY_KERNELS if any(phases) else _BY_NOTHING)
    for device in sorted(set(timeline.devices)):
        here = [(i, phase) for i, phase in zip(order, phases, strict=True)
                if timeline.devices[i] == device]  # fmt: skip
        _add_device(timeline, here, totals)


def _add_device(
    timeline: Timeline, kernels: Sequence[tuple[int, Phase | None]], totals: Totals
) -> None:
    """Add the kernels of one GPU, in the order of their starts.

    A kernel outside of every step, such as sampling, belongs to the step before it.
    """
    phase = next((told for _, told in kernels if told), Phase.UNKNOWN)
    reached = timeline.starts[kernels[0][0]]
    for i, told in kernels:
        phase = told or phase
        start, end = timeline.starts[i], timeline.ends[i]
        gap = start - reached
        if gap > IDLE_US:
            totals.idle_us += gap
        elif gap > 0:
            totals.gap_us[phase] = totals.gap_us.get(phase, 0.0) + gap
        name = timeline.known[timeline.names[i]]
        key = name, family_of(name), phase
        calls, us = totals.kernels.get(key, (0, 0.0))
        totals.kernels[key] = calls + 1, us + max(0.0, end - max(start, reached))
        reached = max(reached, end)


def _marked(
    timeline: Timeline, order: Sequence[int]
) -> tuple[Sequence[Mark], Sequence[int | None]]:
    """All marks, and for each kernel the position of the one that it belongs to.

    What a launch's mark says counts before the mark that is drawn on the GPU: it is exact.
    """
    launches = Marks(timeline.cpu_marks)
    devices = sorted({mark.device for mark in timeline.gpu_marks})
    drawn = {d: Marks([m for m in timeline.gpu_marks if m.device == d]) for d in devices}
    first: dict[int, int] = {}
    every = list(launches.marks)
    for device, marks in drawn.items():
        first[device] = len(every)
        every += marks.marks
    at: list[int | None] = []
    for i in order:
        launched = timeline.launched_at.get(timeline.correlations[i])
        found = None if launched is None else launches.at(launched)
        device = timeline.devices[i]
        if found is None and device in drawn:
            found = drawn[device].at(timeline.starts[i])
            found = None if found is None else found + first[device]
        at.append(found)
    return every if any(found is not None for found in at) else (), at


def _add_steps(
    timeline: Timeline,
    order: Sequence[int],
    marks: Sequence[Mark],
    at: Sequence[int | None],
    totals: Totals,
) -> None:
    """Add the steps that have kernels, each with the time from its first to its last one."""
    spans: dict[int, tuple[float, float]] = {}
    for i, position in zip(order, at, strict=True):
        if position is not None:
            start, end = spans.get(position, (timeline.starts[i], timeline.ends[i]))
            spans[position] = min(start, timeline.starts[i]), max(end, timeline.ends[i])
    for position, (start, end) in spans.items():
        size = marks[position].size
        count, us = totals.steps.get(size, (0, 0.0))
        totals.steps[size] = count + 1, us + end - start


def _told_by_kernels(timeline: Timeline, order: Sequence[int]) -> Iterator[Phase | None]:
    """The phase that each kernel, or another kernel of its CUDA graph, tells.

    Engines capture decode steps. So where graphs hold attention, attention in a graph is decode and
    attention outside of graphs is prefill, whatever the kernel's name.
    """
    names = [(family_of(name) in ATTENTION, phase_told_by(name)) for name in timeline.known]
    in_graphs = False
    by_graph: dict[int, Phase] = {}
    for i in order:
        attends, told = names[timeline.names[i]]
        correlation = timeline.correlations[i]
        if attends and correlation in timeline.graphs:
            in_graphs = True
            by_graph.setdefault(correlation, told or Phase.DECODE)
    for i in order:
        attends, told = names[timeline.names[i]]
        graph = by_graph.get(timeline.correlations[i])
        yield graph or told or (Phase.PREFILL if attends and in_graphs else None)
