"""Check whether the kernels that an engine would launch compile and fit on a device, for any
family.

A family's module `check` groups the entries to compile: entries of config files, or entries that
the engine runs for problems. The module derives a class from `Check`, which says how entries are
shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

from tuner.compile import Farm, KernelCompiler
from tuner.compile.candidates import Binder, Companions
from tuner.devices.table import Device
from tuner.engines.dispatch import Runs, engine_runs, what_runs
from tuner.engines.engine import Engine, triton_for
from tuner.problems.points import TRITON, Candidate, Config, Part, Problem
from tuner.problems.results import Compiled, Status
from tuner.render import folded, verdicts

NULL = "null"  # the status of an entry that leaves its size to a kernel that is not Triton's
_NOTHING = Compiled(Status.OK)  # of such an entry
_NAMED = 6  # names that a message lists
NO_FLAGS: Mapping[str, str] = {}


@dataclass(frozen=True)
class EntryToCheck:
    """An entry to check."""

    part: Part
    size: int  # as the file has it, e.g. a batch size
    config: Config  # as the file has it
    candidate: Candidate | None  # None: nothing is compiled
    refused: Compiled | None = None  # why the engine would not launch it
    detail: str = ""


P = TypeVar("P", bound=Problem)


@dataclass(frozen=True)
class CheckGroup(Generic[P]):
    """The entries to check of a file, or of a problem without a file."""

    # The file's path, or the default that the engine runs; without entries: why nothing is checked.
    name: str
    problem: P
    binder: Binder
    entries: Sequence[EntryToCheck]
    companions: Companions | None = None
    warning: str = ""  # if the file is likely to be slower than none


@dataclass(frozen=True)
class CheckedEntry:
    """An entry, compiled for a device."""

    file: str  # the group's name
    problem: Problem
    part: Part
    size: int
    config: Config
    compiled: Compiled | None  # None: the engine runs no Triton kernel here
    detail: str = ""

    @property
    def fits(self) -> bool:
        return self.compiled is None or self.compiled.ok

    @property
    def lost(self) -> bool:
        """Say whether a mishap left open if the entry fits."""
        return self.compiled is not None and self.compiled.lost

    @property
    def status(self) -> str:
        return self.compiled.status.value if self.compiled else NULL

    @property
    def verdict(self) -> str:
        return "fits" if self.compiled and self.fits else self.status

    @property
    def why(self) -> str:
        said = self.compiled.detail if self.compiled else ""
        return "; ".join(filter(None, [said, self.detail]))


E = TypeVar("E", bound=CheckedEntry)


@dataclass(frozen=True)
class UnreadFile:
    """A config file that a server never opens."""

    file: str
    asked: Sequence[str]  # the names that the engine asks for instead
    why: str  # a sentence

    def as_json(self) -> dict[str, Any]:
        """Return the file as `tuner check --json` prints it."""
        return {"file": self.file, "asked": list(self.asked), "why": self.why}


def not_among(files: Sequence[Path], asked: Sequence[str], who: str) -> Iterator[UnreadFile]:
    """Yield the files whose names `who`, an engine with a model, does not ask for."""
    for path in files:
        if path.name in asked:
            continue
        near = get_close_matches(path.name, asked, n=_NAMED, cutoff=0.0)
        some = [one for one in near if one.endswith("_down.json") == path.stem.endswith("_down")]
        names = some or near
        more = f" and {len(asked) - len(names)} more" if len(asked) > _NAMED else ""
        listed = " or ".join(names[:1] if some and len(asked) <= 2 else names)
        why = f"{who} asks for {listed}{more}; this file is {path.name}, so it is never read."
        yield UnreadFile(str(path), tuple(asked), why)


@dataclass(frozen=True)
class Check(Generic[E]):
    """The results for every entry. A family's class names its columns."""

    device: Device
    entries: Sequence[E]
    runs: Sequence[Runs] = ()  # the kernels of these problems
    warnings: Mapping[str, str] = field(default_factory=dict)  # of files
    notes: Sequence[str] = ()  # assumptions, and files that were not checked
    unread: Sequence[UnreadFile] = ()

    columns: ClassVar[tuple[str, ...]]  # of the table, before the verdict and its details
    by: ClassVar[str] = "M"  # the column that names an entry beside its details

    def cells(self, entry: E) -> tuple[object, ...]:
        """Return the entry's cells in `columns`."""
        raise NotImplementedError

    def fields(self, entry: E) -> dict[str, Any]:
        """Return the fields that name the entry in JSON."""
        raise NotImplementedError

    @property
    def fits(self) -> bool:
        return not self.unread and all(entry.fits for entry in self.entries)

    def as_json(self) -> dict[str, Any]:
        """Return the object that `tuner check --json` prints."""
        unread = [one.as_json() for one in self.unread]
        return {
            "device": self.device.name,
            "entries": [self.entry_json(entry) for entry in self.entries],
            "runs": [runs.as_json() for runs in self.runs],
            **({"unread": unread} if unread else {}),
        }

    def entry_json(self, entry: E) -> dict[str, Any]:
        """Return an entry in JSON."""
        return {
            **self.fields(entry),
            **_compiled_json(entry.compiled or _NOTHING, self.device.shared_optin_bytes),
            "status": entry.status,
            "detail": entry.why,
        }

    def as_text(self) -> str:
        limit = self.device.shared_limit
        return folded("\n".join([*self.tables(), *self.notes, limit, self.closing()]))

    def tables(self) -> Iterator[str]:
        """Yield each file, the table of its entries and an empty line."""
        by_file: dict[str, list[E]] = {}
        for entry in self.entries:
            by_file.setdefault(entry.file, []).append(entry)
        for file, entries in by_file.items():
            yield file
            yield self.table(entries)
            if file in self.warnings:
                yield f"warning: {self.warnings[file]}"
            yield ""

    def table(self, entries: Sequence[E]) -> str:
        """Return the table of a file's entries."""
        rows = [(*self.cells(entry), entry.verdict, entry.why) for entry in entries]
        return verdicts((*self.columns, "verdict", "detail"), rows, by=self.by)

    def closing(self) -> str:
        """Return the last line: how many entries cannot run."""
        verdict = self.counted("cannot run", "all can run")
        if not self.entries:
            verdict = "none was checked"
        if few := len(self.warnings):
            verdict += f"; {few} {'file is' if few == 1 else 'files are'} likely slower than none"
        if self.unread:
            verdict += "".join(f"\n{one.why}" for one in self.unread)
        return f"{len(self.entries)} entries on {self.device.name}: {verdict}"

    def counted(self, bad: str, good: str) -> str:
        """Count the entries that do not fit, in these words, and the entries that were not
        checked.
        """
        lost = sum(entry.lost for entry in self.entries)
        counts = {bad: sum(not entry.fits for entry in self.entries) - lost, "not checked": lost}
        return ", ".join(f"{n} {words}" for words, n in counts.items() if n) or good


