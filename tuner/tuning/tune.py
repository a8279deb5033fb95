"""The tuning loop: ask for candidates, try the new ones, keep every trial, choose.

The strategy, the bench, the store and the chooser are passed in. To resume a run, the same
search runs again and stored trials answer first. So nothing is measured twice, and where times
repeat exactly, the winners are the same.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import starmap
from typing import Protocol

from tuner.errors import NothingFits
from tuner.problems.points import TRITON, Candidate, Config, Point
from tuner.problems.results import Entry, Measurement, Totals, Trial
from tuner.tuning.space import Space

# The median of 15 interleaved times varies by about 0.1 % on an H200, and that of nine by a third
# more. More rounds would take as long as the search does.
RACE_ROUNDS = 9
STAYS = "the stored entry stays"  # why an entry is what it was before the run


class Bench(Protocol):
    """Turns candidates into trials. `totals` is the cost so far."""

    totals: Totals

    def submit(self, candidates: Sequence[Candidate]) -> None:
        """Queue candidates; returns at once."""

    def poll(self, wait: bool) -> list[Trial]:
        """Every trial finished since the last call.

        With `wait`, block until there is at least one, unless nothing is submitted.
        """


class Strategy(Protocol):
    """Proposes candidates and learns from their measurements."""

    def ask(self) -> list[Candidate]:
        """What to try next; empty while it waits for tells, and when it is done."""

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
        """What it has not proposed yet."""
        return self._left


class WhereNeeded:
    """Tries a list, which is made once it is known at which sizes what is trusted cannot run."""

    def __init__(
        self,
        points: Sequence[Point],
        trusted: Mapping[Point, Config],
        listed: Callable[[Collection[Point]], Sequence[Candidate]],
    ) -> None:
        """`trusted` is tried before, as the plan's; `listed` gives the candidates of points."""
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
    """A strategy that tries all configurations of each point's space."""
    return FixedStrategy(
        [Candidate(point, config) for point, space in spaces.items() for config in space.configs()]
    )


class Watcher:
    """Hears what a run does, so that a person can be told. This one tells nobody."""

    def step(self, text: str) -> None:
        """What the run does now, in words; empty while it tries candidates."""

    def planned(self, candidates: Collection[Candidate]) -> None:
        """These candidates will be tried, and no others."""

    def asked(self, fresh: Collection[Candidate], stored: Collection[Trial]) -> None:
        """The next candidates to try, and answers that the store had."""

    def tried(self, trial: Trial) -> None:
        """A new trial, which is stored."""


UNWATCHED = Watcher()


class Chooser(Protocol):
    """Chooses entries by a family's rules."""

    def choose(self, trials: Sequence[Trial]) -> list[Entry]:
        """The entries. Raises NothingFits where a point to tune has no usable trial."""

    def finalists(self, trials: Sequence[Trial], entries: Sequence[Entry]) -> list[Trial]:
        """The trials of the points to tune that are worth timing again."""


# Times candidates of a point in turn, so that drift affects them equally, in so many rounds: gives
# the measurement of each candidate, without those that could not be timed.
Race = Callable[[Sequence[Candidate], int], dict[Candidate, Measurement]]


@dataclass(frozen=True)
class RunPlan:
    """What a run must answer."""

    requested: Sequence[Point]  # the points to tune
    incumbents: Mapping[Point, Mapping[str, Config]]  # for every point that a file must hold
    chooser: Chooser
    # What the store has for the requested points, measured in the same environment. It is tried
    # beside the incumbents, and it is no seed: a search must ask the same when it is resumed.
    previous: Mapping[Point, Config] = field(default_factory=dict)
    # What the engine's makers measured on the card. It is tried too, and is no seed either.
    trusted: Mapping[Point, Config] = field(default_factory=dict)
    # Backends to measure beside Triton. One kernel of a backend may do the work of the kernels of
    # several points; it is measured at the first of them.
    backends: Mapping[Point, Sequence[str]] = field(default_factory=dict)

    def incumbent_candidates(self) -> list[Candidate]:
        """What is tried first: what the engine would run without this tuner, what its makers
        measured, and what the store has.
        """
        wanted = {
            Candidate(point, config): None
            for point, by_name in self.incumbents.items()
            for config in by_name.values()
        }
        known = (*self.trusted.items(), *self.previous.items())
        others = (
            Candidate(point, Config({}), backend)
            for point, names in self.backends.items()
            for backend in names
        )
        return list(wanted | dict.fromkeys(starmap(Candidate, known)) | dict.fromkeys(others))


