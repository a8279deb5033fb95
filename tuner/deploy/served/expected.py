"""The gains that are expected of loads: what the tuned kernels save, by a profile of the server
without the files, of the time that a load took without a profiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.deploy.served.loads import Load
from tuner.deploy.served.measure import Speed, median_speed
from tuner.errors import BadInput
from tuner.families.attention.problem import Attention
from tuner.problems.points import Part, Problem
from tuner.problems.records import Winner
from tuner.problems.results import Incumbent, Status
from tuner.profile import Phase, Profile, Step, read
from tuner.profile.estimate import PhaseEstimate, estimate
from tuner.profile.lookup import Lengths, apart

_ATTENTION_OF = {Phase.PREFILL: "extend_attention", Phase.DECODE: "decode_attention"}
_FAR = 1.25  # times the longest tuned length
# Where a step takes so many times as long as the GPU works, it waits for the host. Engines prepare
# a decode step while the GPU runs the one before. A prompt has to arrive and to be read as well.
_WAITING = {Phase.PREFILL: 2.0, Phase.DECODE: 1.1}


@dataclass(frozen=True)
class Expected:
    """What a load is expected to gain."""

    gains: Mapping[str, float]  # by the field of a metric of `measure.Speed`
    notes: Sequence[str] = ()


def expected_gains(
    folder: Path,
    winners: Sequence[Winner],
    before: Mapping[Load, Sequence[Speed]],
    say: Callable[[str], None],
) -> dict[Load, Expected]:
    """What is expected of each load; nothing where no profile tells.

    `folder` holds the profiles of the server without the files, one folder for each load; `winners`
    are those of the exported problems, and `before` has the rounds without the files. Kernels of
    other problems are expected to stay as they are.
    """
    if not winners:
        return {}
    found: dict[Load, _Profiled] = {}
    for load, speeds in before.items():
        try:
            found[load] = _profiled(load, read([folder / str(load)]), winners, median_speed(speeds))
        except BadInput as error:
            say(f"no gain is expected of load {load}: {error}")
    return {load: _expected(load, one, winners, found) for load, one in found.items()}


@dataclass(frozen=True)
class _PhaseTime:
    """A phase of a load, in a profile and without a profiler. Times are microseconds."""

    steps: int  # in the profile; 0: it does not count them
    us: float  # of the profile's steps, without a profiler
    gpu_us: float  # of these, at least: in kernels, and between the kernels of a CUDA graph
    saved_us: float  # by the tuned kernels

    def gain(self, host_us: float) -> float:
        """How many times as fast it becomes if the host needs so long for a step."""
        left_us = max(self.us - self.saved_us, host_us * self.steps)
        return max(1.0, self.us / left_us)


@dataclass(frozen=True)
class _Profiled:
    """A load, its profile, and its speed without the files."""

    profile: Profile
    lengths: Lengths
    speed: Speed
    phases: Mapping[Phase, _PhaseTime]

    def host_us(self, phase: Phase) -> float | None:
        """What a step takes that waits for the host; None where the GPU is what takes long."""
        time = self.phases.get(phase)
        if time is None or not time.steps or time.us <= _WAITING[phase] * time.gpu_us:
            return None
        return time.us / time.steps


def _profiled(load: Load, profile: Profile, winners: Sequence[Winner], speed: Speed) -> _Profiled:
    tunable = {winner.problem.family for winner in winners}
    lengths = lengths_of(load, profile.steps)
    found = estimate(profile, [*_with_kept(winners)], tunable=tunable, lengths=lengths)
    times = {
        one.phase: _phase_time(load, profile, one, speed)
        for one in found.phases
        if one.phase in _WAITING
    }
    return _Profiled(profile, lengths, speed, times)


def _phase_time(load: Load, profile: Profile, phase: PhaseEstimate, speed: Speed) -> _PhaseTime:
    """The time of a phase. A profile that counts none of it tells it with its own gaps."""
    steps = [step for step in profile.steps if step.phase is phase.phase]
    count = sum(step.count for step in steps)
    gpu_us = phase.busy_us + profile.graph_gap_us.get(phase.phase, 0.0)
    us = 0.0
    if phase.phase is Phase.PREFILL:
        tokens = sum(step.new_tokens * step.count for step in steps)
        count = count if tokens else 0
        us = tokens * 1e6 / speed.prefill_tok_s
    elif speed.decode_tok_s:
        us = count * load.sequences * 1e6 / speed.decode_tok_s
    if not count:
        return _PhaseTime(0, phase.time_us, gpu_us, phase.saved_us)
    # Where decode was not measured alone, what the GPU needs is the least that a step takes.
    return _PhaseTime(count, max(us, gpu_us), gpu_us, phase.saved_us)


def _expected(
    load: Load, one: _Profiled, winners: Sequence[Winner], every: Mapping[Load, _Profiled]
) -> Expected:
    gains = {phase: time.gain(_host_us(load, phase, every)) for phase, time in one.phases.items()}
    notes = _untuned(load, one.profile.steps, one.lengths, winners)
    return Expected(_by_metric(load, one, gains), [*notes])


def _host_us(load: Load, phase: Phase, every: Mapping[Load, _Profiled]) -> float:
    """What the host needs for a step at least; 0 where no load tells.

    A load whose steps wait for the host tells its own. For others it is what steps take that wait
    for the host and have the most similar number of sequences.
    """
    waiting = {other: us for other, one in every.items() if (us := one.host_us(phase)) is not None}

    def rank(other: Load) -> tuple[bool, float, float]:
        return other != load, apart(other.sequences, load.sequences), waiting[other]

    return waiting[min(waiting, key=rank)] if waiting else 0.0


def _by_metric(load: Load, one: _Profiled, gains: Mapping[Phase, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    if (prefill := gains.get(Phase.PREFILL)) is not None:
        found |= {"prefill_tok_s": prefill, "ttft_ms": prefill}
    if (decode := gains.get(Phase.DECODE)) is not None:
        found["decode_tok_s"] = found["tpot_ms"] = decode
        time = one.phases[Phase.DECODE]
        if one.speed.tpot_ms and time.steps:
            # Between two tokens of a sequence there is also the prefill of other sequences.
            tpot_us = 1e3 * one.speed.tpot_ms
            own_us = min(time.us / time.steps, tpot_us)
            others_us = (tpot_us - own_us) / found.get("prefill_tok_s", 1.0)
            found["tpot_ms"] = tpot_us / (own_us / decode + others_us)
    return found


def lengths_of(load: Load, steps: Iterable[Step]) -> Lengths:
    """The cached tokens per sequence at the steps of a load, which begins without a cache.

    Decode reads the prompt and on average half of the answer. The longest prefill step is a chunk:
    a longer prompt runs in several, and a shorter step has the end of a prompt.
    """
    chunk = max((step.new_tokens for step in steps if step.phase is Phase.PREFILL), default=0)

    def lengths(step: Step) -> Sequence[int]:
        if step.phase is Phase.DECODE:
            return (load.prompt + load.answer // 2,)
        if step.phase is not Phase.PREFILL or not step.new_tokens:
            return ()
        if step.new_tokens < chunk:
            return (max(0, load.prompt - step.new_tokens // max(1, step.sequences)),)
        return range(0, max(1, load.prompt - chunk + 1), chunk)

    return lengths


def _with_kept(winners: Sequence[Winner]) -> Iterator[Winner]:
    """The winners; entries that keep the engine's own choice count as not faster.

    An engine finds them in the file too, so a tuned size beside them does not count there. Nobody
    timed them, so they count as long as the nearest size of their problem that was timed.
    """
    timed: dict[tuple[Problem, Part], dict[int, float]] = {}
    for winner in winners:
        if winner.status is Status.OK and winner.entry.median_us:
            of_part = timed.setdefault((winner.problem, winner.entry.point.part), {})
            of_part[winner.entry.point.batch_size] = winner.entry.median_us
    measured = {problem for problem, _ in timed}
    for winner in winners:
        entry = winner.entry
        if entry.status is Status.INCUMBENT and not entry.point.new_tokens:
            status = Status.OK if winner.problem in measured else Status.PREDICTED
            size = entry.point.batch_size
            near = timed.get((winner.problem, entry.point.part), {size: 1.0})
            us = near[min(near, key=lambda n: abs(n - size))]
            own = {"default": Incumbent(entry.config, status, us)}
            entry = replace(entry, status=status, median_us=us, incumbents=own)
        yield replace(winner, entry=entry)


def _untuned(
    load: Load, steps: Sequence[Step], lengths: Lengths, winners: Sequence[Winner]
) -> Iterator[str]:
    """A line for each phase whose attention was tuned for much shorter lengths only."""
    for phase, family in _ATTENTION_OF.items():
        tuned = [
            winner.entry.point.cached_tokens
            for winner in winners
            if isinstance(winner.problem, Attention)
            and winner.problem.family == family
            and not winner.problem.window
        ]
        held = max((n for step in steps if step.phase is phase for n in lengths(step)), default=0)
        if tuned and held > _FAR * max(tuned):
            yield (
                f"{load}: no point beyond {max(tuned):,} cached tokens was tuned for {phase.value}"
            )
