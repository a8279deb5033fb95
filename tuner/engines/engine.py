"""List the engines, find them on disk, and find the Triton that each runs.

Nothing here imports an engine or executes its code.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Protocol

import platformdirs
from packaging.version import VERSION_PATTERN, Version

from tuner.devices.target import CUDA
from tuner.errors import (
    BadProblem,
    CompilerUnavailable,
    UnknownEngine,
    UnsupportedFamily,
    did_you_mean,
)
from tuner.shell import command_line

# The release of each engine that this program was checked with most: the default to add.
CHECKED = {"sglang": "0.5.16", "vllm": "0.33.0"}
_PACKAGES = {name: f"tuner.engines.{name}" for name in ("sglang", "vllm")}
# Those stand above the families, so they are imported by name when a family is asked for.
_BINDINGS = {name: f"tuner.bindings.{name}" for name in _PACKAGES}


class Engine(Protocol):
    """One version of an engine on disk: the attributes that all families of kernels share.

    The rest is in the engine's bindings, one module for each family; see `engine_module`.
    """

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def root(self) -> Path:
        """Return the folder of the engine's package on disk."""
        ...

    def loads_plugins(self) -> bool:
        """Say whether its servers load plugins. Attention's configurations need a plugin."""
        ...

    def card_name(self, name: str) -> str:
        """Return its servers' name, in names of files, for a card that a driver calls `name`."""
        ...

    def __hash__(self) -> int: ...


def register(name: str, package: str, bindings: str) -> None:
    """Add an engine, by the dotted names of its package and of the package of its bindings."""
    _PACKAGES[name], _BINDINGS[name] = package, bindings


def engine_names() -> Sequence[str]:
    """List the names of all engines, the default first."""
    return tuple(_PACKAGES)


def engine_package(engine: str) -> str:
    """Return the dotted name of an engine's package, also for an engine that is not tuned for."""
    return _PACKAGES.get(engine, f"{__package__}.{engine}")


def config_folders(engine: str) -> Mapping[str, str]:
    """Map each variable that points servers at a folder to a glob of the folder's files."""
    found: Mapping[str, str] = import_module(f"{_BINDINGS[engine]}.config_folders").CONFIG_FOLDERS
    return found


def engine_module(engine: str, family: str) -> ModuleType:
    """Return the module of an engine's bindings for a family.

    Raises UnsupportedFamily, which names the engines that have such a module.
    """
    if not supports(engine, family):
        others = [name for name in _PACKAGES if supports(name, family)]
        raise UnsupportedFamily(
            f"{family} is not tuned for {engine}, only for {' and '.join(others) or 'no engine'}"
        )
    return import_module(f"{_BINDINGS[engine]}.{family}")


def kernel_hash(engine: Engine, family: str, platform: str = CUDA) -> str:
    """Return the sha256 of an engine's kernels for a family, as lifted for a platform.

    Raises UnsupportedKernel if the source has an unknown layout.
    """
    found: str = engine_module(engine.name, family).open_family(engine).lift(platform).hash
    return found


@cache
def supports(engine: str, family: str) -> bool:
    """Say whether this program can tune a family for an engine."""
    return find_spec(f"{_BINDINGS[engine]}.{family}") is not None


def find_engine(spec: str, environ: Mapping[str, str] = os.environ) -> Engine:
    """Find "sglang", or exactly "sglang==0.5.16", on this machine.

    Without a version, return the installed engine, else the newest in TUNER_ENGINE_PATH's folders,
    else the default version or the newest that `tuner list engines --add` added. Raises
    UnknownEngine, which names the versions found.
    """
    name, version = parse_spec(spec)
    package = import_module(f"{_PACKAGES[name]}.package")
    matching = matching_packages(name, version, environ)
    chosen = _preferred(matching, package.DEFAULT_VERSION)
    opened: Engine = package.ENGINE(chosen.version, chosen.root)
    return opened


