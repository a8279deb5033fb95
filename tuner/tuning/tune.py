"""Run the tuning loop: ask for candidates, try the new ones, keep every trial, choose.

The strategy, the bench, the store and the chooser are passed in. To resume a run, the same search
runs again and stored trials answer first. So nothing is measured twice, and if times repeat
exactly, the winners are the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import starmap
from typing import Protocol

from tuner.compile import KernelCompiler
from tuner.errors import MeasurerFailed, NothingFits
from tuner.problems.points import TRITON, Candidate, Config, Point
from tuner.problems.results import Entry, Measurement, Totals, Trial
from tuner.tuning.report import all_lost, keep_uncompared, mishap_lines, most_alike
from tuner.tuning.space import Space

# The median of 15 interleaved times varies by about 0.1 % on an H200, and the median of nine by a
# third more. More rounds would take as long as the search does.
RACE_ROUNDS = 9
STAYS = "the stored entry stays"  # the reason of an entry that is the same as before the run


class Bench(Protocol):
    """Turns candidates into trials. `totals` is the cost so far."""

    totals: Totals

    def submit(self, candidates: Sequence[Candidate]) -> None:
        """Queue candidates; return at once."""

    def poll(self, wait: bool) -> list[Trial]:
        """Return every trial finished since the last call.

        With `wait`, block until there is at least one trial, unless nothing is submitted.
        """


class Strategy(Protocol):
    """Proposes candidates and learns from their measurements."""

    def ask(self) -> list[Candidate]:
        """Return the next candidates to try; none while it waits for tells, and when it is done."""

    def tell(self, candidate: Candidate, measurement: Measurement) -> None:
        """Take the measurement of a candidate, which the strategy need not have proposed."""


class FixedStrategy:
    """A strategy that tries a given list of candidates."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self._left = list(candidates)

    def ask(self) -> list[Candidate]:
        left, self._left = self._left, []
        return left

    def tell(self, candidate: Candidate, measurement: Measurement) -> None:
        pass

    @property
    def left(self) -> Sequence[Candidate]:
        """Return the candidates that it has not proposed yet."""
        return self._left


class WhereNeeded:
    """A strategy for the sizes at which the trusted configurations cannot run.

    Its candidates are listed once those sizes are known.
    """

    def __init__(
        self,
        points: Sequence[Point],
        trusted: Mapping[Point, Config],
        listed: Callable[[Collection[Point]], Sequence[Candidate]],
    ) -> None:
        """Take the goal's `trusted` configurations, and `listed`, which lists the candidates of
        points.
        """
        self._points, self._listed = points, listed
        self._waiting = {Candidate(point, config) for point, config in trusted.items()}
        self._needed = {point.size for point in points if point not in trusted}
        self._asked = False

    def ask(self) -> list[Candidate]:
        if self._waiting or self._asked:
            return []
        self._asked = True
        needed = [point for point in self._points if point.size in self._needed]
        return list(self._listed(needed)) if needed else []

    def tell(self, candidate: Candidate, measurement: Measurement) -> None:
        if candidate in self._waiting:
            self._waiting.remove(candidate)
            if not measurement.timed:
                self._needed.add(candidate.point.size)


def everything(spaces: Mapping[Point, Space]) -> FixedStrategy:
    """Return a strategy that tries all configurations of each point's space."""
    return FixedStrategy(
        [Candidate(point, config) for point, space in spaces.items() for config in space.configs()]
    )


class Watcher:
    """Hears the steps of a run, to tell a person. This class tells nobody."""

    def compiles(self, compiler: KernelCompiler) -> None:
        """Take the compiler of the run's candidates."""

    def step(self, text: str) -> None:
        """Take the run's present step, in words; empty while it tries candidates."""

    def expected(self, candidates: Collection[Candidate]) -> None:
        """Take the candidates that will be tried; there will be no others."""

    def asked(self, fresh: Collection[Candidate], stored: Collection[Trial]) -> None:
        """Take the next candidates to try, and the trials that the store had."""

    def tried(self, trial: Trial) -> None:
        """Take a new trial, which is stored."""


UNWATCHED = Watcher()


class Chooser(Protocol):
    """Chooses entries by a family's rules."""

    def choose(self, trials: Sequence[Trial]) -> list[Entry]:
        """Return the entries. Raises NothingFits if a point to tune has no usable trial."""

    def finalists(self, trials: Sequence[Trial], entries: Sequence[Entry]) -> list[Trial]:
        """Return the trials of the points to tune that are worth timing again."""


# Times candidates of a point in turn, so that drift affects them equally, in so many rounds: gives
# the measurement of each candidate. Raises MeasurerFailed if no other race will succeed.
Race = Callable[[Sequence[Candidate], int], dict[Candidate, Measurement]]


