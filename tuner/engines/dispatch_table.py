"""Read the rules by which an engine chooses kernels, from its package's dispatch.toml.

`Asked` says which rules hold for a problem on a card, for a server's settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from fnmatch import fnmatchcase
from functools import cache, cached_property
from importlib.util import find_spec
from typing import Any

from tuner.devices.table import Device
from tuner.engines.engine import engine_package, release_of, version_order
from tuner.files import shipped_toml
from tuner.problems.points import TRITON, Problem, title_of

_TABLE = "dispatch.toml"
# The model's class among a server's settings. It is no flag: nobody prints it.
ARCHITECTURE = "architecture"
# Likewise how its checkpoint stores experts: `Model.stored_as`.
CHECKPOINT = "checkpoint"
NOT_KNOWN = "how the checkpoint stores its experts is not known, and may choose another kernel"
NO_KERNEL = "none"  # the backend of a server that has no kernel for the problem


@dataclass(frozen=True)
class UnknownFact:
    """A fact that only the server's own machine knows."""

    words: str  # "DeepGEMM is installed, as in sglang's images"
    flag: str = ""  # a flag or variable that settles it if it is given
    value: str = ""  # its value if the words are true
    installed: str = ""  # a backend without which the words are not true
    enough: bool = True  # with it, they are true
    classes: Sequence[str] = ()  # the words are true of models of these classes alone
    checkpoint: Sequence[str] = ()  # and of checkpoints of these patterns alone

    def of_model(self, given: Mapping[str, str]) -> bool | None:
        """Say whether the words are true of the model; None if that is not known."""
        asked = {ARCHITECTURE: self.classes, CHECKPOINT: self.checkpoint}
        known = [
            any(fnmatchcase(given[name], one) for one in patterns) if name in given else None
            for name, patterns in asked.items()
            if patterns
        ]
        if False in known:
            return False
        return True if known and None not in known and not self.installed else None


@dataclass(frozen=True)
class Source:
    """The place where a rule was read: a file of the engine's package, and a text in it."""

    file: str
    text: str


@dataclass(frozen=True)
class DispatchRule:
    """A row of dispatch.toml, which documents these fields."""

    problems: Sequence[str]
    backend: str  # "" if the server's flag names it
    kernel: str  # for people
    sources: Mapping[str, Source]  # by the release for which the rule holds
    named: str = ""  # the flag that names the backend
    on: Sequence[str] = ()
    where: Mapping[str, str | int | Sequence[str]] = field(default_factory=dict)
    flags: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unknown: str = ""  # "if" in the file
    to_triton: Mapping[str, str] = field(default_factory=dict)
    reads: str = ""
    by_file: bool = False
    note: str = ""
    compiled: str = ""

    @property
    def triton(self) -> bool:
        """Say whether the kernel is the tuned kernel, whose files the engine reads."""
        return self.backend == TRITON and not self.reads

    def holds(
        self, release: str, problem: Problem, device: Device, flags: Mapping[str, str]
    ) -> bool:
        """Say whether all conditions of the row are true, except its `if`."""
        return (
            release in self.sources
            and problem.family in self.problems
            and (not self.on or any(fnmatchcase(device.target.name, name) for name in self.on))
            and all(_is(problem, name, want) for name, want in self.where.items())
            and all(
                any(_fits(flags.get(name, ""), value) for value in values)
                for name, values in self.flags.items()
            )
        )


@dataclass(frozen=True)
class Refusal:
    """A table `refuses` of dispatch.toml: flags with which servers of some models do not start."""

    problems: Sequence[str]
    flags: Mapping[str, str]
    words: str  # why: "the server stops"
    classes: Mapping[str, Sequence[str]]  # by release
    sources: Mapping[str, Source]

    def holds(self, release: str, problem: Problem, architecture: str) -> bool:
        """Say whether a release refuses the flags for models of a class."""
        return problem.family in self.problems and architecture in self.classes.get(release, ())


