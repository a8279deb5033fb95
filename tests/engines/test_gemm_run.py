"""A dense GEMM's tuning run: replayed from recorded trials, and predicted with compiled kernels.

The recorded times are the device model's, with a fixed error for each configuration. So they say
how well a search does, and nothing about a GPU.
"""

from __future__ import annotations

import dataclasses
import hashlib
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import RECORDINGS, tuned
from gemm_cases import BLOCKS, CHANNELS, point, tile
from tiers import only

from tuner.devices.constants import Constants
from tuner.devices.table import find_device
from tuner.devices.tile_model import Footprint, GemmModel, Product, RowBlocks
from tuner.engines.engine import find_engine
from tuner.errors import BadInput, UnsupportedKernel
from tuner.families.dense_gemm.engine import gemm_engine
from tuner.families.dense_gemm.family import GemmSelection
from tuner.families.dense_gemm.predict import GemmPredictor
from tuner.families.dense_gemm.problem import BATCH_SIZES, DensePart
from tuner.families.dense_gemm.space import gemm_space, seeds_for, space_at
from tuner.families.dense_gemm.tuning import BUDGETS, PREDICT_KERNELS
from tuner.measure.recording import read_trials, write_trials
from tuner.measure.workbench import Workbench
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Compiled, MeasureKind, Measurement, Status, Trial
from tuner.store.results import ResultStore
from tuner.tuning.report import Report
from tuner.tuning.request import Effort, Known, Request, Source, prepare
from tuner.tuning.search import Search

H100, L40S = find_device("H100"), find_device("L40S")
ENGINE = "sglang==0.5.16"
SIZES = (1, 16, 64, 256, 1024, 4096)
ERROR = 0.2  # of the made-up times: up to 10 % either way


def factor(config: Config) -> float:
    """A fixed error for each configuration."""
    number = int(hashlib.sha256(config.key.encode()).hexdigest()[:8], 16)
    return 1 + ERROR * (number / 2**32 - 0.5)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All legal configurations at SIZES, and the engine's own at all sizes."""
    engine = gemm_engine(find_engine(ENGINE))
    predictor = GemmPredictor(H100, BLOCKS)
    space = gemm_space(BLOCKS, H100, {}, lambda c: engine.effective(BLOCKS, c, H100.target))
    trials = []
    for M in BATCH_SIZES:
        configs = set(engine.incumbents(BLOCKS, H100, M).values())
        configs |= set(space_at(space, BLOCKS, H100, M).configs() if M in SIZES else ())
        for config, us in predictor.estimate_all(point(M), configs).items():
            compiled = Compiled(Status.OK, shared_bytes=1024, n_regs=100, n_spills=0)
            timed = us * factor(config)
            candidate = Candidate(point(M), config)
            trials.append(Trial(candidate, compiled, Measurement(Status.OK, timed, timed)))
    path = tmp_path_factory.mktemp("gemm") / "trials.csv.gz"
    write_trials(path, BLOCKS, trials)
    return path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ResultStore]:
    with ResultStore.open(f"sqlite:///{tmp_path}/tuner.db") as opened:
        yield opened


def asked_of(recording: Path) -> Request:
    source = Source(MeasureKind.REPLAY, recording)
    return Request(BLOCKS, H100, find_engine(ENGINE), source, GemmSelection(SIZES))


@pytest.fixture
def replayed(recording: Path) -> Request:
    return asked_of(recording)


def run(asked: Request, store: ResultStore, workbench: Workbench | None = None) -> Report:
    return tuned(asked, store, workbench)


SHAPES = [(2112, 7168), (3072, 1536), (5120, 4096), (7168, 2048)]


class TestRecorded:
    """Every legal configuration of a shape, timed on an H100."""

    @pytest.mark.parametrize(("N", "K"), only(SHAPES[:1], SHAPES))
    def test_a_search_finds_what_is_within_a_percent_of_the_best(
        self, N: int, K: int, store: ResultStore
    ) -> None:
        problem = dataclasses.replace(BLOCKS, N=N, K=K)
        path = RECORDINGS / f"h100_N{N}_K{K}_fp8w8a8_b128.csv.gz"
        source = Source(MeasureKind.REPLAY, path)
        report = run(Request(problem, H100, find_engine(ENGINE), source), store)
        recorded = read_trials(path, problem).trials
        regrets = []
        for entry in report.entries:
            here = [t for c, t in recorded.items() if c.point == entry.point]
            best = min(t.measurement.median_us for t in here if t.measurement.timed)
            regrets.append(entry.median_us / best)
            own = entry.incumbents["default"].median_us
            assert own is None or entry.median_us <= own
        assert len(regrets) == 7
        assert statistics.geometric_mean(regrets) < 1.01


