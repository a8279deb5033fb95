"""Predictions: routing, instructions, occupancy, the corpus's say, and the recording's verdict."""

import dataclasses
import itertools
import math
import statistics

import pytest
from cases import FP8, FP8_RECORDING, H200, INT8, L40S, config

from tuner.devices.table import devices, find_device
from tuner.devices.tile_model import (
    Footprint,
    TensorStep,
    blocks_per_sm,
    tensor_step,
    uses_warpgroup,
)
from tuner.engines.engine import find_engine
from tuner.families.fused_moe.choose import MoeChooser, MoePolicy
from tuner.families.fused_moe.engine import moe_engine
from tuner.families.fused_moe.family import MoeSelection
from tuner.families.fused_moe.predict import (
    CLEAR_GAIN,
    CORPUS_WEIGHT,
    MOST_SHORTFALL,
    DeviceModel,
    Predictor,
    Prior,
    estimate,
    expected_load,
    needs,
)
from tuner.families.fused_moe.problem import FusedMoe, Gemm, swaps_ab
from tuner.families.fused_moe.recording import read_recording
from tuner.families.fused_moe.space import space_for
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Candidate, Point
from tuner.problems.registry import parse_problem
from tuner.problems.results import Compiled, MeasureKind, Measurement, Status, Trial
from tuner.tuning.request import KnownBefore, Request, Source, prepare
from tuner.tuning.seeds import cover

PROBLEMS = [
    FP8,
    INT8,
    parse_problem("fused_moe:E=64,N=1408,K=2048,top_k=6,dtype=bfloat16"),
    parse_problem("fused_moe:E=16,N=1024,K=5120,top_k=1,dtype=fp8_w8a8"),
    parse_problem("fused_moe:E=8,N=3584,K=4096,top_k=2,dtype=int8_w8a16"),
    parse_problem("fused_moe:E=128,N=768,K=2048,top_k=8,dtype=int4_w4a16,block_shape=0x128"),
    parse_problem("fused_moe:E=256,N=256,K=7168,top_k=8,dtype=int8_w8a8,block_shape=128x128"),
]
SOME_SIZES = (1, 8, 64, 512, 4096)


def compiled(shared=40_000, regs=100, spills=0):
    return Compiled(Status.OK, shared_bytes=shared, n_regs=regs, n_spills=spills)


@pytest.fixture(scope="module")
def recording():
    return read_recording(FP8_RECORDING)


@pytest.fixture(scope="module")
def corpus():
    """The shipped files, without the recording's own key and its twins."""
    files = moe_engine(find_engine("sglang==0.5.16")).shipped()
    return [f for f in files if not (f.key.E in (256, 257) and f.key.N == 256)]


@pytest.fixture(scope="module")
def spaces():
    by_gemm = {gemm: space_for(INT8, L40S, gemm).configs() for gemm in Gemm}
    return {Point(m, gemm): by_gemm[gemm] for m in SOME_SIZES for gemm in Gemm}


def layer(E: int, top_k: int, **ranks: int) -> FusedMoe:
    return FusedMoe(E, 64, 256, top_k, Dtype.BFLOAT16, **ranks)


class TestRouting:
    @pytest.mark.parametrize("block_m", [1, 2, 4])
    def test_is_exact_where_every_routing_can_be_counted(self, block_m):
        routings = list(itertools.product(itertools.combinations(range(4), 2), repeat=3))
        counts = [[sum(e in token for token in r) for e in range(4)] for r in routings]
        load = expected_load(3, layer(4, 2), block_m)
        blocks = statistics.mean(sum(math.ceil(n / block_m) for n in each) for each in counts)
        experts = statistics.mean(sum(n > 0 for n in each) for each in counts)
        assert load.blocks == pytest.approx(blocks)
        assert load.weights == pytest.approx(experts)
        assert load.rows == pytest.approx(6 / blocks)

    @pytest.mark.parametrize("block_m", [1, 2, 4])
    def test_a_rank_counts_its_own_experts_and_each_shared_expert_gets_all_tokens(self, block_m):
        chosen = [(*two, 2) for two in itertools.combinations((0, 1, -1, -2), 2)]
        routings = list(itertools.product(chosen, repeat=3))
        counts = [[sum(e in token for token in r) for e in range(3)] for r in routings]
        load = expected_load(3, layer(3, 3, ep=2, shared_experts=1), block_m)
        blocks = statistics.mean(sum(math.ceil(n / block_m) for n in each) for each in counts)
        assert load.blocks == pytest.approx(blocks)
        assert load.weights == pytest.approx(
            statistics.mean(sum(n > 0 for n in each) for each in counts)
        )
        assert load.rows == pytest.approx(statistics.mean(map(sum, counts)) / blocks)

    def test_the_launch_covers_blocks_that_routing_leaves_empty(self):
        # moe_align_block_size: 32,768 rows and 257 * 63 of padding are 765 blocks of 64.
        load = expected_load(4096, layer(256, 8), 64)
        assert load.blocks + load.empty_blocks == pytest.approx(765)


