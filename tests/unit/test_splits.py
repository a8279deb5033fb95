"""Decode's KV splits as a choice: what is tried, and what is chosen for both kernels together."""

import itertools

import pytest

from tuner.errors import BadProblem, NothingFits
from tuner.families.attention.buckets import buckets_of
from tuner.families.attention.joint.choices import PARTS, JointChooser, sizes_of
from tuner.families.attention.joint.strategy import JointStrategy
from tuner.families.attention.problem import AttentionPart, AttentionPhase, parse_attention
from tuner.families.attention.splits import (
    EDGES,
    ROOM_BYTES,
    Lengths,
    constants_of,
    kv_splits,
    launched,
    parts_of,
    ragged,
    room_limit,
    with_splits,
    worthwhile,
)
from tuner.families.attention.workloads import WorkPoint
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Compiled, Measurement, Status, Trial
from tuner.tuning.tune import FixedStrategy

SHAPE = "decode_attention:q_heads=32,kv_heads=4,Lq=128,Lv=128,dtype=bfloat16"
CHOSEN = parse_attention(SHAPE)
CORES, ENGINES = 132, 8
LENGTHS = (1024, 8192)


def test_lengths_are_ragged_and_windows_cut_caches():
    problem = parse_attention(
        "extend_attention:q_heads=8,kv_heads=2,Lq=64,Lv=64,dtype=bfloat16,window=64"
    )
    lengths = ragged(problem, Point(5, AttentionPart.EXTEND, 100, 1000), seed=0)
    assert lengths.new[0] == 100
    assert all(50 <= n <= 100 for n in lengths.new)
    assert set(lengths.cached) == {64}


# Problems


def test_a_name_without_splits_chooses_them_and_an_old_name_keeps_its_number():
    assert CHOSEN.chooses_splits and CHOSEN.spec() == SHAPE
    old = parse_attention(f"{SHAPE},kv_splits=8")
    assert not old.chooses_splits and old.spec() == f"{SHAPE},kv_splits=8"
    assert old != CHOSEN and CHOSEN.with_room(8) == old
    with pytest.raises(BadProblem, match="kv_splits must be at least 1"):
        parse_attention(f"{SHAPE},kv_splits=0")


def test_a_configuration_says_the_room_of_its_launch_and_the_parts_of_each_sequence():
    config = with_splits(Config({"num_warps": 4}), 16, 64)
    problem, constants = launched(CHOSEN, config)
    assert (problem.kv_splits, constants) == (64, Config({"num_warps": 4}))
    assert constants_of(config) == constants
    lengths = EDGES[AttentionPhase.DECODE]
    assert parts_of(CHOSEN, config, lengths, CORES) == [16] * len(lengths.cached)
    engines = with_splits(Config({}), 0, 8)
    own = parts_of(parse_attention(f"{SHAPE},kv_splits=8"), Config({}), lengths, CORES)
    assert parts_of(CHOSEN, engines, lengths, CORES) == own
    assert max(own) <= 8


def test_the_engines_own_rule_makes_as_many_parts_whatever_room_the_inputs_have():
    """The inputs of all configurations share buffers with room for the largest."""
    engines, lengths = with_splits(Config({}), 0, 8), Lengths((1, 1), (16384, 16384))
    assert parts_of(CHOSEN.with_room(128), engines, lengths, CORES) == [8, 8]


@pytest.mark.parametrize(
    ("sequences", "cached", "parts"), [(1, 8192, 58), (4, 8192, 15), (64, 32768, 2)]
)
def test_latent_attention_has_parts_for_the_heads_of_the_model(sequences, cached, parts):
    """sglang 0.5.16's backend counts the key heads before absorption: 16, and not 1. The numbers
    are what it wrote on an H100.
    """
    latent = "decode_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16,kv_splits=256"
    found = kv_splits([cached] * sequences, parse_attention(latent), CORES)
    assert found == [parts] * sequences


# What is tried


def points(sequences: int, lengths=LENGTHS) -> list[Point]:
    return [Point(sequences, AttentionPart.DECODE, 1, cached) for cached in lengths]


