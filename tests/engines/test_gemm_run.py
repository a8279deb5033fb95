"""A dense GEMM's tuning run: replayed from recorded trials, and predicted with compiled kernels."""

from __future__ import annotations

import dataclasses
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
from tuner.families.dense_gemm.problem import BATCH_SIZES, DenseGemm, DensePart
from tuner.families.dense_gemm.space import gemm_space, seeds_for, space_at
from tuner.families.dense_gemm.tuning import BUDGETS, PREDICT_KERNELS
from tuner.measure.recording import read_trials
from tuner.measure.workbench import Workbench
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import MeasureKind, Measurement, Status
from tuner.store.results import ResultStore
from tuner.tuning.report import RunReport
from tuner.tuning.request import Effort, KnownBefore, Request, Source, prepare
from tuner.tuning.search import Search

H100, L40S = find_device("H100"), find_device("L40S")
ENGINE = "sglang==0.5.16"
SIZES = (1, 16, 64, 256, 1024, 4096)


def recording_of(problem: DenseGemm) -> Path:
    """Every legal configuration of a shape, timed on an H100."""
    return RECORDINGS / f"h100_N{problem.N}_K{problem.K}_fp8w8a8_b128.csv.gz"


def replay_of(problem: DenseGemm) -> Request:
    source = Source(MeasureKind.REPLAY, recording_of(problem))
    return Request(problem, H100, find_engine(ENGINE), source)


def run(asked: Request, store: ResultStore, workbench: Workbench | None = None) -> RunReport:
    return tuned(asked, store, workbench)


SHAPES = [(2112, 7168), (3072, 1536), (5120, 4096), (7168, 2048)]


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunReport, ResultStore]]:
    """The report of a search, and the store that has its winners and trials."""
    with ResultStore.open(f"sqlite:///{tmp_path_factory.mktemp('searched')}/tuner.db") as opened:
        yield run(replay_of(BLOCKS), opened), opened


class TestReplay:
    @pytest.mark.parametrize(("N", "K"), only(SHAPES[:1], SHAPES))
    def test_a_search_finds_what_is_within_a_percent_of_the_best(
        self, N: int, K: int, store: ResultStore, searched: tuple[RunReport, ResultStore]
    ) -> None:
        problem = dataclasses.replace(BLOCKS, N=N, K=K)
        report = searched[0] if problem == BLOCKS else run(replay_of(problem), store)
        recorded = read_trials(recording_of(problem), problem).trials
        regrets = []
        for entry in report.entries:
            here = [t for c, t in recorded.items() if c.point == entry.point]
            best = min(t.measurement.median_us for t in here if t.measurement.timed)
            regrets.append(entry.median_us / best)
            shipped = {"shipped"} if (N, K) == (7168, 2048) else set()  # by sglang, for an H100
            assert set(entry.incumbents) == {"default"} | shipped
            for own in entry.incumbents.values():
                assert own.median_us is None or entry.median_us <= own.median_us
        assert len(regrets) == 7
        assert statistics.geometric_mean(regrets) < 1.01
        assert report.totals.measurements < len(recorded) / 5

    def test_a_file_gets_every_size_of_the_engines_ladder(
        self, searched: tuple[RunReport, ResultStore]
    ) -> None:
        report, store = searched
        tuned_sizes = {entry.point.batch_size for entry in report.entries}
        kept = store.winners_in(BLOCKS, report.environment)
        assert {one.entry.point.batch_size for one in kept} == {*BATCH_SIZES, *tuned_sizes}
        others = {one.status for one in kept if one.entry.point.batch_size not in tuned_sizes}
        assert others == {Status.INCUMBENT}

    def test_a_run_begun_again_measures_nothing(
        self, searched: tuple[RunReport, ResultStore]
    ) -> None:
        first, store = searched
        again = run(replay_of(BLOCKS), store)
        assert again.totals.measurements == 0
        assert [e.config for e in again.entries] == [e.config for e in first.entries]

    def test_a_size_that_is_not_recorded_is_refused(self) -> None:
        asked = dataclasses.replace(replay_of(BLOCKS), selection=GemmSelection((7,)))
        with pytest.raises(BadInput, match="the recording has no M=7"):
            prepare(asked)

    def test_later_gemms_of_a_command_try_the_earlier_ones_winners(
        self, store: ResultStore
    ) -> None:
        asked = dataclasses.replace(replay_of(BLOCKS), effort=Effort.QUICK)
        with Workbench() as workbench:
            entries = run(asked, store, workbench).entries
            ((problem, configs),) = workbench.chosen
        assert problem == BLOCKS
        strategy = prepare(asked).strategy
        later, alone = (
            set(strategy(KnownBefore(chosen=some)).ask()) for some in (workbench.chosen, ())
        )
        assert {Candidate(e.point, configs[e.point]) for e in entries} <= later
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
    spent = {len(configs) for configs in tried.values()}
    assert budget.per_point <= min(spent) <= max(spent) <= budget.per_point + 2 * budget.nearby
    assert len(set.union(*tried.values())) <= budget.kernels


class TestRefusals:
    def test_options_of_other_families_are_refused(self) -> None:
        source = Source(MeasureKind.PREDICT)
        with pytest.raises(BadInput, match="leave wide out"):
            prepare(Request(BLOCKS, L40S, find_engine(ENGINE), source, wide=True))
        with pytest.raises(BadInput, match="leave --routing out"):
            routed = Source(MeasureKind.GPU, routing=Path("ids.pt"))
            prepare(Request(BLOCKS, L40S, find_engine(ENGINE), routed))

    def test_a_kernel_whose_configuration_the_engine_reads_from_no_file_is_refused(self) -> None:
        with pytest.raises(UnsupportedKernel, match="reads no file"):
            prepare(Request(CHANNELS, L40S, find_engine(ENGINE), Source(MeasureKind.PREDICT)))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    """A prediction for an L40S."""
    source, chosen = Source(MeasureKind.PREDICT), GemmSelection((16, 64))
    asked = Request(BLOCKS, L40S, find_engine(ENGINE), source, chosen, Effort.QUICK)
    path = tmp_path_factory.mktemp("predicted") / "tuner.db"
    with ResultStore.open(f"sqlite:///{path}") as store, pytest.MonkeyPatch.context() as patch:
        patch.setitem(PREDICT_KERNELS, Effort.QUICK, 4)  # a few kernels say as much as twenty
        return run(asked, store)


class TestPrediction:
    def test_small_batches_get_narrow_tiles_that_fit(self, report: RunReport) -> None:
        for entry in report.entries:
            assert entry.status is Status.PREDICTED
            assert entry.compiled.shared_bytes <= L40S.shared_optin_bytes
            assert entry.config["BLOCK_SIZE_N"] <= 64
            assert entry.reason.startswith("predicted ")

    def test_totals_say_what_was_compiled_and_what_was_known(self, report: RunReport) -> None:
        totals = report.totals
        assert totals.extra["kernels_cached"] > 0  # both sizes share their kernels
        assert "from the cache" in report.as_text()


class TestModel:
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
