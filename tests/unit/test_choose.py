"""Choosing: pairs share BLOCK_SIZE_M, incumbents stand unless beaten, no batch size is left out."""

import cases
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import NothingFits
from tuner.families.fused_moe.choose import MoePolicy, choose
from tuner.families.fused_moe.pairs import finalists
from tuner.families.fused_moe.problem import Gemm
from tuner.problems.points import Config, Point
from tuner.problems.results import Status, Trial

EXACT = MoePolicy(noise=0.0)


def config(block_m: int, warps: int = 4) -> Config:
    return Config({"BLOCK_SIZE_M": block_m, "BLOCK_SIZE_N": 64, "num_warps": warps})


def trial(batch_size: int, gemm: Gemm, cfg: Config, us: float | None) -> Trial:
    return cases.trial(Point(batch_size, gemm), cfg, us)


def timed(batch_size: int, times: dict[Config, float | None]) -> list[Trial]:
    """Trials of both gemms, each of which takes the same time."""
    return [trial(batch_size, gemm, cfg, us) for gemm in Gemm for cfg, us in times.items()]


def both(batch_size: int, default: Config, shipped: Config | None = None):
    names = {"default": default} | ({"shipped": shipped} if shipped else {})
    return {Point(batch_size, gemm): dict(names) for gemm in Gemm}


def chosen(entries, batch_size: int) -> dict[Gemm, Config]:
    return {e.point.part: e.config for e in entries if e.point.batch_size == batch_size}


def test_pair_shares_block_size_m_even_where_each_gemm_prefers_another():
    small, large = config(16), config(64)
    trials = [
        trial(8, Gemm.UP, small, 10.0),
        trial(8, Gemm.UP, large, 12.0),
        trial(8, Gemm.DOWN, small, 30.0),
        trial(8, Gemm.DOWN, large, 20.0),
    ]
    entries = choose(trials, both(8, default=small), EXACT, {8})
    assert chosen(entries, 8) == {Gemm.UP: large, Gemm.DOWN: large}


def test_a_gemm_tuned_alone_keeps_to_the_block_size_m_of_the_other():
    default, small, large = config(128), config(16), config(64)
    trials = [trial(8, Gemm.UP, c, us) for c, us in ((default, 20.0), (small, 10.0), (large, 15.0))]
    incumbents = {Point(8, Gemm.UP): {"default": default}}
    (free,) = choose(trials, incumbents, EXACT, {8})
    (kept,) = choose(trials, incumbents, EXACT, {8}, {8: 64})
    assert (free.config, kept.config) == (small, large)
    assert kept.reason == "fastest with BLOCK_SIZE_M=64, which the other gemm has"
    assert kept.incumbents["default"].median_us == 20.0
    final = finalists(trials, incumbents, [kept], {8}, {8: 64})
    assert {one.candidate.config for one in final} == {default, large}
    with pytest.raises(NothingFits, match="BLOCK_SIZE_M=32: tune both gemms together"):
        choose(trials, incumbents, EXACT, {8}, {8: 32})


def test_gain_within_the_noise_keeps_the_incumbent():
    incumbent, winner = config(16, 4), config(16, 8)
    trials = timed(8, {incumbent: 100.0, winner: 99.5})
    kept = choose(trials, both(8, default=incumbent), MoePolicy(noise=0.01), {8})
    replaced = choose(trials, both(8, default=incumbent), MoePolicy(noise=0.001), {8})
    assert set(chosen(kept, 8).values()) == {incumbent}
    assert set(chosen(replaced, 8).values()) == {winner}
    assert "within the noise" in kept[0].reason
    assert "1.005x" in replaced[0].reason


def test_shipped_file_is_the_incumbent_before_the_heuristic():
    default, shipped = config(16, 4), config(16, 8)
    trials = timed(8, {default: 90.0, shipped: 100.0})
    entries = choose(trials, both(8, default, shipped), MoePolicy(noise=0.2), {8})
    assert set(chosen(entries, 8).values()) == {shipped}
    assert entries[0].incumbents["default"].median_us == 90.0


def test_prediction_never_overrules_a_shipped_file_that_fits():
    default, shipped = config(16, 4), config(16, 8)
    trials = timed(8, {default: 50.0, shipped: 100.0})
    policy = MoePolicy(noise=0.0, trust_shipped=True)
    entries = choose(trials, both(8, default, shipped), policy, {8})
    assert set(chosen(entries, 8).values()) == {shipped}


