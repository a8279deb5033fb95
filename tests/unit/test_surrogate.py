"""The surrogate: what it expects of places, and in which order it proposes them."""

import itertools

from threadpoolctl import threadpool_info, threadpool_limits

from tuner.tuning import surrogate
from tuner.tuning.surrogate import Surrogate


def test_what_lies_beside_the_best_is_proposed_before_what_lies_beside_the_worst():
    line = [[float(at)] for at in range(9)]
    known = Surrogate([line[0], line[4], line[8]], [0.0, 0.2, 0.4])
    order = [at for at in known.promising(line) if at not in (0, 4, 8)]
    assert order[0] == 1
    assert order.index(1) < order.index(7)


def test_two_proposals_do_not_crowd_in_one_place():
    places = [[1.0], [1.0 + 1e-6], [-1.0]]
    known = Surrogate([[0.0], [9.0], [-9.0]], [0.1, 0.3, 0.3])
    first, second = itertools.islice(known.promising(places), 2)
    assert {first, second} in ({0, 2}, {1, 2})


def test_equal_places_keep_their_order_and_each_is_proposed_once():
    places = [[3.0], [3.0], [3.0]]
    assert list(Surrogate([[0.0], [1.0]], [0.0, 0.0]).promising(places)) == [0, 1, 2]


def test_without_places_nothing_is_proposed():
    assert list(Surrogate([[0.0]], [1.0]).promising([])) == []


def test_numpy_takes_one_thread_of_a_searching_process():
    surrogate._one_thread.cache_clear()
    with threadpool_limits(limits=2, user_api="blas"):
        Surrogate([[0.0]], [1.0])
        threads = {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}
    assert threads == {1}
