"""Rounds before and after as the runs that bench-report compares, each load with its gain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tuner.deploy.bench_report.compare import FEWEST_RUNS, Pair, paired
from tuner.deploy.bench_report.samples import Key, LoadKind, Sample
from tuner.deploy.served.loads import Load
from tuner.deploy.served.measure import Speed


@dataclass(frozen=True)
class Column:
    """A column of `Speed`, its title in a proof's table, and its metric in bench-report."""

    field: str
    title: str
    metric: str


COLUMNS = (
    Column("prefill_tok_s", "prefill", "prefill_throughput"),
    Column("decode_tok_s", "decode", "decode_throughput"),
    Column("ttft_ms", "TTFT", "median_ttft_ms"),
    Column("tpot_ms", "TPOT", "median_tpot_ms"),
)


@dataclass(frozen=True)
class LoadGain:
    """One column of one load, before and after. A gain above 1 is better, for times too."""

    load: Load
    column: Column
    before: tuple[float, ...]  # of each round
    after: tuple[float, ...]
    pair: Pair

    @property
    def verdict(self) -> str:
        """Return faster, slower, or same if the interval holds 1 or the rounds are too few."""
        if len(self.before) < FEWEST_RUNS:
            return "same"
        return {"better": "faster", "worse": "slower", "unclear": "same"}[self.pair.verdict]


def gains_of(load: Load, before: Sequence[Speed], after: Sequence[Speed]) -> list[LoadGain]:
    """The gains of a load's columns; round `i` of one side is paired with round `i` of the other.

    A column that a round lacks is left out.
    """
    found = []
    for column in COLUMNS:
        old = tuple(getattr(speed, column.field) for speed in before)
        new = tuple(getattr(speed, column.field) for speed in after)
        if None not in (*old, *new):
            pair = paired(_key(load), column.metric, old, new)
            found.append(LoadGain(load, column, old, new, pair))
    return found


def runs_of(gains: Iterable[LoadGain], side: str) -> list[Sample]:
    """Return the rounds of a side, "before" or "after", as bench-report reads them."""
    return [
        Sample(gain.pair.key, gain.column.metric, value, f"round {number}")
        for gain in gains
        for number, value in enumerate(getattr(gain, side), 1)
    ]


def _key(load: Load) -> Key:
    return Key(LoadKind.SERVING, load.sequences, load.prompt, load.answer)
