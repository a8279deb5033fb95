"""Turns candidates into trials: compiles each, and measures it if it fits the GPU."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Protocol

from tuner.compile import Compiler
from tuner.measure import Measurer
from tuner.problems.points import Candidate, Point
from tuner.problems.results import Compiled, Totals, Trial, untimed


class Bench(Protocol):
    """Turns candidates into trials. `totals` is the cost so far."""

    totals: Totals

    def submit(self, candidates: Sequence[Candidate]) -> None:
        """Queue candidates; returns at once."""

    def poll(self, wait: bool) -> list[Trial]:
        """Every trial finished since the last call.

        With `wait`, block until there is at least one, unless nothing is submitted.
        """


class SerialBench:
    """Measures in the caller's process while compiles run in other processes."""

    def __init__(
        self, compiler: Compiler, measurer: Measurer, points: Collection[Point] | None = None
    ) -> None:
        """`points` are the points to measure (default: all); others are only compiled."""
        self._compiler = compiler
        self._measurer = measurer
        self._points = points
        self.totals = Totals()

    def submit(self, candidates: Sequence[Candidate]) -> None:
        self._compiler.submit(candidates)

    def poll(self, wait: bool) -> list[Trial]:
        trials = [self._trial(*ready) for ready in self._compiler.poll(wait)]
        self.totals.configs_compiled = self._compiler.compiled_count
        self.totals.compile_s = self._compiler.compile_s
        return trials

    def _trial(self, candidate: Candidate, compiled: Compiled) -> Trial:
        if not compiled.ok or (self._points is not None and candidate.point not in self._points):
            return untimed(candidate, compiled)
        started = time.perf_counter()
        measurement = self._measurer.measure(candidate, compiled)
        self.totals.measure_s += time.perf_counter() - started
        self.totals.measurements += measurement.timed
        return Trial(candidate, compiled, measurement)
