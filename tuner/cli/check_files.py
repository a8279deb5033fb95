"""Which config files a check is of, and for which GPU and engine they were made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tuner.cli.app import say
from tuner.devices.table import Device, find_device
from tuner.errors import (
    BadInput,
    MalformedConfigFile,
    OptionsRefused,
    UnknownDevice,
    UnsupportedKernel,
)
from tuner.problems.registry import Family, families

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tuner.cli.family_options import FamilyChoice
    from tuner.cli.problems import TargetOptions
    from tuner.engines.dispatch import Runs
    from tuner.engines.engine import Engine
    from tuner.families.check import UnreadFile


def files_to_check(targets: Sequence[str]) -> list[Path]:
    """Return the files of a command line, and the files below its folders: in an exported folder,
    the files with a sidecar, because the others are the engine's own. Raises BadInput, also for a
    file that this program never takes.
    """
    from tuner.engines.config_files import provenance_of
    from tuner.engines.logs.served import unmade

    found: list[Path] = []
    for path in map(Path, targets):
        if not path.is_dir():
            if not path.exists():
                raise BadInput(f"{path} does not exist")
            if why := unmade(path.name):
                raise MalformedConfigFile(why)
            found.append(path)
            continue
        below = without_sidecars(path)
        exported = [one for one in below if provenance_of(one.resolve())]
        if not below:
            raise BadInput(f"{path} has no .json file: give the folder that `tuner export` wrote")
        found += exported or below
    return found


def without_sidecars(folder: Path) -> list[Path]:
    """Return the JSON files below a folder except the sidecars of files."""
    return [path for path in sorted(folder.rglob("*.json")) if "provenance" not in path.parts]


def device_of_files(paths: Sequence[Path]) -> str:
    """Return the GPU on which all names of files agree; empty if they name none, or several."""
    names = {name for path in paths if (name := _device(path))}
    return names.pop() if len(names) == 1 else ""


def say_other_device(paths: Sequence[Path], device: Device) -> None:
    """Say so if files are named for another GPU than the GPU that they are checked for."""
    for name in sorted({name for path in paths if (name := _device(path))}):
        try:
            same = find_device(name) == device
        except UnknownDevice:
            same = False
        if not same:
            say(f"there are files for {name}, and this checks whether they run on {device.name}")


def say_tuned_elsewhere(paths: Sequence[Path], engine: Engine) -> None:
    """Say so if exported files were tuned with another Triton than the engine's servers run."""
    from tuner.engines.config_files import environments_of, provenance_of
    from tuner.engines.engine import engine_triton

    runs = engine_triton(engine)
    sidecars = [provenance_of(path.resolve()) for path in paths]
    known = (env.get("triton") for sidecar in sidecars for env in environments_of(sidecar))
    for name in sorted({str(one) for one in known if one and runs} - {runs}):
        say(
            f"there are files tuned with Triton {name}, and servers of {engine.name} "
            f"{engine.version} run Triton {runs}: tune again for that release"
        )


def engine_of_files(paths: Sequence[Path]) -> str:
    """Return NAME==VERSION as all sidecars of exported files say it; else the engine whose spelling
    the names have, and say so; else sglang.
    """
    from tuner.engines.config_files import environments_of, provenance_of

    found = {
        f"{env['engine']}=={env['engine_version']}"
        for path in paths
        for env in environments_of(provenance_of(path.resolve()))
        if {"engine", "engine_version"} <= env.keys()
    }
    if len(found) == 1:
        return found.pop()
    if spelled_by(paths) != "vllm":
        return "sglang"

    say("the files are named as vLLM names them and are checked for vLLM; --engine names a release")
    return "vllm"


def spelled_by(paths: Sequence[Path]) -> str:
    """Return the engine that spells blocks of quantisation as all these names do; empty if none is
    known.
    """
    from tuner.engines.logs.facts import facts_of_line

    found = {name for path in paths if (name := facts_of_line(path.name).get("engine"))}
    return found.pop() if len(found) == 1 else ""


def _unclaimed(path: Path, engine: Engine, known: Sequence[Family]) -> str:
    """Say why a file of no family is refused, and name the next step."""
    spelled = spelled_by([path])
    if spelled and spelled != engine.name:
        return f"{path.name!r} is spelled as {spelled} spells names: --engine {spelled}"
    from tuner.engines.config_files import misnamed

    if why := misnamed(path.name):
        return why
    if source := _other_reader(path.name, engine):
        return (
            f"{engine.name} {engine.version} reads files of such names in {source}, for a kernel "
            f"that is not compiled here: {path.name} is not checked"
        )
    examples = " or ".join(dict.fromkeys(f"{one.module('check').EXAMPLE_NAME!r}" for one in known))
    return f"{path.name!r} is not the name of a file that {engine.name} reads, like {examples}"