@lru_cache(maxsize=256)
def names_model(engine: str, version: str, architecture: str) -> bool:
    """Say whether a release has a class of models; true if its source is not on disk."""
    try:
        root = find_engine(f"{engine}=={version}").root
    except UnknownEngine:
        return True
    package = import_module(f"{_PACKAGES[engine]}.package")
    files, named = getattr(package, "MODELS", ("", ""))
    wanted = re.compile(named.format(re.escape(architecture)))
    found = [*root.glob(files)] if files else []
    texts = (one.read_text(encoding="utf-8") for one in found)
    # Most of a hundred files lack the name, and a search by the pattern takes long to say so.
    return not found or any(architecture in text and wanted.search(text) for text in texts)


def matching_packages(
    name: str, version: str | None, environ: Mapping[str, str] = os.environ
) -> list[Package]:
    """Return the copies of an engine's package, of one version or of all, by PackageSource.

    Raises UnknownEngine if there is none. It names the versions found and how to add a version.
    """
    found = find_packages(name, environ)
    matching = found if version is None else [p for p in found if p.version == version]
    if matching:
        return matching
    spec = f"{name}=={version or CHECKED.get(name, 'VERSION')}"
    add = f"`{command_line('tuner', 'list', 'engines', '--add', spec)}` adds it"
    if not found:
        wanted = f"{name}=={version}" if version else name
        raise UnknownEngine(f"no {wanted} on this machine: {add}")
    versions = sorted({package.version for package in found}, key=version_order)
    raise UnknownEngine(f"no {name}=={version} here, only {', '.join(versions)}: {add}")


def parse_spec(spec: str) -> tuple[str, str | None]:
    """Split "sglang==0.5.16" into (name, version or None). Raises UnknownEngine."""
    name, equals, version = (part.strip() for part in spec.partition("=="))
    if name not in _PACKAGES:
        near = did_you_mean(name, _PACKAGES) or f"; write {' or '.join(_PACKAGES)}"
        raise UnknownEngine(f"unknown engine {name!r}{near}")
    return name, version if equals else None


def _preferred(packages: list[Package], default: str) -> Package:
    source = min(package.source for package in packages)
    best = [package for package in packages if package.source is source]
    if source is PackageSource.UNPACKED:
        best = [package for package in best if package.version == default] or best
    return max(best, key=lambda package: version_order(package.version))


# Beside an unpacked engine's package: {"triton": "3.8.0"}, as `tuner list engines --add` writes it.
RECORD = "tuner-engine.json"