def swaps(problem, device, some) -> bool:
    return swaps_ab(some, problem.dtype, device.target)


def step_of(problem, device, some) -> TensorStep:
    return tensor_step(problem.dtype, device, some, swaps(problem, device, some))


class TestInstructions:
    def test_weights_take_the_tall_side_where_sglang_swaps(self):
        assert swaps(FP8, H200, config(16, 64, 128, 4, 3))
        assert uses_warpgroup(H200, config(16, 64, 128, 4, 3), swap=True)
        assert not swaps(FP8, H200, config(16, 32, 128, 4, 3))
        assert not swaps(FP8, find_device("B200"), config(16, 64, 128, 4, 3))
        assert not swaps(INT8, H200, config(16, 64, 128, 4, 3))

    def test_more_warps_than_instructions_repeat_work(self):
        four = step_of(FP8, L40S, config(16, 32, 128, 4, 3))
        eight = step_of(FP8, L40S, config(16, 32, 128, 8, 3))
        assert eight.mac_clocks == 2 * four.mac_clocks

    def test_fp8_is_converted_where_mma_sync_has_none(self):
        short = config(16, 32, 128, 4, 3)
        assert step_of(FP8, H200, short).converted > 0
        assert step_of(FP8, L40S, short).converted == 0

    def test_narrow_weights_are_converted_on_every_card(self):
        w8a16 = PROBLEMS[4]
        assert devices()
        assert all(step_of(w8a16, d, config(64, 64, 64, 4, 3)).converted for d in devices())


class TestModel:
    @pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.dtype.value)
    def test_every_card_and_type_has_times(self, problem):
        cards = {device.target.name: device for device in devices()}  # one of each architecture
        assert cards
        for device in cards.values():
            model = DeviceModel(device, problem)
            configs = space_for(problem, device, Gemm.UP).configs()[::211]
            assert configs
            for some in configs:
                footprint = estimate(problem, device, some)
                times = [
                    model.predict(Point(m, Gemm.UP), some, footprint).total_us
                    for m in (1, 64, 4096)
                ]
                assert all(0 < t < 1e7 for t in times)

    @pytest.mark.parametrize(
        ("shared", "regs", "warps", "held"),
        [
            (98_304, 188, 4, 2),  # shared memory: 228 KiB for the SM, 1 KiB more a block
            (36_864, 167, 4, 3),  # registers: 168 * 128 threads
            (20_480, 56, 4, 9),
            (205_824, 210, 8, 1),
            (1_024, 16, 4, 16),  # warps: 64
        ],
    )
    def test_blocks_that_an_sm_holds(self, shared, regs, warps, held):
        assert blocks_per_sm(H200, warps, Footprint(shared, regs)) == held

    def test_faster_memory_is_never_slower(self):
        fast = dataclasses.replace(H200, bandwidth_gbs=2 * H200.bandwidth_gbs)
        launch = Point(128, Gemm.UP), config(16, 64, 128, 4, 5), Footprint(51200, 56)
        slow_us = DeviceModel(H200, FP8).predict(*launch).total_us
        assert DeviceModel(fast, FP8).predict(*launch).total_us < 0.8 * slow_us

    def test_spills_cost(self):
        model, point, some = DeviceModel(H200, FP8), Point(128, Gemm.UP), config(64, 128, 128, 4, 3)
        without = model.predict(point, some, Footprint(73_728, 255)).total_us
        assert model.predict(point, some, Footprint(73_728, 255, 400)).total_us > 1.5 * without

    def test_a_deeper_pipeline_helps_where_one_block_waits_for_memory(self):
        model, point = DeviceModel(H200, FP8), Point(2, Gemm.UP)
        times = [
            model.predict(point, config(16, 64, 128, 4, stages), Footprint(stages * 10240, 56))
            for stages in (2, 3, 5)
        ]
        assert times[0].total_us > 1.3 * times[1].total_us > 1.3 * times[2].total_us

    def test_weights_cannot_arrive_faster_than_memory_gives_them(self):
        # At 1,024 tokens every expert is touched: 256 * 512 * 7,168 bytes at 4,800 GB/s.
        predicted = DeviceModel(H200, FP8).predict(
            Point(1024, Gemm.UP), config(64, 128, 128, 4, 4), Footprint(98_304, 188)
        )
        assert predicted.total_us > predicted.dram_us > 256 * 512 * 7168 / 4.8e6

    def test_a_large_group_of_rows_falls_out_of_a_small_l2(self):
        point, footprint = Point(4096, Gemm.UP), Footprint(50_000, 160)
        few = parse_problem("fused_moe:E=8,N=3584,K=4096,top_k=2,dtype=bfloat16")
        model = DeviceModel(find_device("A10"), few)
        near, far = (
            model.predict(point, config(64, 128, 64, 4, 3, group), footprint).dram_us
            for group in (1, 16)
        )
        assert near > far  # one at a time, an expert's weights leave L2 before they are used again