C = TypeVar("C", bound=Check[CheckedEntry])


def compile_groups(
    farm: Farm, groups: Sequence[CheckGroup[Any]], device: Device
) -> list[CheckedEntry]:
    """Compile every entry for the device.

    Raises UnsupportedKernel if an engine's kernel does not take an entry that is not `refused`.
    """
    compilers = [KernelCompiler(farm, group.binder, device, group.companions) for group in groups]
    pairs = list(zip(compilers, groups, strict=True))
    for compiler, group in pairs:
        compiler.compile_ahead(_candidates(group))  # no core waits for a file
    return [entry for compiler, group in pairs for entry in _compiled(compiler, group)]


def check_groups(
    kind: type[C],
    groups: Sequence[CheckGroup[Any]],
    device: Device,
    engine: Engine,
    notes: Sequence[str] = (),
    flags: Mapping[str, str] = NO_FLAGS,
) -> C:
    """Compile every entry with the Triton that the engine runs, and report. `flags` are the
    server's.
    """
    with Farm(triton=triton_for(engine)) as farm:
        entries = compile_groups(farm, groups, device)
    warnings = {group.name: group.warning for group in groups if group.warning}
    told = [*notes, *reasons_of(groups)]
    return kind(device, entries, runs_of(groups, device, engine, flags), warnings, told)


def reasons_of(groups: Sequence[CheckGroup[Any]]) -> list[str]:
    """Return the reasons of the groups without entries."""
    return [group.name for group in groups if not group.entries]


def runs_of(
    groups: Sequence[CheckGroup[Any]],
    device: Device,
    engine: Engine,
    flags: Mapping[str, str] = NO_FLAGS,
) -> Sequence[Runs]:
    """Return the kernels that the engine runs for the groups' problems."""
    problems = [group.problem for group in groups]
    return engine_runs(engine.name, engine.version, problems, device, flags)


def other_kernel(
    problem: P, device: Device, engine: Engine, flags: Mapping[str, str]
) -> CheckGroup[P] | None:
    """Return a group without entries if a server runs another kernel than Triton's for a problem;
    None if it runs Triton's, or if that is not known.
    """
    runs = what_runs(engine.name, engine.version, problem, device, flags)
    if not runs or runs.older or runs.doubt or any(one.backend == TRITON for one in runs.kernels):
        return None
    file = "without a file, " * any(one.by_file for one in runs.kernels)
    why = f"{problem.spec()}: {file}{runs.words}, so there is no entry to compile"
    return CheckGroup(why, problem, _no_binder, ())


def _no_binder(candidate: Candidate) -> NoReturn:
    raise AssertionError(f"nothing is compiled: {candidate}")


def _candidates(group: CheckGroup[Any]) -> list[Candidate]:
    """Return the candidates to compile for a group, without repeats."""
    return list(dict.fromkeys(one.candidate for one in group.entries if one.candidate is not None))


def _compiled(compiler: KernelCompiler, group: CheckGroup[Any]) -> Iterator[CheckedEntry]:
    compiler.submit(_candidates(group))
    found: dict[Candidate, Compiled] = {}
    while batch := compiler.poll(wait=True):
        found.update(batch)
    for one in group.entries:
        compiled = found[one.candidate] if one.candidate is not None else one.refused
        yield CheckedEntry(
            group.name, group.problem, one.part, one.size, one.config, compiled, one.detail
        )


def _compiled_json(compiled: Compiled, limit_bytes: int) -> dict[str, Any]:
    """Return the fields of `tuner check --json` about an entry's kernel. `limit_bytes` is the most
    shared memory that a block may have on the device.
    """
    return {
        "shared_bytes": compiled.shared_bytes,
        "limit_bytes": limit_bytes,
        "fits": None if compiled.lost else compiled.ok,
        "status": compiled.status.value,
        "detail": compiled.detail,
    }