def _other_reader(name: str, engine: Engine) -> str:
    """Return the engine's source that names files whose last field is this file's; "" if none."""
    last = name.rpartition(",")[2]
    if "device_name=" not in name or last.startswith("device_name="):
        return ""
    sources = sorted(engine.root.rglob("*.py"))
    found = (one for one in sources if f'{last}"' in one.read_text("utf-8", errors="replace"))
    return next((one.relative_to(engine.root).as_posix() for one in found), "")


def _misspelled(paths: Sequence[Path], engine: Engine) -> Iterator[UnreadFile]:
    """Return the files whose GPU has a name by which servers never ask: a short name, or the
    driver's name if the engine has its own.
    """
    from tuner.families.check import not_among

    for path in paths:
        if (given := _device(path)) and (names := _card_names(given, engine)):
            asked = [path.name.replace(f"={given}", f"={name}") for name in names]
            yield from not_among([path], asked, f"{engine.name} {engine.version}")


def _card_names(given: str, engine: Engine) -> list[str]:
    """Return the names by which servers ask for files of the GPU of a file; empty: not known."""
    if (own := engine.card_name(given)) != given:
        return [own]
    try:
        return [engine.card_name(name) for name in find_device(given).driver_names]
    except UnknownDevice:
        return []


def _device(path: Path) -> str:
    from tuner.engines.logs.facts import facts_of_line

    return facts_of_line(path.name).get("device")


class CheckResult(Protocol):
    """The result of a family's check. It may also have `runs`: a list of `Runs`."""

    @property
    def fits(self) -> bool: ...
    def as_json(self) -> dict[str, Any]: ...
    def as_text(self) -> str: ...


@dataclass(frozen=True)
class NotCompiled:
    """Files whose entries were not compiled: the plugin's, or those with unreadable kernels."""

    device: str
    reason: str
    unread: Sequence[UnreadFile] = ()
    fits: bool = False

    def as_json(self) -> dict[str, Any]:
        unread = [one.as_json() for one in self.unread]
        return {
            **{"device": self.device, "entries": [], "runs": [], "notes": [self.reason]},
            **({"unread": unread} if unread else {}),
        }

    def as_text(self) -> str:
        return "\n".join([self.reason, *(one.why for one in self.unread)])


def check_names(
    paths: Sequence[Path], device: str, engine: Engine, named: Sequence[Path], refused: Exception
) -> CheckResult:
    """Judge files by their names alone, for a GPU that is `refused`.

    Raises MalformedConfigFile for a name of no family, and `refused` if a server may read a file.
    """
    read, of_plugin = _by_family(paths, engine, _checkable(engine), named)
    unread = list(_misspelled([path for some in read.values() for path in some], engine))
    if of_plugin or len(unread) < sum(map(len, read.values())):
        raise refused
    return NotCompiled(device, f"not compiled: {refused}", unread)


def check_files(
    paths: Sequence[Path],
    device: Device,
    engine: Engine,
    tp: int,
    choice: FamilyChoice,
    named: Sequence[Path],
    model: TargetOptions | None = None,
) -> list[CheckResult]:
    """Check config files; a file's name tells its family.

    With a model, a file for which the engine never asks for this model is named, and does not fit.
    Files of the engine's plugin are not compiled: their report names the files that servers refuse.

    A file that is not `named` lies below a folder: if it is of no family, a message says so. If the
    kernels of a family among several cannot be read, its report says so and does not fit. Raises
    MalformedConfigFile for a name of no family, and OptionsRefused for an option that only applies
    to models.
    """
    from tuner.families.check import not_among

    known = _checkable(engine)
    by_family, of_plugin = _by_family(paths, engine, known, named)
    reports: list[CheckResult] = []
    for family in known:
        if not (mine := by_family.get(family.name)):
            continue
        module = family.module("check")
        flags = {"tp": "--tp", **{o.name: o.flag for one in families() for o in one.shaping}}
        given = {*choice.values, *(["tp"] if tp != 1 else [])} - set(module.FILE_OPTIONS)
        if given and model is None:
            reason = "for a model (with --model or --family), and these are files"
            raise OptionsRefused({name: reason for name in flags if name in given}, flags)
        server = _served(family, device, engine, model, choice) if model else None
        try:
            report = module.check_files(mine, device, engine, choice.of(family.shaping))
            unread = [*_misspelled(mine, engine), *report.unread]
            if server:
                unread += not_among(mine, server.asked, server.who)
                report = replace(report, runs=server.runs)
            once = {one.file: one for one in unread}  # what holds for the model goes last
            reports.append(replace(report, unread=[*once.values()]))
        except UnsupportedKernel as error:
            if len(by_family) == 1 and not of_plugin:
                raise
            reason = f"not checked: {len(mine)} files of {family.title}: {error}"
            reports.append(NotCompiled(device.name, reason))
    if of_plugin:
        reports.append(_report_of_plugin(of_plugin, device, engine))
    return reports


