"""Which kernel an engine runs for a problem, by the rules that were read from its dispatch code.

An answer refuses nothing: it says whether the files that the tuner writes will count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module

from tuner.devices.table import Device
from tuner.engines.dispatch_answer import Kernel, Runs
from tuner.engines.dispatch_table import (
    ARCHITECTURE,
    CHECKPOINT,
    NO_KERNEL,
    DispatchRule,
    DispatchTable,
    Refusal,
    UnknownFact,
    dispatch_table,
)
from tuner.engines.engine import engine_package
from tuner.engines.settings import options_text
from tuner.errors import BadProblem
from tuner.problems.dtypes import Dtype
from tuner.problems.points import TITLES, Problem

_SWITCH = {"true": "1", "false": "0"}  # of environment variables
_GROUPS = re.compile(r" groups of (\d{1,9})")
_NOTHING: Mapping[str, str] = {}
NOT_KNOWN = "how the checkpoint stores its experts is not known, and may choose another kernel"


def what_runs(
    engine: str,
    version: str,
    problem: Problem,
    device: Device,
    flags: Mapping[str, str] = _NOTHING,
) -> Runs | None:
    """Return the kernel that a version of an engine runs; None if its rules do not say.

    An empty `version` is the newest one that was read. A version that was not read follows the
    newest one before it, or the oldest of all, and the answer says so. `flags` are the server's
    flags ("--moe-runner-backend") and environment variables; a flag without a value is "1".
    `of_class` adds the model's class to them. If a server has a kernel only with further flags,
    the answer is of a server that has them.
    """
    runs = _runs(engine, version, problem, device, flags)
    further = runs.to_triton if runs and runs.to_triton.keys().isdisjoint(flags) else {}
    if runs and further and all(kernel.backend == NO_KERNEL for kernel in runs.kernels):
        started = _runs(engine, version, problem, device, {**flags, **further})
        if started and started.always_triton:
            return replace(started, needs=further, reads=runs.reads)
    return runs


def engine_runs(
    engine: str,
    version: str,
    problems: Iterable[Problem],
    device: Device,
    flags: Mapping[str, str] = _NOTHING,
) -> list[Runs]:
    """Ask `what_runs` for several problems: each answer once, with the problems it holds for."""
    asked = list(dict.fromkeys(problems))
    answers: dict[str, Runs] = {}
    groups: dict[str, list[Problem]] = {}
    for problem in asked:
        if answer := what_runs(engine, version, problem, device, flags):
            line = answers.setdefault(answer.line(), answer).line()
            groups.setdefault(line, []).append(problem)
    return [
        replace(
            answer,
            problems=tuple(problem.spec() for problem in groups[line]),
            subject="here" if len(answers) == 1 else _subject(groups[line], asked),
        )
        for line, answer in answers.items()
    ]


def seen_to_run(
    engine: str,
    version: str,
    problems: Iterable[Problem],
    device: Device,
    flags: Mapping[str, str] = _NOTHING,
) -> dict[str, str]:
    """Return the settings by which a server that looks for files of these problems runs Triton.

    They count only if the engine looks for a file as it launches that kernel, and if flags and
    rules leave another kernel possible. `version` may be empty, as for `what_runs`.
    """
    table, seen = dispatch_table(engine), dict[str, str]()
    for problem in problems:
        runs = what_runs(engine, version, problem, device, {**flags, **seen})
        if not (table and runs) or runs.always_triton:
            continue
        # The server's own version counts: the rules may be of a release near it.
        if table.looks_late(version or runs.release, problem):
            seen |= {name: value for name, value in runs.to_triton.items() if value}
    return seen


def looks_late(engine: str, version: str, problems: Iterable[Problem]) -> bool:
    """Tell whether a version looks for files of problems only as it launches Triton's kernel."""
    table = dispatch_table(engine)
    if not (table and version):
        return False
    return all(table.looks_late(version, problem) for problem in problems)


def _subject(group: Sequence[Problem], asked: Sequence[Problem]) -> str:
    """Name some of the problems: a kind if all of the kind are among them."""
    totals = Counter(problem.family for problem in asked)
    counts = Counter(problem.family for problem in group)
    names = [
        problem.family if counts[problem.family] == totals[problem.family] else problem.spec()
        for problem in group
    ]
    return f"for {' and '.join(dict.fromkeys(names))}"


