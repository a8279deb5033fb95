"""What a profile is worth to a user: each family's share, and what tuning can gain at most."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.problems.results import Winner
from tuner.profile.families import KernelFamily, kernel_families
from tuner.profile.headroom import Headroom, headroom
from tuner.profile.profile import GAPS, KernelTime, Phase, Profile

OTHER = "kernels that no row knows"


@dataclass(frozen=True)
class FamilyShare:
    """A family in a phase."""

    family: str  # a name of `families.toml`, `GAPS`, or "" for unknown kernels
    title: str
    time_us: float
    share: float  # of the phase's time, 0 to 1
    headroom: Headroom | None  # None: this tool does not tune it

    @property
    def saved(self) -> float:
        """The part of the phase's time that tuning can save at most, 0 to 1."""
        return self.share * (1 - 1 / self.headroom.gain) if self.headroom else 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "family": self.family or None,
            "title": self.title,
            "time_us": round(self.time_us, 3),
            "share": self.share,
            "tuned": self.headroom is not None,
            "gain": self.headroom and self.headroom.gain,
            "basis": self.headroom and self.headroom.basis.value,
            "saved": self.saved,
        }


@dataclass(frozen=True)
class PhaseEstimate:
    """A phase's families, the longest first."""

    phase: Phase
    time_us: float
    rows: tuple[FamilyShare, ...]

    @property
    def gain(self) -> float:
        """How many times as fast the phase can become, if all that can be tuned is tuned."""
        return 1 / (1 - sum(row.saved for row in self.rows))


@dataclass(frozen=True)
class Estimate:
    """A profile with what tuning can gain."""

    profile: Profile
    phases: tuple[PhaseEstimate, ...]  # the longest first

    def worth(self) -> dict[str, float]:
        """The part of all time that tuning each kind of problem can save at most, largest first."""
        total = self.profile.time_us()
        found: dict[str, float] = {}
        for phase in self.phases:
            for row in phase.rows:
                if row.saved:
                    kind = kernel_families()[row.family].tuned_as[0]
                    found[kind] = found.get(kind, 0.0) + row.saved * phase.time_us / total
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def named(self, family: str) -> list[KernelTime]:
        """The kernels of a family over all phases, the longest first."""
        return [kernel for kernel in self.profile.kernels if kernel.family == family]

    def as_json(self) -> dict[str, Any]:
        profile = self.profile
        return {
            "device": profile.device or None,
            "engine": profile.engine or None,
            "told_by": profile.told_by,
            "coverage": profile.coverage(),
            "time_us": round(profile.time_us(), 3),
            "idle_us": round(profile.idle_us, 3),
            "phases": [
                {
                    "phase": phase.phase.value,
                    "time_us": round(phase.time_us, 3),
                    "gain": phase.gain,
                    "families": [row.as_json() for row in phase.rows],
                }
                for phase in self.phases
            ],
            "worth": self.worth(),
            "steps": [
                {
                    "phase": step.phase.value,
                    "sequences": step.sequences,
                    "new_tokens": step.new_tokens,
                    "count": step.count,
                    "time_us": round(step.time_us, 3),
                }
                for step in profile.steps
            ],
            "kernels": [
                {
                    "name": kernel.name,
                    "family": kernel.family or None,
                    "phase": kernel.phase.value,
                    "calls": kernel.calls,
                    "time_us": round(kernel.time_us, 3),
                }
                for kernel in profile.kernels
            ],
        }


def estimate(
    profile: Profile,
    winners: Sequence[Winner] = (),
    in_use: Iterable[str] = (),
    tunable: Collection[str] | None = None,
) -> Estimate:
    """What tuning can gain at most; see `headroom` for `winners` and `in_use`.

    `tunable` names the kinds of problems that this tool tunes for the server's engine; None: all.
    """
    known = frozenset(in_use)

    def room(family: KernelFamily, phase: Phase) -> Headroom | None:
        if tunable is not None and not set(family.tuned_as) & set(tunable):
            return None
        return headroom(family, profile, phase, winners, known)

    phases = [_phase(profile, phase, room) for phase in Phase]
    found = [phase for phase in phases if phase.time_us]
    return Estimate(profile, tuple(sorted(found, key=lambda phase: -phase.time_us)))


def _phase(
    profile: Profile, phase: Phase, room: Callable[[KernelFamily, Phase], Headroom | None]
) -> PhaseEstimate:
    times = profile.times(phase)
    total = sum(times.values())
    rows = []
    for name, us in times.items():
        family = kernel_families().get(name)
        title = family.title if family else "between kernels" if name == GAPS else OTHER
        rows.append(
            FamilyShare(name, title, us, us / total, room(family, phase) if family else None)
        )
    return PhaseEstimate(phase, total, tuple(rows))
