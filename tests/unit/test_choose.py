"""Choosing: pairs share BLOCK_SIZE_M, incumbents stand unless beaten, no batch size is left out."""

from dataclasses import replace

import cases
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import NothingFits
from tuner.families.fused_moe.choose import MAKERS, SLOWER, MoeChooser, MoePolicy
from tuner.families.fused_moe.problem import Gemm
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Compiled, Measurement, Status, Trial, untimed
from tuner.tuning.seeds import KEPT

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


@pytest.mark.parametrize(
    ("first", "second", "second_up_us", "policy"),
    [
        (config(16), config(64), 12.0, EXACT),  # a pair shares its BLOCK_SIZE_M
        (config(16, 4), config(16, 8), 15.0, MoePolicy(noise=0.0, one_config=True)),
    ],
)
def test_gemms_that_prefer_others_get_what_is_fastest_together(first, second, second_up_us, policy):
    trials = [
        *(trial(8, Gemm.UP, first, 10.0), trial(8, Gemm.DOWN, first, 30.0)),
        *(trial(8, Gemm.UP, second, second_up_us), trial(8, Gemm.DOWN, second, 20.0)),
    ]
    entries = MoeChooser(both(8, default=first), policy, {8}).choose(trials)
    assert chosen(entries, 8) == {Gemm.UP: second, Gemm.DOWN: second}


def test_a_gemm_tuned_alone_keeps_to_the_block_size_m_of_the_other():
    default, small, large = config(128), config(16), config(64)
    trials = [trial(8, Gemm.UP, c, us) for c, us in ((default, 20.0), (small, 10.0), (large, 15.0))]
    incumbents = {Point(8, Gemm.UP): {"default": default}}
    (free,) = MoeChooser(incumbents, EXACT, {8}).choose(trials)
    (kept,) = MoeChooser(incumbents, EXACT, {8}, {8: 64}).choose(trials)
    assert (free.config, kept.config) == (small, large)
    assert kept.reason == "fastest with BLOCK_SIZE_M=64, which the other gemm has"
    assert kept.incumbents["default"].median_us == 20.0
    final = MoeChooser(incumbents, EXACT, {8}, {8: 64}).finalists(trials, [kept])
    assert {one.candidate.config for one in final} == {default, large}
    with pytest.raises(NothingFits, match="BLOCK_SIZE_M=32: tune both gemms together"):
        MoeChooser(incumbents, EXACT, {8}, {8: 32}).choose(trials)


# Times of the default, the shipped and another configuration, us; the policy; the name of the
# configuration that is chosen; a part of the reason.
CHOICES = [
    ((100.0, None, 99.5), MoePolicy(noise=0.01), "default", "within the noise"),
    ((100.0, None, 99.5), MoePolicy(noise=0.001), "other", "1.005x"),
    ((90.0, 100.0, None), MoePolicy(noise=0.2), "shipped", ""),
    (("crashes", None, 500.0), MoePolicy(noise=0.05), "other", "cannot run"),
]


@pytest.mark.parametrize(("times", "policy", "name", "why"), CHOICES)
def test_an_incumbent_stays_unless_it_cannot_run_or_is_clearly_beaten(times, policy, name, why):
    named = {"default": config(128, 8), "shipped": config(16, 4), "other": config(16, 8)}
    tried = {n: None if us == "crashes" else us for n, us in zip(named, times, strict=True) if us}
    trials = timed(8, {named[n]: us for n, us in tried.items()})
    shipped = named["shipped"] if "shipped" in tried else None
    entries = MoeChooser(both(8, named["default"], shipped), policy, {8}).choose(trials)
    assert set(chosen(entries, 8).values()) == {named[name]}
    assert why in entries[0].reason
    default = entries[0].incumbents["default"]
    assert default.median_us == tried["default"]
    assert (default.status is Status.OUT_OF_RESOURCES) is (times[0] == "crashes")


