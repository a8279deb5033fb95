"""Choose the entry of every point from a run's trials, each point by itself.

Without this tuner the engine runs its shipped entry if its loader finds an entry, else its default.
A shipped entry may be slower than the default, so a configuration replaces them only if it is
faster than both by a clear gain. If no configuration is, the faster of the two stays.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from tuner.errors import NothingFits
from tuner.problems.points import Config, Point
from tuner.problems.results import (
    Entry,
    MeasureKind,
    Status,
    Trial,
    as_incumbent,
    copied,
    own_choice,
    without_time,
)
from tuner.tuning.gains import CLEAR_GAIN
from tuner.tuning.request import NOISE
from tuner.tuning.seeds import KEPT, Baselines
from tuner.tuning.tune import STAYS, RunGoal

# A smaller gain than this is no gain: the ratio of two raced times of a dense GEMM differs by more
# between two processes at one in a hundred points (1.10 % on an H100, with 32 rounds at four places
# in memory).
GAIN = {MeasureKind.GPU: CLEAR_GAIN, MeasureKind.REPLAY: 0.0}
FINALISTS = 4  # per point, besides the incumbents and the neighbours' choices


@dataclass(frozen=True)
class Policy:
    """The limits from which on a faster time counts."""

    gain: float  # relative; a smaller gain over an incumbent does not count
    tie: float  # relative: times this near count as equal
    trust_shipped: bool = False  # times are predictions, which must not replace a tuned entry


@dataclass(frozen=True)
class _PointTrials:
    """One point's trials by configuration, and its incumbents by name."""

    point: Point
    trials: Mapping[Config, Trial]
    incumbents: Mapping[str, Config]

    def time_us(self, config: Config) -> float | None:
        trial = self.trials.get(config)
        return trial.measurement.median_us if trial else None

    def ranked(self) -> list[Config]:
        """List the configurations that have a time, the fastest first."""
        timed = [(t, c) for c in self.trials if (t := self.time_us(c)) is not None]
        return [config for _, config in sorted(timed)]

    def standing(self, tie: float) -> str | None:
        """Name the incumbent that stays if nothing beats it; None if no incumbent has a time.

        The incumbent that the engine runs stays, unless the other is faster by more than a tie.
        """
        times = {n: t for n, c in self.incumbents.items() if (t := self.time_us(c)) is not None}
        if not times:
            return None
        best = min(times.values())
        return next(n for n in ("shipped", "default") if times.get(n, inf) <= best * (1 + tie))

    @property
    def running(self) -> str:
        """Name the incumbent that the engine would run."""
        return "shipped" if "shipped" in self.incumbents else "default"


