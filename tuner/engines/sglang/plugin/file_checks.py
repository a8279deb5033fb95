"""Check whether a server may use a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from tuner.engines.sglang.plugin.files import AttentionFile, read_attention_file, title
from tuner.engines.sglang.plugin.gemm_files import GemmFile, read_gemm_file
from tuner.errors import MalformedConfigFile, TunerError
from tuner.families.attention.problem import Attention
from tuner.families.dense_gemm.problem import DenseGemm
from tuner.families.scans.files import ScanFile, read_scan_file

__all__ = ["FileCheck", "RuntimeFacts", "ServerFile", "check_file", "check_gemm_file", "title"]


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


F = TypeVar("F", bound=ServerFile)


@dataclass(frozen=True)
class RuntimeFacts:
    """What a file is compared with. None: not known yet."""

    engine: str
    engine_version: str
    device: str | None  # as engines write it, e.g. NVIDIA_H200
    triton: str | None
    kernel_hash: Callable[[], str]  # of this engine's kernels; may raise TunerError
    # The numbers of splits that decode launches with.
    kv_splits: Callable[[Attention], frozenset[int] | None] = lambda problem: None


@dataclass(frozen=True)
class FileCheck(Generic[F]):
    """The result for one file."""

    path: Path
    file: F | None  # None: malformed
    reason: str = ""  # why the file is refused; empty: it is used
    waits: tuple[str, ...] = ()  # checks that were not possible here

    @property
    def used(self) -> bool:
        return not self.reason

    def __str__(self) -> str:
        if self.file is None or self.reason:
            return f"refused {self.path}: {self.reason}"
        return f"{self.file.title} from {self.path}{' (predicted)' if self.file.predicted else ''}"


def check_file(path: Path, facts: RuntimeFacts) -> FileCheck[AttentionFile]:
    """Read an attention file and compare it with the facts about this server."""
    return _check(path, read_attention_file, facts, lambda file: _other_splits(file, facts))


def check_gemm_file(
    path: Path, facts: RuntimeFacts, reads: Callable[[DenseGemm], bool] = lambda problem: True
) -> FileCheck[GemmFile]:
    """Read a GEMM file and compare it with the facts about this server.

    `reads`: whether this engine asks for a file for a problem.
    """

    def refusal(file: GemmFile) -> str:
        engine = f"{facts.engine} {facts.engine_version}"
        return "" if reads(file.problem) else f"{engine} asks for no file for such a GEMM"

    return _check(path, read_gemm_file, facts, refusal)


def check_scan_file(path: Path, facts: RuntimeFacts) -> FileCheck[ScanFile]:
    """Read a file of a chunked scan and compare it with the facts about this server."""
    return _check(path, read_scan_file, facts, lambda file: "")


def _check(
    path: Path, read: Callable[[Path], F], facts: RuntimeFacts, refusal: Callable[[F], str]
) -> FileCheck[F]:
    try:
        file = read(path)
    except MalformedConfigFile as error:
        return FileCheck(path, None, str(error).removeprefix(f"{path}: "))
    waits = [
        f"{what} (made for {made})"
        for what, made, known in (
            ("the GPU", file.device, facts.device),
            ("triton", file.triton, facts.triton),
        )
        if known is None
    ]
    reason = _made_elsewhere(file, facts) or refusal(file)
    return FileCheck(path, file, reason, tuple(waits))


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


def _other_splits(file: AttentionFile, facts: RuntimeFacts) -> str:
    splits = facts.kv_splits(file.problem) if file.problem.kv_splits else None
    if splits is None or file.problem.kv_splits in splits:
        return ""
    launched = " or ".join(map(str, sorted(splits)))
    return f"made for {file.problem.kv_splits} KV splits, this server launches {launched}"