@pytest.mark.parametrize(
    ("shipped", "makers_us", "name", "why"),
    [
        (True, 100.0, "makers", KEPT),
        (False, 80.0, "makers", MAKERS),
        (False, None, "other", "1.800x"),  # it does not fit
        (False, 100.0, "default", SLOWER.format("default")),  # servers run something faster
    ],
)
def test_no_prediction_replaces_what_the_makers_measured(shipped, makers_us, name, why):
    named = {"default": config(128, 8), "makers": config(16, 4), "other": config(16, 8)}
    times = dict(zip(named.values(), (90.0, makers_us, 50.0), strict=True))
    runs = both(8, named["default"], named["makers"] if shipped else None)
    trusted = {Point(8, gemm): named["makers"] for gemm in Gemm}
    entries = MoeChooser(runs, MoePolicy(noise=0.05), {8}, trusted=trusted).choose(timed(8, times))
    assert set(chosen(entries, 8).values()) == {named[name]}
    assert entries[0].reason.startswith(why)


def test_no_runnable_pair_is_an_error_that_names_the_batch_size():
    trials = timed(48, {config(16): None})
    with pytest.raises(NothingFits, match="batch size 48"):
        MoeChooser(both(48, default=config(16)), EXACT, {48}).choose(trials)


@pytest.mark.parametrize(
    ("times", "policy", "takes_the_neighbours"),
    [
        ((200.0, 100.5, 100.0), MoePolicy(noise=0.01), True),
        ((200.0, 100.5, 100.0), EXACT, False),
        # The neighbour's ties with the fastest, and beats the incumbent by 0.8 % alone.
        ((100.0, 99.2, 98.8), MoePolicy(noise=0.01), False),
        # What counts as a tie may be nearer than what beats the incumbent.
        ((200.0, 105.0, 100.0), MoePolicy(noise=0.15, tie=0.0), False),
        ((200.0, 105.0, 100.0), MoePolicy(noise=0.15), True),
    ],
)
def test_ties_go_to_the_neighbouring_batch_size(times, policy, takes_the_neighbours):
    default, a, b = config(32), config(16, 4), config(16, 8)
    trials = timed(8, {default: 200.0, a: 100.0, b: 120.0})
    trials += timed(16, dict(zip((default, a, b), times, strict=True)))
    entries = MoeChooser(both(8, default) | both(16, default), policy, {8, 16}).choose(trials)
    assert set(chosen(entries, 8).values()) == {a}
    assert set(chosen(entries, 16).values()) == {a if takes_the_neighbours else b}


def test_batch_sizes_nobody_asked_for_keep_the_incumbent_or_the_nearest_that_fits():
    default, winner = config(128), config(16)
    trials = timed(8, {winner: 10.0}) + timed(4, {default: 50.0}) + timed(16, {default: None})
    incumbents = both(4, default) | both(8, default) | both(16, default)
    entries = MoeChooser(incumbents, EXACT, {8}).choose(trials)
    assert set(chosen(entries, 4).values()) == {default}
    assert set(chosen(entries, 16).values()) == {winner}
    untuned = {e.point.batch_size: (e.status, e.median_us) for e in entries}
    assert untuned[4] == (Status.INCUMBENT, None)
    assert untuned[16] == (Status.COPIED, None)
    predicted = Measurement(Status.PREDICTED, 10.0)
    guessed = [replace(one, measurement=predicted) for one in timed(8, {winner: 10.0})]
    entries = MoeChooser(incumbents, EXACT, {8}).choose([*guessed, *timed(16, {default: None})])
    assert {e.status for e in entries if e.point.batch_size == 16} == {Status.PREDICTED}