@dataclass(frozen=True)
class RunGoal:
    """The points that a run must tune, and the candidates that it compares with."""

    requested: Sequence[Point]  # the points to tune
    incumbents: Mapping[Point, Mapping[str, Config]]  # for every point that a file must hold
    chooser: Chooser
    # The store's entries for the requested points, measured in the same environment. They are tried
    # beside the incumbents, and are no seeds: a search must ask the same when it is resumed.
    previous: Mapping[Point, Config] = field(default_factory=dict)
    # The entries of the engine's makers for the card. They are tried too, and are no seeds either.
    trusted: Mapping[Point, Config] = field(default_factory=dict)
    # The lists among which an engine chooses by itself. A part runs its choice at all points.
    listed: Mapping[Point, Sequence[Config]] = field(default_factory=dict)
    # Backends to measure beside Triton. One kernel of a backend may do the work of the kernels of
    # several points; it is measured at the first of them.
    backends: Mapping[Point, Sequence[str]] = field(default_factory=dict)

    def incumbent_candidates(self) -> list[Candidate]:
        """Return the first candidates: the engine's configurations and backends, its lists, its
        makers' entries, and the store's entries.
        """
        wanted = {
            Candidate(point, config): None
            for point, by_name in self.incumbents.items()
            for config in by_name.values()
        }
        for point, configs in self.listed.items():
            wanted |= {Candidate(point, config): None for config in configs}
        known = (*self.trusted.items(), *self.previous.items())
        others = (
            Candidate(point, Config({}), backend)
            for point, names in self.backends.items()
            for backend in names
        )
        return list(wanted | dict.fromkeys(starmap(Candidate, known)) | dict.fromkeys(others))


@dataclass(frozen=True)
class Outcome:
    """The entries of a run."""

    entries: Sequence[Entry]
    mishaps: Sequence[str] = ()  # lines on losses to mishaps


def tune(
    goal: RunGoal,
    strategy: Strategy,
    bench: Bench,
    stored: Sequence[Trial],
    store: Callable[[Sequence[Trial]], None],
    watcher: Watcher = UNWATCHED,
    race: Race | None = None,
    tell: Callable[[list[Entry], Sequence[Trial]], list[Entry]] | None = None,
) -> Outcome:
    """Run `goal`.

    `stored` are the trials that the run has already, or that need no try; `store` keeps further
    trials durably. With a `race`, the finalists of each point are timed again in turn, and the new
    times decide. `tell` adds the trials of other backends to the entries; only Triton's candidates
    are chosen. `bench.totals.wall_s` is set to the seconds that this took. Raises NothingFits if a
    requested point has no entry, or MeasurerFailed if mishaps leave that open.
    """
    started = time.perf_counter()
    trials = {trial.candidate: trial for trial in stored}
    if isinstance(strategy, FixedStrategy):
        watcher.expected(dict.fromkeys([*goal.incumbent_candidates(), *strategy.left]))
    explore(goal, strategy, bench, _keeper(trials, store, watcher), trials, watcher)
    entries, unraced = _choose(goal, trials.values()), dict[Point, str]()
    if race is not None:
        entries, raced, unraced = _race(goal, entries, trials, race, watcher)
        trials |= raced
    requested = set(goal.requested)
    entries = keep_uncompared(entries, trials, goal.incumbents, requested, goal.previous)
    if tell:
        entries = tell(entries, list(trials.values()))
    lost = [trial for trial in trials.values() if trial.lost]
    counts = {"lost": len(lost), "unraced": len(unraced)}
    bench.totals.extra |= {name: count for name, count in counts.items() if count}
    bench.totals.wall_s = time.perf_counter() - started
    refused = [trial for trial in trials.values() if trial.refused]
    return Outcome(entries, mishap_lines(lost, refused, unraced, len(goal.requested)))


def _choose(goal: RunGoal, trials: Iterable[Trial]) -> list[Entry]:
    """Choose the entries. An error says why the compiler or the GPU refused the candidates."""
    tuned = _tritons(trials)
    try:
        return goal.chooser.choose(tuned)
    except NothingFits as error:
        requested = set(goal.requested)
        asked = [trial for trial in tuned if trial.candidate.point in requested]
        if lost := [trial for trial in asked if trial.lost]:
            raise all_lost(lost, len(asked)) from None
        raise NothingFits(f"{error}{_why(tuned)}") from None