class TestFootprints:
    def test_shared_memory_is_never_below_the_recorded_and_at_most_1_kib_above(self, recording):
        assert recording.trials
        for candidate, trial in recording.trials.items():
            estimated = estimate(FP8, H200, candidate.config).shared_bytes
            assert 0 <= estimated - trial.compiled.shared_bytes <= 1024

    def test_registers_are_near_the_recorded(self, recording):
        errors = [
            abs(estimate(FP8, H200, c.config).n_regs - t.compiled.n_regs)
            for c, t in recording.trials.items()
            if t.compiled.ok
        ]
        assert statistics.median(errors) <= 16


class TestPrior:
    def test_an_empty_corpus_says_nothing(self):
        prior = Prior(FP8, H200, [])
        point = Point(16, Gemm.UP)
        assert prior.shortfall(point, config(16, 64, 128, 4, 5)) == 0
        assert prior.shortfall(point, config(256, 256, 64, 8, 2)) == 0

    def test_winners_of_similar_problems_stand_before_others(self, corpus):
        prior = Prior(FP8, H200, corpus)
        small, large = config(16, 128, 128, 4, 3), config(256, 256, 64, 8, 2, 64)
        assert prior.shortfall(Point(2, Gemm.UP), small) < prior.shortfall(Point(2, Gemm.UP), large)

    def test_a_thin_corpus_says_little(self, corpus):
        point, some = Point(2, Gemm.UP), config(256, 256, 64, 8, 2, 64)
        few = [f for f in corpus if f.key.dtype == "int8_w8a8"]
        thin = Prior(FP8, H200, few).shortfall(point, some)
        assert 0 < thin < Prior(FP8, H200, corpus).shortfall(point, some)

    def test_its_say_is_bounded(self, corpus):
        predictor = Predictor(H200, FP8, corpus)
        configs = space_for(FP8, H200, Gemm.UP).configs()[::41]
        assert configs
        for some in configs:
            for point in (Point(2, Gemm.UP), Point(4096, Gemm.DOWN)):
                model_us = predictor.predict_us(point, some, compiled())
                ratio = predictor.score_us(point, some, compiled()) / model_us
                assert 1 <= ratio <= math.exp(CORPUS_WEIGHT * MOST_SHORTFALL) + 1e-9


class TestMeasurer:
    def test_times_are_marked_predicted(self, corpus):
        predictor = Predictor(L40S, INT8, corpus)
        candidate = Candidate(Point(8, Gemm.UP), config(16, 64, 128, 4, 4))
        measurement = predictor.measure(candidate, compiled())
        assert measurement.status is Status.PREDICTED
        score_us = predictor.score_us(candidate.point, candidate.config, compiled())
        assert measurement.median_us == score_us
        assert measurement.samples == 0

    def test_what_did_not_compile_has_no_time(self):
        candidate = Candidate(Point(8, Gemm.UP), config(128, 256, 128, 8, 4))
        failed = Compiled(Status.OUT_OF_RESOURCES, shared_bytes=148_480, detail="too much")
        measurement = Predictor(L40S, INT8).measure(candidate, failed)
        assert (measurement.status, measurement.median_us) == (Status.OUT_OF_RESOURCES, None)


def first_choices(recording, corpus, score=None):
    """log(time of the first choice / best time) of each recorded point."""
    predictor = Predictor(H200, recording.problem, corpus)
    logs = []
    for point in recording.points:
        trials = [
            t for c, t in recording.trials.items() if c.point == point and t.measurement.timed
        ]
        chosen = min(
            trials, key=lambda t: predictor.score_us(point, t.candidate.config, t.compiled)
        )
        assert chosen.compiled.ok
        best_us = min(t.measurement.median_us for t in trials)
        logs.append(math.log(chosen.measurement.median_us / best_us))
    return logs


class TestRecording:
    """The bounds leave room above what docs/results.md reports; 15 % is what is asked for."""

    def test_model_and_corpus(self, recording, corpus):
        logs = first_choices(recording, corpus)
        assert math.exp(statistics.mean(logs)) < 1.08

    def test_model_alone(self, recording):
        assert math.exp(statistics.mean(first_choices(recording, []))) < 1.08


