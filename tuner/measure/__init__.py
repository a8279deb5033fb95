"""Measure times on a GPU, or read them from a recording."""

from __future__ import annotations

from typing import Protocol

from tuner.problems.points import Candidate
from tuner.problems.results import Compiled, Measurement


class Measurer(Protocol):
    """Gives candidates their times."""

    def measure(self, candidate: Candidate, compiled: Compiled) -> Measurement:
        """Return the time of a candidate that compiled and fits.

        A candidate that fails is reported as a status. Raises MeasurerFailed if nothing more can be
        measured.
        """
