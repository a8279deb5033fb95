"""Attention's predictions: blocks and tiles, and what they choose on the H200 sweep."""

import dataclasses
import math
import random
import statistics
from itertools import product

import pytest
from cases import H200, SWEEP

from tuner.devices.table import devices
from tuner.devices.tile_model import Footprint
from tuner.engines.engine import find_engine
from tuner.engines.sglang.attention.binding import lift_attention
from tuner.families.attention.predict.predictor import (
    CLEAR_GAIN,
    AttentionModel,
    AttentionPredictor,
)
from tuner.families.attention.predict.steps import BlockRow, Tiles, count, launched, makespan
from tuner.families.attention.problem import AttentionPhase, Stage, parse_attention
from tuner.families.attention.space import attention_space, smaller_configs
from tuner.families.attention.splits import Lengths, kv_splits, ragged
from tuner.measure.recording import read_trials
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Compiled, Status

GQA = "q_heads=8,kv_heads=2,Lq=64,Lv=64,dtype=bfloat16"
MLA = "q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16"
# Their shapes had no part in setting the model's constants.
HELD_OUT = {
    "extend_attention:q_heads=32,kv_heads=4,Lq=128,Lv=128,dtype=bfloat16": 2,
    "decode_attention:q_heads=32,kv_heads=4,Lq=128,Lv=128,dtype=bfloat16,kv_splits=8": 3,
    "decode_attention:q_heads=64,kv_heads=8,Lq=64,Lv=64,dtype=bfloat16,kv_splits=8,sinks": 3,
    "extend_attention:q_heads=16,kv_heads=16,Lq=192,Lv=128,dtype=bfloat16": 2,
}


def tiles_of(text, lengths, **config):
    problem = parse_attention(text)
    stage = problem.parts[0]
    point = Point(len(lengths.new), stage, lengths.longest_new, max(lengths.cached))
    rows = launched(problem, point, Config(config), lengths, H200.sm_count)
    return [tiles for row in rows for _ in range(row.heads) for tiles in row.tiles]


def extend_by_hand(problem, lengths, rows, keys):
    """Every block's tiles, by asking of each whether the kernel's mask leaves anything of it."""

    def seen(q, k, total):
        return k < total and (not problem.window or q <= k + problem.window)

    for first in range(0, lengths.longest_new, rows):
        for _ in range(problem.q_heads):
            for new, cached in zip(lengths.new, lengths.cached, strict=True):
                if first >= new:
                    continue
                queries = range(first, min(new, first + rows))
                end = new if problem.phase is AttentionPhase.PREFILL else min(new, first + rows)
                found = [0, 0, 0]
                for start in range(0, cached, keys):
                    tile = range(start, start + keys)
                    some = any(seen(cached + q, k, cached) for q in queries for k in tile)
                    found[0 if some else 2] += 1
                for start in range(0, end, keys):
                    tile = range(start, start + keys)
                    some = any(
                        seen(q, k, end) and (problem.phase is AttentionPhase.PREFILL or k <= q)
                        for q in queries
                        for k in tile
                    )
                    found[1 if some else 2] += 1
                yield Tiles(*found)


class TestTiles:
    LENGTHS = Lengths(new=(70, 1, 33), cached=(100, 0, 64))

    @pytest.mark.parametrize("window", ["", ",window=20", ",window=90"])
    @pytest.mark.parametrize(("rows", "keys"), [(16, 32), (32, 16), (64, 64), (128, 16)])
    def test_extends_tiles_are_those_that_its_masks_leave(self, rows, keys, window):
        text = f"extend_attention:{GQA}{window}"
        found = tiles_of(text, self.LENGTHS, BLOCK_M=rows, BLOCK_N=keys)
        assert found == list(extend_by_hand(parse_attention(text), self.LENGTHS, rows, keys))

    def test_prefills_tokens_all_see_each_other(self):
        lengths = Lengths(new=(70, 33), cached=(0, 0))
        text = f"prefill_attention:{GQA}"
        found = tiles_of(text, lengths, BLOCK_M=32, BLOCK_N=16)
        assert found == list(extend_by_hand(parse_attention(text), lengths, 32, 16))
        assert max(tiles.new for tiles in found) == 5

    @pytest.mark.parametrize("keys", [16, 32, 128])
    def test_decodes_splits_cover_each_cache_once_for_each_block_of_heads(self, keys):
        lengths = Lengths(new=(1,) * 4, cached=(5000, 1, 40, 777))
        problem = parse_attention(f"decode_attention:{GQA},kv_splits=8")
        found = tiles_of(problem.spec(), lengths, BLOCK_N=keys, BLOCK_H=16)
        splits = kv_splits(lengths.cached, problem, H200.sm_count)
        expected = []
        for cached, parts in zip(lengths.cached, splits, strict=True):
            length = math.ceil(math.ceil(cached / parts) / 32) * 32  # as the kernel cuts it
            starts = range(0, cached, length)
            expected += [math.ceil((min(s + length, cached) - s) / keys) for s in starts] * 2
        assert sorted(tiles.cached for tiles in found) == sorted(expected)

    def test_wider_blocks_of_heads_are_fewer(self):
        lengths = Lengths(new=(1,), cached=(64,))
        text = "decode_attention:q_heads=64,kv_heads=2,Lq=64,Lv=64,dtype=bfloat16,kv_splits=1"
        counts = [len(tiles_of(text, lengths, BLOCK_N=32, BLOCK_H=h)) for h in (16, 32)]
        assert counts == [4, 2]


