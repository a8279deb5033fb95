"""Choose decode's entries from its trials: for each number of sequences, one `JointPlan`.

A plan replaces the engine's own rule and constants only if both kernels together are faster over
all lengths by more than the noise, and at no length slower by more than the noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuner.errors import NothingFits
from tuner.families.attention.joint.plans import STAGES, JointBuckets, JointPlan, Times
from tuner.families.attention.problem import Stage
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Entry, Incumbent, Status, Trial
from tuner.tuning.tune import STAYS

# Plans for each number of sequences, besides the engine's own, the stored and the chosen one.
FINALISTS = 5


@dataclass(frozen=True)
class JointChooser:
    """`choose` and `finalists` for one run."""

    sizes: Sequence[JointBuckets]
    own: Mapping[Point, Config]  # the engine's constants and rule
    noise: float  # relative; a smaller gain does not count
    slack: float | None = None  # relative: the largest slowdown at any length; None: `noise`
    previous: Mapping[Point, Config] | None = None  # what the store had when the run began

    def choose(self, trials: Sequence[Trial]) -> list[Entry]:
        """One entry per point. Raises NothingFits if nothing runs at all lengths."""
        by_candidate = {trial.candidate: trial for trial in trials}
        us = _times(trials)
        return [
            entry
            for sizes in self.sizes
            for entry in self._entries(sizes, Times(sizes, us, self.own), by_candidate)
        ]

    def finalists(self, trials: Sequence[Trial], entries: Sequence[Entry]) -> list[Trial]:
        """The trials of the best plans, the chosen, the stored and the engine's own one."""
        by_candidate = {trial.candidate: trial for trial in trials}
        chosen = {entry.point: entry.config for entry in entries}
        us = _times(trials)
        found: dict[Candidate, Trial] = {}
        for sizes in self.sizes:
            times = Times(sizes, us, self.own)
            named = (times.plan_of(configs) for configs in (chosen, self.previous or {}, self.own))
            for plan in [*times.plans()[:FINALISTS], *filter(None, named)]:
                for stage in STAGES:
                    for at, point in enumerate(sizes.points(stage)):
                        candidate = Candidate(point, plan.config(stage, at))
                        found[candidate] = by_candidate[candidate]
        return list(found.values())

    def _entries(
        self, sizes: JointBuckets, times: Times, trials: Mapping[Candidate, Trial]
    ) -> Iterator[Entry]:
        own = times.engines
        plans = times.plans(self._slack)
        if not plans and own is None:
            raise NothingFits(f"no configuration compiles and fits for {sizes.representative}")
        keep = own is not None and (not plans or plans[0].cost >= 1 - self.noise)
        stored = self._stored(times, plans)
        plan = stored or (own if keep and own is not None else plans[0])
        for stage in STAGES:
            for at, point in enumerate(sizes.points(stage)):
                trial = trials[Candidate(point, plan.config(stage, at))]
                yield Entry(
                    point=point,
                    config=trial.candidate.config,
                    status=trial.measurement.status,
                    median_us=trial.measurement.median_us,
                    compiled=trial.compiled,
                    incumbents={"default": self._incumbent(point, trials)},
                    reason=_reason(plan, own, at, trial) + (f"; {STAYS}" if stored else ""),
                )

    @property
    def _slack(self) -> float:
        return self.noise if self.slack is None else self.slack

    def _stored(self, times: Times, plans: Sequence[JointPlan]) -> JointPlan | None:
        """The plan that the store has, unless another one is faster by more than the noise or the
        engine's own is faster at all.
        """
        stored, own = times.plan_of(self.previous or {}), times.engines
        if stored is None or stored == own or not times.no_slower(stored, self._slack):
            return None
        if own is not None and stored.cost > own.cost:
            return None
        beaten = plans and plans[0].cost < stored.cost * (1 - self.noise)
        return None if beaten else stored

    def _incumbent(self, point: Point, trials: Mapping[Candidate, Trial]) -> Incumbent:
        config = self.own[point]
        trial = trials.get(Candidate(point, config))
        if trial is None:
            return Incumbent(config, Status.NOT_RECORDED)
        status = trial.measurement.status if trial.compiled.ok else trial.compiled.status
        us, shared_bytes = trial.measurement.median_us, trial.compiled.shared_bytes
        return Incumbent(config, status, us, shared_bytes)


def _times(trials: Sequence[Trial]) -> dict[Candidate, float]:
    times = ((trial.candidate, trial.measurement.median_us) for trial in trials)
    return {candidate: us for candidate, us in times if us is not None}


def _reason(plan: JointPlan, own: JointPlan | None, length: int, trial: Trial) -> str:
    predicted = trial.measurement.status is Status.PREDICTED
    if plan is own and predicted:
        why = "nothing is predicted to be clearly faster than the engine's own splits"
    elif plan is own:
        why = "the engine's own splits and constants are as fast, within the noise"
    elif own is None:
        why = "the engine's own constants cannot run here"
    else:
        gain = f"{own.us[length] / plan.us[length]:.3f}x"
        why = f"{'predicted ' if predicted else ''}{gain} as fast as the engine, both kernels"
    return why + _reduction_share(plan, length, trial)


def _reduction_share(plan: JointPlan, length: int, trial: Trial) -> str:
    """A remark where the reduction takes more time than the first kernel."""
    us = trial.measurement.median_us
    if trial.candidate.point.part is not Stage.REDUCE or us is None or us * 2 <= plan.us[length]:
        return ""
    return f"; the reduction takes {us / plan.us[length]:.0%} of the time"
