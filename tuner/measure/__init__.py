"""Where times come from: a GPU, a recording, or a model of the device."""

from __future__ import annotations

from typing import Protocol

from tuner.problems.points import Candidate
from tuner.problems.results import Compiled, Measurement


class Measurer(Protocol):
    """Gives candidates their times."""

    def measure(self, candidate: Candidate, compiled: Compiled) -> Measurement:
        """The time of a candidate that compiled and fits.

        A candidate that fails is reported as a status. Raises MeasurerFailed where nothing more
        can be measured.
        """
