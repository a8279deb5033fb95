"""Prepare the tuning run of a phase of a layer's attention.

If decode's number of KV splits is free, its two kernels and its splits are chosen together
(`tuner.families.attention.joint`). The kernels of other phases are tuned apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from tuner.errors import BadInput
from tuner.families.attention.buckets import Bucket, BucketedStrategy, buckets_of
from tuner.families.attention.choose import AttentionChooser
from tuner.families.attention.engine import attention_engine, engine_config
from tuner.families.attention.family import AttentionSelection
from tuner.families.attention.joint.choices import JointBuckets, JointChooser, sizes_of
from tuner.families.attention.joint.strategy import JointStrategy
from tuner.families.attention.kernels import AttentionKernels
from tuner.families.attention.problem import Attention, AttentionPart
from tuner.families.attention.space import attention_space
from tuner.families.attention.splits import constants_of, worthwhile
from tuner.families.attention.workloads import Workload, WorkPoint, usual_workload
from tuner.measure.recording import TrialRecording
from tuner.problems.points import Candidate, Config, Part, Point
from tuner.problems.results import Entry
from tuner.tuning.report import EntryTable
from tuner.tuning.request import (
    NOISE,
    Effort,
    KnownBefore,
    PreparedRun,
    Request,
    recording_of,
    refuse_moe_options,
)
from tuner.tuning.search import Budget, Search, budget_for
from tuner.tuning.space import Space
from tuner.tuning.tune import FixedStrategy, RunGoal, Strategy, everything

# The first configurations of a search: each was the fastest somewhere in the H200 sweep.
SEEDS = (
    {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_H": 16, "num_warps": 4, "num_stages": 3},
    {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_H": 16, "num_warps": 8, "num_stages": 3},
    {"BLOCK_M": 16, "BLOCK_N": 128, "BLOCK_H": 16, "num_warps": 4, "num_stages": 2},
    {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_H": 16, "num_warps": 4, "num_stages": 4},
    {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_H": 16, "num_warps": 8, "num_stages": 3},
    {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_H": 16, "num_warps": 1, "num_stages": 3},
    # These take latent attention's values out of its keys; the configurations above load them.
    {"BLOCK_N": 128, "BLOCK_H": 16, "HAS_MLA": 1, "num_warps": 8, "num_stages": 2},
    {"BLOCK_N": 16, "BLOCK_H": 16, "HAS_MLA": 1, "num_warps": 4, "num_stages": 3},
)

TABLE = EntryTable(
    ("kernel", "sequences", "new", "cached", "constants"), lambda entry: _cells(entry)
)


@dataclass(frozen=True)
class _Phase:
    """A phase to tune, and the data from which its run is made."""

    request: Request
    problem: Attention
    buckets: Sequence[Bucket]
    defaults: Mapping[Point, Config]  # the engine's own constants, and its rule for splits
    constants: Mapping[Part, Space]  # the spaces without the numbers of splits
    spaces: Mapping[Part, Space]
    budget: Budget

    @property
    def exhaustive(self) -> bool:
        return self.request.effort is Effort.EXHAUSTIVE

    @property
    def noise(self) -> float:
        """Return the gain that counts, as a share."""
        return NOISE[self.request.source.kind]

    def seeds(self, point: Point) -> list[Config]:
        space = self.constants[point.part]
        return [space.nearest(seed) for seed in (self.defaults[point], *SEEDS)]

    def search(self, points: Sequence[Point]) -> Search:
        """Return a search of the constants at the points: of the first kernel's, or of all
        kernels'.
        """
        spaces = {point.part: self.constants[point.part] for point in points}
        seeds = {point: self.seeds(point) for point in points}
        return Search(spaces, points, seeds, self.budget, self.request.seed)


def prepare(request: Request) -> PreparedRun:
    """Return the run of a phase. Raises BadInput for a request that cannot be tuned."""
    assert isinstance(request.problem, Attention)  # the registry chose this family
    assert isinstance(request.selected, AttentionSelection)
    problem, device = request.problem, request.device
    engine = attention_engine(request.engine)
    refuse_moe_options(request, "attention")
    if problem.chooses_splits and not engine.takes_splits:
        raise BadInput(
            f"{request.engine.name} {request.engine.version} loads no plugins, so it cannot be "
            f"given a number of KV splits: name its own, {problem.with_room(8).spec()}"
        )
    recording = recording_of(request)
    buckets = buckets_of(problem, _workload(problem, request.selected, recording).points)
    points = tuple(point for bucket in buckets for point in bucket.points)
    file_name = engine.file_name(problem, device.name)
    kernels = engine.lift(device.target.platform)
    room = engine.most_splits(problem, device.sm_count) if problem.chooses_splits else 0
    defaults = {point: _default(request, problem, kernels, point, room) for point in points}
    takes = {point.part: config for point, config in defaults.items()}
    constants: dict[Part, Space] = {
        part: attention_space(problem, device, part, constants_of(takes[part]))
        for part in problem.parts
    }
    size = max(len(space) for space in constants.values())
    phase = _Phase(
        request=request,
        problem=problem,
        buckets=buckets,
        defaults=defaults,
        constants=constants,
        spaces={
            part: attention_space(problem, device, part, takes[part]) for part in problem.parts
        },
        budget=budget_for(request.effort, len(buckets), size),
    )
    together = _Joint(phase, sizes_of(buckets), room) if problem.chooses_splits else None
    return PreparedRun(
        request=request,
        points=points,
        spaces=phase.spaces,
        kernels=kernels,
        goal=together.goal if together else partial(_goal, phase),
        strategy=together.strategy if together else partial(_strategy, phase),
        predictor=None,
        tries=together.tries() if together else _tries(phase),
        file_names=dict.fromkeys(problem.parts, file_name),
        table=TABLE,
        recording=recording,
    )


def _workload(
    problem: Attention, selected: AttentionSelection, recording: TrialRecording | None
) -> Workload:
    named = selected.workload_of(problem)
    if named is not None:
        return named.for_problem(problem)
    if recording is None:
        return usual_workload(problem.phase).for_problem(problem)
    sizes = {(p.batch_size, p.new_tokens, p.cached_tokens) for p in recording.points}
    return Workload("recording", tuple(WorkPoint(*size, weight=1.0) for size in sorted(sizes)))


def _default(
    request: Request, problem: Attention, kernels: AttentionKernels, point: Point, room: int
) -> Config:
    """Return the engine's own configuration at a point. `room`: the most splits of its own rule."""
    target = request.device.target
    if problem.chooses_splits:
        return engine_config(kernels, problem, point, target, room)
    return kernels.default_config(problem, point, target)