@dataclass(frozen=True)
class PointwiseChooser:
    """The chooser of a run whose points stand alone."""

    baselines: Baselines
    policy: Policy
    requested: Collection[Point]
    previous: Mapping[Point, Config] | None = None  # the store's entries when the run began

    def choose(self, trials: Sequence[Trial]) -> list[Entry]:
        """Return an entry for each point that a file must hold, in order of batch size.

        Points that were not tuned keep the engine's configuration, or get the nearest tuned entry
        if the engine's configuration does not fit. Raises NothingFits if no candidate of a
        requested point has a time.
        """
        fields = self._fields(trials)
        tuned: dict[Point, Entry] = {}
        neighbour: Config | None = None
        for field in fields:
            if field.point in self.requested:
                config, reason = self._choose_at(field, neighbour)
                tuned[field.point] = _entry(field, config, reason)
                neighbour = config
        return [tuned.get(field.point) or _untuned(field, tuned) for field in fields]

    def finalists(self, trials: Sequence[Trial], entries: Sequence[Entry]) -> list[Trial]:
        """Return the trials to race at each requested point: the incumbents, the stored entry, the
        choices there and at the neighbouring batch sizes, and the next best.
        """
        chosen = {entry.point: entry.config for entry in entries}
        points = sorted(self.requested)
        found = []
        for field in self._fields(trials):
            if field.point not in self.requested:
                continue
            at = points.index(field.point)
            near = [chosen[point] for point in points[max(at - 1, 0) : at + 2]]
            wanted = [*field.incumbents.values(), *near, *field.ranked()[:FINALISTS]]
            wanted += [c for p, c in (self.previous or {}).items() if p == field.point]
            timed = [c for c in dict.fromkeys(wanted) if field.time_us(c) is not None]
            found += [field.trials[config] for config in timed]
        return found

    def _fields(self, trials: Sequence[Trial]) -> list[_PointTrials]:
        by_point: dict[Point, dict[Config, Trial]] = {point: {} for point in self.baselines.configs}
        for trial in trials:
            if trial.candidate.point in by_point:
                by_point[trial.candidate.point][trial.candidate.config] = trial
        return [
            _PointTrials(point, by_point[point], self.baselines.configs[point])
            for point in sorted(by_point)
        ]

    def _choose_at(self, field: _PointTrials, neighbour: Config | None) -> tuple[Config, str]:
        ranked, policy = field.ranked(), self.policy
        if not ranked:
            raise NothingFits(f"no configuration compiles and fits at {field.point.size}")
        trusted = policy.trust_shipped and field.point in self.baselines.tuned_near
        if trusted and field.running == "shipped":
            shipped = field.incumbents["shipped"]
            if field.time_us(shipped) is not None:
                return shipped, KEPT
        standing = field.standing(policy.tie)
        best_us = field.time_us(ranked[0])
        assert best_us is not None  # ranked configurations have times
        stored = self._stored(field, best_us)
        if stored is not None and stored not in field.incumbents.values():
            return stored, f"{_gain(field, stored)}; {STAYS}"
        if standing is None:
            return ranked[0], _gain(field, ranked[0])
        limits = [t for c in field.incumbents.values() if (t := field.time_us(c)) is not None]
        limit_us = min(limits) * (1 - policy.gain)
        if best_us >= limit_us:
            return field.incumbents[standing], _kept(field, standing)
        # Fewer distinct kernels make a server start faster, so a tie goes to the neighbour's.
        best = ranked[0]
        if neighbour is not None and (near_us := field.time_us(neighbour)) is not None:
            equal = near_us <= best_us * (1 + policy.tie)
            best = neighbour if equal and near_us < limit_us else best
        return best, _gain(field, best)

    def _stored(self, field: _PointTrials, best_us: float) -> Config | None:
        """Return the stored configuration of a point, unless another configuration is faster by a
        clear gain or an incumbent is faster at all.
        """
        stored = (self.previous or {}).get(field.point)
        stored_us = field.time_us(stored) if stored is not None else None
        if stored_us is None or best_us < stored_us * (1 - self.policy.gain):
            return None
        times = (field.time_us(config) for config in field.incumbents.values())
        return None if any(us is not None and us < stored_us for us in times) else stored


def pointwise_goal(
    points: Sequence[Point],
    baselines: Baselines,
    source: MeasureKind,
    clear_gain: float,
    previous: Mapping[Point, Config],
) -> RunGoal:
    """Return the goal of a run whose points stand alone.

    A predicted gain must exceed `clear_gain`. `previous`: the store's entries when the run began.
    """
    if source is MeasureKind.PREDICT:
        policy = Policy(clear_gain, tie=0.0, trust_shipped=True)
    else:
        policy = Policy(GAIN[source], tie=NOISE[source])
    chooser = PointwiseChooser(baselines, policy, points, previous)
    return RunGoal(points, baselines.configs, chooser, previous)


def _kept(field: _PointTrials, standing: str) -> str:
    if standing != field.running:
        return f"{_gain(field, field.incumbents[standing])}: it is the engine's {standing} one"
    if _predicted(field, field.incumbents[standing]):
        return f"nothing is predicted to be clearly faster than the {standing} configuration"
    return f"nothing is clearly faster than the {standing} configuration"


def _gain(field: _PointTrials, config: Config) -> str:
    """Say how much faster a configuration is than the engine's configuration."""
    running = field.incumbents[field.running]
    us, running_us = field.time_us(config), field.time_us(running)
    assert us is not None  # a chosen configuration has a time
    if running_us is None:
        found = as_incumbent(running, field.trials.get(running))
        return without_time(f"the {field.running} configuration", [found])
    gain = f"{running_us / us:.3f}x as fast as the {field.running} configuration"
    return f"predicted {gain}" if _predicted(field, config) else gain


def _predicted(field: _PointTrials, config: Config) -> bool:
    return field.trials[config].measurement.status is Status.PREDICTED


def _entry(field: _PointTrials, config: Config, reason: str) -> Entry:
    trial = field.trials[config]
    return Entry(
        point=field.point,
        config=config,
        status=trial.measurement.status,
        median_us=trial.measurement.median_us,
        compiled=trial.compiled,
        incumbents={
            name: as_incumbent(config, field.trials.get(config))
            for name, config in sorted(field.incumbents.items())
        },
        reason=reason,
    )


def _untuned(field: _PointTrials, tuned: Mapping[Point, Entry]) -> Entry:
    name = field.running
    config = field.incumbents[name]
    if own := own_choice(field.point, config, name, field.trials.get(config)):
        return own
    nearest = min(tuned, key=lambda point: abs(point.batch_size - field.point.batch_size))
    return copied(tuned[nearest], field.point, name)