@pytest.mark.parametrize(
    ("compiled", "stays"),
    [
        (None, True),  # nobody tried it
        (Status.NOT_RECORDED, True),
        (Status.COMPILE_TIMEOUT, True),
        (Status.COMPILE_ERROR, False),
        (Status.OUT_OF_RESOURCES, False),
    ],
)
def test_the_engines_own_entry_stays_at_a_size_that_was_not_tuned_unless_it_cannot_run(
    compiled, stays
):
    default, winner = config(128), config(16)
    trials = timed(8, {winner: 10.0, default: 20.0})
    if compiled:
        candidates = [Candidate(Point(16, gemm), default) for gemm in Gemm]
        trials += [untimed(one, Compiled(compiled)) for one in candidates]
    entries = MoeChooser(both(8, default) | both(16, default), EXACT, {8}).choose(trials)
    assert set(chosen(entries, 16).values()) == {default if stays else winner}


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
        entries = MoeChooser(both(8, incumbent), policy, {8}).choose(trials)
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
        entries = MoeChooser(both(8, default), MoePolicy(noise=0.004), {8}).choose(timed(8, times))
        nights.append(set(chosen(entries, 8).values()))
    assert nights == [{lean}, {lean}]


def test_a_tie_does_not_give_up_the_gain_over_the_incumbent():
    default, best = config(32), config(16).replace(num_stages=5)
    lean = config(16).replace(num_stages=2)
    times = {default: 100.0, best: 99.5, lean: 99.8}
    entries = MoeChooser(both(8, default), MoePolicy(noise=0.004), {8}).choose(timed(8, times))
    assert set(chosen(entries, 8).values()) == {best}


def nights(times: dict[Config, float], previous: Config, policy: MoePolicy):
    """What a run chooses at M = 8 that finds `previous` in the store; each gemm takes `times`."""
    trials = timed(8, times)
    stored = {Point(8, gemm): previous for gemm in Gemm}
    default = next(iter(times))
    entries = MoeChooser(both(8, default), policy, {8}, previous=stored).choose(trials)
    final = MoeChooser(both(8, default), EXACT, {8}, previous=stored).finalists(trials, entries)
    assert {trial.candidate.config for trial in final} >= {previous}
    return entries


def test_a_stored_pair_stays_unless_another_one_is_faster_by_more_than_a_tie():
    default, last, lean = config(32), config(16).replace(num_stages=5), config(16, 2)
    policy = MoePolicy(noise=0.004, tie=0.003)
    for better, expected in ((99.8, last), (99.6, lean)):
        entries = nights({default: 120.0, last: 100.0, lean: better}, last, policy)
        assert set(chosen(entries, 8).values()) == {expected}
        if expected == last:
            why = "1.200x as fast as the default configuration; the stored entry stays"
            assert entries[0].reason == why


def test_a_stored_pair_stays_where_its_gain_over_the_engines_has_shrunk_but_not_where_it_is_gone():
    default, last = config(32), config(16)
    for own_us, expected in ((100.1, last), (99.9, default)):
        entries = nights({default: own_us, last: 100.0}, last, MoePolicy(0.004))
        assert set(chosen(entries, 8).values()) == {expected}


def test_where_one_gemm_gets_faster_the_other_keeps_its_stored_configuration():
    default, last, lean = config(32), config(16).replace(num_stages=5), config(16, 2)
    times = {default: 120.0, last: 100.0, lean: 100.0}
    trials = timed(8, times)
    trials.append(trial(8, Gemm.UP, config(16, 8), 90.0))
    stored = {Point(8, gemm): last for gemm in Gemm}
    entries = MoeChooser(both(8, default), MoePolicy(0.004), {8}, previous=stored).choose(trials)
    assert chosen(entries, 8) == {Gemm.UP: config(16, 8), Gemm.DOWN: last}


def test_a_stored_pair_of_two_block_sizes_is_no_pair():
    default, best = config(32), config(64)
    stored = {Point(8, Gemm.UP): config(16), Point(8, Gemm.DOWN): best}
    trials = timed(8, {default: 120.0, config(16): 100.0, best: 100.0})
    entries = MoeChooser(both(8, default), MoePolicy(0.004), {8}, previous=stored).choose(trials)
    assert len({entry.config["BLOCK_SIZE_M"] for entry in entries}) == 1
