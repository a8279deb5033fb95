"""Find engines' packages on disk, and compare their versions by the rules of Python packaging.

Nothing of an engine is imported or executed.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from pathlib import Path

import platformdirs
from packaging.version import VERSION_PATTERN, Version

from tuner.errors import BadProblem

# The version of a package whose files do not name one, such as a bare source checkout.
UNVERSIONED = "0.0.0.dev0"


class PackageSource(IntEnum):
    """How a package was found. The lowest value is preferred."""

    INSTALLED = 0  # importable by this Python
    ENGINE_PATH = 1  # in a folder that TUNER_ENGINE_PATH names
    UNPACKED = 2  # in one of `own_folders`, where `tuner engines add` puts wheels


@dataclass(frozen=True)
class Package:
    """One copy of an engine's package: `root` holds its `__init__.py`."""

    root: Path
    version: str
    source: PackageSource


def find_packages(name: str, environ: Mapping[str, str] = os.environ) -> list[Package]:
    """Every copy of the package `name`, in the order of PackageSource."""
    found = [
        Package(root, _version(name, root), source)
        for source, root in _roots(name, environ)
        if (root / "__init__.py").is_file()
    ]
    return list({package.root: package for package in reversed(found)}.values())[::-1]


def own_folders() -> tuple[Path, Path]:
    """Where `tuner engines add` puts wheels: beside this Python, or else beside the user's store.

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
    """The version that a distribution in a folder has; None where there is none.

    `changed`: when the folder's list of entries did, as it does with each installation. Python
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
    """A sorting key. A version with an unknown suffix, "0.5.16-ours", sorts before the version."""
    match = _LEADING.match(text)
    if not match:
        return Version("0.dev0"), False, text
    return Version(match[0]), match[0] == text, text


def release_of(text: str) -> Release:
    """(0, 5, 12) for 0.5.12 and its candidates and builds; (0, 5, 4, 2) for 0.5.4.post2.

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
    """The release of an engine that stands for a build which no package index has: 0.11.1 for
    0.11.1rc2.dev10+g1a2b3c4; "" where none is known, as for 0.1.dev1. vLLM publishes no candidates.
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
