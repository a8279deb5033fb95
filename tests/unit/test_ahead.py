"""Compiling ahead: when a GPU has enough to begin with, and what further passes add."""

from __future__ import annotations

from collections.abc import Sequence

from cases import config

from tuner.families.fused_moe.problem import Gemm
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Compiled, Measurement, Status, Totals, Trial
from tuner.tuning.ahead import Ahead, compile_ahead
from tuner.tuning.budget import Budget
from tuner.tuning.search import Search
from tuner.tuning.space import Space
from tuner.tuning.tune import Plan

POINTS = [Point(size, Gemm.UP) for size in (1, 64)]
SPACE = Space(
    {
        "BLOCK_SIZE_M": (16, 32, 64, 128),
        "BLOCK_SIZE_N": (32, 64, 128, 256),
        "BLOCK_SIZE_K": (64, 128),
        "GROUP_SIZE_M": (1, 16, 32),
        "num_warps": (4, 8),
        "num_stages": (2, 3, 4, 5),
    }
)
DEFAULT = config(16, 32, 64, 4, 2)


class Predicting:
    """A bench that answers one candidate at a time, in order."""

    def __init__(self) -> None:
        self.totals = Totals()
        self.submitted: list[Candidate] = []
        self._waiting: list[Candidate] = []

    def submit(self, candidates: Sequence[Candidate]) -> None:
        self.submitted += candidates
        self._waiting += candidates

    def poll(self, wait: bool) -> list[Trial]:
        if not wait or not self._waiting:
            return []
        one = self._waiting.pop(0)
        us = sum(one.config.values()) / one.point.batch_size
        return [Trial(one, Compiled(Status.OK), Measurement(Status.PREDICTED, us))]


class NoChooser:
    """Nothing is chosen here."""


def search(seed: int = 0) -> Search:
    seeds: dict[Point, list[Config]] = {point: [config(32)] for point in POINTS}
    return Search({Gemm.UP: SPACE}, POINTS, seeds, Budget(20, 30, seeds=4), seed)


def ahead(passes: int) -> tuple[Predicting, list[Ahead]]:
    bench, heard = Predicting(), []
    plan = Plan(POINTS, {point: {"default": DEFAULT} for point in POINTS}, NoChooser())
    totals = compile_ahead(plan, (search() for _ in range(passes)), bench, heard.append)
    assert totals is bench.totals
    assert totals.wall_s > 0
    return bench, heard


def test_enough_is_compiled_when_all_points_have_their_first_round() -> None:
    bench, heard = ahead(1)
    first = {*search().ask(), *(Candidate(point, DEFAULT) for point in POINTS)}
    enough = next(one for one in heard if one.enough)
    assert enough.tried == len(first) < len(bench.submitted)
    assert set(bench.submitted[: len(first)]) == first
    assert [one.enough for one in heard] == sorted(one.enough for one in heard)


def test_further_passes_ask_for_more_and_for_nothing_twice() -> None:
    (one, _), (four, heard) = ahead(1), ahead(4)
    assert set(one.submitted) < set(four.submitted)
    assert one.submitted == four.submitted[: len(one.submitted)]
    assert len(set(four.submitted)) == len(four.submitted) == heard[-1].tried


def test_what_is_compiled_ahead_repeats() -> None:
    assert ahead(3)[0].submitted == ahead(3)[0].submitted
