"""Check whether a server may use an attention file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tuner.engines.sglang.plugin.files import AttentionFile, read_attention_file
from tuner.errors import MalformedConfigFile, TunerError
from tuner.families.attention.problem import Attention, Phase
from tuner.problems.results import Status


@dataclass(frozen=True)
class RuntimeFacts:
    """What a file is compared with. None: not known yet."""

    engine: str
    engine_version: str
    device: str | None  # as engines write it, e.g. NVIDIA_H200
    triton: str | None
    kernel_hash: Callable[[], str]  # of this engine's kernels; may raise TunerError
    kv_splits: Callable[[Attention], frozenset[int] | None]  # the numbers that decode launches with


@dataclass(frozen=True)
class FileCheck:
    """The result for one file."""

    path: Path
    file: AttentionFile | None  # None: malformed
    reason: str = ""  # why the file is refused; empty: it is used
    waits: tuple[str, ...] = ()  # checks that were not possible here

    @property
    def used(self) -> bool:
        return not self.reason

    def __str__(self) -> str:
        if self.file is None or self.reason:
            return f"refused {self.path}: {self.reason}"
        predicted = all(e.status is not Status.OK for e in self.file.entries)
        return f"{title(self.file.problem)} from {self.path}{' (predicted)' if predicted else ''}"


def check_file(path: Path, facts: RuntimeFacts) -> FileCheck:
    """Read a file and compare it with the facts about this server."""
    try:
        file = read_attention_file(path)
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
    return FileCheck(path, file, _refusal(file, facts), tuple(waits))


def title(problem: Attention) -> str:
    """A short text for a problem, such as `extend 16/1 576/512 bfloat16`."""
    text = f"{problem.phase.value} {problem.q_heads}/{problem.kv_heads} {problem.Lq}/{problem.Lv}"
    words = [text, problem.dtype.value]
    words += [f"pages of {problem.page_size}"] if problem.page_size > 1 else []
    words += [f"{problem.kv_splits} splits"] if problem.phase is Phase.DECODE else []
    words += [f"window {problem.window}"] if problem.window else []
    words += ["sinks"] if problem.sinks else []
    words += [f"logit cap {problem.logit_cap:g}"] if problem.logit_cap else []
    return " ".join(words)


def _refusal(file: AttentionFile, facts: RuntimeFacts) -> str:
    if file.engine != facts.engine:
        return f"made for {file.engine}, this is {facts.engine}"
    if facts.device not in (None, file.device):
        return f"made for {file.device}, this is {facts.device}"
    if facts.triton not in (None, file.triton):
        return f"made for triton {file.triton}, this is {facts.triton}"
    if file.engine_version != facts.engine_version and (why := _other_kernels(file, facts)):
        return why
    splits = facts.kv_splits(file.problem) if file.problem.phase is Phase.DECODE else None
    if splits is not None and file.problem.kv_splits not in splits:
        launched = " or ".join(map(str, sorted(splits)))
        return f"made for {file.problem.kv_splits} KV splits, this server launches {launched}"
    return ""


def _other_kernels(file: AttentionFile, facts: RuntimeFacts) -> str:
    """Why the file's kernels are not this engine's; empty if both versions have the same."""
    made = f"made for {file.engine} {file.engine_version}"
    try:
        same = facts.kernel_hash() == file.kernel_hash
    except TunerError as error:
        return f"{made}, and the kernels of {facts.engine_version} cannot be compared: {error}"
    return "" if same else f"{made}, whose kernels are not those of {facts.engine_version}"