def _report_of_plugin(refusals: Mapping[Path, str], device: Device, engine: Engine) -> NotCompiled:
    """Say which files of the engine's plugin its servers refuse, and why."""
    from tuner.families.check import UnreadFile

    unread = [
        UnreadFile(str(path), (), f"The plugin refuses {path}: {why}.")
        for path, why in refusals.items()
        if why
    ]
    reason = (
        f"{len(refusals)} files are for engine-tuner's plugin in servers. Their entries are not "
        f"compiled here; in {engine.name} {engine.version} the plugin refuses "
        f"{len(unread) or 'none'} of them."
    )
    return NotCompiled(device.name, reason, unread, fits=not unread)


def _checkable(engine: Engine) -> list[Family]:
    """Return the families whose files of this engine can be checked. Raises MalformedConfigFile."""
    from tuner.engines.engine import supports

    ours = [family for family in families() if supports(engine.name, family.name)]
    known = [family for family in ours if hasattr(family.optional("check"), "check_files")]
    if not known:
        raise MalformedConfigFile(f"{engine.name} has no config files that can be checked")
    return known


@dataclass(frozen=True)
class _Server:
    """A model's server: its own words, the files that it asks for, and the kernels that it runs."""

    who: str
    asked: Sequence[str]
    runs: Sequence[Runs]


def _served(
    family: Family, device: Device, engine: Engine, model: TargetOptions, choice: FamilyChoice
) -> _Server:
    """Return the files that a server of the model asks for, and the kernels that it runs. Raises as
    `resolve` does.
    """
    from tuner.cli.problems import divided, resolve
    from tuner.engines.dispatch import engine_runs

    found = resolve(model, replace(choice, names=(family.name,)))
    for note in found.notes:
        say(note)
    names = family.module("check").asked_names
    cards = device.under_each_name
    asked = [name for card in cards for name in names(found.problems, card, engine)]
    ep = f", ep={choice.values['ep']}" if choice.values.get("ep") else ""
    server = f"{model.target.text} at tp={model.tp}{ep} on {device.name}"
    who = f"For {server}, {engine.name} {engine.version}"
    flags = divided(model.target.settings(""), engine.name, choice)
    runs = engine_runs(engine.name, engine.version, found.problems, device, flags)
    return _Server(who, list(dict.fromkeys(asked)), runs)


def _claimant(name: str, engine: Engine, known: Sequence[Family]) -> Family | None:
    """Return the family of a file: names of files for plugins begin with a kind of problem."""
    kind = name.partition(",")[0]
    asked = [family for family in known if kind in family.problems] or known
    return next((one for one in asked if one.module("check").claims(name, engine)), None)


def _by_family(
    paths: Sequence[Path], engine: Engine, known: Sequence[Family], named: Sequence[Path]
) -> tuple[dict[str, list[Path]], dict[Path, str]]:
    """Return the files of each family, and the files of the engine's plugin with why its servers
    refuse them.

    A message names the files of no family. Raises MalformedConfigFile.
    """
    by_family: dict[str, list[Path]] = {}
    others: list[Path] = []
    for path in paths:
        if family := _claimant(path.name, engine, known):
            by_family.setdefault(family.name, []).append(path)
        else:
            others.append(path)
    of_plugin = _refusals(others, engine)
    left = [path for path in others if path not in of_plugin]
    if wrong := next((path for path in left if path in named), None):
        raise MalformedConfigFile(_unclaimed(wrong, engine, known))
    if left:
        text = f"{len(left)} files are of kinds that this does not compile, like {left[0].name}"
        if not by_family and not of_plugin:
            raise MalformedConfigFile(text)
        say(f"left out: {text}")
    return by_family, of_plugin


def _refusals(paths: Sequence[Path], engine: Engine) -> dict[Path, str]:
    """Return the files of the engine's plugin, each with why its servers refuse it; "" if they take
    it.
    """
    from tuner.engines.engine import engine_triton, supports
    from tuner.export.delivery import delivery_of

    found: dict[Path, str] = {}
    if not paths:
        return found
    triton = engine_triton(engine)
    for family in families():
        if supports(engine.name, family.name):
            delivery = delivery_of(engine, family.name)
            told = {path: delivery.refusal(path, triton) for path in paths if path not in found}
            found |= {path: why for path, why in told.items() if why is not None}
    return found