def _incumbents(phase: _Phase) -> dict[Point, dict[str, Config]]:
    return {point: {"default": config} for point, config in phase.defaults.items()}


# Kernels that are tuned apart


def _tries(phase: _Phase) -> dict[str, int]:
    """Return the most configurations to try at each size, summed over the parts."""
    found: Counter[str] = Counter()
    for point in phase.defaults:
        found[point.size] += min(len(phase.spaces[point.part]), phase.budget.most)
    return dict(found)


def _goal(phase: _Phase, known: KnownBefore) -> RunGoal:
    previous = known.previous
    chooser = AttentionChooser(phase.buckets, phase.defaults, phase.noise, previous)
    return RunGoal([*phase.defaults], _incumbents(phase), chooser, previous)


def _strategy(phase: _Phase, known: KnownBefore) -> Strategy:
    if phase.exhaustive:  # the spaces are small
        return everything({point: phase.spaces[point.part] for point in phase.defaults})
    search = phase.search([bucket.representative for bucket in phase.buckets])
    return BucketedStrategy(search, phase.buckets, phase.defaults)


# Decode's two kernels and its splits, chosen together


@dataclass(frozen=True)
class _Joint:
    """A decode phase whose number of KV splits is to be chosen."""

    phase: _Phase
    sizes: Sequence[JointBuckets]
    room: int  # the most splits of the engine's own rule

    @cached_property
    def pairs(self) -> dict[Point, list[tuple[int, int]]]:
        """Return the numbers of splits to try, each with its room, by the first kernel's points."""
        problem, cores = self.phase.problem, self.phase.request.device.sm_count
        found: dict[Point, list[tuple[int, int]]] = {}
        for size in self.sizes:
            found |= worthwhile(problem, size.decode.points, self.room, cores)
        return found

    def tries(self) -> dict[str, int]:
        """Return the most configurations to try at each size, summed over both kernels."""
        phase = self.phase
        decode = min(len(phase.constants[AttentionPart.DECODE]), phase.budget.most)
        reductions = len(phase.constants[AttentionPart.REDUCE])
        found: Counter[str] = Counter()
        for size in self.sizes:
            for point in size.decode.points:
                pairs = self.pairs[point]
                at_room = max(Counter(room for _, room in pairs).values())
                around = min(3, at_room)  # half of the best number of splits, it, and twice
                most = 2 * (1 + len(pairs)) + decode * around + reductions * at_room
                found[point.size] += most
        return dict(found)

    def goal(self, known: KnownBefore) -> RunGoal:
        phase, previous = self.phase, known.previous
        chooser = JointChooser(self.sizes, phase.defaults, phase.noise, previous)
        return RunGoal([*phase.defaults], _incumbents(phase), chooser, previous)

    def strategy(self, known: KnownBefore) -> Strategy:
        """Return the strategy: it proposes all worthwhile constants of the first kernel, or a
        search proposes some.
        """
        phase = self.phase
        points = [size.representative for size in self.sizes]
        inner: Strategy
        if phase.exhaustive:
            listed = phase.constants[AttentionPart.DECODE].configs()
            inner = FixedStrategy([Candidate(point, one) for point in points for one in listed])
        else:
            inner = phase.search(points)
        reductions = phase.constants[AttentionPart.REDUCE].configs()
        return JointStrategy(inner, self.sizes, phase.defaults, self.pairs, reductions)


def _cells(entry: Entry) -> tuple[object, ...]:
    point = entry.point
    constants = " ".join(f"{name}={value}" for name, value in sorted(entry.config.items()))
    return point.part.value, point.batch_size, point.new_tokens, point.cached_tokens, constants