@dataclass(frozen=True)
class DispatchTable:
    """The rules of an engine, and the releases that they were read from, oldest first."""

    releases: Sequence[str]
    defaults: Mapping[str, str]  # flags and variables of a server by default
    unknown: Mapping[str, UnknownFact]
    rules: Sequence[DispatchRule]
    backends: Mapping[str, str] = field(default_factory=dict)  # by the values of flags
    # By problem, the flags that choose for it alone, by the flags that choose for several.
    alone: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    refusals: Sequence[Refusal] = ()
    # The rules' names by other names; a name that ends in "_" is the beginning of several.
    other_names: Mapping[str, str] = field(default_factory=dict)
    looked_for: Mapping[str, str] = field(default_factory=dict)  # by problem, the first release

    def looks_late(self, release: str, problem: Problem) -> bool:
        """Say whether a release looks for the problem's file only as it launches
        Triton's kernel.
        """
        since = self.looked_for.get(problem.family)
        return since is not None and release_of(since) <= release_of(release)

    @cached_property
    def names(self) -> frozenset[str]:
        """Return the flags and variables that the rules ask for."""
        asked = {name for rule in self.rules for name in (*rule.flags, *rule.to_triton)}
        asked |= {fact.flag for fact in self.unknown.values() if fact.flag}
        asked |= {flag for flags in self.alone.values() for flag in flags.values()}
        return frozenset({*self.defaults, *asked} - {ARCHITECTURE, CHECKPOINT})

    def names_for(self, problem: Problem) -> frozenset[str]:
        """Return the settings that the rules for a kind of problem ask for, with the model's
        settings.
        """
        rules = [rule for rule in self.rules if problem.family in rule.problems]
        facts = [self.unknown[rule.unknown] for rule in rules if rule.unknown]
        asked = {name for rule in rules for name in (*rule.flags, *rule.to_triton)}
        asked |= {fact.flag for fact in facts if fact.flag}
        asked |= {CHECKPOINT for fact in facts if fact.checkpoint}
        return frozenset({*asked, ARCHITECTURE, *self.alone.get(problem.family, {}).values()})

    def with_new_names(self, flags: Mapping[str, str]) -> dict[str, str]:
        """Return the flags, and each of another name under the rules' name too."""
        renamed = {
            new + name.removeprefix(other): value
            for name, value in flags.items()
            for other, new in self.other_names.items()
            if name == other or (other.endswith("_") and name.startswith(other))
        }
        return {**renamed, **flags}

    def release(self, version: str) -> str:
        """Return the newest release that is not newer than a version, or the oldest.

        Raises BadProblem for text that is not a version.
        """
        wanted = release_of(version)
        older = [known for known in self.releases if release_of(known) <= wanted]
        return older[-1] if older else self.releases[0]

    def is_older(self, version: str) -> bool:
        """Say whether a version is older than each release that was read."""
        return release_of(version) < release_of(self.releases[0])

    def following(self, version: str) -> str:
        """Return the release read after a version that lies between two releases; "" for others."""
        release = self.release(version)
        later = self.releases[self.releases.index(release) + 1 :]
        return later[0] if later and release_of(version) > release_of(release) else ""


@dataclass(frozen=True)
class Asked:
    """The rules of one release for a problem on a device, with a server's settings."""

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
        """Return the rules that hold, up to the first that depends on nothing unknown."""
        found: list[DispatchRule] = []
        answered: set[str] = set()  # a rule below holds only if these are not true
        settings = self.settings
        for rule in self.table.rules:
            if not rule.holds(self.release, self.problem, self.device, settings):
                continue
            known = self.settled(rule)
            if known is False or (known is None and rule.unknown in answered):
                continue
            found.append(rule)
            if known:
                return found
            answered.add(rule.unknown)
        return []

    @property
    def to_triton(self) -> dict[str, str]:
        """Return the flags and variables that select Triton and are not given."""
        wanted = next((rule.to_triton for rule in self._others if rule.to_triton), {})
        settings = self.settings
        return {name: value for name, value in wanted.items() if settings.get(name, "") != value}

    @property
    def reads(self) -> str:
        """Return words about files, if the usual words would be wrong."""
        return self._others[0].reads

    @property
    def refusal(self) -> Refusal | None:
        """Return the flags for Triton with which the release does not start for the
        model's class.
        """
        architecture = self.given.get(ARCHITECTURE, "")
        holding = (
            one
            for one in self.table.refusals
            if one.holds(self.release, self.problem, architecture)
        )
        return next(holding, None)

    @property
    def notes(self) -> list[str]:
        """Return the rules' notes, and words if rules of checkpoints may hold for an
        unknown model.
        """
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

    def settled(self, rule: DispatchRule) -> bool | None:
        """Say whether a rule's `if` is true; None: unknown."""
        if not rule.unknown:
            return True
        fact = self.table.unknown[rule.unknown]
        if fact.flag in self.given:
            return self.given[fact.flag] == fact.value
        return fact.of_model(self.given)

    @property
    def _others(self) -> Sequence[DispatchRule]:
        """Return the rules of kernels other than Triton's, or all rules if there are no others."""
        return [rule for rule in self.rules if not rule.triton] or self.rules