class TestMakespan:
    ROWS = (
        BlockRow((Tiles(5), Tiles(2), Tiles(9)), heads=7),
        BlockRow((Tiles(1), Tiles(30)), heads=3),
    )

    def run(self, slots):
        return makespan(self.ROWS, slots, lambda tiles: float(tiles.cached))

    @pytest.mark.parametrize("slots", [7, 10, 26])
    def test_whatever_is_free_takes_the_next_block(self, slots):
        free = [0.0] * slots
        for row in self.ROWS:
            for tiles in row.tiles * row.heads:
                free[free.index(min(free))] += tiles.cached
        assert self.run(slots) == max(free)

    def test_a_slot_for_each_waits_for_the_longest_alone(self):
        assert count(self.ROWS) == 27
        assert self.run(27) == self.run(1000) == 30

    def test_many_waves_take_what_their_sum_takes_and_half_a_block_more(self):
        total = 7 * 16 + 3 * 31
        assert self.run(2) == pytest.approx(total / 2 + total / 27 / 2)


def footprint(config, problem):
    rows = config.get("BLOCK_M", config.get("BLOCK_H", 16)) + config.get("BLOCK_N", 0)
    return Footprint(min(90_000, rows * problem.Lq * 2), 128)


class TestModel:
    @pytest.mark.parametrize(
        "text",
        [
            f"extend_attention:{MLA}",
            f"decode_attention:{MLA},kv_splits=8",
            f"prefill_attention:{GQA}",
        ],
    )
    def test_every_configuration_has_a_time_on_every_device(self, text):
        problem = parse_attention(text)
        takes = ("BLOCK_M", "BLOCK_N", "BLOCK_H", "HAS_MLA", "num_warps", "num_stages")
        for device, stage in product(devices(), problem.parts):
            model = AttentionModel(device, problem)
            configs = attention_space(problem, device, stage, takes).configs()
            point = Point(3, stage, 1 if problem.phase is AttentionPhase.DECODE else 200, 900)
            assert configs
            drawn = random.Random(1).sample(configs, min(4, len(configs)))  # noqa: S311 (no secret)
            for config in drawn:
                found = model.predict(point, config, footprint(config, problem))
                assert 1 < found.total_us < 1e5
                assert found.total_us >= max(found.blocks_us, found.dram_us)

    def test_faster_memory_more_cores_and_no_spills_are_never_slower(self):
        problem = parse_attention(f"decode_attention:{GQA},kv_splits=8")
        config = Config({"BLOCK_N": 64, "BLOCK_H": 16, "num_warps": 4, "num_stages": 3})
        point = Point(64, Stage.DECODE, 1, 4096)

        def us(device, spills=0):
            model = AttentionModel(device, problem)
            return model.predict(point, config, Footprint(40_000, 128, spills)).total_us

        base = us(H200)
        one_block = dataclasses.replace(H200.architecture, max_blocks_per_sm=1)
        few = dataclasses.replace(H200, architecture=one_block)
        assert us(dataclasses.replace(H200, bandwidth_gbs=2 * H200.bandwidth_gbs)) < base
        assert us(few) > base
        assert us(H200, spills=512) > base

    def test_loading_ahead_hides_latency_where_blocks_are_few(self):
        problem = parse_attention(f"decode_attention:{GQA},kv_splits=8")
        point = Point(1, Stage.DECODE, 1, 32768)

        def us(stages):
            config = Config({"BLOCK_N": 64, "BLOCK_H": 16, "num_warps": 4, "num_stages": stages})
            model = AttentionModel(H200, problem)
            return model.predict(point, config, Footprint(70_000, 128)).total_us

        # Through indices, two stages more are needed to load a tile further ahead.
        assert us(1) > us(2) > us(3) > us(5)
        assert us(3) == us(4)


