"""Prepare the tuning run of a chunked scan.

An engine that chooses by itself does so at its first prompt, which is a chunk long. So that point
is measured too, with the engine's own list, to know which configuration the engine would run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

from tuner.families.scans.choose import OwnChoice, ScanChooser
from tuner.families.scans.engine import ScanKernels, scan_engine
from tuner.families.scans.files import file_name
from tuner.families.scans.scan import ScanKernel, ScanProblem, kernel_of
from tuner.families.scans.selection import PromptSelection
from tuner.families.scans.space import first_configs, scan_space
from tuner.problems.points import Candidate, Config, Part, Point
from tuner.problems.registry import family_of
from tuner.problems.results import Entry, MeasureKind, Measurement
from tuner.tuning.pointwise import GAIN, Policy
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
from tuner.tuning.search import Budget, Search
from tuner.tuning.space import Space
from tuner.tuning.tune import FixedStrategy, RunGoal, Strategy

# Configurations that a point tries after the first configurations.
FURTHER = {Effort.QUICK: 0, Effort.STANDARD: 12}


def entry_cells(problem: ScanProblem, entry: Entry) -> tuple[object, ...]:
    """Return an entry's row: prompts, kernel, blocks, warps and stages."""
    config, part = entry.config, entry.point.part
    blocks = "x".join(str(config[name]) for name in kernel_of(problem, part).blocks)
    return entry.point.size, part.value, blocks, config["num_warps"], config["num_stages"]


_COLUMNS = ("prompts", "kernel", "blocks", "warps", "stages")


class ListThenSearch:
    """A strategy that tries a list first. The questions of its search do not depend on the list."""

    def __init__(self, listed: Sequence[Candidate], search: Search) -> None:
        self._left, self._search = list(listed), search

    def ask(self) -> list[Candidate]:
        left, self._left = self._left, []
        return [*left, *self._search.ask()]

    def tell(self, candidate: Candidate, measurement: Measurement) -> None:
        self._search.tell(candidate, measurement)


def prepare(request: Request) -> PreparedRun:
    """Return the run of a chunked scan. Raises BadInput for a request that cannot be tuned."""
    problem, device, kind = scan_problem(request), request.device, request.source.kind
    assert isinstance(request.selected, PromptSelection)
    refuse_moe_options(request, family_of(problem).title)
    kernels = scan_engine(request.engine, problem.family).lift(device.target.platform)
    own = own_choices(kernels, request)
    begins = {choice.first for choice in own.values() if choice.constants is None}
    recording = recording_of(request)
    asked = {*request.selected.points(problem)}
    if recording is not None and not request.selected.given:
        asked = {*recording.points} - begins or {*recording.points}
    requested, points = sorted(asked), sorted(asked | begins)
    spaces: dict[Part, Space] = {p: scan_space(problem, p, device) for p in problem.parts}
    first: dict[Part, list[Config]] = {
        part: _first(problem, own[part], spaces[part], part) for part in problem.parts
    }
    further = FURTHER.get(request.effort, max(map(len, spaces.values())))
    budget = _budget(max(map(len, first.values())), further, len(requested))
    tries: dict[str, int] = {}
    for point in requested:
        most = budget.most if further else len(first[point.part])
        tries[point.size] = tries.get(point.size, 0) + most
    return PreparedRun(
        request=request,
        points=tuple(points),
        spaces=spaces,
        kernels=kernels,
        goal=partial(_goal, own, points, requested, kind),
        strategy=lambda known: _strategy(first, spaces, requested, budget, request.seed),
        predictor=None,
        tries=tries,
        file_names=dict.fromkeys(problem.parts, file_name(problem, device.name)),
        table=EntryTable(_COLUMNS, partial(entry_cells, problem)),
        recording=recording,
        companions=kernels.companions(problem, device.target),
        compiles_ahead=True,
    )


def scan_problem(request: Request) -> ScanProblem:
    """Return the problem of a request for a family of scans."""
    problem = request.problem
    assert all(isinstance(part, ScanKernel) for part in problem.parts)  # the registry chose it
    return cast(ScanProblem, problem)


def own_choices(kernels: ScanKernels[Any], request: Request) -> dict[Part, OwnChoice]:
    """Return how the engine comes to each kernel's configuration by itself."""
    problem = scan_problem(request)
    found: dict[Part, OwnChoice] = {}
    for part in problem.parts:
        about = problem, part, request.device.target
        first = Point(1, part, kernels.first_tokens(problem))
        found[part] = OwnChoice(kernels.constants(*about), kernels.listed(*about), first)
    return found


def _first(problem: ScanProblem, own: OwnChoice, space: Space, part: Part) -> list[Config]:
    """Return the configurations to try first: the engine's list, or its constants and usual
    tiles.
    """
    if own.constants is None:
        return [*own.listed]
    return [own.constants, *first_configs(problem, part, space)]


def _budget(listed: int, further: int, points: int) -> Budget:
    most = listed + further
    return Budget(most, kernels=most * points, seeds=listed, per_round=6, nearby=3)


def _goal(
    own: Mapping[Part, OwnChoice],
    points: Sequence[Point],
    requested: Sequence[Point],
    kind: MeasureKind,
    known: KnownBefore,
) -> RunGoal:
    policy = Policy(GAIN[kind], tie=NOISE[kind])
    chooser = ScanChooser(own, policy, requested, known.previous)
    constants = {
        point: {"default": always}
        for point in requested
        if (always := own[point.part].constants) is not None
    }
    lists = {point: own[point.part].listed for point in points if point not in constants}
    return RunGoal(requested, constants, chooser, known.previous, listed=lists)


def _strategy(
    first: Mapping[Part, Sequence[Config]],
    spaces: Mapping[Part, Space],
    requested: Sequence[Point],
    budget: Budget,
    seed: int,
) -> Strategy:
    listed = [Candidate(at, config) for at in requested for config in first[at.part]]
    if budget.per_point == budget.seeds:
        return FixedStrategy(listed)
    seeds = {point: first[point.part] for point in requested}
    return ListThenSearch(listed, Search(spaces, requested, seeds, budget, seed))
