"""From traces to a `Profile`: gives each moment of a timeline to a kernel, or a gap, in a phase."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tuner.errors import MalformedTrace
from tuner.profile.families import ATTENTION, family_of, phase_told_by
from tuner.profile.profile import FamilyTime, KernelTime, Phase, Profile, Step
from tuner.profile.timeline import Marks, Timeline, TracedStep, read_timeline

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


# Ranks do the same work, so one of them tells enough. How engines name their files:
# sglang 0.5.16 utils/profile_utils.py "-TP-0", vllm 0.33.0 profiler/wrapper.py "rank0", "_rank_0".
_RANK = re.compile(r"(?:-TP-|rank[-_]?)(\d+)", re.IGNORECASE)
_SUFFIXES = (".json", ".json.gz")


def read(paths: Sequence[Path]) -> Profile:
    """The profile of traces together: of ranks, of stages, or of one after another.

    A folder stands for the traces of its lowest rank. Memory stays at some dozens of bytes for
    each kernel. Raises MalformedTrace for a file that is no trace, and where no kernel ran.
    """
    totals, device = TraceTotals(), ""
    files = [file for path in paths for file in trace_files(path)]
    for file in files:
        timeline = read_timeline(file)
        if timeline.starts or len(files) == 1:
            attribute(timeline, totals)
        device = device or timeline.device
    if not totals.kernels:
        raise MalformedTrace(
            f"{files[0]} holds no kernel: profile with the activities CPU and GPU, and send "
            "requests while the profiler runs"
        )
    return Profile(
        _kernels(totals),
        totals.gap_us,
        totals.merged_steps(),
        device,
        totals.told_by(),
        totals.engine,
        totals.idle_us,
    )


def trace_files(path: Path) -> list[Path]:
    """The files to read for a path: itself, or the traces of the lowest rank in a folder.

    Raises MalformedTrace for a folder without traces.
    """
    if not path.is_dir():
        return [path]
    try:
        files = sorted(p for p in path.iterdir() if p.name.endswith(_SUFFIXES) and _is_trace(p))
    except OSError as error:
        raise MalformedTrace(f"{path} cannot be read: {error.strerror}") from None
    if not files:
        raise MalformedTrace(
            f"{path} has no trace: a trace's name ends in .trace.json.gz or .trace.json"
        )
    ranks = [int(found.group(1)) for file in files if (found := _RANK.search(file.name))]
    if not ranks:
        return files
    return [file for file in files if (_rank(file) or 0) == min(ranks)]


def _is_trace(path: Path) -> bool:
    """Whether a file's name is a trace's. sglang puts server_args.json beside its traces."""
    return path.is_file() and "trace" in path.name


def _rank(path: Path) -> int | None:
    found = _RANK.search(path.name)
    return int(found.group(1)) if found else None


def _kernels(totals: TraceTotals) -> tuple[KernelTime, ...]:
    kernels: Iterable[KernelTime] = (
        KernelTime(name, family, phase, calls, us)
        for (name, family, phase), (calls, us) in totals.kernels.items()
    )
    return tuple(sorted(kernels, key=lambda k: (-k.time_us, k.name, _ORDER.index(k.phase))))


_ORDER = list(Phase)
