"""Which configuration a dense GEMM's point gets: never slower than either incumbent."""

from dataclasses import replace

import pytest
from gemm_cases import baselines, point, tile, trial

from tuner.errors import NothingFits
from tuner.problems.points import Candidate
from tuner.problems.results import Compiled, Entry, Status, Trial, untimed
from tuner.tuning.pointwise import PointwiseChooser, Policy

DEFAULT, SHIPPED = tile(), tile(n=64, group=1)
NARROW, OTHER = tile(16, 32, stages=6, group=1), tile(16, 64, stages=5, group=1)
BOTH = {"default": DEFAULT, "shipped": SHIPPED}
MEASURED = Policy(gain=0.02, tie=0.004)
PREDICTED = Policy(gain=0.05, tie=0.0, trust_shipped=True)


def chooser(
    by_size: dict[int, dict], policy: Policy = MEASURED, *, tuned_near: tuple[int, ...] = ()
) -> PointwiseChooser:
    return PointwiseChooser(baselines(by_size, tuned_near), policy, [point(M) for M in by_size])


def chosen(*trials: Trial, policy: Policy = MEASURED, near: tuple[int, ...] = ()) -> Entry:
    (entry,) = chooser({1: BOTH}, policy, tuned_near=near).choose(trials)
    return entry


# Times of the default, the shipped and another configuration, us; the configuration that is
# chosen; a part of the reason.
CHOICES = [
    ((36.0, 30.0, 20.0), NARROW, "1.500x as fast as the shipped configuration"),
    (
        (20.0, 30.0, 19.95),
        DEFAULT,
        "1.500x as fast as the shipped configuration: it is the engine's default one",
    ),
    # Raced times of small kernels differ by as much between two processes.
    ((30.05, 30.0, 29.5), SHIPPED, "nothing is clearly faster than the shipped configuration"),
    ((30.0, 30.1, 99.0), SHIPPED, ""),  # incumbents that tie
    ((None, None, 20.0), NARROW, "the shipped configuration cannot run here"),
    ((20.0, None, 21.0), DEFAULT, ""),
]


@pytest.mark.parametrize(("times", "config", "why"), CHOICES)
def test_what_is_clearly_faster_than_both_incumbents_replaces_them(times, config, why):
    tried = zip((DEFAULT, SHIPPED, NARROW), times, strict=True)
    entry = chosen(*(trial(1, one, us) for one, us in tried))
    assert (entry.config, why in ("", entry.reason)) == (config, True), entry.reason
    assert [one.median_us for one in entry.incumbents.values()] == [*times[:2]]


def test_a_point_where_nothing_fits_is_named():
    with pytest.raises(NothingFits, match="M=1$"):
        chosen(trial(1, DEFAULT, None), trial(1, NARROW, None))


@pytest.mark.parametrize(
    ("best_us", "own_us", "expected"),
    [
        (19.7, 30.0, NARROW),  # a gain within the noise
        (19.5, 30.0, OTHER),  # a clear one
        (20.0, 20.2, NARROW),  # a gain over the engine that was clear once
        (20.0, 19.9, DEFAULT),  # none any more
    ],
)
def test_a_stored_entry_stays_unless_another_one_is_clearly_faster(best_us, own_us, expected):
    chooses = replace(chooser({1: {"default": DEFAULT}}), previous={point(1): NARROW})
    trials = [trial(1, DEFAULT, own_us), trial(1, NARROW, 20.0), trial(1, OTHER, best_us)]
    entries = chooses.choose(trials)
    assert entries[0].config == expected
    assert entries[0].reason.endswith("; the stored entry stays") is (expected == NARROW)
    slow = [trial(1, tile(16, 128, group=group), 19.0) for group in (1, 4, 8, 16)]
    final = chooses.finalists([*trials, *slow], entries)
    assert NARROW in {one.candidate.config for one in final}


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (
            {1: (30.0, 20.0, 25.0), 2: (30.0, 20.05, 20.0), 4: (30.0, 20.5, 20.0)},
            [NARROW, NARROW, OTHER],
        ),
        # At 2, the neighbour's choice does not beat the engine's own.
        ({1: (30.0, 20.0), 2: (20.43, 20.05, 20.0)}, [NARROW, OTHER]),
    ],
)
def test_a_tie_goes_to_the_neighbours_choice(times, expected):
    configs = (DEFAULT, NARROW, OTHER)
    tried = [
        trial(size, *one) for size, us in times.items() for one in zip(configs, us, strict=False)
    ]
    entries = chooser({size: {"default": DEFAULT} for size in times}).choose(tried)
    assert [entry.config for entry in entries] == expected


def test_sizes_that_were_not_tuned_keep_what_the_engine_runs_or_get_the_nearest():
    by_size = {1: {"default": DEFAULT}, 8: BOTH, 64: {"default": DEFAULT}}
    one = PointwiseChooser(baselines(by_size), MEASURED, [point(1)])
    trials = [trial(1, DEFAULT, 30.0), trial(1, NARROW, 20.0)]
    trials += [trial(8, SHIPPED, 1.0, Status.INCUMBENT), trial(64, DEFAULT, None)]
    entries = one.choose(trials)
    assert [entry.point for entry in entries] == [point(1), point(8), point(64)]
    assert [entry.config for entry in entries] == [NARROW, SHIPPED, NARROW]
    assert [entry.status for entry in entries] == [Status.OK, Status.INCUMBENT, Status.COPIED]
    assert entries[2].reason.endswith("cannot run here; as at M=1")
    asked = Candidate(point(64), DEFAULT)
    for status in (Status.NOT_RECORDED, Status.COMPILE_TIMEOUT):
        kept = one.choose([*trials[:3], untimed(asked, Compiled(status))])[2]
        assert (kept.config, kept.status) == (DEFAULT, Status.INCUMBENT)


def test_finalists_are_the_incumbents_the_choices_nearby_and_the_fastest():
    one = {"default": DEFAULT}
    many = [tile(16, 32, stages=s, group=1) for s in (2, 3, 4, 5)]
    trials = [trial(1, DEFAULT, 30.0), *(trial(1, c, 20.0 + i) for i, c in enumerate(many))]
    trials += [trial(1, OTHER, 29.0)]
    trials += [trial(2, DEFAULT, 30.0), trial(2, OTHER, 10.0)]
    chooses = chooser({1: one, 2: one})
    found = chooses.finalists(trials, chooses.choose(trials))
    at_one = {t.candidate.config for t in found if t.candidate.point == point(1)}
    assert at_one == {DEFAULT, OTHER, *many}


@pytest.mark.parametrize(
    ("best_us", "near", "expected", "why"),
    [
        (29.0, (), SHIPPED, "nothing is predicted to be clearly faster"),
        (20.0, (1,), SHIPPED, ""),  # it was tuned for about this size
        (20.0, (), NARROW, "predicted 1.500x"),
    ],
)
def test_a_shipped_entry_stays_unless_a_clear_gain_is_predicted(best_us, near, expected, why):
    times = {DEFAULT: 30.0, SHIPPED: 30.0, NARROW: best_us}
    trials = [trial(1, one, us, Status.PREDICTED) for one, us in times.items()]
    entry = chosen(*trials, policy=PREDICTED, near=near)
    assert entry.config == expected
    assert entry.reason.startswith(why)