@pytest.fixture(scope="module")
def searched(
    recording: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Report, ResultStore]]:
    """The report of a search, and the store that has its winners and trials."""
    with ResultStore.open(f"sqlite:///{tmp_path_factory.mktemp('searched')}/tuner.db") as opened:
        yield run(asked_of(recording), opened), opened


class TestReplay:
    def test_a_search_finds_what_is_within_a_percent_of_the_best(
        self, replayed: Request, store: ResultStore, searched: tuple[Report, ResultStore]
    ) -> None:
        best = run(dataclasses.replace(replayed, effort=Effort.EXHAUSTIVE), store)
        found, _ = searched
        assert [entry.point for entry in found.entries] == [point(M) for M in SIZES]
        pairs = zip(found.entries, best.entries, strict=True)
        regrets = [mine.median_us / theirs.median_us for mine, theirs in pairs]
        assert statistics.geometric_mean(regrets) < 1.01
        assert found.totals.measurements < best.totals.measurements / 5
        for entry in found.entries:
            assert set(entry.incumbents) == {"default"}  # no file is shipped for this shape
            assert entry.median_us <= entry.incumbents["default"].median_us

    def test_a_file_gets_every_size_of_the_engines_ladder(
        self, searched: tuple[Report, ResultStore]
    ) -> None:
        report, store = searched
        kept = store.winners_in(BLOCKS, report.environment)
        assert {one.entry.point.batch_size for one in kept} == set(BATCH_SIZES)
        others = {one.status for one in kept if one.entry.point.batch_size not in SIZES}
        assert others == {Status.INCUMBENT}

    def test_a_run_begun_again_measures_nothing(
        self, replayed: Request, searched: tuple[Report, ResultStore]
    ) -> None:
        first, store = searched
        again = run(replayed, store)
        assert again.totals.measurements == 0
        assert [e.config for e in again.entries] == [e.config for e in first.entries]

    def test_a_size_that_is_not_recorded_is_refused(self, replayed: Request) -> None:
        asked = dataclasses.replace(replayed, selection=GemmSelection((7,)))
        with pytest.raises(BadInput, match="the recording has no M=7"):
            prepare(asked)

    def test_later_gemms_of_a_command_try_the_earlier_ones_winners(
        self, replayed: Request, store: ResultStore
    ) -> None:
        with Workbench() as workbench:
            run(replayed, store, workbench)
            ((problem, configs),) = workbench.chosen
        assert problem == BLOCKS
        strategy = prepare(replayed).strategy
        later, alone = (set(strategy(Known(chosen=some)).ask()) for some in (workbench.chosen, ()))
        assert {Candidate(point(M), configs[point(M)]) for M in SIZES} <= later
        assert later != alone


class TestSeeds:
    """Winners that sglang ships vote for the first configurations."""

    def seeds(self, **more: object) -> dict[Point, list[Config]]:
        engine = gemm_engine(find_engine(ENGINE))
        space = gemm_space(BLOCKS, L40S, {}, lambda c: c)
        narrowed = {point(M): space_at(space, BLOCKS, L40S, M) for M in SIZES}
        given = {"known": {}, "foreseen": {}, "shipped": engine.shipped(), **more}
        found = seeds_for(narrowed, BLOCKS, L40S, space, **given)  # type: ignore
        for at, configs in found.items():
            assert len(configs) == len(set(configs)) > 3
            assert all(narrowed[at].legal(config) for config in configs)
        return found

    def test_small_batches_begin_with_narrower_tiles_than_large_ones(self) -> None:
        found = self.seeds()
        small, large = (found[point(M)][:3] for M in (1, 4096))
        areas = [
            sum(one["BLOCK_SIZE_M"] * one["BLOCK_SIZE_N"] for one in some)
            for some in (small, large)
        ]
        assert areas[0] < areas[1]

    def test_known_ones_come_first_as_they_run_at_that_size(self) -> None:
        found = self.seeds(known={point(16): [tile(group=32)]})
        assert found[point(16)][0] == tile(group=1)

    def test_files_of_a_shape_may_be_left_out(self) -> None:
        files = list(gemm_engine(find_engine(ENGINE)).shipped())
        shapes = {(file.key.N, file.key.K) for file in files}
        near = min(shapes, key=lambda shape: abs(shape[0] - BLOCKS.N) + abs(shape[1] - BLOCKS.K))
        kept = [file for file in files if near != (file.key.N, file.key.K)]
        assert len(kept) < len(files)
        assert self.seeds(without=[near]) == self.seeds(shipped=kept)


