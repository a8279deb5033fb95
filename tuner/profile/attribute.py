"""Gives each moment of a timeline to a kernel, or to a gap, in a phase."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tuner.profile.families import ATTENTION, family_of, phase_told_by
from tuner.profile.profile import FamilyTime, Phase, Step
from tuner.profile.steps import Marks, TracedStep
from tuner.profile.timeline import Timeline

# A longer gap is no part of a step: the server had no request. Microseconds.
IDLE_US = 100_000.0

Size = tuple[Phase, int, int]  # of a step: `TracedStep.size`
_Key = TypeVar("_Key")

_UNKNOWN = Phase.UNKNOWN
_BY_MARKS = "the engine's marks of its steps"
_BY_KERNELS = "CUDA graphs and the names of attention's kernels"
_BY_NOTHING = "nothing: the trace has no marks of steps, and one attention kernel for both phases"


@dataclass
class TraceTotals:
    """Sums over timelines."""

    kernels: dict[tuple[str, str, Phase], tuple[int, float]] = field(default_factory=dict)
    gap_us: dict[Phase, float] = field(default_factory=dict)
    idle_us: float = 0.0
    steps: dict[Size, tuple[int, float]] = field(default_factory=dict)
    families: dict[tuple[Size, str], tuple[int, float]] = field(default_factory=dict)
    ways: list[str] = field(default_factory=list)
    engine: str = ""

    def told_by(self) -> str:
        return "; ".join(dict.fromkeys(self.ways))

    def merged_steps(self) -> tuple[Step, ...]:
        steps = [
            Step(*size, count, us, self._families(size)) for size, (count, us) in self.steps.items()
        ]
        return tuple(sorted(steps, key=lambda step: (-step.time_us, step.phase, step.sequences)))

    def _families(self, size: Size) -> dict[str, FamilyTime]:
        return {
            family: FamilyTime(*sums) for (at, family), sums in self.families.items() if at == size
        }


def attribute(timeline: Timeline, totals: TraceTotals) -> None:
    """Add a timeline's kernels, gaps and steps to the totals."""
    starts = timeline.starts
    order = array("i", sorted(range(len(starts)), key=starts.__getitem__))
    marks, at = _marked(timeline, order)
    if marks:
        totals.ways.append(_BY_MARKS)
        totals.engine = marks[0].engine
        of_mark = [mark.size for mark in marks]
        phases = [None if position < 0 else of_mark[position][0] for position in at]
        _add_steps(timeline, order, marks, at, totals)
    else:
        of_mark = []
        phases = list(_told_by_kernels(timeline, order))
        totals.ways.append(_BY_KERNELS if any(phases) else _BY_NOTHING)
    for device in sorted(set(timeline.devices)):
        _add_device(timeline, device, order, phases, at, of_mark, totals)


def _add_device(
    timeline: Timeline,
    device: int,
    order: Sequence[int],
    phases: Sequence[Phase | None],
    at: Sequence[int],
    of_mark: Sequence[Size],
    totals: TraceTotals,
) -> None:
    """Add the kernels of one GPU, in the order of their starts.

    A kernel outside of every step, such as sampling, belongs to the step before it. `at` has the
    position of each kernel's mark in `of_mark`, or -1.
    """
    families = [family_of(name) for name in timeline.known]
    pairs = zip(order, phases, strict=True)
    phase = next((told for i, told in pairs if told and timeline.devices[i] == device), _UNKNOWN)
    reached = min(start for start, d in zip(timeline.starts, timeline.devices, strict=True)
                  if d == device)  # fmt: skip
    sums: dict[tuple[int, Phase, int], tuple[int, float]] = {}
    numbers = {size: number for number, size in enumerate(dict.fromkeys(of_mark))}
    sizes, of_size = list(numbers), [numbers[size] for size in of_mark]
    for i, told, position in zip(order, phases, at, strict=True):
        if timeline.devices[i] != device:
            continue
        phase = told or phase
        start, end = timeline.starts[i], timeline.ends[i]
        if start > reached:
            _add_gap(start - reached, phase, totals)
        key = timeline.names[i], phase, of_size[position] if position >= 0 else -1
        calls, us = sums.get(key, (0, 0.0))
        begun = start if start > reached else reached
        sums[key] = calls + 1, us + (end - begun if end > begun else 0.0)
        reached = end if end > reached else reached
    for (number, phase, size), added in sums.items():
        family = families[number]
        _add(totals.kernels, (timeline.known[number], family, phase), added)
        if size >= 0:
            _add(totals.families, (sizes[size], family), added)


def _add(sums: dict[_Key, tuple[int, float]], key: _Key, added: tuple[int, float]) -> None:
    calls, us = sums.get(key, (0, 0.0))
    sums[key] = calls + added[0], us + added[1]


def _add_gap(us: float, phase: Phase, totals: TraceTotals) -> None:
    if us > IDLE_US:
        totals.idle_us += us
        return
    totals.gap_us[phase] = totals.gap_us.get(phase, 0.0) + us


def _marked(timeline: Timeline, order: Sequence[int]) -> tuple[Sequence[TracedStep], Sequence[int]]:
    """All marks, and for each kernel the position of the one that it belongs to, or -1.

    What a launch's mark says is exact. A mark that is drawn on the GPU counts where launches are
    not known, or have no marks: otherwise a step would count twice.
    """
    launches = Marks(timeline.cpu_marks)
    devices = sorted({mark.device for mark in timeline.gpu_marks})
    drawn = {d: Marks([m for m in timeline.gpu_marks if m.device == d]) for d in devices}
    first: dict[int, int] = {}
    every = list(launches.marks)
    for device, marks in drawn.items():
        first[device] = len(every)
        every += marks.marks
    at = array("i")
    for i in order:
        launched = timeline.launched_at.get(timeline.correlations[i])
        found = None if launched is None else launches.at(launched)
        device = timeline.devices[i]
        if device in drawn and (launched is None or not launches.marks):
            found = drawn[device].at(timeline.starts[i])
            found = None if found is None else found + first[device]
        at.append(-1 if found is None else found)
    return every if any(found >= 0 for found in at) else (), at


def _add_steps(
    timeline: Timeline,
    order: Sequence[int],
    marks: Sequence[TracedStep],
    at: Sequence[int],
    totals: TraceTotals,
) -> None:
    """Add the steps that have kernels, each with the time from its first to its last one."""
    spans: dict[int, tuple[float, float]] = {}
    for i, position in zip(order, at, strict=True):
        if position >= 0:
            start, end = spans.get(position, (timeline.starts[i], timeline.ends[i]))
            spans[position] = min(start, timeline.starts[i]), max(end, timeline.ends[i])
    for position, (start, end) in spans.items():
        _add(totals.steps, marks[position].size, (1, end - start))


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
