"""Puts the rooms' parts together for one tuning run of a layer's attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from tuner.compile.candidates import Binder
from tuner.errors import BadInput
from tuner.families.attention.buckets import Bucket, Together, buckets_of
from tuner.families.attention.choose import AttentionChooser
from tuner.families.attention.engine import AttentionKernels, attention_engine
from tuner.families.attention.predict.predictor import CLEAR_GAIN, AttentionPredictor
from tuner.families.attention.problem import Attention
from tuner.families.attention.recording import (
    AttentionRecording,
    read_attention_recording,
    write_attention_recording,
)
from tuner.families.attention.selection import AttentionSelection
from tuner.families.attention.space import attention_space
from tuner.families.attention.workloads import Workload, WorkPoint, usual_workload
from tuner.measure.replay import Replay
from tuner.problems.points import Candidate, Config, Part, Point
from tuner.problems.results import Entry, MeasureKind, Trial
from tuner.tuning.bench import Bench, SerialBench
from tuner.tuning.journal import RunStore
from tuner.tuning.report import EntryTable
from tuner.tuning.request import Effort
from tuner.tuning.run import NOISE, Request, TuningRun
from tuner.tuning.search import Budget, Search, budget_for
from tuner.tuning.space import Space
from tuner.tuning.tune import FixedStrategy, Plan, Strategy

# What was fastest somewhere in the exhaustive H200 sweep: the first that a search tries.
SEEDS = (
    {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_H": 16, "num_warps": 4, "num_stages": 3},
    {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_H": 16, "num_warps": 8, "num_stages": 3},
    {"BLOCK_M": 16, "BLOCK_N": 128, "BLOCK_H": 16, "num_warps": 4, "num_stages": 2},
    {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_H": 16, "num_warps": 4, "num_stages": 4},
    {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_H": 16, "num_warps": 8, "num_stages": 3},
    {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_H": 16, "num_warps": 1, "num_stages": 3},
    # Latent attention's values taken out of its keys; the others above load them.
    {"BLOCK_N": 128, "BLOCK_H": 16, "HAS_MLA": 1, "num_warps": 8, "num_stages": 2},
    {"BLOCK_N": 16, "BLOCK_H": 16, "HAS_MLA": 1, "num_warps": 4, "num_stages": 3},
)


class AttentionRun(TuningRun):
    """The tuning run of one phase of a layer's attention."""

    table = EntryTable(
        ("kernel", "sequences", "new", "cached", "constants"), lambda entry: _cells(entry)
    )

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        assert isinstance(request.problem, Attention)  # what makes this the run to open
        assert isinstance(request.selected, AttentionSelection)
        self._problem = request.problem
        self._selected = request.selected
        self._engine = attention_engine(request.engine)
        self._check_request()
        self.points = tuple(point for bucket in self._buckets for point in bucket.points)
        self.file_names = dict.fromkeys(
            self._problem.parts, self._engine.file_name(self._problem, request.device.name)
        )

    def _look_up(self, store: RunStore) -> None:
        """Nothing: all stages of a phase are tuned in one run."""

    @cached_property
    def tries(self) -> dict[str, int]:
        """How many configurations each size may be tried with, all stages together."""
        found: dict[str, int] = {}
        for point in self.points:
            found[point.size] = found.get(point.size, 0) + self._most(self._spaces[point.part])
        return found

    def _most(self, space: Space) -> int:
        return min(len(space), self._budget.per_point)

    # Parts

    @cached_property
    def _buckets(self) -> list[Bucket]:
        return buckets_of(self._problem, self._workload.points)

    @property
    def _workload(self) -> Workload:
        named = self._selected.workload_of(self._problem)
        if named is not None:
            return named.for_problem(self._problem)
        if self._recording is None:
            return usual_workload(self._problem.phase).for_problem(self._problem)
        sizes = {(p.batch_size, p.new_tokens, p.cached_tokens) for p in self._recording.points}
        return Workload("recording", tuple(WorkPoint(*size, weight=1.0) for size in sorted(sizes)))

    @cached_property
    def _recording(self) -> AttentionRecording | None:
        path = self.request.source.recording
        return read_attention_recording(path, self._problem) if path else None

    @property
    def _recording_sha256(self) -> str:
        return self._recording.sha256 if self._recording else ""

    @cached_property
    def _kernels(self) -> AttentionKernels:
        return self._engine.lift(self.request.device.target.backend)

    @property
    def _kernel_hash(self) -> str:
        return self._kernels.hash

    def _binder(self) -> Binder:
        return self._kernels.binder(self._problem, self.request.device.target)

    @cached_property
    def _spaces(self) -> dict[Part, Space]:
        takes = {point.part: config for point, config in self._own.items()}
        device = self.request.device
        return {
            part: attention_space(self._problem, device, part, takes[part])
            for part in self._problem.parts
        }

    @cached_property
    def _own(self) -> dict[Point, Config]:
        """The engine's own constants at each point."""
        target = self.request.device.target
        return {p: self._kernels.default_config(self._problem, p, target) for p in self.points}

    def _bench_and_strategy(self) -> tuple[Bench, Strategy]:
        request = self.request
        if self._recording:
            replay = Replay(self._recording)
            return SerialBench(replay, replay, self.points), self._search()
        if request.source.kind is MeasureKind.GPU:
            return self._gpu, self._search()
        predictor = AttentionPredictor(request.device, self._problem)
        return SerialBench(self._compiler, predictor, self.points), self._promising()

    def _search(self) -> Strategy:
        if self.request.effort is Effort.EXHAUSTIVE:
            return self._everything()
        places = [bucket.place for bucket in self._buckets]
        seeds = {place: self._seeds(place) for place in places}
        search = Search(self._spaces, places, seeds, self._budget, self.request.seed)
        return Together(search, self._buckets, self._own)

    def _seeds(self, place: Point) -> list[Config]:
        space = self._spaces[place.part]
        own = self._own[place]
        return [space.nearest(seed) for seed in (own, *SEEDS)]

    def _everything(self) -> Strategy:
        """The spaces are small: all of them."""
        return self._listed(lambda config: True)

    def _promising(self) -> Strategy:
        """What a prediction compiles: about half of the spaces. No point of the H200 sweep was
        faster elsewhere by more than a prediction can tell.
        """
        everything = self.request.effort is Effort.EXHAUSTIVE
        return self._listed(lambda config: everything or _promises(config))

    def _listed(self, wanted: Callable[[Config], bool]) -> Strategy:
        return FixedStrategy(
            [
                Candidate(point, config)
                for point in self.points
                for config in self._spaces[point.part].configs()
                if wanted(config)
            ]
        )

    @cached_property
    def _budget(self) -> Budget:
        size = max(len(space) for space in self._spaces.values())
        return budget_for(self.request.effort, len(self._buckets), size)

    def _plan(self) -> Plan:
        predicted = self.request.source.kind is MeasureKind.PREDICT
        # A prediction must be clear of the engine's constants, and no worse than they anywhere.
        noise, slack = (CLEAR_GAIN, 0.0) if predicted else (NOISE[self.request.source.kind], None)
        return Plan(
            requested=self.points,
            incumbents={point: {"default": config} for point, config in self._own.items()},
            chooser=AttentionChooser(self._buckets, self._own, noise, slack),
        )

    def _write_recording(self, path: Path, trials: Sequence[Trial], add: bool) -> None:
        write_attention_recording(path, self._problem, trials, add)

    def _check_request(self) -> None:
        if self.request.source.routing is not None:
            raise BadInput("attention has no routing: leave --routing out")
        if self.request.wide is not None:
            raise BadInput("attention has one space to search: leave --wide and --grid out")


def _cells(entry: Entry) -> tuple[object, ...]:
    point = entry.point
    constants = " ".join(f"{name}={value}" for name, value in sorted(entry.config.items()))
    return point.part.value, point.batch_size, point.new_tokens, point.cached_tokens, constants


def _promises(config: Config) -> bool:
    if config.get("BLOCK_N", 32) < 32:
        return False
    return "BLOCK_M" not in config or (config["num_warps"] >= 4 and config["num_stages"] <= 3)


def open_run(request: Request) -> TuningRun:
    return AttentionRun(request)