def test_incumbent_that_cannot_run_is_replaced():
    crashing, fitting = config(128, 8), config(64, 4)
    trials = timed(8, {crashing: None, fitting: 500.0})
    entries = choose(trials, both(8, default=crashing), MoePolicy(noise=0.05), {8})
    assert set(chosen(entries, 8).values()) == {fitting}
    assert entries[0].incumbents["default"].status is Status.OUT_OF_RESOURCES
    assert "cannot run" in entries[0].reason


def test_no_runnable_pair_is_an_error_that_names_the_batch_size():
    trials = timed(48, {config(16): None})
    with pytest.raises(NothingFits, match="batch size 48"):
        choose(trials, both(48, default=config(16)), EXACT, {48})


def test_engine_with_one_file_gets_one_config_for_both_gemms():
    a, b = config(16, 4), config(16, 8)
    trials = [
        trial(8, Gemm.UP, a, 10.0),
        trial(8, Gemm.DOWN, a, 30.0),
        trial(8, Gemm.UP, b, 15.0),
        trial(8, Gemm.DOWN, b, 20.0),
    ]
    entries = choose(trials, both(8, default=a), MoePolicy(noise=0.0, one_config=True), {8})
    assert chosen(entries, 8) == {Gemm.UP: b, Gemm.DOWN: b}


def test_ties_go_to_the_neighbouring_batch_size():
    default, a, b = config(32), config(16, 4), config(16, 8)
    trials = timed(8, {default: 200.0, a: 100.0, b: 120.0})
    trials += timed(16, {default: 200.0, a: 100.5, b: 100.0})
    incumbents = both(8, default) | both(16, default)
    for policy, expected in ((MoePolicy(noise=0.01), a), (EXACT, b)):
        entries = choose(trials, incumbents, policy, {8, 16})
        assert set(chosen(entries, 16).values()) == {expected}


def test_a_neighbours_pair_within_the_noise_of_the_incumbent_does_not_replace_it():
    default, a, b = config(32), config(16, 4), config(16, 8)
    trials = timed(8, {default: 200.0, a: 100.0, b: 120.0})
    # At 16, b beats the incumbent by 1.2 %; a ties with b, and beats it by 0.8 % alone.
    trials += timed(16, {default: 100.0, a: 99.2, b: 98.8})
    incumbents = both(8, default) | both(16, default)
    entries = choose(trials, incumbents, MoePolicy(noise=0.01), {8, 16})
    assert set(chosen(entries, 8).values()) == {a}
    assert set(chosen(entries, 16).values()) == {b}


def test_what_counts_as_a_tie_may_be_nearer_than_what_beats_the_incumbent():
    default, a, b = config(32), config(16, 4), config(16, 8)
    trials = timed(8, {default: 200.0, a: 100.0, b: 120.0})
    trials += timed(16, {default: 200.0, a: 105.0, b: 100.0})
    incumbents = both(8, default) | both(16, default)
    for policy, expected in ((MoePolicy(noise=0.15, tie=0.0), b), (MoePolicy(noise=0.15), a)):
        entries = choose(trials, incumbents, policy, {8, 16})
        assert set(chosen(entries, 16).values()) == {expected}


def test_batch_sizes_nobody_asked_for_keep_the_incumbent_or_the_nearest_that_fits():
    default, winner = config(128), config(16)
    trials = timed(8, {winner: 10.0}) + timed(4, {default: 50.0}) + timed(16, {default: None})
    incumbents = both(4, default) | both(8, default) | both(16, default)
    entries = choose(trials, incumbents, EXACT, {8})
    assert set(chosen(entries, 4).values()) == {default}
    assert set(chosen(entries, 16).values()) == {winner}
    untuned = [e for e in entries if e.point.batch_size != 8]
    assert all(e.status is Status.INCUMBENT and e.median_us is None for e in untuned)


