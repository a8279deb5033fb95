"""The gain that is expected of a load: what the tuned kernels save, by a profile of the server
without the files, of the time that the load took without a profiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.deploy.served.loads import Load
from tuner.deploy.served.measure import Speed, median_speed
from tuner.errors import BadInput
from tuner.families.attention.problem import Attention
from tuner.problems.records import Winner
from tuner.problems.results import Incumbent, Status
from tuner.profile import Phase, Profile, Step, read
from tuner.profile.estimate import PhaseEstimate, estimate
from tuner.profile.lookup import Lengths

_ATTENTION_OF = {Phase.PREFILL: "extend_attention", Phase.DECODE: "decode_attention"}
_FAR = 1.25  # times the longest tuned length


@dataclass(frozen=True)
class Expected:
    """What a load is expected to gain."""

    gains: Mapping[str, float]  # by the field of a metric of `measure.Speed`
    notes: Sequence[str] = ()


def expected_gains(
    folder: Path,
    load: Load,
    winners: Sequence[Winner],
    before: Sequence[Speed],
    say: Callable[[str], None],
) -> Expected:
    """The expected gains of a load; none where no profile tells.

    `folder` holds the profiles of the server without the files, one folder for each load; `winners`
    are those of the exported problems, and `before` has the rounds without the files. Kernels of
    other problems are expected to stay as they are.
    """
    if not winners:
        return Expected({})
    tunable = {winner.problem.family for winner in winners}
    try:
        profile = read([folder / str(load)])
    except BadInput as error:
        say(f"no gain is expected of load {load}: {error}")
        return Expected({})
    lengths = lengths_of(load, profile.steps)
    found = estimate(profile, [*_with_kept(winners)], tunable=tunable, lengths=lengths)
    phases = {phase.phase: phase for phase in found.phases}
    gains = _gains(load, profile, phases, median_speed(before))
    return Expected(gains, [*_untuned(load, profile.steps, lengths, winners)])


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


def _gains(
    load: Load, profile: Profile, phases: Mapping[Phase, PhaseEstimate], before: Speed
) -> dict[str, float]:
    found: dict[str, float] = {}
    if prefill := phases.get(Phase.PREFILL):
        steps = [step for step in profile.steps if step.phase is Phase.PREFILL]
        tokens = sum(step.new_tokens * step.count for step in steps)
        gain = _gain(prefill, tokens, 1e6 / before.prefill_tok_s)
        found |= {"prefill_tok_s": gain, "ttft_ms": gain}
    if decode := phases.get(Phase.DECODE):
        count = sum(step.count for step in profile.steps if step.phase is Phase.DECODE)
        # Where decode was not measured alone, the kernels' time is the least that a step takes.
        step_us = decode.busy_us / max(1, count)
        if before.decode_tok_s:
            step_us = 1e6 * load.sequences / before.decode_tok_s
        gain = _gain(decode, count, step_us)
        found["decode_tok_s"] = found["tpot_ms"] = gain
        if before.tpot_ms:
            # Between two tokens of a sequence there is also the prefill of other sequences.
            tpot_us = 1e3 * before.tpot_ms
            own_us = min(step_us, tpot_us)
            others_us = (tpot_us - own_us) / found.get("prefill_tok_s", 1.0)
            found["tpot_ms"] = tpot_us / (own_us / gain + others_us)
    return found


def _gain(phase: PhaseEstimate, units: int, unit_us: float) -> float:
    """How many times as fast a phase becomes that has so many steps, or tokens of prompts.

    `unit_us` is what one of them takes without a profiler, which makes the gaps between kernels
    longer. A profile that does not count them tells the gain with these gaps.
    """
    if not units:
        return phase.gain
    us = max(unit_us * units, phase.busy_us)
    return us / (us - phase.saved_us)


def _with_kept(winners: Sequence[Winner]) -> Iterator[Winner]:
    """The winners; entries that keep the engine's own choice count as not faster.

    An engine finds them in the file too, so a tuned size beside them does not count there.
    """
    measured = {winner.problem for winner in winners if winner.status is Status.OK}
    for winner in winners:
        entry = winner.entry
        if entry.status is Status.INCUMBENT and not entry.point.new_tokens:
            status = Status.OK if winner.problem in measured else Status.PREDICTED
            own = {"default": Incumbent(entry.config, status, 1.0)}
            entry = replace(entry, status=status, median_us=1.0, incumbents=own)
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