def _runs(
    engine: str, version: str, problem: Problem, device: Device, flags: Mapping[str, str]
) -> Runs | None:
    """Answer for a server that has these flags and no others."""
    table = dispatch_table(engine)
    if table is None:
        return None
    try:
        release = table.release(version) if version else table.releases[-1]
    except BadProblem:
        return None
    given = {name: _SWITCH.get(value.lower(), value) for name, value in flags.items()}
    given = _of_its_type(table.with_new_names(given), problem)
    asked = _Asked(table, release, problem, device, given)
    if not asked.rules:
        return None
    older = bool(version) and table.is_older(version)
    kernels, wanted, reads = asked.kernels, asked.to_triton, asked.reads
    stops, refusal = _stops(kernels[-1], problem, device, engine), asked.refusal
    if stops or refusal:  # so no tuned file is read
        kernels, wanted = [replace(kernel, triton=False) for kernel in kernels], {}
        reads = stops or (_refused(refusal) if refusal else "")
    return Runs(
        engine=engine,
        version=version,
        release=release,
        older=older,
        doubt=_doubt(asked, version),
        device=device.name,
        kernels=kernels,
        to_triton=wanted,
        reads=stops if older else reads,
        notes=[*asked.notes, *_refusals(engine, version, asked.rules, problem, device)],
        problems=(problem.spec(),),
    )


@dataclass(frozen=True)
class _Asked:
    """What the rules of one release say of a problem on a device, for a server's settings."""

    table: DispatchTable
    release: str
    problem: Problem
    device: Device
    given: Mapping[str, str]

    @property
    def settings(self) -> Mapping[str, str]:
        return {**self.table.defaults, **self.given}

    @cached_property
    def rules(self) -> list[DispatchRule]:
        """The rules that hold, up to the first one that depends on nothing unknown."""
        found: list[DispatchRule] = []
        answered: set[str] = set()  # a rule below holds only if these are not true
        settings = self.settings
        for rule in self.table.rules:
            if not rule.holds(self.release, self.problem, self.device, settings):
                continue
            known = self._settled(rule)
            if known is False or (known is None and rule.unknown in answered):
                continue
            found.append(rule)
            if known:
                return found
            answered.add(rule.unknown)
        return []

    @cached_property
    def kernels(self) -> list[Kernel]:
        """The kernels, without those before the last one that are the last one in any case."""
        kept = [self._kernel(rule) for rule in self.rules]
        while len(kept) > 1 and kept[-2].name == kept[-1].name:
            del kept[-2]
        return kept

    @property
    def to_triton(self) -> dict[str, str]:
        """The flags and variables that make it Triton and are not given."""
        wanted = next((rule.to_triton for rule in self._others if rule.to_triton), {})
        settings = self.settings
        return {name: value for name, value in wanted.items() if settings.get(name, "") != value}

    @property
    def reads(self) -> str:
        """Words about files, if the usual ones would be wrong."""
        return self._others[0].reads

    @property
    def refusal(self) -> Refusal | None:
        """The flags for Triton with which the release does not start for the model's class."""
        architecture = self.given.get(ARCHITECTURE, "")
        holding = (
            one
            for one in self.table.refusals
            if one.holds(self.release, self.problem, architecture)
        )
        return next(holding, None)

    @property
    def notes(self) -> list[str]:
        """The rules' notes, and words if rules of checkpoints may hold for an unknown model."""
        notes = list(dict.fromkeys(rule.note for rule in self.rules if rule.note))
        if self.given.keys() & {ARCHITECTURE, CHECKPOINT}:
            return notes
        of_checkpoints = (
            replace(rule, flags={n: values for n, values in rule.flags.items() if n != CHECKPOINT})
            for rule in self.table.rules
            if CHECKPOINT in rule.flags
        )
        settings = self.settings
        if any(
            one.holds(self.release, self.problem, self.device, settings) for one in of_checkpoints
        ):
            notes.append(NOT_KNOWN)
        return notes

    @property
    def _others(self) -> Sequence[DispatchRule]:
        """The rules of other kernels than Triton's; those of Triton's if there are no others."""
        return [rule for rule in self.rules if not rule.triton] or self.rules

    def _settled(self, rule: DispatchRule) -> bool | None:
        """Tell whether a rule's `if` is true; None: nobody knows."""
        if not rule.unknown:
            return True
        fact = self.table.unknown[rule.unknown]
        if fact.flag in self.given:
            return self.given[fact.flag] == fact.value
        return fact.of_model(self.given)

    def _kernel(self, rule: DispatchRule) -> Kernel:
        open_question = self._settled(rule) is None
        fact = self.table.unknown[rule.unknown] if open_question else UnknownFact("")
        backend, name = rule.backend, rule.kernel
        if rule.named:
            value = self.settings[rule.named]
            backend = self.table.backends.get(value, value)
            name = TITLES.get(backend, f"the {value} back end")
        return Kernel(
            name=name,
            backend=backend,
            triton=rule.triton,
            condition=fact.words,
            source=rule.sources[self.release].file,
            needs=fact.installed,
            enough=bool(fact.installed) and fact.enough,
        )


