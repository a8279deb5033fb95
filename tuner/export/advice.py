"""Advise on each problem: leave it, use these files, or use these files and these flags.

Files and flags are advised only if they are faster than the server's own choice. A server
reads the files if it runs Triton's kernel. If its flags make it run another backend, Triton must
have been measured beside that backend at every point before a flag is advised.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from tuner.backends.registry import stale_words
from tuner.devices.table import Device
from tuner.engines.dispatch import Kernel, Runs, what_runs
from tuner.engines.dispatch_table import NOT_KNOWN
from tuner.engines.settings import flags_alone, only_for, options_text, settings_to_keep
from tuner.export.selection import as_it_runs
from tuner.export.servers import running, with_server_kernel
from tuner.problems.points import Config, Problem
from tuner.problems.results import Entry, Incumbent, Status, Winner
from tuner.render import gain_text
from tuner.tuning.gains import (
    CLEAR_GAIN,
    NOISE,
    WITHOUT_US,
    Gain,
    gains,
    mean_gain,
    not_compared,
    over_words,
    reference,
)
from tuner.tuning.seeds import KEPT

NO_FLAGS: Mapping[str, str] = {}


class Verdict(str, Enum):
    """The kinds of advice on a problem."""

    LEAVE = "leave it"
    FILES = "these files"
    FLAGS = "these files and these flags"


@dataclass(frozen=True)
class Advice:
    """The advice on a problem, and the reason."""

    problem: Problem
    verdict: Verdict
    reason: str
    gain: float | None = None  # over the server's own choice: the geometric mean over sizes
    flags: Mapping[str, str] = field(default_factory=dict)  # to start servers with
    winners: Sequence[Winner] = ()  # to write into files; none if the problem is left alone
    # Whether the times are of servers with these flags, or servers do not start without them. Else
    # the flags are a change.
    presumed: bool = False

    def as_json(self) -> dict[str, Any]:
        return {
            "problem": self.problem.spec(),
            "advice": self.verdict.value,
            "reason": self.reason,
            "gain": self.gain,
            "flags": dict(self.flags),
        }

    def __str__(self) -> str:
        flags = f", {options_text(self.flags)}" if self.flags else ""
        return f"{self.problem.spec()}: {self.verdict.value}{flags}: {self.reason}"


def flags_to_start(advice: Sequence[Advice], *, of_one_model: bool) -> list[str]:
    """Return the flags to start servers with, besides those they have already. Unless the problems
    are of one model's servers, say for which problems the flags are.
    """
    problems_of: dict[str, list[str]] = {}
    written = [one for one in advice if one.winners]
    for one in written:
        problems_of.setdefault(options_text(one.flags), []).append(one.problem.spec())
    if of_one_model or len(problems_of) == 1:
        every = {name: value for one in written for name, value in one.flags.items()}
        return [options_text(every)] if every else []
    return [
        f"{flags} (only servers of {first}{f' and {len(others)} more' * bool(others)})"
        for flags, (first, *others) in problems_of.items()
        if flags
    ]


def advise_all(
    winners: Sequence[Winner],
    device: Device,
    engine: tuple[str, str],
    flags: Mapping[str, str] = NO_FLAGS,
    wanted: Sequence[Problem] = (),
) -> list[Advice]:
    """Return advice on each problem of some winners, in the order of their texts.

    `engine`: the name and version that the servers run. `flags`: the servers' present flags.
    `wanted`: all problems of the servers, as far as they are known. A flag is advised only if it is
    good for all wanted problems that it changes.
    """
    by_problem: dict[Problem, list[Winner]] = {}
    for winner in winners:
        by_problem.setdefault(winner.problem, []).append(winner)
    found = [
        advise(problem, by_problem[problem], device, engine, flags)
        for problem in sorted(by_problem, key=lambda one: one.spec())
    ]
    others = [problem for problem in wanted if problem not in by_problem]
    return _agreeing(found, others, device, engine, flags)


def advise(
    problem: Problem,
    winners: Sequence[Winner],
    device: Device,
    engine: tuple[str, str],
    flags: Mapping[str, str] = NO_FLAGS,
) -> Advice:
    """Return advice on a problem. `engine`: the name and version that the servers run.

    If `flags` name no model, the servers are assumed to be the winners' servers.
    """
    if stale := _stale(winners, device, engine):
        return Advice(problem, Verdict.LEAVE, stale)
    runs, kernel, started = running(problem, winners, device, engine, flags)
    if runs and runs.older and not runs.may_read:
        return Advice(problem, Verdict.LEAVE, runs.line())
    if runs and kernel is None and not runs.older:
        return Advice(problem, Verdict.LEAVE, _open(runs))
    mine = with_server_kernel(winners, kernel, settings_to_keep(engine[0], problem, started))
    presumed = {n: value for n, value in flags_alone(started).items() if flags.get(n) != value}
    if runs is None or kernel is None or kernel.triton or kernel.by_file:
        if kernel and kernel.by_file:
            mine = [_or_null(winner, kernel) for winner in mine]
        found = _files(problem, mine, triton=not (kernel and kernel.by_file))
        if doubt := _doubt(runs):
            found = replace(found, reason=f"{found.reason}; {doubt}")
        return _with_flags(found, presumed) if presumed else found
    if not runs.to_triton:
        return Advice(problem, Verdict.LEAVE, runs.line())
    found = _flags(problem, mine, kernel, _needed(runs, problem, device, engine, started))
    return replace(found, flags={**presumed, **found.flags}) if found.flags else found


def _doubt(runs: Runs | None) -> str:
    """Say why it is not sure that servers read the files; "" if it is sure."""
    if runs and runs.older:
        return runs.line()
    return NOT_KNOWN if runs and NOT_KNOWN in runs.notes else ""


def _with_flags(advice: Advice, flags: Mapping[str, str]) -> Advice:
    if advice.verdict is Verdict.LEAVE:
        return advice
    return replace(advice, verdict=Verdict.FLAGS, flags=flags, presumed=True)


def _agreeing(
    found: Sequence[Advice],
    others: Sequence[Problem],
    device: Device,
    engine: tuple[str, str],
    flags: Mapping[str, str],
) -> list[Advice]:
    """Return the advice, without flags that also change the kernel of problems left alone."""
    left = [*others, *(one.problem for one in found if one.verdict is Verdict.LEAVE)]

    def spoiled(advice: Advice) -> Problem | None:
        for problem in left:
            before = what_runs(*engine, problem, device, flags)
            after = what_runs(*engine, problem, device, {**flags, **advice.flags})
            if before and after and before.kernels != after.kernels:
                return problem
        return None

    return [
        replace(
            one,
            verdict=Verdict.LEAVE,
            flags={},
            winners=(),
            reason=f"{one.reason}; but {options_text(one.flags)} also changes {other.spec()}, "
            "where it was not measured to help",
        )
        if one.flags and not one.presumed and (other := spoiled(one))
        else one
        for one in found
    ]


def _stale(winners: Sequence[Winner], device: Device, engine: tuple[str, str]) -> str:
    """Return why the winners say nothing of these servers; empty if they do."""
    name, version = engine
    for winner in winners:
        known = winner.environment
        if known.device != device.name:
            return f"it was tuned on {known.device}"
        if (known.engine, known.engine_version) != engine:
            return (
                f"it was tuned for {known.engine} {known.engine_version}, and the servers run "
                f"{name} {version}"
            )
    return ""


def _open(runs: Runs) -> str:
    """Return why nothing is advised if the kernel that runs is not known."""
    return (
        f"{runs.words}, and it is not known which of them was measured: the flags that servers "
        "are started with tell"
    )


def _or_null(winner: Winner, kernel: Kernel) -> Winner:
    """Return the winner, or, if `kernel` has no time, a null entry, with which servers run it."""
    entry = winner.entry
    if entry.status is Status.INCUMBENT or reference(entry).without_us:
        return winner
    null = Incumbent(Config({}), Status.INCUMBENT, backend=kernel.backend)
    return as_it_runs(winner, f"servers run {kernel.name}, which was not measured", null)


def _files(problem: Problem, winners: Sequence[Winner], *, triton: bool) -> Advice:
    """Return advice for servers that read the files. `triton`: also without an entry."""
    found = gains(winner.entry for winner in winners)
    slower = {one.size for one in found if one.ratio < 1 - NOISE}
    entries = [winner.entry for winner in winners]
    unheld = not_compared(entries)
    if (slower or unheld) and any(entry.point.new_tokens for entry in entries):
        # An entry of attention is for several sizes: it cannot be kept at only some of them.
        return Advice(problem, Verdict.LEAVE, _no_time(unheld) or _slower(found, entries))
    kept = [_no_slower(winner, slower, unheld) for winner in winners]
    entries = [winner.entry for winner in kept]
    found = gains(entries)
    if not _helps(entries, found):
        nothing = f"nothing was found that is faster than {WITHOUT_US}"
        nothing += ", Triton's configuration" if triton else ""
        nothing = next((one.entry.reason for one in winners if not one.entry.config), nothing)
        if all(winner.entry.reason == KEPT for winner in winners):
            nothing = KEPT
        return Advice(problem, Verdict.LEAVE, _no_time(unheld) or nothing)
    return Advice(problem, Verdict.FILES, _told(found, entries), _mean(found), {}, kept)


def _no_slower(winner: Winner, slower: Collection[str], unheld: Collection[str]) -> Winner:
    """Return the winner, or the engine's own entry at a size at which the winner may be slower: a
    file must hold each size.
    """
    size = winner.entry.point.size
    if size not in slower and size not in unheld:
        return winner
    why = "slower than" if size in slower else "not compared with"
    return as_it_runs(winner, f"{winner.entry.reason}; {why} {WITHOUT_US}, which stays")


def _no_time(unheld: Sequence[str]) -> str:
    return f"no time is known of {WITHOUT_US} at {' '.join(unheld)}" if unheld else ""


def _flags(
    problem: Problem, winners: Sequence[Winner], kernel: Kernel, flags: Mapping[str, str]
) -> Advice:
    """Return advice for servers that run another backend, which the flags turn to Triton."""
    entries = [winner.entry for winner in winners]
    if not flags:
        why = f"{kernel.name} is {WITHOUT_US}, and no flag changes it for this problem alone"
        return Advice(problem, Verdict.LEAVE, why)
    if stale := stale_words(kernel.backend, (winner.environment for winner in winners)):
        return Advice(problem, Verdict.LEAVE, stale)
    found = gains(entries)
    mean = _mean(found)
    if any(one.ratio < 1 - NOISE for one in found):
        return Advice(problem, Verdict.LEAVE, _slower(found, entries), mean)
    if missing := list(_unmeasured(entries, kernel)):
        sizes = len({entry.point.size for entry in entries})
        where = f" at {len(missing)} of {sizes} sizes" if len(missing) < sizes else ""
        why = f"servers run {kernel.name}, which was not measured beside Triton{where}"
        return Advice(problem, Verdict.LEAVE, why)
    if not any(one.ratio > 1 + CLEAR_GAIN for one in found):
        why = f"servers run {kernel.name}, and Triton is no faster"
        return Advice(problem, Verdict.LEAVE, why, mean)
    return Advice(problem, Verdict.FLAGS, _told(found, entries), mean, flags, winners)


def _needed(
    runs: Runs, problem: Problem, device: Device, engine: tuple[str, str], flags: Mapping[str, str]
) -> Mapping[str, str]:
    """Return the flags that change the kernel to Triton, for this problem alone if possible.

    Empty if no flags change it.
    """
    for wanted in (only_for(problem, engine[0], runs.to_triton), runs.to_triton):
        given = {name: value for name, value in flags.items() if wanted.get(name) != ""}
        again = what_runs(*engine, problem, device, {**given, **wanted})
        if again and again.always_triton:
            return wanted
    return {}


def _unmeasured(entries: Sequence[Entry], kernel: Kernel) -> Iterator[str]:
    """Yield the sizes at which Triton and the other backend were not both measured."""
    by_size: dict[str, list[Entry]] = {}
    for entry in entries:
        by_size.setdefault(entry.point.size, []).append(entry)
    for size, some in by_size.items():
        others = [entry.incumbents.get(kernel.backend) for entry in some]
        if not all(
            entry.status is Status.OK
            and entry.median_us is not None
            and other is not None
            and other.status is Status.OK
            and other.median_us is not None
            for entry, other in zip(some, others, strict=True)
        ):
            yield size


def _replaces(entry: Entry) -> bool:
    """Say whether an entry differs from Triton's own, which servers would run."""
    own = entry.incumbents.get(reference(entry).name)
    if own is None or own.config == entry.config:
        return False
    return entry.status is not Status.INCUMBENT


def _helps(entries: Sequence[Entry], found: Sequence[Gain]) -> bool:
    """Say whether an entry differs from Triton's own at a size at which it is faster by more than
    the noise, or at which the gain is not known.
    """
    equal = {one.size for one in found if one.ratio <= 1 + NOISE}
    return any(_replaces(entry) and entry.point.size not in equal for entry in entries)


def _mean(found: Sequence[Gain]) -> float | None:
    return mean_gain(one.ratio for one in found)


def _told(found: Sequence[Gain], entries: Sequence[Entry]) -> str:
    mean, over = _mean(found), over_words(entries)
    if mean is None:
        return f"{WITHOUT_US} cannot run, or has no time"
    sizes = f"geometric mean of {len(found)} sizes" if len(found) > 1 else f"at {found[0].size}"
    return f"{gain_text(mean)} as fast ({sizes}), {over}"


def _slower(found: Sequence[Gain], entries: Sequence[Entry]) -> str:
    worst = min(found, key=lambda one: one.ratio)
    slower = sum(one.ratio < 1 - NOISE for one in found)
    return (
        f"tuned Triton is slower at {slower} of {len(found)} sizes, {gain_text(worst.ratio)} as "
        f"fast at {worst.size}, {over_words(entries)}"
    )