def test_numbers_worth_trying_follow_the_gpu_and_the_lengths():
    few = worthwhile(CHOSEN, points(1, (64, 1024, 32768)), ENGINES, CORES)
    rooms = {length: {room for _, room in pairs} for length, pairs in few.items()}
    assert set(map(frozenset, rooms.values())) == {frozenset({8, 16, 32, 64, 128})}
    most = [max(n for n, _ in pairs) for pairs in few.values()]
    assert most == [2, 32, 128]  # no more parts than blocks of 32 tokens
    assert all(n <= room for pairs in few.values() for n, room in pairs)
    many = worthwhile(CHOSEN, points(256), ENGINES, CORES)
    assert {room for pairs in many.values() for _, room in pairs} == {8}  # as the engine has
    latent = parse_attention("decode_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16")
    full = worthwhile(latent, points(256), 256, CORES)
    assert {room for pairs in full.values() for _, room in pairs} == {32}  # for a long sequence


def test_rooms_are_bounded_by_the_memory_of_a_launch():
    a_part = 64 * 32 * 128 * 4  # of 64 sequences
    assert room_limit(CHOSEN, 64, ENGINES) == ROOM_BYTES // a_part == 64
    assert room_limit(CHOSEN, 4096, ENGINES) == ENGINES  # the engine's own is not made smaller
    pairs = worthwhile(CHOSEN, points(64, (1 << 20,)), 1, 1 << 20)
    assert max(room for some in pairs.values() for _, room in some) == 64


# The search: a GPU of formulas, whose first kernel gets faster with splits, and the second slower

SIZES = sizes_of(buckets_of(CHOSEN, [WorkPoint(1, 1, n) for n in LENGTHS]))
OWN = {
    AttentionPart.DECODE: Config({"BLOCK_N": 32}),
    AttentionPart.REDUCE: Config({"num_warps": 4}),
}
FAST, FAST_REDUCE = Config({"BLOCK_N": 64}), Config({"num_warps": 1})
ENGINE = {
    point: with_splits(OWN[part], 0, ENGINES)
    for sizes in SIZES
    for part in PARTS
    for point in sizes.points(part)
}
PAIRS = {p: worthwhile(CHOSEN, points(1), ENGINES, CORES)[p] for p in points(1)}


def formula(candidate: Candidate) -> float:
    config, cached = candidate.config, candidate.point.cached_tokens
    parts = config["KV_SPLITS"] or min(ENGINES, 4)
    if candidate.point.part is AttentionPart.DECODE:
        speed = 2.0 if constants_of(config) == FAST else 1.0
        return 2 + cached / parts / 32 / speed + 0.01 * config["MAX_KV_SPLITS"]
    turn = 0.1 if constants_of(config) == FAST_REDUCE else 0.2
    return 1 + turn * parts + 0.02 * config["MAX_KV_SPLITS"]


def explored(strategy, us=formula):
    """All trials that a strategy asks for, told in reverse order of each wave."""
    trials: dict[Candidate, Trial] = {}
    while asked := [c for c in strategy.ask() if c not in trials]:
        for candidate in reversed(asked):
            time = us(candidate)
            status = Status.OK if time is not None else Status.WRONG_RESULT
            compiled = Compiled(Status.OK, shared_bytes=1024)
            trials[candidate] = Trial(candidate, compiled, Measurement(status, time))
            strategy.tell(candidate, trials[candidate].measurement)
    return trials


class Noted(FixedStrategy):
    """Keeps what it is told."""

    def __init__(self, candidates):
        super().__init__(candidates)
        self.told = {}

    def tell(self, candidate, measurement):
        self.told[candidate.config] = measurement


def strategy(*constants):
    inner = Noted([Candidate(SIZES[0].representative, one) for one in constants])
    return inner, JointStrategy(
        inner, SIZES, ENGINE, PAIRS, (OWN[AttentionPart.REDUCE], FAST_REDUCE)
    )


def cost_of(entries):
    """The time in units of the engine's, averaged over the lengths."""
    ours, own = (dict.fromkeys(LENGTHS, 0.0) for _ in range(2))
    for entry in entries:
        at = entry.point
        ours[at.cached_tokens] += formula(Candidate(at, entry.config))
        own[at.cached_tokens] += formula(Candidate(at, ENGINE[at]))
    return sum(ours[n] / own[n] for n in LENGTHS) / len(LENGTHS)


