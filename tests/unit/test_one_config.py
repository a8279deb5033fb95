"""A search for engines that run both gemms of a layer with one configuration."""

from cases import config

from tuner.families.fused_moe.both_gemms import OneConfigStrategy
from tuner.families.fused_moe.choose import MoeChooser, MoePolicy
from tuner.families.fused_moe.problem import Gemm
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Compiled, Measurement, Status, Trial

UP, DOWN = Point(8, Gemm.UP), Point(8, Gemm.DOWN)
NARROW, WIDE = config(16, 32), config(16, 128)


class Inner:
    """Proposes what it is given, and keeps what it is told."""

    def __init__(self, *proposals: Config) -> None:
        self.proposals = [Candidate(UP, proposal) for proposal in proposals]
        self.told: dict[Candidate, Measurement] = {}

    def ask(self) -> list[Candidate]:
        proposals, self.proposals = self.proposals, []
        return proposals

    def tell(self, candidate: Candidate, measurement: Measurement) -> None:
        self.told[candidate] = measurement


def timed(us: float) -> Measurement:
    return Measurement(Status.OK, us)


def test_each_proposal_is_tried_at_both_gemms_and_the_sum_is_told():
    inner = Inner(NARROW, WIDE)
    strategy = OneConfigStrategy(inner)
    asked = [Candidate(point, chosen) for point in (UP, DOWN) for chosen in (NARROW, WIDE)]
    assert strategy.ask() == asked
    for candidate, us in zip(asked, (1.0, 4.0, 2.0, 3.0), strict=True):
        assert not inner.told or candidate.point == DOWN
        strategy.tell(candidate, timed(us))
    assert strategy.ask() == []
    assert inner.told == {Candidate(UP, NARROW): timed(3.0), Candidate(UP, WIDE): timed(7.0)}


def test_a_gemm_that_fails_fails_for_both():
    inner = Inner(NARROW, WIDE)
    strategy = OneConfigStrategy(inner)
    strategy.ask()
    strategy.tell(Candidate(UP, NARROW), timed(1.0))
    strategy.tell(Candidate(DOWN, WIDE), timed(1.0))
    assert not inner.told
    strategy.tell(Candidate(UP, WIDE), Measurement(Status.WRONG_RESULT, detail="up"))
    strategy.tell(Candidate(DOWN, NARROW), Measurement(Status.OUT_OF_RESOURCES, detail="down"))
    assert [(m.median_us, m.detail) for m in inner.told.values()] == [(None, "up"), (None, "down")]


def test_what_was_told_before_is_not_asked_again():
    inner = Inner(NARROW)
    strategy = OneConfigStrategy(inner)
    strategy.tell(Candidate(UP, NARROW), timed(1.0))
    assert strategy.ask() == [Candidate(DOWN, NARROW)]
    assert strategy.ask() == []


def trial(point: Point, chosen: Config, us: float) -> Trial:
    return Trial(Candidate(point, chosen), Compiled(Status.OK, shared_bytes=1), timed(us))


def test_finalists_are_the_fastest_of_both_together():
    """The best of one gemm alone is no finalist: nothing could run it for that gemm alone."""
    default = config(64, 128)
    times = {default: (10.0, 10.0), NARROW: (1.0, 30.0)}
    times |= {config(16, 64, stages=s): (9.0, 8.0 + s / 10) for s in range(2, 10)}
    trials = [
        trial(point, chosen, us)
        for chosen, both in times.items()
        for point, us in zip((UP, DOWN), both, strict=True)
    ]
    incumbents = {point: {"default": default} for point in (UP, DOWN)}
    chooser = MoeChooser(incumbents, MoePolicy(noise=0.01, one_config=True), requested=[8])
    entries = chooser.choose(trials)
    assert {entry.config for entry in entries} == {config(16, 64, stages=2)}
    final = chooser.finalists(trials, entries)
    at = {
        point: {t.candidate.config for t in final if t.candidate.point == point}
        for point in (UP, DOWN)
    }
    assert at[UP] == at[DOWN]
    assert default in at[UP]
    assert NARROW not in at[UP]
    assert len(at[UP]) == 7
