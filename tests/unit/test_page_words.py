"""What pages say of two results, and of the steps of a job."""

from typing import Any

from api.pages.compare import Side, _pair, _verdict
from api.pages.names import gain_words, steps_of
from api.pages.winners import WinnerRow


def side(version: str, times: dict[tuple[str, str], float | None]) -> Side:
    place = {"engine": "sglang", "engine_version": version, "triton": "3.6.0", "driver": "580"}
    entries = {key: WinnerRow(0, {"median_us": us, "incumbents": {}}) for key, us in times.items()}
    return Side("L40S:0", "NVIDIA_L40S", {"environment": place}, entries)


def test_a_comparison_is_of_whole_sizes_and_above_one_where_the_first_is_faster():
    first = {("up", "1"): 10.0, ("down", "1"): 10.0, ("up", "8"): 50.0, ("down", "8"): 50.0}
    second = {("up", "1"): 30.0, ("down", "1"): 50.0, ("up", "8"): 40.0, ("down", "8"): 60.0}
    found = _verdict(side("0.5.23", first), side("0.5.16", second))
    assert (found.first, found.second) == ("sglang 0.5.23", "sglang 0.5.16")
    assert found.ratio == 2.0  # four times at one size, the same at the other
    assert (found.slower, found.sizes) == (0, 2)
    back = _verdict(side("0.5.16", second), side("0.5.23", first))
    assert back is not None and (back.ratio, back.slower) == (0.5, 1)
    assert _verdict(side("1", {("up", "1"): None}), side("2", {("up", "1"): 3.0})) is None


def test_a_difference_within_the_noise_is_none_in_words_and_in_numbers():
    key = ("up", "1")
    for second_us, told in ((99.7, ("1.00×", 0)), (99.5, ("0.99×", 1)), (100.5, ("1.00×", 0))):
        sides = side("0.5.23", {key: 100.0}), side("0.5.16", {key: second_us})
        found = _verdict(*sides)
        assert found is not None
        assert (gain_words(found.ratio), found.slower) == told
        assert gain_words(_pair(key, *sides)[-1]) == told[0]


def test_trials_that_follow_each_other_are_one_step():
    def event(kind: str, at: str, **data: Any) -> dict[str, Any]:  # noqa: ANN401
        return {"kind": kind, "at": at, "data": data}

    events = [
        event("leased", "1", owner="w-1"),
        event("planned", "2", to_try=1200),
        event("trials", "3", tried=50, best_us={"M=1 up": 3.0}),
        event("trials", "4", tried=70, best_us={"M=1 up": 2.5}),
        event("requeued", "5", reason="gone"),
        event("trials", "6", tried=5),
    ]
    found = [(one["kind"], one["at"], one["said"]) for one in steps_of(events)]
    assert found == [
        ("trials", "6", "5 tried"),
        ("requeued", "5", "gone"),
        ("trials", "4", "120 tried; M=1 up 2.5 µs"),
        ("planned", "2", "at most 1,200 configurations and the engine's own"),
        ("leased", "1", "w-1"),
    ]
