"""Whatever is stored, an exported file is whole, and nowhere slower than the engine without it."""

from __future__ import annotations

import glob
import itertools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zlib import crc32

import draws
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tiers import only

from tuner.devices.table import find_device
from tuner.engines.config_files import launch_config
from tuner.engines.engine import Engine, find_engine
from tuner.errors import ExportRefused, NothingFits
from tuner.export.export import export_device
from tuner.families.dense_gemm.engine import gemm_engine
from tuner.families.dense_gemm.predict import CLEAR_GAIN
from tuner.families.dense_gemm.space import find_baselines
from tuner.families.fused_moe.choose import MoeChooser
from tuner.families.fused_moe.choose import find_baselines as moe_baselines
from tuner.families.fused_moe.engine import moe_engine
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.families.fused_moe.recording import read_recording
from tuner.families.fused_moe.tuning import policy_for
from tuner.measure.recording import read_trials
from tuner.problems.points import Candidate, Config, Part, Point, Problem
from tuner.problems.registry import parse_problem
from tuner.problems.results import (
    Compiled,
    Environment,
    MeasureKind,
    Measurement,
    RunKey,
    Status,
    Totals,
    Trial,
    untimed,
)
from tuner.store.results import ResultStore
from tuner.tuning.pointwise import pointwise_goal
from tuner.tuning.tune import RunGoal

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"
TRITONS, KERNELS, DRIVERS = ("3.5.1", "3.6.0"), ("kernels", "patched"), ("550", "580")
FAILURES = (Status.NOT_RECORDED, Status.COMPILE_TIMEOUT, Status.CRASHED, Status.TIMED_OUT)
TRIED = 20  # of the fastest configurations at a point, and about as many others
SLACK = 1.03
FLAGS = {"--fp8-gemm-backend": "triton"}


@dataclass(frozen=True)
class Stored:
    """A run that the store has."""

    predicted: bool
    triton: str
    kernels: str
    driver: str
    sizes: frozenset[int]
    lost: Mapping[int, Status]  # why the engine's own has no time, by size
    worth: int  # draws how wrong predictions are
    allow_predicted: bool  # of the export that follows


