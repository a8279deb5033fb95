"""Check whether a server may use a file of a plugin. This module needs only the standard library,
because it runs inside servers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from tuner.devices.target import CUDA, HIP
from tuner.errors import MalformedConfigFile
from tuner.problems.points import Problem

log = logging.getLogger("tuner.plugin")

# How far a launch may be from the nearest measured size: farther away, tuned constants were 0.44x
# as fast as the engine's own (extend attention on an H200, tuned at 4 x 256, run at 1 x 1,024).
SERVED_OCTAVES = 1.0
_SPELLED = 8  # refused files in a line of a log; a folder may serve a fleet


class ServerFile(Protocol):
    """The attributes that all files have."""

    @property
    def title(self) -> str:
        """Return a short text for the file's problem."""
        ...

    @property
    def predicted(self) -> bool:
        """Say whether no entry was measured."""
        ...

    @property
    def device(self) -> str: ...
    @property
    def engine(self) -> str: ...
    @property
    def engine_version(self) -> str: ...
    @property
    def triton(self) -> str: ...
    @property
    def kernel_hash(self) -> str: ...
    @property
    def problem(self) -> Problem: ...
    @property
    def entries(self) -> Sized: ...


F = TypeVar("F", bound=ServerFile)


@dataclass(frozen=True)
class RuntimeFacts:
    """The facts with which files are compared. None: not known, and not compared."""

    engine: str
    engine_version: str
    device: str | None  # as engines write it, e.g. NVIDIA_H200
    triton: str | None
    # Of this engine's kernels, for each platform that servers may have; may raise.
    kernel_hashes: Callable[[], Collection[str]]
    # The numbers of splits that decode launches with, of a problem of attention.
    kv_splits: Callable[[Any], frozenset[int] | None] = lambda problem: None
    unless: str = ""  # why no file at all may be used here

    @cached_property
    def kernels(self) -> tuple[Collection[str], str]:
        """Return the hashes, and why there are none. Computed once, since it takes a server 30
        ms.
        """
        try:
            return self.kernel_hashes(), ""
        except Exception as error:  # sources that nobody has seen
            return (), str(error)


def facts_here(
    engine: str,
    kernel_hash: Callable[[str, Path, str], str],
    kv_splits: Callable[[Any], frozenset[int] | None] = lambda problem: None,
    unless: str = "",
) -> RuntimeFacts:
    """Return the facts about this process, which belongs to an engine.

    `kernel_hash`: of an engine's version, its folder and a platform ("cuda" or "hip").
    """
    package, torch, triton = (import_module(name) for name in (engine, "torch", "triton"))
    root, platform = Path(package.__path__[0]), HIP if torch.version.hip else CUDA
    device = torch.cuda.get_device_name().replace(" ", "_")  # as engines spell it in file names
    return RuntimeFacts(
        *(engine, package.__version__, device, triton.__version__),
        lambda: (kernel_hash(package.__version__, root, platform),),
        kv_splits,
        unless,
    )


@dataclass(frozen=True)
class FileCheck(Generic[F]):
    """The result for a file."""

    path: Path
    file: F | None  # None: malformed
    reason: str = ""  # why the file is refused; empty: it is used

    @property
    def used(self) -> bool:
        return not self.reason

    def __str__(self) -> str:
        if self.file is None or self.reason:
            return f"refused {self.path}: {self.reason}"
        return f"{self.file.title} from {self.path}{' (predicted)' if self.file.predicted else ''}"


def check_with(
    path: Path, read: Callable[[Path], F], facts: RuntimeFacts, refusal: Callable[[F], str]
) -> FileCheck[F]:
    """Read a file and compare it with the facts about this server. `refusal`: other reasons against
    the file.
    """
    try:
        file = read(path)
    except MalformedConfigFile as error:
        return FileCheck(path, None, str(error).removeprefix(f"{path}: "))
    return FileCheck(path, file, _made_elsewhere(file, facts) or refusal(file))


def log_items(word: str, checks: Sequence[FileCheck[F]], *, used: bool = True) -> list[str]:
    """Return the parts of a log line about files: which are used, and which are refused.

    Malformed files have warnings of their own, which name the family by `word`. If many files are
    of a kind, the first are named.
    """
    malformed = [check for check in checks if check.file is None]
    for check in malformed[:_SPELLED]:
        log.warning("tuner %s: %s", word, check)
    refused = [check for check in checks if check.file and not check.used]
    refused.sort(key=lambda check: ", this is " in check.reason)  # files for this GPU first
    more = len(malformed[_SPELLED:]) + len(refused[_SPELLED:])
    return [
        *(str(check) for check in checks if check.used and used),
        *map(str, refused[:_SPELLED]),
        *([f"refused {more} more files"] if more else []),
    ]


def _made_elsewhere(file: ServerFile, facts: RuntimeFacts) -> str:
    if facts.unless:
        return facts.unless
    if file.engine != facts.engine:
        return f"made for {file.engine}, this is {facts.engine}"
    if facts.device not in (None, file.device):
        return f"made for {file.device}, this is {facts.device}"
    if facts.triton not in (None, file.triton):
        return f"made for triton {file.triton}, this is {facts.triton}"
    made = f"made for {file.engine} {file.engine_version}"
    hashes, why = facts.kernels
    if why:
        return f"{made}, and the kernels of {facts.engine_version} cannot be compared: {why}"
    if file.kernel_hash in hashes:
        return ""
    return f"{made}, whose kernels are not those of {facts.engine_version}"
