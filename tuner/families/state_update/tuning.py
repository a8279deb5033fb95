"""The tuning run of a state update.

All points share compiled kernels, and there are at most 24. So every configuration is tried at
every point, whatever the effort.
"""

from __future__ import annotations

from tuner.families.state_update.engine import StateEngine, state_engine
from tuner.families.state_update.family import StateSelection
from tuner.families.state_update.predict import CLEAR_GAIN, StatePredictor, state_space
from tuner.families.state_update.problem import BATCH_SIZES, StateUpdate, Update
from tuner.problems.points import Point
from tuner.tuning.baselines import Baselines, tuned_near
from tuner.tuning.pointwise import pointwise_plan
from tuner.tuning.report import EntryTable
from tuner.tuning.request import Prepared, Request, recording_of, refuse_moe_options
from tuner.tuning.tune import everything

TABLE = EntryTable(
    ("sequences", "M block", "warps"),
    lambda entry: (
        entry.point.batch_size,
        entry.config["BLOCK_SIZE_M"],
        entry.config["num_warps"],
    ),
)


def prepare(request: Request) -> Prepared:
    """The run of a state update. Raises BadInput for a request that cannot be tuned."""
    assert isinstance(request.problem, StateUpdate)  # the registry chose this family
    assert isinstance(request.selected, StateSelection)
    problem, device, kind = request.problem, request.device, request.source.kind
    engine = state_engine(request.engine)
    refuse_moe_options(request, "a state update")
    recording = recording_of(request)
    if recording is not None and not request.selected.given:
        points = recording.points
    else:
        points = tuple(sorted(request.selected.points(problem)))
    name = engine.file_name(problem, device)
    space = state_space(problem, device)
    kept, left, baselines = _baselines(engine, request, points).pass_over(request, points)
    return Prepared(
        request=request,
        points=points,
        spaces={Update.STATE: space},
        kernels=engine.lift(device.target.backend),
        plan=lambda known: pointwise_plan(left, baselines, kind, CLEAR_GAIN, known.previous),
        strategy=lambda known: everything(dict.fromkeys(left, space)),
        predictor=StatePredictor(device, problem),
        tries={point.size: len(space) for point in left},
        file_names={Update.STATE: name},
        table=TABLE,
        recording=recording,
        kept=kept,
        compiles_ahead=True,
    )


def _baselines(engine: StateEngine, request: Request, points: tuple[Point, ...]) -> Baselines:
    """What the engine runs at its usual numbers of sequences, and at those of the request."""
    problem, device = request.problem, request.device
    assert isinstance(problem, StateUpdate)
    keys = engine.entries(problem, device)
    found, near = {}, set()
    for size in sorted({*BATCH_SIZES, *(point.batch_size for point in points)}):
        point = Point(size, Update.STATE)
        found[point] = engine.incumbents(problem, device, size)
        asked = engine.file_key(problem, size)
        if tuned_near(asked, keys):
            near.add(point)
    return Baselines(found, frozenset(near))
