"""Which prompts the rounds of a comparison send, to whom, and how often."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.served import compare
from benchmarks.served.compare import Rounds, SideResults
from benchmarks.served.loads import SIDES, Load, Speed

SHORT, MIDDLE, LONG = Load(1, 64, 8), Load(8, 64, 8), Load(8, 8192, 64)
TAKES_S = {SHORT: 0.01, MIDDLE: 0.3, LONG: 5.0}
BEFORE, AFTER = (SimpleNamespace(port=port) for port in (1, 2))


class Sent:
    """What was sent, as (port, load, key)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all: list[tuple[int, Load, object]] = []
        monkeypatch.setattr(compare, "run_load", self._run)

    def _run(self, _: object, port: int, load: Load, key: object, timeout_s: float) -> Speed:
        self.all.append((port, load, key))
        time_s = TAKES_S[load] / port  # the server after is twice as fast
        return Speed(float(len(self.of(port, load))), 1.0, None, None, time_s)

    def of(self, port: int, load: Load) -> list[object]:
        return [key for sent, of, key in self.all if (sent, of) == (port, load)]


@pytest.fixture
def sent(monkeypatch):
    return Sent(monkeypatch)


def measured(running: Sequence[Any], numbers: Sequence[int], of: Rounds) -> list[SideResults]:
    results = [SideResults() for _ in running]
    of.measure(running, results, numbers)
    return results


def new_rounds() -> Rounds:
    return Rounds(SimpleNamespace(), (SHORT, MIDDLE, LONG), 2, 1.0, lambda _: None)


def test_a_short_load_is_repeated_until_a_second_was_measured(sent):
    results = measured([BEFORE, AFTER], [1, 2], new_rounds())
    runs = {load: len(sent.of(1, load)) / 2 for load in TAKES_S}
    assert runs == {SHORT: 8, MIDDLE: 7, LONG: 1}
    # A round has one figure, the median of its repeats.
    assert [speed.prefill_tok_s for speed in results[0].speeds[SHORT]] == [4.5, 12.5]


def test_prompts_are_equal_on_both_sides_and_new_in_each_repeat(sent):
    measured([BEFORE, AFTER], [1, 2], new_rounds())
    for load in TAKES_S:
        keys = sent.of(1, load)
        assert sorted(map(str, keys)) == sorted(map(str, sent.of(2, load)))
        assert len(set(keys)) == len(keys)
    first = [port for port, load, _ in sent.all if load == SHORT][::2]
    assert first[:8] == [1, 2, 1, 2, 1, 2, 1, 2]  # each is as often the first


def test_servers_in_turn_get_equal_prompts_too(sent):
    of = new_rounds()
    measured([BEFORE], [1], of)
    measured([AFTER], [1, 2], of)
    measured([BEFORE], [2], of)
    for load in TAKES_S:
        assert sent.of(1, load) == sent.of(2, load)


def test_whoever_interrupts_the_rounds_gets_a_report_of_the_whole_ones(monkeypatch):
    def compared(whole: int) -> tuple[list[str], Mapping[str, SideResults]]:
        said: list[str] = []

        def run(_: object, port: int, load: Load, key: object, timeout_s: float) -> Speed:
            if load is LONG and key == (whole + 1, 0):
                raise KeyboardInterrupt
            return Speed(1.0, 1.0, None, None, 5.0)

        monkeypatch.setattr(compare, "run_load", run)
        setup: Any = SimpleNamespace(
            server=SimpleNamespace(memory_shares=(0.4, 0.7)),
            request=SimpleNamespace(port=None, rounds=7),
        )
        results = {side: SideResults() for side in SIDES}
        of = Rounds(setup.server, (SHORT, LONG), 7, 1.0, said.append)
        return compare._together(setup, of, results, said.append), results

    @contextmanager
    def ready(*_: object) -> Iterator[SimpleNamespace]:
        yield BEFORE

    monkeypatch.setattr(compare, "_ready", ready)
    monkeypatch.setattr(Rounds, "check", lambda *_: None)
    notes, results = compared(3)
    assert notes == ["interrupted: 3 of 7 rounds were measured"]
    assert {len(speeds) for side in results.values() for speeds in side.speeds.values()} == {3}
    with pytest.raises(KeyboardInterrupt):
        compared(0)