def best_cost():
    """The least cost, by trying everything."""

    def total(room, n, decode, reduce, cached):
        parts = ((AttentionPart.DECODE, decode), (AttentionPart.REDUCE, reduce))
        return sum(
            formula(Candidate(Point(1, part, 1, cached), with_splits(one, n, room)))
            for part, one in parts
        )

    own = [total(ENGINES, 0, *OWN.values(), cached) for cached in LENGTHS]
    found = []
    for room, decode, reduce in itertools.product(
        (8, 16, 32, 64, 128),
        (OWN[AttentionPart.DECODE], FAST),
        (OWN[AttentionPart.REDUCE], FAST_REDUCE),
    ):
        best = [
            min(total(room, n, decode, reduce, p.cached_tokens) for n, at in PAIRS[p] if at == room)
            for p in points(1)
        ]
        found.append(sum(us / one for us, one in zip(best, own, strict=True)) / len(own))
    return min(found)


def test_splits_room_and_both_kernels_constants_are_chosen_together():
    inner, tried = strategy(OWN[AttentionPart.DECODE], FAST)
    trials = explored(tried)
    assert set(inner.told) == {OWN[AttentionPart.DECODE], FAST}
    assert inner.told[FAST].median_us < inner.told[OWN[AttentionPart.DECODE]].median_us
    entries = JointChooser(SIZES, ENGINE, noise=0.004).choose(list(trials.values()))
    by_part = {part: [e for e in entries if e.point.part is part] for part in PARTS}
    assert {constants_of(e.config) for e in by_part[AttentionPart.DECODE]} == {FAST}
    assert {constants_of(e.config) for e in by_part[AttentionPart.REDUCE]} == {FAST_REDUCE}
    assert len({e.config["MAX_KV_SPLITS"] for e in entries}) == 1
    splits = [[e.config["KV_SPLITS"] for e in some] for some in by_part.values()]
    assert splits[0] == splits[1] and splits[0][0] < splits[0][1]
    # The room is chosen with the engine's own constants, so it may not be the very best one.
    assert cost_of(entries) <= best_cost() * 1.05 < 0.5
    assert all("x as fast as the engine, both kernels" in entry.reason for entry in entries)
    assert all(entry.incumbents["default"].config == ENGINE[entry.point] for entry in entries)


def test_finalists_are_of_whole_choices_and_choosing_among_them_gives_the_same():
    _, tried = strategy(OWN[AttentionPart.DECODE], FAST)
    trials = list(explored(tried).values())
    chooser = JointChooser(SIZES, ENGINE, noise=0.004)
    entries = chooser.choose(trials)
    finalists = chooser.finalists(trials, entries)
    assert chooser.choose(finalists) == entries
    assert {Candidate(point, config) for point, config in ENGINE.items()} <= {
        trial.candidate for trial in finalists
    }
    assert len(finalists) < len(trials) / 3


def test_a_choice_that_is_slower_at_one_length_is_not_chosen():
    def slower(candidate):
        config, at = candidate.config, candidate.point
        if config["KV_SPLITS"]:
            return formula(candidate) * (100 if at.cached_tokens == 1024 else 1)
        return formula(candidate)

    _, tried = strategy(FAST)
    entries = JointChooser(SIZES, ENGINE, noise=0.004).choose(
        list(explored(tried, slower).values())
    )
    assert {entry.point: entry.config for entry in entries} == ENGINE
    assert all("as fast, within the noise" in entry.reason for entry in entries)


# Choices by hand: the first kernel's times at both lengths; the second kernel takes no time


def choice(room: int, splits: tuple[int, int], constants: Config = FAST) -> dict[Point, Config]:
    """The configurations of a choice, whose second kernel has the engine's constants."""
    by_part = {AttentionPart.DECODE: constants, AttentionPart.REDUCE: OWN[AttentionPart.REDUCE]}
    return {
        point: with_splits(by_part[part], n, room)
        for part in PARTS
        for point, n in zip(SIZES[0].points(part), splits, strict=True)
    }


def trials_of(*choices) -> list[Trial]:
    """`choices`: the configurations of each, and the times at the two lengths."""
    return [
        Trial(
            Candidate(point, config),
            Compiled(Status.OK, shared_bytes=1024),
            Measurement(Status.OK, us[at % 2] if point.part is AttentionPart.DECODE else 0.0),
        )
        for configs, us in choices
        for at, (point, config) in enumerate(configs.items())
    ]


LAST, LEAN = choice(16, (4, 16)), choice(32, (8, 32))