@given(st.data())
def test_chosen_total_is_never_above_the_incumbents(data):
    configs = [config(m, w) for m in (16, 32) for w in (4, 8)]
    times = {
        (g, c): data.draw(st.none() | st.floats(1, 1000, allow_nan=False))
        for g in Gemm
        for c in configs
    }
    incumbent = configs[0]
    trials = [trial(8, g, c, us) for (g, c), us in times.items()]
    policy = MoePolicy(noise=data.draw(st.sampled_from([0.0, 0.01, 0.1])))
    incumbent_us = [times[g, incumbent] for g in Gemm]
    try:
        entries = choose(trials, both(8, incumbent), policy, {8})
    except NothingFits:
        assert not any(
            times[Gemm.UP, a] and times[Gemm.DOWN, b]
            for a in configs
            for b in configs
            if a["BLOCK_SIZE_M"] == b["BLOCK_SIZE_M"]
        )
        return
    assert len({e.config["BLOCK_SIZE_M"] for e in entries}) == 1
    if all(us is not None for us in incumbent_us):
        if any(entry.config != incumbent for entry in entries):
            assert sum(e.median_us for e in entries) < sum(incumbent_us) * (1 - policy.noise)
        else:
            assert sum(e.median_us for e in entries) == sum(incumbent_us)


def test_among_equal_times_the_one_with_the_fewest_stages_is_chosen_each_night():
    default = config(32)
    deep, lean = (config(16).replace(num_stages=stages) for stages in (5, 2))
    nights = []
    for faster in (deep, lean):  # the noise favours another one each night
        times = {default: 120.0, deep: 100.2, lean: 100.2, faster: 100.0}
        entries = choose(timed(8, times), both(8, default), MoePolicy(noise=0.004), {8})
        nights.append(set(chosen(entries, 8).values()))
    assert nights == [{lean}, {lean}]


def test_a_tie_does_not_give_up_the_gain_over_the_incumbent():
    default, best = config(32), config(16).replace(num_stages=5)
    lean = config(16).replace(num_stages=2)
    times = {default: 100.0, best: 99.5, lean: 99.8}
    entries = choose(timed(8, times), both(8, default), MoePolicy(noise=0.004), {8})
    assert set(chosen(entries, 8).values()) == {best}


def nights(times: dict[Config, float], previous: dict[Gemm, Config], policy: MoePolicy):
    """What a run chooses at M = 8 that finds `previous` in the store; each gemm takes `times`."""
    trials = timed(8, times)
    stored = {Point(8, gemm): cfg for gemm, cfg in previous.items()}
    default = next(iter(times))
    entries = choose(trials, both(8, default), policy, {8}, previous=stored)
    final = finalists(trials, both(8, default), entries, {8}, previous=stored)
    assert {trial.candidate.config for trial in final} >= set(previous.values())
    return entries


def test_a_stored_pair_stays_unless_another_one_is_faster_by_more_than_a_tie():
    default, last, lean = config(32), config(16).replace(num_stages=5), config(16, 2)
    policy = MoePolicy(noise=0.004, tie=0.003)
    for better, expected in ((99.8, last), (99.6, lean)):
        entries = nights(
            {default: 120.0, last: 100.0, lean: better}, dict.fromkeys(Gemm, last), policy
        )
        assert set(chosen(entries, 8).values()) == {expected}
    kept = nights({default: 120.0, last: 100.0, lean: 99.8}, dict.fromkeys(Gemm, last), policy)
    assert kept[0].reason == "1.200x as fast as the default configuration; the stored entry stays"


def test_a_stored_pair_stays_where_its_gain_over_the_engines_has_shrunk_but_not_where_it_is_gone():
    default, last = config(32), config(16)
    for own_us, expected in ((100.1, last), (99.9, default)):
        entries = nights(
            {default: own_us, last: 100.0}, dict.fromkeys(Gemm, last), MoePolicy(0.004)
        )
        assert set(chosen(entries, 8).values()) == {expected}


def test_where_one_gemm_gets_faster_the_other_keeps_its_stored_configuration():
    default, last, lean = config(32), config(16).replace(num_stages=5), config(16, 2)
    times = {default: 120.0, last: 100.0, lean: 100.0}
    trials = timed(8, times)
    trials.append(trial(8, Gemm.UP, config(16, 8), 90.0))
    stored = {Point(8, gemm): last for gemm in Gemm}
    entries = choose(trials, both(8, default), MoePolicy(0.004), {8}, previous=stored)
    assert chosen(entries, 8) == {Gemm.UP: config(16, 8), Gemm.DOWN: last}


def test_a_stored_pair_of_two_block_sizes_is_no_pair():
    default, best = config(32), config(64)
    stored = {Point(8, Gemm.UP): config(16), Point(8, Gemm.DOWN): best}
    trials = timed(8, {default: 120.0, config(16): 100.0, best: 100.0})
    entries = choose(trials, both(8, default), MoePolicy(0.004), {8}, previous=stored)
    assert len({entry.config["BLOCK_SIZE_M"] for entry in entries}) == 1
