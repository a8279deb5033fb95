"""Say which kernel an engine runs for a problem, by the rules read from its dispatch code.

An answer refuses nothing: it says whether the engine reads the files that the tuner writes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from tuner.devices.table import Device
from tuner.engines.dispatch_table import (
    CHECKPOINT,
    NO_KERNEL,
    Asked,
    DispatchRule,
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


@dataclass(frozen=True)
class Kernel:
    """A kernel that an engine runs under a condition."""

    name: str  # for people: "FlashAttention 3"
    backend: str  # the library that has it: "fa3"
    triton: bool  # the kernel that the tuner tunes
    condition: str  # "" without a condition
    source: str  # file and line of the engine's package
    needs: str = ""  # a backend without which the condition is false
    enough: bool = False  # with which it is true
    by_file: bool = False  # the tuned kernel runs instead if a file has an entry, not null

    def holds(self, installed: Collection[str] | None) -> bool | None:
        """Say whether its condition is true with these backends installed; None: unknown."""
        if not self.condition:
            return True
        if installed is None or not self.needs:
            return None
        if self.needs not in installed:
            return False
        return True if self.enough else None

    @property
    def words(self) -> str:
        return f" if {self.condition}" if self.condition else ""

    def as_json(self) -> dict[str, Any]:
        return {
            "kernel": self.name,
            "backend": self.backend,
            "triton": self.triton,
            "if": self.condition or None,
            "source": self.source,
        }


@dataclass(frozen=True)
class Runs:
    """The kernels that an engine runs for a problem on a device. The last has no condition."""

    engine: str
    version: str
    release: str  # whose rules these are
    device: str
    kernels: Sequence[Kernel]
    to_triton: Mapping[str, str]  # flags and variables that make it Triton; empty: none can
    reads: str  # words about files, if the usual words would be wrong
    notes: Sequence[str]
    problems: Sequence[str]  # the texts of the problems that it holds for
    subject: str = "here"  # "for extend_attention", if other problems have another answer
    older: bool = False  # the version is older than each release that was read: all is a doubt
    doubt: str = ""  # the kernel of the next release read, if the version lies between
    # Flags and variables without which a server stops as it loads. The kernels are those with them.
    needs: Mapping[str, str] = field(default_factory=dict)

    @property
    def always_triton(self) -> bool:
        return all(kernel.triton for kernel in self.kernels)

    @property
    def always_reads(self) -> bool:
        """Say whether an entry of a file counts, whichever kernel runs without it."""
        return all(kernel.triton or kernel.by_file for kernel in self.kernels)

    @property
    def may_read(self) -> bool:
        """Say whether tuned files may be read, as far as anybody knows."""
        some = any(kernel.triton or kernel.by_file for kernel in self.kernels)
        return some or (self.older and not self.reads)

    def without_us(self, installed: Collection[str] | None = None) -> Kernel | None:
        """Return the kernel that a server runs without this program; None if it is not known.

        `installed` names the backends that the server's environment has; None: unknown.
        """
        if self.older or self.doubt:
            return None
        for kernel in self.kernels:
            holds = kernel.holds(installed)
            if holds is None:
                return None
            if holds:
                return kernel
        return None  # the last kernel has no condition

    def line(self) -> str:
        """Say in one line which kernel runs, and whether tuned files count."""
        notes = "".join(f"; {note}" for note in self.notes)
        return f"{self.words}; {self.reads or self._files()}{notes}"

    @property
    def words(self) -> str:
        """Say which kernel runs: "sglang 0.5.16 on NVIDIA_H200 runs FlashAttention 3 here"."""
        first, *others = self.kernels
        needs = f" with {options_text(self.needs)}" if self.needs else ""
        runs = f"{first.name} {self.subject}{needs}{first.words}"
        runs += "".join(f", else {other.name}{other.words}" for other in others)
        engine = f"{self.engine} {self.version}".strip()
        return f"{engine} on {self.device} runs {runs}{self._rules()}"

    def _rules(self) -> str:
        """Say whose rules these are, if they are of another release, and the doubt about them."""
        if self.version == self.release:
            return ""
        doubt = f"; {self.doubt}, and no release between was read" if self.doubt else ""
        doubt = ", the oldest release read" if self.older else doubt
        return f" (by the rules of {self.release}{doubt})"

    def _files(self) -> str:
        if self.older:
            return "whether it reads tuned files is not known"
        if self.always_triton:
            return "it reads tuned files"
        if self.to_triton:
            only = "only by Triton, which needs" if self._sometimes_triton else "only with"
            return f"tuned files are read {only} {self.options}"
        if self._sometimes_triton:
            return "only Triton reads tuned files"
        return "no option makes it run Triton, so it reads no tuned file"

    @property
    def options(self) -> str:
        """Return the flags and variables that select Triton, as people type them."""
        return options_text(self.to_triton)

    @property
    def _sometimes_triton(self) -> bool:
        return any(kernel.triton for kernel in self.kernels)

    def as_json(self) -> dict[str, Any]:
        """Return the object "runs" of reports."""
        return {
            "line": self.line(),
            "rules_of": self.release,
            "kernels": [kernel.as_json() for kernel in self.kernels],
            "to_triton": {} if self.older else dict(self.to_triton),
            "needs": dict(self.needs),
            "problems": list(self.problems),
        }


def what_runs(
    engine: str,
    version: str,
    problem: Problem,
    device: Device,
    flags: Mapping[str, str] = _NOTHING,
) -> Runs | None:
    """Return the kernel that a version of an engine runs; None if its rules do not say.

    An empty `version` is the newest that was read. An unknown release uses the rules of the newest
    older release, or of the oldest of all, and the answer says so. `flags` are the server's flags
    ("--moe-runner-backend") and environment variables; a flag without a value is "1". `of_class`
    adds the model's class to them. If a server has a kernel only with further flags, the answer is
    for a server that has them.
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
    """Ask `what_runs` for several problems: return each answer once, with its problems."""
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
    """Say whether a version looks for files of problems only as it launches Triton's kernel."""
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
    asked = Asked(table, release, problem, device, given)
    if not asked.rules:
        return None
    older = bool(version) and table.is_older(version)
    kernels, wanted, reads = _kernels(asked), asked.to_triton, asked.reads
    stops, refusal = _stops(problem, device, engine), asked.refusal
    if stops and not kernels[-1].triton:  # another kernel runs, and flags for Triton would stop it
        stops, wanted = "", {}
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