@pytest.fixture(scope="module")
def kernels():
    return lift_attention(find_engine("sglang==0.5.16"))


class TestChoosing:
    def judged(self, kernels, text):
        """(point, engine's trial, first choice, best, what is used, rank correlation)."""
        problem = parse_attention(text)
        recording = read_trials(SWEEP, problem)
        predictor = AttentionPredictor(H200, problem)
        for point in recording.points:
            if point.part is Stage.REDUCE:
                continue
            trials = [
                trial
                for candidate, trial in recording.trials.items()
                if candidate.point == point and trial.measurement.timed
            ]
            us = {t: t.measurement.median_us for t in trials}
            score = {t: predictor.measure(t.candidate, t.compiled).median_us for t in trials}
            default = kernels.default_config(problem, point, H200.target)
            own = next(t for t in trials if t.candidate.config == default)
            first = min(trials, key=score.get)
            used = first if score[first] < (1 - CLEAR_GAIN) * score[own] else own
            ranks = [{t: i for i, t in enumerate(sorted(trials, key=by.get))} for by in (us, score)]
            correlation = statistics.correlation(*([r[t] for t in trials] for r in ranks))
            yield point, us[own], us[first], min(us.values()), us[used], correlation

    def test_held_out_shapes_are_served_well_and_never_worse_than_by_the_engine(
        self, kernels, subtests
    ):
        every = []
        for text, points in HELD_OUT.items():
            judged = list(self.judged(kernels, text))
            every += judged
            with subtests.test(text):
                assert len(judged) == points
                for point, own, first, best, used, correlation in judged:
                    assert used <= 1.02 * own, point
                    assert first <= 1.26 * best, point
                    assert correlation > 0.7, point
        # Most of what can be won is won.
        used = statistics.geometric_mean(used / own for _, own, _, _, used, _ in every)
        room = statistics.geometric_mean(best / own for _, own, _, best, _, _ in every)
        assert math.log(used) < 0.75 * math.log(room) < 0

    def test_what_does_not_compile_keeps_its_status_and_spills_cost(self):
        problem = parse_attention(f"extend_attention:{GQA}")
        predictor = AttentionPredictor(H200, problem)
        config = Config({"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2})
        candidate = Candidate(Point(1, Stage.EXTEND, 512, 512), config)
        failed = Compiled(Status.OUT_OF_RESOURCES, detail="too much")
        assert predictor.measure(candidate, failed).status is Status.OUT_OF_RESOURCES
        assert not predictor.measure(candidate, failed).timed

        def scored(spills):
            compiled = Compiled(Status.OK, 40_000, 200, spills)
            measured = predictor.measure(candidate, compiled)
            assert measured.status is Status.PREDICTED
            return measured.median_us / predictor.predict_us(candidate.point, config, compiled)

        assert [round(scored(n), 3) for n in (0, 128, 129, 2000)] == [1, 1, 1.15, 1.5]


def test_lengths_are_those_that_a_gpu_measures():
    problem = parse_attention(f"extend_attention:{GQA},window=64")
    lengths = ragged(problem, Point(5, Stage.EXTEND, 100, 1000), seed=0)
    assert lengths.new[0] == 100
    assert all(50 <= n <= 100 for n in lengths.new)
    assert set(lengths.cached) == {64}


def test_lesser_configurations_give_up_stages_first_and_end_at_the_least():
    own = Config({"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3})
    found = [(c["num_stages"], c["BLOCK_N"], c["BLOCK_M"]) for c in smaller_configs(own)]
    assert found == [(2, 64, 64), (1, 64, 64), (1, 32, 64), (1, 16, 64), (1, 16, 32), (1, 16, 16)]
    assert all(c["num_warps"] == 8 for c in smaller_configs(own))
    assert list(smaller_configs(Config({"num_warps": 4}))) == []
