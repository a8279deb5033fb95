"""Prepare the tuning run of a quantised dense GEMM."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from tuner.errors import BadInput
from tuner.families.dense_gemm.engine import ShippedFile, gemm_engine
from tuner.families.dense_gemm.family import GemmSelection
from tuner.families.dense_gemm.predict import CLEAR_GAIN, GemmPredictor
from tuner.families.dense_gemm.problem import DenseGemm, DensePart
from tuner.families.dense_gemm.space import (
    config_cells,
    find_baselines,
    gemm_space,
    relatives,
    seeds_for,
    space_at,
)
from tuner.measure.recording import TrialRecording
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import MeasureKind
from tuner.tuning.pointwise import pointwise_goal
from tuner.tuning.report import EntryTable
from tuner.tuning.request import (
    TRIES,
    Effort,
    KnownBefore,
    PreparedRun,
    Request,
    recording_of,
    refuse_moe_options,
)
from tuner.tuning.search import Budget, Search
from tuner.tuning.seeds import Baselines
from tuner.tuning.space import Space
from tuner.tuning.tune import FixedStrategy, Strategy, everything

# Kernels compiled for a prediction, without the variants for M = 1 and odd M.
PREDICT_KERNELS = {Effort.QUICK: 20, Effort.STANDARD: 40, Effort.EXHAUSTIVE: 1000}
FORESEEN = 4  # the number of a search's seeds at a point that come from the device model
RELATIVES = 3  # the number that earlier GEMMs of the same model may add
# Few large rounds: a model has many shapes, and each round waits for its slowest kernel. Compiling
# costs more than measuring, so a point first tries its neighbours' best.
BUDGETS = {
    Effort.QUICK: Budget(TRIES[Effort.QUICK], kernels=100, seeds=8, per_round=4),
    Effort.STANDARD: Budget(TRIES[Effort.STANDARD], kernels=240, seeds=12, per_round=7, nearby=4),
}


TABLE = EntryTable(
    ("M", "M N K blocks", "group", "warps", "stages", "further"),
    lambda entry: (entry.point.batch_size, *config_cells(entry.config)),
)


def prepare(request: Request) -> PreparedRun:
    """Return the run of a GEMM. Raises BadInput for a request that cannot be tuned."""
    assert isinstance(request.problem, DenseGemm)  # the registry chose this family
    assert isinstance(request.selected, GemmSelection)
    problem, device, kind = request.problem, request.device, request.source.kind
    engine = gemm_engine(request.engine)
    refuse_moe_options(request, "a dense GEMM")
    recording = recording_of(request)
    points = _points(problem, request.selected, recording)
    name = engine.file_name(problem, device)
    kernels = engine.lift(device.target.platform)
    space = gemm_space(
        problem,
        device,
        kernels.choices(problem, device.target),
        lambda config: engine.effective(problem, config, device.target),
    )
    corpus = list(engine.shipped(device.vendor))
    sizes = [point.batch_size for point in points]
    found = find_baselines(engine, problem, device, sizes)
    kept, left, baselines = found.pass_over(request, points)
    at = {point: space_at(space, problem, device, point.batch_size) for point in left}
    predictor = GemmPredictor(device, problem)
    most = max((len(some) for some in at.values()), default=0)
    budget = BUDGETS.get(request.effort, Budget(most, kernels=most * len(left), seeds=most))
    return PreparedRun(
        request=request,
        points=points,
        spaces={DensePart.DENSE: space},
        kernels=kernels,
        goal=lambda known: pointwise_goal(left, baselines, kind, CLEAR_GAIN, known.previous),
        strategy=_strategy(request, problem, space, at, corpus, baselines, predictor, budget),
        predictor=predictor,
        tries=_tries(request, at, budget),
        file_names={DensePart.DENSE: name},
        table=TABLE,
        recording=recording,
        kept=kept,
        companions=kernels.companions(problem, device.target),
        compiles_ahead=request.effort is not Effort.EXHAUSTIVE,
    )


def _points(
    problem: DenseGemm, selected: GemmSelection, recording: TrialRecording | None
) -> tuple[Point, ...]:
    if recording is not None and not selected.given:
        return recording.points
    found = tuple(sorted(selected.points(problem)))
    if recording is not None:
        missing = sorted(set(found) - set(recording.points))
        if missing:
            held = ", ".join(str(point.batch_size) for point in recording.points)
            raise BadInput(f"the recording has no {missing[0].size}, only M of {held}")
    return found


def _tries(request: Request, at: Mapping[Point, Space], budget: Budget) -> dict[str, int]:
    """Return the most configurations to try at each size."""
    predicted = request.source.kind is MeasureKind.PREDICT
    most = PREDICT_KERNELS[request.effort] if predicted else budget.most
    return {point.size: min(len(space), most) for point, space in at.items()}


def _strategy(
    request: Request,
    problem: DenseGemm,
    space: Space,
    at: Mapping[Point, Space],
    corpus: Sequence[ShippedFile],
    baselines: Baselines,
    predictor: GemmPredictor,
    budget: Budget,
) -> Callable[[KnownBefore], Strategy]:
    """Return how to make the strategy that tries configurations. `at`: the space of each point."""
    if request.source.kind is MeasureKind.PREDICT:
        legal = {point: narrow.configs() for point, narrow in at.items()}
        return lambda known: FixedStrategy(
            [
                Candidate(point, config)
                for point, some in predictor.shortlist_all(
                    legal, PREDICT_KERNELS[request.effort]
                ).items()
                for config in some
            ]
        )
    if request.effort is Effort.EXHAUSTIVE:  # trying everything needs no search
        return lambda known: everything(at)

    @cache
    def foreseen() -> dict[Point, list[Config]]:
        return {p: predictor.shortlist(p, narrow.configs(), FORESEEN) for p, narrow in at.items()}

    def search(known: KnownBefore) -> Strategy:
        earlier = relatives(problem, known.chosen)
        first = {
            p: [*baselines.configs[p].values(), *earlier.get(p.batch_size, [])[:RELATIVES]]
            for p in at
        }
        seeds = seeds_for(
            at, problem, request.device, space, corpus, known=first, foreseen=foreseen()
        )
        model = predictor.estimate_all
        return Search({DensePart.DENSE: space}, [*at], seeds, budget, request.seed, at, model)

    return search