class Case:
    """A recorded problem for one engine."""

    def __init__(self, spec: str, recording: str, engine: str) -> None:
        self.problem: Problem = parse_problem(spec)
        self.path = RECORDINGS / recording
        self.device = find_device(recording.partition("_")[0])
        self.real = find_engine(engine)

    @property
    def moe(self) -> bool:
        return isinstance(self.problem, FusedMoe)

    @cached_property
    def trials(self) -> Mapping[Candidate, Trial]:
        read = read_recording(self.path) if self.moe else read_trials(self.path, self.problem)
        return read.trials

    @cached_property
    def tried(self) -> dict[Point, list[Candidate]]:
        """The fastest recorded candidates, and some others."""
        found: dict[Point, list[Candidate]] = {}
        for candidate, trial in self.trials.items():
            if trial.measurement.timed:
                found.setdefault(candidate.point, []).append(candidate)
        for some in found.values():
            some.sort(key=lambda one: self.trials[one].measurement.median_us)
        return {p: [*some[:TRIED], *some[TRIED :: len(some) // TRIED]] for p, some in found.items()}

    @cached_property
    def sizes(self) -> list[int]:
        return sorted({point.batch_size for point in self.tried})

    @cached_property
    def baselines(self) -> dict[str, Any]:
        """What the engine runs at the sizes that a file must hold, by Triton."""
        if not self.moe:
            found = find_baselines(gemm_engine(self.real), self.problem, self.device, ())
            return dict.fromkeys(TRITONS, found)
        about = moe_engine(self.real), self.problem, self.device
        return {t: moe_baselines(*about, t, tuple(Gemm), ()).configs for t in TRITONS}

    @cached_property
    def own(self) -> dict[tuple[int, str], tuple[dict[Part, Config], float | None]]:
        """What the engine runs, and its time, at each recorded size, by Triton."""
        found = {}
        for size, triton in itertools.product(self.sizes, TRITONS):
            runs = self.runs(self.real, size, triton, None)
            found[size, triton] = runs, self.us(size, runs)
        return found

    def goal(self, triton: str, kind: MeasureKind, sizes: Sequence[int]) -> RunGoal:
        """A run's goal, as the family makes it."""
        points = [point for point in self.tried if point.batch_size in sizes]
        runs = self.baselines[triton]
        if not self.moe:
            return pointwise_goal(points, runs, kind, CLEAR_GAIN, {})
        policy = policy_for(kind, one_config=not moe_engine(self.real).has_down_files())
        return RunGoal(points, runs, MoeChooser(runs, policy, sizes))

    def runs(self, engine: Engine, size: int, triton: str, root: Path | None) -> dict[Part, Config]:
        """What the engine runs at a size, by part."""
        if self.moe:
            found = moe_engine(engine).incumbents(self.problem, self.device, size, triton, root)
            return found.get("shipped", found["default"])
        found = gemm_engine(engine).incumbents(self.problem, self.device, size, root)
        (part,) = self.problem.parts
        return {part: found.get("shipped", found["default"])}

    def us(self, size: int, runs: Mapping[Part, Config]) -> float | None:
        """The recorded time of both gemms."""
        times = []
        for part, config in runs.items():
            candidate = Candidate(Point(size, part), launch_config(config))
            trial = self.trials.get(candidate)
            times.append(trial.measurement.median_us if trial else None)
        return None if None in times else sum(times)

    @contextmanager
    def engine(self) -> Iterator[Engine]:
        """A copy of what an export needs of the engine, with the files for this problem alone."""
        layer = (moe_engine if self.moe else gemm_engine)(self.real)
        with TemporaryDirectory() as folder:
            engine = replace(self.real, root=Path(folder) / "sglang")
            package = engine.root / layer.package_root.relative_to(self.real.root)
            package.mkdir(parents=True)
            for source in layer.package_root.glob("*.py"):
                shutil.copy(source, package)
            name = layer.file_name(self.problem, self.device, *([Gemm.UP] if self.moe else []))
            for path in layer.configs.rglob(f"{glob.escape(name.removesuffix('.json'))}*"):
                place = package / path.relative_to(layer.package_root)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, place)
            (package / "configs").mkdir(exist_ok=True)
            if (plugins := self.real.root / "srt/plugins/hook_registry.py").exists():
                (engine.root / "srt/plugins").mkdir(parents=True)
                shutil.copy(plugins, engine.root / "srt/plugins")
            yield engine


def store_run(store: ResultStore, case: Case, engine: Engine, run: Stored) -> None:
    """Publish what a run chooses from recorded trials."""
    kind = MeasureKind.PREDICT if run.predicted else MeasureKind.GPU
    goal = case.goal(run.triton, kind, sorted(run.sizes))
    trials = list(trials_of(case, goal, run))
    driver = "" if run.predicted else run.driver
    place = case.device.name, "sglang", engine.version, run.triton, run.kernels
    key = RunKey(
        case.problem, Environment(*place, driver=driver), kind, "quick", 0, goal.requested, "s"
    )
    try:
        entries = goal.chooser.choose(trials)
    except NothingFits:
        return
    store.finish_run(store.begin_run(key), entries, Totals())


def trials_of(case: Case, goal: RunGoal, run: Stored) -> Iterator[Trial]:
    own = dict.fromkeys(goal.incumbent_candidates())
    tried = [candidate for point in goal.requested for candidate in case.tried[point]]
    for candidate in dict.fromkeys([*own, *tried]):
        size = candidate.point.batch_size
        lost = run.lost.get(size)
        known = case.trials.get(candidate)
        if candidate in own and lost:
            if lost in (Status.CRASHED, Status.TIMED_OUT):
                yield Trial(candidate, Compiled(Status.OK), Measurement(lost))
            elif lost is not Status.NOT_RECORDED:  # then nobody tried it
                yield untimed(candidate, Compiled(lost))
        elif known is None or size not in run.sizes:
            yield untimed(candidate, known.compiled if known else Compiled(Status.NOT_RECORDED))
        elif run.predicted and known.measurement.median_us is not None:
            wrong = 1 + crc32(f"{candidate.config.key} {run.worth}".encode()) % 100 / 50
            us = known.measurement.median_us * wrong
            yield replace(known, measurement=Measurement(Status.PREDICTED, us))
        else:
            yield known


def check_export(store: ResultStore, case: Case, engine: Engine, out: Path | None, run: Stored):
    try:
        report = export_device(
            store.winners(
                device=case.device.name, engine=engine.name, engine_version=engine.version
            ),
            case.device,
            engine,
            out,
            allow_predicted=run.allow_predicted,
            flags=FLAGS,
        )
    except ExportRefused as refusal:
        assert "were predicted" in str(refusal) or "has no winners" in str(refusal)
        return
    root = out or (moe_engine if case.moe else gemm_engine)(engine).package_root
    for file in report.files:
        held = case.goal(file.triton, MeasureKind.GPU, ()).incumbents
        assert {point.batch_size for point in held} <= {*file.entries}
    for triton in {file.triton for file in report.files}:
        for size in case.sizes:
            own, own_us = case.own[size, triton]
            assert case.runs(engine, size, triton, None) == own  # whatever lies in its package
            us = case.us(size, case.runs(engine, size, triton, root))
            if own_us is not None and not run.allow_predicted:
                assert us is not None, size
                assert us <= own_us * SLACK, size


CASES = {
    "no shipped file": (
        "fused_moe:E=256,N=64,K=7168,top_k=8,dtype=int8_w8a8,per_channel_quant",
        "h200_E256_N64_K7168_top8_int8w8a8.csv.gz",
        "sglang==0.5.16",
    ),
    "a shipped file": (
        "fused_moe:E=8,N=3584,K=4096,top_k=2,dtype=fp8_w8a8",
        "h200_E8_N3584_K4096_top2_fp8w8a8.csv.gz",
        "sglang==0.5.16",
    ),
    "one file for both gemms": (
        "fused_moe:E=256,N=256,K=7168,top_k=8,dtype=fp8_w8a8,block_shape=128x128",
        "h200_E256_N256_K7168_top8_fp8w8a8_b128.csv.gz",
        "sglang==0.4.4",
    ),
    "a dense GEMM": (
        "block_gemm:N=5120,K=4096,dtype=fp8_w8a8,block=128x128",
        "h100_N5120_K4096_fp8w8a8_b128.csv.gz",
        "sglang==0.5.16",
    ),
}


# Servers read a dense GEMM's file outside the package by the plugin alone.
PLACES = [(name, into) for name in CASES for into in (True, False) if into or "GEMM" not in name]
EACH_COMMIT = [("a shipped file", True), ("no shipped file", False), ("a dense GEMM", True)]


@pytest.mark.parametrize(("name", "into_engine"), only(EACH_COMMIT, PLACES))
def test_each_file_is_whole_and_nowhere_slower_than_the_engine_without_it(name, into_engine):
    case = Case(*CASES[name])
    runs = st.builds(
        Stored,
        predicted=st.booleans(),
        triton=st.sampled_from(TRITONS),
        kernels=st.sampled_from(KERNELS),
        driver=st.sampled_from(DRIVERS),
        sizes=st.frozensets(st.sampled_from(case.sizes), min_size=1),
        lost=st.dictionaries(st.sampled_from(case.sizes), st.sampled_from(FAILURES), max_size=2),
        worth=st.integers(0, 9),
        allow_predicted=st.booleans(),
    )
    with ResultStore.open("sqlite://") as store:
        # A failure is told at once: to shrink it would take minutes.
        @settings(draws.times(0.4), phases=(Phase.explicit, Phase.reuse, Phase.generate))
        @given(st.lists(runs, min_size=1, max_size=4))
        def check(stored: Sequence[Stored]) -> None:
            store.withdraw(case.problem, case.device.name, "sglang")
            with case.engine() as engine, TemporaryDirectory() as folder:
                out = None if into_engine else Path(folder) / "out"
                for run in stored:
                    store_run(store, case, engine, run)
                    check_export(store, case, engine, out, run)

        check()