def _kernels(asked: Asked) -> list[Kernel]:
    """Return the kernels, without kernels before the last that equal the last."""
    kept = [_kernel(asked, rule) for rule in asked.rules]
    while len(kept) > 1 and kept[-2].name == kept[-1].name:
        del kept[-2]
    return kept


def _kernel(asked: Asked, rule: DispatchRule) -> Kernel:
    open_question = asked.settled(rule) is None
    fact = asked.table.unknown[rule.unknown] if open_question else UnknownFact("")
    backend, name = rule.backend, rule.kernel
    if rule.named:
        value = asked.settings[rule.named]
        backend = asked.table.backends.get(value, value)
        name = TITLES.get(backend, f"the {value} back end")
    return Kernel(
        name=name,
        backend=backend,
        triton=rule.triton,
        condition=fact.words,
        source=rule.sources[asked.release].file,
        needs=fact.installed,
        enough=bool(fact.installed) and fact.enough,
        by_file=rule.by_file,
    )


def _doubt(asked: Asked, version: str) -> str:
    """Say which kernel the release read after a version runs, if it is another; else ""."""
    later = asked.table.following(version) if version else ""
    if not later:
        return ""
    after = replace(asked, release=later)
    kernels = _kernels(after)
    if kernels and [one.backend for one in kernels] != [one.backend for one in _kernels(asked)]:
        return f"{later} runs {', else '.join(f'{one.name}{one.words}' for one in kernels)}"
    if after.refusal and not asked.refusal:
        return f"{later} does not start with {options_text(after.refusal.flags)}"
    if asked.refusal and not after.refusal:
        return f"{later} starts with {options_text(asked.refusal.flags)}"
    return ""


def _of_its_type(given: dict[str, str], problem: Problem) -> dict[str, str]:
    """Return the settings; without the checkpoint if its experts are of another type.

    They may be 16-bit if servers quantise them as they load. If the problem's groups are smaller
    than the checkpoint's, because those do not divide it, the checkpoint is "halved".
    """
    stored, dtype = given.get(CHECKPOINT, ""), getattr(problem, "dtype", None)
    at_load = stored.endswith(" none") and "--quantization" in given
    own = isinstance(dtype, Dtype) and dtype.value == stored.partition(" ")[0]
    if not (own or at_load):
        return {name: value for name, value in given.items() if name != CHECKPOINT}
    _, width = getattr(problem, "block_shape", None) or (0, 0)
    groups = _GROUPS.search(stored)
    return {**given, CHECKPOINT: f"{stored} halved"} if groups and width < int(groups[1]) else given


def _stops(problem: Problem, device: Device, engine: str) -> str:
    """Return words if Triton cannot compile the problem's type."""
    fp8 = getattr(problem, "dtype", None) is Dtype.FP8_W8A8
    return stops_at_fp8(engine, problem.family, device) if fp8 else ""


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
    """Return the reasons why the engine's compiled kernels refuse the problem."""
    names = [rule.compiled for rule in rules if rule.compiled]
    if not names:
        return []
    module = import_module(f"{engine_package(engine)}.compiled_kernels")
    return [text for name in names for text in module.refusals(name, version, problem, device)]