def nights(*choices, previous=LAST):
    """What a run chooses that finds `previous` in the store."""
    trials = trials_of(*choices)
    chooser = JointChooser(SIZES, ENGINE, noise=0.004, previous=previous)
    entries = chooser.choose(trials)
    timed = {trial.candidate: trial for trial in trials}
    final = chooser.finalists(list(timed.values()), entries)
    assert chooser.choose(final) == entries
    return {entry.point: entry.config for entry in entries}, entries[0].reason


def test_a_chosen_choice_is_timed_again_even_behind_choices_that_are_slower_at_one_length():
    uneven = [
        (choice(room, (8, 8), one), (150.0, 1.0))
        for room in (16, 32, 64, 128)
        for one in (FAST, OWN[AttentionPart.DECODE])
    ]
    even = choice(8, (8, 8))
    found, _ = nights((ENGINE, (100.0, 1000.0)), (even, (90.0, 900.0)), *uneven, previous={})
    assert found == even


def test_a_stored_choice_stays_unless_another_one_is_faster_by_more_than_the_noise():
    for better, expected in ((0.998, LAST), (0.99, LEAN)):
        rival = LEAN, (90 * better, 900 * better)
        found, why = nights((ENGINE, (100.0, 1000.0)), (LAST, (90.0, 900.0)), rival)
        assert found == expected
        assert why.endswith("both kernels; the stored entry stays") is (expected is LAST)


def test_a_stored_choice_stays_where_its_gain_has_shrunk_but_not_where_it_is_gone():
    assert nights((ENGINE, (100.0, 1000.0)), (LAST, (99.9, 999.0)))[0] == LAST
    assert nights((ENGINE, (100.0, 1000.0)), (LAST, (100.1, 1001.0)))[0] == ENGINE
    at_one_length = LAST, (101.0, 500.0)
    assert nights((ENGINE, (100.0, 1000.0)), at_one_length)[0] == ENGINE


def test_stored_entries_that_are_no_choice_or_have_no_times_do_not_stay():
    rivals = (ENGINE, (100.0, 1000.0)), (LAST, (90.0, 900.0)), (LEAN, (89.9, 899.0))
    long = SIZES[0].decode.points[1]
    two_rooms = {**LAST, long: LEAN[long]}
    one_length = {point: config for point, config in LAST.items() if point != long}
    never_timed = choice(64, (8, 8))
    for stored in ({}, two_rooms, one_length, never_timed):
        found, why = nights(*rivals, previous=stored)
        assert found == LEAN
        assert "stored" not in why


def test_a_search_asks_the_same_whatever_the_store_has():
    constants = OWN[AttentionPart.DECODE], FAST
    _, alone = strategy(*constants)
    asked = explored(alone)
    _, informed = strategy(*constants)
    for point, config in LAST.items():
        candidate = Candidate(point, config)
        informed.tell(candidate, Measurement(Status.OK, formula(candidate)))
    again = explored(informed)
    assert {*again, *(Candidate(p, c) for p, c in LAST.items())} >= asked.keys() >= again.keys()


def test_where_the_engines_own_cannot_run_the_best_that_runs_is_chosen():
    def without(candidate):
        own = constants_of(candidate.config) == OWN[AttentionPart.DECODE]
        return None if own else formula(candidate)

    inner, tried = strategy(OWN[AttentionPart.DECODE], FAST)
    trials = list(explored(tried, without).values())
    assert inner.told[OWN[AttentionPart.DECODE]].status is Status.WRONG_RESULT
    entries = JointChooser(SIZES, ENGINE, noise=0.004).choose(trials)
    assert {constants_of(e.config) for e in entries} == {FAST, FAST_REDUCE}
    assert all("cannot run" in entry.reason for entry in entries)
    assert all(
        e.incumbents["default"].median_us is None
        for e in entries
        if e.point.part is AttentionPart.DECODE
    )
    with pytest.raises(NothingFits, match=r"1x1\+1024 decode"):
        JointChooser(SIZES, ENGINE, 0.0).choose(
            [t for t in trials if t.measurement.median_us is None]
        )


def test_a_reduction_that_takes_most_of_the_time_is_said():
    def mostly(candidate):
        return formula(candidate) * (50 if candidate.point.part is AttentionPart.REDUCE else 1)

    _, tried = strategy(FAST)
    entries = JointChooser(SIZES, ENGINE, 0.004).choose(list(explored(tried, mostly).values()))
    said = {e.point.part for e in entries if "the reduction takes" in e.reason}
    assert said == {AttentionPart.REDUCE}