def test_a_search_proposes_only_what_is_legal_at_a_size() -> None:
    space = gemm_space(BLOCKS, L40S, {}, lambda c: c)
    narrowed = {point(M): space_at(space, BLOCKS, L40S, M) for M in SIZES}
    predictor = GemmPredictor(L40S, BLOCKS)
    budget = BUDGETS[Effort.STANDARD]
    search = Search({DensePart.DENSE: space}, list(narrowed), {}, budget, 0, narrowed)
    tried: dict[Point, set[Config]] = {at: set() for at in narrowed}
    while asked := search.ask():
        for candidate in asked:
            at, config = candidate.point, candidate.config
            assert narrowed[at].legal(config)
            tried[at].add(config)
            us = predictor.estimate_all(at, [config]).get(config)
            status = Status.OK if us else Status.OUT_OF_RESOURCES
            search.tell(candidate, Measurement(status, us))
    assert {len(configs) for configs in tried.values()} == {budget.per_point}
    assert len(set.union(*tried.values())) <= budget.kernels


class TestRefusals:
    def test_options_of_other_families_are_refused(self) -> None:
        source = Source(MeasureKind.PREDICT)
        with pytest.raises(BadInput, match="leave --wide and --grid out"):
            prepare(Request(BLOCKS, L40S, find_engine(ENGINE), source, wide=True))
        with pytest.raises(BadInput, match="leave --routing out"):
            routed = Source(MeasureKind.GPU, routing=Path("ids.pt"))
            prepare(Request(BLOCKS, L40S, find_engine(ENGINE), routed))

    def test_a_kernel_whose_configuration_the_engine_reads_from_no_file_is_refused(self) -> None:
        with pytest.raises(UnsupportedKernel, match="reads no file"):
            prepare(Request(CHANNELS, L40S, find_engine(ENGINE), Source(MeasureKind.PREDICT)))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A prediction for an L40S."""
    source, chosen = Source(MeasureKind.PREDICT), GemmSelection((16, 64))
    asked = Request(BLOCKS, L40S, find_engine(ENGINE), source, chosen, Effort.QUICK)
    path = tmp_path_factory.mktemp("predicted") / "tuner.db"
    with ResultStore.open(f"sqlite:///{path}") as store, pytest.MonkeyPatch.context() as patch:
        patch.setitem(PREDICT_KERNELS, Effort.QUICK, 4)  # a few kernels say as much as twenty
        return run(asked, store)


class TestPrediction:
    def test_small_batches_get_narrow_tiles_that_fit(self, report: Report) -> None:
        for entry in report.entries:
            assert entry.status is Status.PREDICTED
            assert entry.compiled.shared_bytes <= L40S.shared_optin_bytes
            assert entry.config["BLOCK_SIZE_N"] <= 64
            assert entry.reason.startswith("predicted ")

    def test_totals_say_what_was_compiled_and_what_was_known(self, report: Report) -> None:
        totals = report.totals
        assert totals.extra["kernels_cached"] > 0  # both sizes share their kernels
        assert "from the cache" in report.as_text()

    def test_tables_show_blocks_and_no_gemm(self, report: Report) -> None:
        header = report.as_text().splitlines()[0].split()
        assert header[:2] == ["M", "M"]
        assert "gemm" not in header


class TestModel:
    def test_more_work_takes_longer(self) -> None:
        predictor = GemmPredictor(H100, BLOCKS)
        space = gemm_space(BLOCKS, H100, {}, lambda c: c)
        assert space.configs()
        one, many = (
            predictor.estimate_all(point(M), space_at(space, BLOCKS, H100, 64).configs())
            for M in (64, 4096)
        )
        assert all(many[config] > one[config] for config in one)

    def test_a_split_pays_for_its_second_kernel(self) -> None:
        predictor = GemmPredictor(H100, BLOCKS)
        whole = Config(
            {
                **{"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128},
                **{"GROUP_SIZE_M": 1, "num_warps": 8, "num_stages": 3},
            }
        )
        times = predictor.estimate_all(point(4096), [whole, whole.replace(SPLIT_K=4)])
        assert times[whole.replace(SPLIT_K=4)] > times[whole]

    def test_each_split_writes_all_outputs_as_float32(self) -> None:
        model = GemmModel(H100, BLOCKS.dtype, 1, Constants(dram_efficiency=0.5))
        whole = Product(BLOCKS.N, BLOCKS.K, 4096, 4096, RowBlocks(1, 64, 64))
        one, two, eight = (
            model.predict(
                dataclasses.replace(whole, splits=splits),
                tile(64, 64),
                Footprint(0, 64),
                swap=False,
            ).dram_us
            for splits in (1, 2, 8)
        )
        byte_us = 4096 * BLOCKS.N / H100.bandwidth_gbs / 1e3 / 0.5  # a byte of each output
        assert eight - two == pytest.approx((8 - 2) * 4 * byte_us)
        assert two - one == pytest.approx((2 * 4 - 2) * byte_us)  # what is whole has 16 bits