def find_triton(version: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder whose `triton` package has exactly this version; None if there is none.

    Search this Python, and `triton-<version>` in the folders of unpacked engines. A folder of that
    name holds nothing else, so that it may come first on a process's path.
    """
    found = (p for p in find_packages("triton", environ) if p.version == version)
    alone = f"triton-{version}"
    places = (
        p.root.parent
        for p in found
        if p.source is PackageSource.INSTALLED or p.root.parent.name == alone
    )
    return next(places, None)


def pinned_triton(package: Package) -> str | None:
    """Return the version of Triton that a copy of an engine runs with; None if it is unknown.

    An installed engine runs the Triton installed beside it. An unpacked engine has a record.
    """
    if package.source is PackageSource.INSTALLED:
        here = (p for p in find_packages("triton", {}) if p.source is PackageSource.INSTALLED)
        return next((triton.version for triton in here), None)
    try:
        record = json.loads((package.root.parent / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    version = record.get("triton") if isinstance(record, dict) else None
    return version if isinstance(version, str) else None


def engine_triton(engine: Engine) -> str | None:
    """Return the `pinned_triton` of an engine that `find_engine` returned."""
    found = (p for p in find_packages(engine.name) if p.root == engine.root)
    return next((pinned_triton(package) for package in found), None)


@dataclass(frozen=True)
class TritonRelease:
    """A Triton on this machine."""

    version: str
    folder: Path | None = None  # comes first on a process's path; None: Triton is installed
    note: str = ""  # a note to users if an engine's servers run another release

    def for_another_python(self) -> str:
        """Say that the release in the folder was added for another Python; "" if it was not."""
        here = f"cp{sys.version_info.major}{sys.version_info.minor}"
        for wheel in self.folder.glob("triton-*.dist-info/WHEEL") if self.folder else ():
            tags = re.findall(r"^Tag: cp(\d)(\d+)-", wheel.read_text(), re.MULTILINE)
            if tags and here not in {f"cp{major}{minor}" for major, minor in tags}:
                made_for = ".".join(tags[0])
                return (
                    f"; {self.folder} was added for Python {made_for}, and this is another Python: "
                    "remove that folder, and run `tuner list engines --add` for the engine again"
                )
        return ""


def triton_for(engine: Engine) -> TritonRelease:
    """Return the Triton to compile an engine's kernels with: the release that its servers run.

    If that release is unknown or not on this machine, return the installed release. Raises
    CompilerUnavailable, which says how to get Triton, if none is installed either.
    """
    here = installed_triton() if find_spec("triton") is not None else None
    wanted = engine_triton(engine)
    if wanted is None or wanted == here:
        return TritonRelease(installed_triton())
    folder = find_triton(wanted)
    if folder is not None:
        return TritonRelease(wanted, folder)
    name = f"{engine.name}=={engine.version}"
    add = command_line("tuner", "list", "engines", "--add", name)
    if here is None:
        raise CompilerUnavailable(
            f"Triton {wanted}, which {name} runs, is not here: `{add}` adds it"
        )
    return TritonRelease(
        here,
        note=f"{name} runs Triton {wanted}, which is not here: kernels are compiled with Triton "
        f"{here}, and their registers and times may differ; to get it: {add}",
    )


def installed_triton() -> str:
    """Return the version of the installed triton, found without importing it.

    Raises CompilerUnavailable if triton is not installed.
    """
    spec = find_spec("triton")
    if spec is None or spec.origin is None:
        raise CompilerUnavailable("triton is not installed: pip install 'engine-tuner[compile]'")
    found = re.search(r"__version__ = ['\"]([^'\"]+)", Path(spec.origin).read_text())
    if found is None:
        raise CompilerUnavailable(f"{spec.origin} does not say which triton it is")
    return found[1]


# The version of a package whose files name no version, such as a bare source checkout.
UNVERSIONED = "0.0.0.dev0"


class PackageSource(IntEnum):
    """The way in which a package was found. The lowest value is preferred."""

    INSTALLED = 0  # importable by this Python
    ENGINE_PATH = 1  # in a folder that TUNER_ENGINE_PATH names
    UNPACKED = 2  # in one of `own_folders`, where `tuner list engines --add` puts wheels


@dataclass(frozen=True)
class Package:
    """A copy of an engine's package: `root` holds its `__init__.py`."""

    root: Path
    version: str
    source: PackageSource


def find_packages(name: str, environ: Mapping[str, str] = os.environ) -> list[Package]:
    """Return every copy of the package `name`, in the order of PackageSource."""
    found = [
        Package(root, _version(name, root), source)
        for source, root in _roots(name, environ)
        if (root / "__init__.py").is_file()
    ]
    return list({package.root: package for package in reversed(found)}.values())[::-1]


def own_folders() -> tuple[Path, Path]:
    """Return the folders for `tuner list engines --add`: beside this Python and the user's store.

    The second is for people who must not write to the first.
    """
    own = platformdirs.user_data_path("tuner", appauthor=False) / "engines"
    return Path(sys.prefix, "share", "tuner", "engines"), own


def _roots(name: str, environ: Mapping[str, str]) -> Iterator[tuple[PackageSource, Path]]:
    installed = _installed_root(name)
    if installed:
        yield PackageSource.INSTALLED, installed
    for folder in filter(None, environ.get("TUNER_ENGINE_PATH", "").split(os.pathsep)):
        yield PackageSource.ENGINE_PATH, Path(folder).absolute() / name
        for unpacked in _unpacked(name, Path(folder).absolute()):
            yield PackageSource.ENGINE_PATH, unpacked
    for own in own_folders():
        for unpacked in _unpacked(name, own):
            yield PackageSource.UNPACKED, unpacked


def _installed_root(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name)  # does not execute a top-level package
    except ValueError:  # sys.modules holds a module of that name without a spec
        return None
    return Path(spec.origin).parent if spec and spec.origin else None


def _unpacked(name: str, folder: Path) -> list[Path]:
    # The name of a folder ends in .part until it is complete. A version starts with a digit.
    folders = [p for p in folder.glob(f"{name}-[0-9]*") if not p.name.endswith(".part")]
    newest_first = sorted(
        folders, key=lambda p: version_order(p.name.removeprefix(f"{name}-")), reverse=True
    )
    return [folder / name for folder in newest_first]


def _version(name: str, root: Path) -> str:
    distributed = _distributed_version(name, root.parent, root.parent.stat().st_mtime_ns)
    if distributed is not None:
        return distributed
    for file in ("_version.py", "version.py", "__init__.py"):
        literal = _literal_version(root / file)
        if literal:
            return literal
    folder = root.parent.name
    return folder.removeprefix(f"{name}-") if folder.startswith(f"{name}-") else UNVERSIONED


@lru_cache(maxsize=64)
def _distributed_version(name: str, folder: Path, changed: int) -> str | None:
    """Return the version of a distribution in a folder; None if there is none.

    `changed`: when the folder's list of entries changed, as it does with each installation. Python
    takes milliseconds to read a distribution's metadata, and services ask at each request.
    """
    for distribution in importlib.metadata.distributions(name=name, path=[str(folder)]):
        return distribution.version
    return None


def _literal_version(path: Path) -> str | None:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return None
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and any(isinstance(t, ast.Name) and t.id == "__version__" for t in node.targets)
            and isinstance(node.value, ast.Constant)
        ):
            return str(node.value.value)
    return None


