"""Take over what an earlier run measured, where a new engine or Triton changes no machine code.

The run tries the earlier run's finalists again, and what the engine would run without this tuner.
They are compiled. One with the same machine code and arguments as before keeps its earlier time.
At a size where all of them do, the earlier result stands. At the others, all are timed in turn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from tuner.problems.points import TRITON, Candidate, Config, Point
from tuner.problems.records import EarlierRun
from tuner.problems.results import Compiled, Entry, Measurement, Status, Trial
from tuner.tuning.tune import Plan

CARRIED = "carried over: same machine code"
Size = tuple[int, int]  # batch size, new tokens: a family chooses the points of a size together


class Revalidation:
    """What a run in an older environment says about the points of a plan."""

    def __init__(self, earlier: EarlierRun, plan: Plan) -> None:
        self._plan = plan
        self._trials = {trial.candidate: trial for trial in earlier.trials}
        self._entries = {entry.point: entry for entry in earlier.entries}
        environment = earlier.run.key.environment
        self.fingerprint = earlier.run.key.fingerprint
        self.origin = (
            f"{environment.engine} {environment.engine_version} with Triton {environment.triton}"
        )

    def candidates(self) -> list[Candidate]:
        """The finalists of the earlier run: its winners, their rivals and the neighbours'."""
        trials, entries = _of_triton(self._trials), list(self._entries.values())
        return [trial.candidate for trial in self._plan.chooser.finalists(trials, entries)]

    def known(self, candidate: Candidate, compiled: Compiled) -> Measurement | None:
        """The earlier time of a candidate that is compiled to the same machine code."""
        before = self._trials.get(candidate)
        if before is None or not _same(before.compiled, compiled):
            return None
        timed = before.measurement.status is Status.OK
        return replace(before.measurement, detail=CARRIED) if timed else None

    def final(self, trials: Mapping[Candidate, Trial]) -> list[Trial]:
        """The earlier result at each size where it stands: winner and incumbents, as last timed."""
        changed = {_size(t.candidate.point) for t in _of_triton(trials) if not self._stands(t)}
        changed |= {_size(p) for p in self._plan.requested if not self._same_incumbents(p, trials)}
        standing = (p for p in self._plan.requested if _size(p) not in changed)
        return [
            trial for point in standing for trial in self._last_timed(self._entries[point], trials)
        ]

    def explain(self, entries: Sequence[Entry], held: Collection[Point]) -> list[Entry]:
        """The entries, with what became of the earlier result in the reason of each."""
        carried = f"{CARRIED} as in {self.origin}"
        raced = f"raced with what was best in {self.origin}, because the machine code has changed"
        return [
            replace(entry, reason=f"{entry.reason}; {carried if entry.point in held else raced}")
            if entry.point in self._plan.requested
            else entry
            for entry in entries
        ]

    def _stands(self, trial: Trial) -> bool:
        if trial.candidate.point not in self._plan.requested:
            return True  # it is not measured
        before = self._trials.get(trial.candidate)
        return before is not None and _same(before.compiled, trial.compiled)

    def _same_incumbents(self, point: Point, trials: Mapping[Candidate, Trial]) -> bool:
        """Whether the earlier race at a point had the same winner and rivals to beat."""
        entry = self._entries.get(point)
        if entry is None or Candidate(point, entry.config) not in trials:
            return False
        own = {name: one for name, one in entry.incumbents.items() if one.backend == TRITON}
        raced = {name: incumbent.config for name, incumbent in own.items()}
        return raced == dict(self._plan.incumbents[point])

    @staticmethod
    def _last_timed(entry: Entry, trials: Mapping[Candidate, Trial]) -> Iterator[Trial]:
        times: dict[Config, float | None] = {
            one.config: one.median_us for one in entry.incumbents.values() if one.backend == TRITON
        }
        times[entry.config] = entry.median_us
        for config, median_us in times.items():
            trial = trials[Candidate(entry.point, config)]
            if median_us is not None:
                trial = replace(trial, measurement=Measurement(Status.OK, median_us))
            yield trial


def _of_triton(trials: Mapping[Candidate, Trial]) -> list[Trial]:
    """Other backends are measured anew: what they are compiled to is not known."""
    return [trial for trial in trials.values() if trial.candidate.backend == TRITON]


def _same(before: Compiled, now: Compiled) -> bool:
    """Whether two compiles gave the same code, or failed in the same way."""
    return before.status is now.status and before.code == now.code and bool(now.code or not now.ok)


def _size(point: Point) -> Size:
    return point.batch_size, point.new_tokens