def _doubt(asked: _Asked, version: str) -> str:
    """Say what the release read after a version does, if it is another thing; else ""."""
    later = asked.table.following(version) if version else ""
    if not later:
        return ""
    after = replace(asked, release=later)
    kernels = after.kernels
    if kernels and [one.backend for one in kernels] != [one.backend for one in asked.kernels]:
        return f"{later} runs {', else '.join(f'{one.name}{one.words}' for one in kernels)}"
    if after.refusal and not asked.refusal:
        return f"{later} does not start with {options_text(after.refusal.flags)}"
    if asked.refusal and not after.refusal:
        return f"{later} starts with {options_text(asked.refusal.flags)}"
    return ""


def _of_its_type(given: dict[str, str], problem: Problem) -> dict[str, str]:
    """Return the settings; without the checkpoint if its experts are of another type.

    They may be 16-bit if servers quantise them as they load. Groups that the problem has smaller,
    as the checkpoint's do not divide it, are "halved".
    """
    stored, dtype = given.get(CHECKPOINT, ""), getattr(problem, "dtype", None)
    at_load = stored.endswith(" none") and given.get("--quantization") == "fp8"
    own = isinstance(dtype, Dtype) and dtype.value == stored.partition(" ")[0]
    if not (own or at_load):
        return {name: value for name, value in given.items() if name != CHECKPOINT}
    _, width = getattr(problem, "block_shape", None) or (0, 0)
    groups = _GROUPS.search(stored)
    return {**given, CHECKPOINT: f"{stored} halved"} if groups and width < int(groups[1]) else given


def _stops(last: Kernel, problem: Problem, device: Device, engine: str) -> str:
    """Return words if Triton, an engine's last choice, cannot compile the problem's type."""
    dtype = getattr(problem, "dtype", None)
    if not (last.triton and dtype is Dtype.FP8_W8A8):
        return ""
    return stops_at_fp8(engine, problem.family, device)


def _refused(refusal: Refusal) -> str:
    flags = options_text(refusal.flags)
    return f"no tuned file is read: with {flags} {refusal.words}"


def stops_at_fp8(engine: str, family: str, device: Device) -> str:
    """Return words if Triton's kernels of 8-bit floats do not compile on the GPU; else ""."""
    if not device.architecture.stops_at_fp8:
        return ""
    layer = family == "fused_moe" and engine == "sglang"
    marlin = ", or try --moe-runner-backend marlin, if the release has it" if layer else ""
    return (
        f"Triton has no 8-bit floats on {device.target.name}, so a server that runs it stops with "
        f"a compile error: serve 16-bit or int8 weights here{marlin}"
    )


def _refusals(
    engine: str, version: str, rules: Sequence[DispatchRule], problem: Problem, device: Device
) -> list[str]:
    """Return what the engine's table of compiled kernels has against the problem."""
    names = [rule.compiled for rule in rules if rule.compiled]
    if not names:
        return []
    module = import_module(f"{engine_package(engine)}.compiled_kernels")
    return [text for name in names for text in module.refusals(name, version, problem, device)]