Release = tuple[int, ...]  # three numbers, and a fourth for a post-release
_LEADING = re.compile(VERSION_PATTERN, re.VERBOSE | re.IGNORECASE)


def version_order(text: str) -> tuple[Version, bool, str]:
    """Return a sorting key. An unknown suffix, "0.5.16-ours", sorts before the version."""
    match = _LEADING.match(text)
    if not match:
        return Version("0.dev0"), False, text
    return Version(match[0]), match[0] == text, text


def release_of(text: str) -> Release:
    """Return (0, 5, 12) for 0.5.12 and its candidates and builds; (0, 5, 4, 2) for 0.5.4.post2.

    A post-release may follow other rules than its release. Raises BadProblem for text that is not a
    version.
    """
    match = _LEADING.match(text)
    version = Version(match[0]) if match else None
    if version is None or len(version.release) < 2:
        raise BadProblem(f"{text!r} is not an engine version such as 0.5.23")
    release = version.major, version.minor, version.micro
    return (*release, version.post) if version.post else release


def published(name: str, text: str) -> str:
    """Return the release that stands for a build which no package index has.

    Return 0.11.1 for 0.11.1rc2.dev10+g1a2b3c4, and "" if none is known, as for 0.1.dev1. vLLM
    publishes no candidates.
    """
    match = _LEADING.match(text)
    version = Version(match[0]) if match else None
    own = version and (version.dev is not None or version.local or len(version.release) > 3)
    if version is None or not (own or (version.pre and name == "vllm")):
        return text
    if len(version.release) < 3:
        return ""
    # A build after 0.5.6.post2 calls itself 0.5.6.post3.dev12.
    post = (version.post or 0) - (version.dev is not None)
    return ".".join(map(str, version.release[:3])) + (f".post{post}" if post > 0 else "")