def tune(
    plan: RunPlan,
    strategy: Strategy,
    bench: Bench,
    stored: Sequence[Trial],
    store: Callable[[Sequence[Trial]], None],
    watcher: Watcher = UNWATCHED,
    race: Race | None = None,
    tell: Callable[[list[Entry], Sequence[Trial]], list[Entry]] | None = None,
) -> list[Entry]:
    """Run `plan` and return its entries; raises NothingFits where a requested point has none.

    `stored` are the trials that the run has already; `store` keeps further ones durably.
    With a `race`, the finalists of each point are timed again in turn, and the new times decide.
    `tell` adds to the entries what the trials of other backends say; only Triton's are chosen.
    `bench.totals.wall_s` is set to the seconds that this took.
    """
    started = time.perf_counter()
    trials = {trial.candidate: trial for trial in stored}
    if isinstance(strategy, FixedStrategy):
        watcher.planned(dict.fromkeys([*plan.incumbent_candidates(), *strategy.left]))
    explore(plan, strategy, bench, _keeper(trials, store, watcher), trials, watcher)
    requested = set(plan.requested)
    everything = [trial for trial in trials.values() if trial.candidate.backend == TRITON]
    others = [trial for trial in trials.values() if trial.candidate.backend != TRITON]
    try:
        entries = plan.chooser.choose(everything)
    except NothingFits as error:
        raise NothingFits(f"{error}{_why(everything)}") from None
    if race is not None:
        again = [
            *plan.chooser.finalists(everything, entries),
            *(trial for trial in others if trial.measurement.timed),
        ]
        raced, others = _apart(_raced(again, race, watcher), others)
        untuned = [t for t in everything if t.candidate.point not in requested]
        entries = plan.chooser.choose([*raced, *untuned])
    if tell:
        entries = tell(entries, [*everything, *others])
    bench.totals.wall_s = time.perf_counter() - started
    return entries


def _why(trials: Sequence[Trial]) -> str:
    """What the compiler or the GPU said of the candidates that failed; the most frequent counts.

    Texts that differ in numbers alone are alike, and the one of the least shared memory is given.
    """
    failed = [trial.compiled for trial in trials if not trial.compiled.ok]
    failed.sort(key=lambda one: one.shared_bytes or 0)
    alike: dict[str, list[str]] = {}
    for one in failed:
        alike.setdefault(re.sub(r"[\d,]", "", one.detail), []).append(one.detail)
    if not failed:
        return ""
    most = max(alike.values(), key=len)
    count = "all" if len(most) == len(trials) else f"{len(most)} of"
    return f": {count} {len(trials)} that were tried end so: {most[0] or failed[0].status.value}"


def _apart(raced: Sequence[Trial], others: Sequence[Trial]) -> tuple[list[Trial], list[Trial]]:
    """The raced trials of Triton, and those of other backends with the times of the race."""
    tuned = [trial for trial in raced if trial.candidate.backend == TRITON]
    times = {trial.candidate: trial for trial in raced}
    return tuned, [times.get(trial.candidate, trial) for trial in others]


def _raced(trials: Sequence[Trial], race: Race, watcher: Watcher) -> list[Trial]:
    by_point: dict[Point, list[Trial]] = {}
    for trial in trials:
        by_point.setdefault(trial.candidate.point, []).append(trial)
    raced = []
    for at, some in enumerate(by_point.values(), start=1):
        watcher.step(f"timing the best again, in turn: {at} of {len(by_point)} points")
        times = race([trial.candidate for trial in some], RACE_ROUNDS)
        raced += [
            replace(trial, measurement=times[trial.candidate])
            for trial in some
            if trial.candidate in times
        ]
    return raced


def explore(
    plan: RunPlan,
    strategy: Strategy,
    bench: Bench,
    keep: Callable[[list[Trial]], None],
    known: Mapping[Candidate, Trial],
    watcher: Watcher,
) -> None:
    """Try the incumbents and what the strategy asks for; `keep` gets each batch of new trials."""
    asked: dict[Candidate, int] = {}  # candidate -> its position; answers are told in this order
    waiting: set[Candidate] = set()
    proposals: Iterable[Candidate] = plan.incumbent_candidates() or strategy.ask()
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
