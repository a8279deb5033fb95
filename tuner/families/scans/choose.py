"""Choose the configurations of a scan's kernels. A launch shows its tokens, so points stand alone.

An engine that chooses by itself does so once, at its first prompt, which is a chunk long, and keeps
its choice for all lengths. So its own choice is the fastest of its list at that point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.problems.points import Candidate, Config, Part, Point
from tuner.problems.results import Entry, Trial
from tuner.tuning.pointwise import PointwiseChooser, Policy
from tuner.tuning.report import uncompared
from tuner.tuning.seeds import Baselines


@dataclass(frozen=True)
class OwnChoice:
    """How an engine comes to a kernel's configuration by itself."""

    constants: Config | None  # None: it chooses
    listed: Sequence[Config]  # from these
    first: Point  # at this point

    def config(self, trials: Sequence[Trial]) -> Config:
        """Return the configuration, as far as trials at the first point tell."""
        if self.constants is not None:
            return self.constants
        timed = [
            (us, trial.candidate.config)
            for trial in trials
            if trial.candidate.point == self.first
            and trial.candidate.config in self.listed
            and (us := trial.measurement.median_us) is not None
        ]
        return min(timed)[1] if timed else self.listed[0]

    def lost(self, trials: Sequence[Trial]) -> Trial | None:
        """Return a trial of the engine's list that was lost to a mishap, so that the engine's
        choice is unknown.
        """
        here = (trial for trial in trials if trial.candidate.point == self.first and trial.lost)
        listed = self.listed if self.constants is None else ()
        return next((trial for trial in here if trial.candidate.config in listed), None)


@dataclass(frozen=True)
class ScanChooser:
    """`choose` and `finalists` for a run: a `PointwiseChooser` for each kernel."""

    own: Mapping[Part, OwnChoice]
    policy: Policy
    requested: Sequence[Point]
    previous: Mapping[Point, Config]

    def choose(self, trials: Sequence[Trial]) -> list[Entry]:
        """Return an entry for each requested point. Raises NothingFits for a point without a
        time.
        """
        found = []
        for part, own in self.own.items():
            entries = self._of(part, trials).choose(trials)
            if lost := own.lost(trials):
                first = Candidate(own.first, own.config(trials))
                nearest = next(trial for trial in trials if trial.candidate == first)
                entries = [uncompared(entry, "default", nearest, lost) for entry in entries]
            found += entries
        return found

    def finalists(self, trials: Sequence[Trial], entries: Sequence[Entry]) -> list[Trial]:
        """Return the trials of each point that are worth timing again."""
        found = []
        for part in self.own:
            here = [entry for entry in entries if entry.point.part is part]
            found += self._of(part, trials).finalists(trials, here)
        return found

    def _of(self, part: Part, trials: Sequence[Trial]) -> PointwiseChooser:
        points = [point for point in self.requested if point.part is part]
        own = self.own[part].config(trials)
        runs = Baselines({point: {"default": own} for point in points}, frozenset())
        return PointwiseChooser(runs, self.policy, points, self.previous)