@cache
def dispatch_table(engine: str) -> DispatchTable | None:
    """Return the rules of an engine; None if its package has none."""
    package = engine_package(engine)
    if find_spec(package) is None:
        return None
    try:
        values = shipped_toml(package, _TABLE)
    except FileNotFoundError:
        return None
    return read_dispatch(values)


def read_dispatch(values: Mapping[str, Any]) -> DispatchTable:
    """Read the values of a dispatch.toml. Tests, not this function, check the shipped tables."""
    releases = sorted(values["releases"], key=version_order)
    usual, groups = values["flags"], values.get("classes", {})
    rules = (
        rule
        for kind, rows in values["row"].items()
        for row in rows
        for rule in _rules(values, values["kinds"][kind], row)
    )
    return DispatchTable(
        releases=releases,
        defaults=usual,
        unknown={name: _unknown(row, groups) for name, row in values["unknown"].items()},
        rules=list(rules),
        backends=values.get("backends", {}),
        alone=values.get("alone", {}),
        other_names=values.get("other_names", {}),
        looked_for=values.get("looked_for", {}),
        refusals=[_refusal(values, row) for row in values.get("refuses", ())],
    )


def _unknown(row: Mapping[str, Any], groups: Mapping[str, Sequence[str]]) -> UnknownFact:
    """Read an unknown fact; its classes may be names of groups of classes."""
    classes = [name for one in row.get("classes", ()) for name in groups.get(one, [one])]
    return UnknownFact(**{**row, "classes": classes})


def _rules(
    values: Mapping[str, Any], kind: Mapping[str, Any], row: Mapping[str, Any]
) -> Iterator[DispatchRule]:
    """Read a row with its kind's fields: one rule, or two for a row with `named`."""
    fields = {**kind, **row}
    for name in ("where", "flags"):
        fields[name] = {**kind.get(name, {}), **row.get(name, {})}
    fields["sources"] = _sources(values, fields.pop("source"), fields.pop("text", ""))
    fields["unknown"] = fields.pop("if", "")
    if flag := fields.pop("named", ""):
        usual = values["flags"].get(flag)
        names = fields.pop("names", [f"!{usual}" if usual else "?*"])
        own = {**fields, "flags": {flag: [fields["to_triton"][flag]]}, "to_triton": {}}
        yield DispatchRule(**own, backend=TRITON, kernel=title_of(TRITON))
        others = {**fields, "flags": {flag: names}}
        yield DispatchRule(**others, backend="", kernel="", named=flag)
        return
    backend = fields["backend"]
    if backend in (TRITON, NO_KERNEL):  # the kind's flags are for the other kernels
        fields["to_triton"] = row.get("to_triton", {})
    yield DispatchRule(**{"kernel": title_of(backend), **fields})


def _sources(
    values: Mapping[str, Any], source: str | Mapping[str, str], text: str = ""
) -> Mapping[str, Source]:
    """Read "FILE: TEXT", of all releases or by release; or the files, if their text is given."""
    by_release = dict.fromkeys(values["releases"], source) if isinstance(source, str) else source
    parts = {release: value.partition(": ") for release, value in by_release.items()}
    root = values["root"]
    return {name: Source(root + file, text or said) for name, (file, _, said) in parts.items()}


def _refusal(values: Mapping[str, Any], row: Mapping[str, Any]) -> Refusal:
    fields = dict(row)
    sources = _sources(values, fields.pop("source"), fields.pop("text", ""))
    return Refusal(**fields, sources=sources)


def _fits(value: str, pattern: str) -> bool:
    """Say whether a flag's value fits a pattern; "!auto" is each value but auto."""
    if pattern.startswith("!"):
        return not fnmatchcase(value, pattern[1:])
    return fnmatchcase(value, pattern)


def _is(problem: Problem, name: str, want: str | int | Sequence[str]) -> bool:
    """Say whether a field of a problem fits one of the patterns, or is a multiple of a number."""
    if isinstance(want, int):
        return bool(getattr(problem, name) % want == 0)
    patterns = [want] if isinstance(want, str) else want
    return any(fnmatchcase(_fact(problem, name), one) for one in patterns)


def _fact(problem: Problem, name: str) -> str:
    """Write a field of a problem as rows do: fp8_w8a8, 128x128, true; "none" for None."""
    value = getattr(problem, name)
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return "none" if value is None else str(value)