def _tritons(trials: Iterable[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.candidate.backend == TRITON]


def _why(trials: Sequence[Trial]) -> str:
    """Return the most frequent message of the compiler or the GPU about failed candidates.

    Of texts that are alike, return the text of the candidate with the least shared memory.
    """
    failed = [trial.compiled for trial in trials if not trial.compiled.ok]
    failed.sort(key=lambda one: one.shared_bytes or 0)
    if not failed:
        return ""
    most = most_alike(one.detail for one in failed)
    count = "all" if len(most) == len(trials) else f"{len(most)} of"
    return f": {count} {len(trials)} that were tried end so: {most[0] or failed[0].status.value}"


Raced = dict[Candidate, Trial]  # trials with a race's results


def _race(
    goal: RunGoal,
    entries: Sequence[Entry],
    trials: Mapping[Candidate, Trial],
    race: Race,
    watcher: Watcher,
) -> tuple[list[Entry], Raced, dict[Point, str]]:
    """Time the finalists again.

    Return the entries by the new times, the races' trials, and the points that keep the times of
    the search, with the reason.
    """
    others = [t for c, t in trials.items() if c.backend != TRITON and t.measurement.timed]
    again = [*goal.chooser.finalists(_tritons(trials.values()), entries), *others]
    raced, unraced = _raced(again, race, watcher)
    try:
        return _choose_again(goal, trials, raced, unraced), raced, unraced
    except (NothingFits, MeasurerFailed):
        lost = [trial for trial in raced.values() if trial.lost]
        if not lost:
            raise
        # Kernels that run together were lost in part, at each point others.
        verdicts = {c: trial for c, trial in raced.items() if not trial.measurement.timed}
        unraced = dict.fromkeys(goal.requested, lost[0].measurement.detail)
        return _choose_again(goal, trials, verdicts, unraced), verdicts, unraced


def _raced(trials: Sequence[Trial], race: Race, watcher: Watcher) -> tuple[Raced, dict[Point, str]]:
    """Race each point: return the new trials, and why points have no race."""
    by_point: dict[Point, list[Trial]] = {}
    for trial in trials:
        by_point.setdefault(trial.candidate.point, []).append(trial)
    raced: Raced = {}
    unraced: dict[Point, str] = {}
    for at, (point, some) in enumerate(by_point.items()):
        watcher.step(f"timing the best again, in turn: {at + 1} of {len(by_point)} points")
        try:
            times = race([trial.candidate for trial in some], RACE_ROUNDS)
        except MeasurerFailed as failure:
            unraced |= dict.fromkeys([*by_point][at:], str(failure))
            break
        again = [replace(t, measurement=times[t.candidate]) for t in some if t.candidate in times]
        lost = [trial for trial in again if trial.lost]
        if lost and not any(trial.measurement.timed for trial in again):
            unraced[point] = lost[0].measurement.detail
            again = [trial for trial in again if not trial.lost]
        raced |= {trial.candidate: trial for trial in again}
    return raced, unraced


def _choose_again(
    goal: RunGoal,
    trials: Mapping[Candidate, Trial],
    raced: Raced,
    unraced: Collection[Point],
) -> list[Entry]:
    """Choose by the races' times; at points without a race, by the times of the search, if nothing
    was compared there that a race would compare.
    """
    requested, own = set(goal.requested), set(goal.incumbent_candidates())

    def counts(trial: Trial) -> bool:
        if not trial.measurement.timed or trial.candidate.point not in requested:
            return True
        if trial.candidate.point not in unraced:
            return False
        return trial.candidate in own or not trial.unchecked

    rest = (trial for c, trial in trials.items() if c not in raced and counts(trial))
    return _choose(goal, [*raced.values(), *rest])


def explore(
    goal: RunGoal,
    strategy: Strategy,
    bench: Bench,
    keep: Callable[[list[Trial]], None],
    known: Mapping[Candidate, Trial],
    watcher: Watcher,
) -> None:
    """Try the incumbents and the strategy's candidates; `keep` gets each batch of new trials."""
    asked: dict[Candidate, int] = {}  # candidate -> its position; answers are told in this order
    waiting: set[Candidate] = set()
    proposals: Iterable[Candidate] = goal.incumbent_candidates() or strategy.ask()
    while True:
        proposals = [c for c in proposals if c not in asked]
        asked |= {candidate: i for i, candidate in enumerate(proposals, start=len(asked))}
        answered = [known[candidate] for candidate in proposals if candidate in known]
        fresh = [candidate for candidate in proposals if candidate not in known]
        watcher.asked(fresh, answered)
        bench.submit(fresh)
        waiting.update(fresh)
        if waiting:
            finished = bench.poll(wait=not answered)
            keep(finished)
            waiting.difference_update(trial.candidate for trial in finished)
            answered += finished
        elif not answered:
            return
        for trial in sorted(answered, key=lambda trial: asked[trial.candidate]):
            if trial.candidate.backend == TRITON:
                strategy.tell(trial.candidate, trial.measurement)
        proposals = strategy.ask()


def _keeper(
    trials: dict[Candidate, Trial], store: Callable[[Sequence[Trial]], None], watcher: Watcher
) -> Callable[[list[Trial]], None]:
    def keep(finished: list[Trial]) -> None:
        store(finished)
        for trial in finished:
            trials[trial.candidate] = trial
            watcher.tried(trial)

    return keep
