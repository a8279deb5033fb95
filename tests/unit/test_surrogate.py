"""The surrogate: what it expects of places, and in which order it proposes them."""

import itertools
import random

from tuner.tuning import surrogate
from tuner.tuning.surrogate import ALONE, Surrogate


def test_what_lies_beside_the_best_is_proposed_before_what_lies_beside_the_worst() -> None:
    line = [[float(at)] for at in range(9)]
    known = Surrogate([line[0], line[4], line[8]], [0.0, 0.2, 0.4])
    order = [at for at in known.promising(line) if at not in (0, 4, 8)]
    assert order[0] == 1
    assert order.index(1) < order.index(7)


def test_two_proposals_do_not_crowd_in_one_place() -> None:
    places = [[1.0], [1.0 + 1e-6], [-1.0]]
    known = Surrogate([[0.0], [9.0], [-9.0]], [0.1, 0.3, 0.3])
    first, second = itertools.islice(known.promising(places), 2)
    assert {first, second} in ({0, 2}, {1, 2})


def test_equal_places_keep_their_order_and_each_is_proposed_once() -> None:
    places = [[3.0], [3.0], [3.0]]
    assert list(Surrogate([[0.0], [1.0]], [0.0, 0.0]).promising(places)) == [0, 1, 2]


def test_without_places_nothing_is_proposed() -> None:
    assert list(Surrogate([[0.0]], [1.0]).promising([])) == []


def test_many_known_places_are_solved_in_parts_with_the_same_answer(monkeypatch) -> None:
    rng = random.Random(0)  # noqa: S311
    places = [[rng.uniform(0, 4) for _ in range(3)] for _ in range(3 * ALONE + 5)]
    values = [sum(place) + rng.random() for place in places]
    wanted = [[rng.uniform(0, 4) for _ in range(3)] for _ in range(40)]
    in_parts = list(Surrogate(places, values).promising(wanted))
    monkeypatch.setattr(surrogate, "ALONE", len(places))
    assert in_parts == list(Surrogate(places, values).promising(wanted))
