"""Check whether a server may use a file of a plugin. This module needs only the standard library,
because it runs inside servers.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from tuner.errors import MalformedConfigFile, TunerError
from tuner.problems.points import Problem


class ServerFile(Protocol):
    """What all files have in common."""

    @property
    def title(self) -> str:
        """A short text for its problem."""
        ...

    @property
    def predicted(self) -> bool:
        """Whether no entry was measured."""
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
    """What a file is compared with. None: not known, and not compared."""

    engine: str
    engine_version: str
    device: str | None  # as engines write it, e.g. NVIDIA_H200
    triton: str | None
    kernel_hash: Callable[[], str]  # of this engine's kernels; may raise TunerError
    # The numbers of splits that decode launches with, of a problem of attention.
    kv_splits: Callable[[Any], frozenset[int] | None] = lambda problem: None


@dataclass(frozen=True)
class FileCheck(Generic[F]):
    """The result for one file."""

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
    """Read a file and compare it with the facts about this server. `refusal`: why else it may not
    be used.
    """
    try:
        file = read(path)
    except MalformedConfigFile as error:
        return FileCheck(path, None, str(error).removeprefix(f"{path}: "))
    return FileCheck(path, file, _made_elsewhere(file, facts) or refusal(file))


def _made_elsewhere(file: ServerFile, facts: RuntimeFacts) -> str:
    if file.engine != facts.engine:
        return f"made for {file.engine}, this is {facts.engine}"
    if facts.device not in (None, file.device):
        return f"made for {file.device}, this is {facts.device}"
    if facts.triton not in (None, file.triton):
        return f"made for triton {file.triton}, this is {facts.triton}"
    return _other_kernels(file, facts) if file.engine_version != facts.engine_version else ""


def _other_kernels(file: ServerFile, facts: RuntimeFacts) -> str:
    """Why the file's kernels are not this engine's; empty if both versions have the same."""
    made = f"made for {file.engine} {file.engine_version}"
    try:
        same = facts.kernel_hash() == file.kernel_hash
    except TunerError as error:
        return f"{made}, and the kernels of {facts.engine_version} cannot be compared: {error}"
    return "" if same else f"{made}, whose kernels are not those of {facts.engine_version}"