class TestThreshold:
    """The comment of CLEAR_GAIN has what it wins and loses on each recording."""

    def test_a_prediction_run_asks_for_it(self):
        engine = find_engine("sglang==0.5.16")
        source = Source(MeasureKind.PREDICT)
        asked = Request(INT8, L40S, engine, source, selection=MoeSelection((8,)))
        chooser = prepare(asked).goal(KnownBefore()).chooser
        assert chooser.policy == MoePolicy(noise=CLEAR_GAIN, tie=0.0)

    def test_a_pair_predicted_to_be_hardly_faster_leaves_the_engine_alone(self):
        default, other = config(16, 64, 64, 4, 3), config(16, 64, 64, 8, 3)
        times = {default: 100.0, other: 96.0}
        trials = [
            Trial(Candidate(Point(8, gemm), c), compiled(), Measurement(Status.PREDICTED, us))
            for gemm in Gemm
            for c, us in times.items()
        ]
        baseline_configs = {Point(8, gemm): {"default": default} for gemm in Gemm}
        kept = MoeChooser(baseline_configs, MoePolicy(noise=CLEAR_GAIN, tie=0.0), {8}).choose(
            trials
        )
        assert {entry.config for entry in kept} == {default}
        assert "nothing is predicted to be clearly faster" in kept[0].reason
        taken = MoeChooser(baseline_configs, MoePolicy(noise=0.0), {8}).choose(trials)
        assert {entry.config for entry in taken} == {other}


class TestShortlist:
    def test_a_small_set_serves_every_point(self, spaces, corpus):
        predictor = Predictor(L40S, INT8, corpus)
        chosen = predictor.shortlist_all(spaces, 40)
        assert set(chosen) == set(spaces)
        assert len({(p.part, c) for p, some in chosen.items() for c in some}) <= 40
        for batch_size in SOME_SIZES:
            everything = self.best_pair(predictor, spaces, batch_size)
            assert self.best_pair(predictor, chosen, batch_size) <= 1.01 * everything

    def test_engines_with_one_file_get_the_same_configurations_for_both_gemms(self, spaces):
        chosen = Predictor(L40S, INT8).shortlist_all(spaces, 40, one_config=True)
        kernels = {(p.part, c) for p, some in chosen.items() for c in some}
        assert 30 <= len(kernels) <= 40
        for batch_size in SOME_SIZES:
            up, down = (chosen[Point(batch_size, gemm)] for gemm in Gemm)
            assert set(up) == set(down)

    def best_pair(self, predictor, configs, batch_size):
        totals = {}
        for gemm in Gemm:
            point = Point(batch_size, gemm)
            fastest = {}
            for some, score in predictor.estimate_all(point, configs[point]).items():
                block = some["BLOCK_SIZE_M"]
                fastest[block] = min(score, fastest.get(block, math.inf))
            totals[gemm] = fastest
        up, down = totals[Gemm.UP], totals[Gemm.DOWN]
        return min(up[block] + down[block] for block in up.keys() & down.keys())

    def test_lists_are_best_first_and_hold_only_what_may_fit(self, spaces):
        predictor, point = Predictor(L40S, INT8), Point(64, Gemm.UP)
        listed = predictor.shortlist(point, spaces[point], 20)
        scores = predictor.estimate_all(point, spaces[point])
        assert [scores[c] for c in listed] == sorted(scores.values())[:20]
        assert all(estimate(INT8, L40S, c).shared_bytes <= L40S.shared_optin_bytes for c in listed)

    def test_each_gemm_and_size_has_scores_of_its_own_whatever_was_asked_before(self, spaces):
        configs = spaces[Point(64, Gemm.UP)][::97]
        assert len(configs) >= 10
        points = [Point(size, gemm) for size in (64, 1024) for gemm in Gemm]
        one = Predictor(L40S, INT8)
        asked = [one.estimate_all(point, configs) for point in points]
        assert asked == [Predictor(L40S, INT8).estimate_all(point, configs) for point in points]
        us = [min(scores.values()) for scores in asked]
        assert len(set(us)) == len(points)

    def test_there_is_a_second_choice_where_the_first_does_not_fit(self):
        point = Point(1, Gemm.UP)
        scores = {point: {config(16, 64, 128, 4, s): 10.0 + s for s in (2, 3, 4, 5)}}
        assert cover(needs(scores), 2) == [
            (Gemm.UP, config(16, 64, 128, 4, 2)),
            (Gemm.UP, config(16, 64, 128, 4, 3)),
        ]

    def test_gemms_get_choices_that_can_be_paired(self):
        up, down = Point(1, Gemm.UP), Point(1, Gemm.DOWN)
        scores = {
            up: {config(16, 64, 128, 4, 2): 10.0, config(64, 64, 128, 4, 2): 30.0},
            down: {config(64, 64, 128, 4, 2): 9.0, config(16, 64, 128, 4, 2): 10.0},
        }
        chosen = cover(needs(scores), 2)
        assert {kernel[1]["BLOCK_SIZE_M"] for kernel in chosen} == {16}
