"""Say from a server's log which config files the engine really loaded.

The messages are those of sglang 0.4.4 to 0.5.23 (`get_moe_configs`, the FP8 block kernel, the
plugin registry) and of vLLM (`fused_moe.py`, `fp8_utils.py`). Engines log a file once a process, so
every rank has its own line and ranks may differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from tuner.errors import UnreadableLog


class Outcome(str, Enum):
    """Where a key's configurations came from, best first."""

    LOADED = "loaded"  # the file asked for
    FALLBACK = "fallback"  # the same file of another Triton version
    REUSED = "up file reused"  # no `_down` file: the up file's entries serve both products
    DEFAULT = "default"  # no file: the engine's heuristic
    DETERMINISTIC = "deterministic"  # files are ignored on purpose


_GOOD = (Outcome.LOADED,)
_JSON = r"(?P<{}>\S.*?\.json)"


@dataclass(frozen=True)
class _Message:
    outcome: Outcome
    family: str
    pattern: re.Pattern[str]


def _message(outcome: Outcome, family: str, pattern: str) -> _Message:
    return _Message(outcome, family, re.compile(pattern))


_WANTED = _JSON.format("wanted")
_USED = _JSON.format("used")
_BLOCK = "W8A8 Block FP8 kernel"
# The first that matches counts, so messages that begin alike stand in order of length.
_MESSAGES = (
    _message(
        Outcome.FALLBACK,
        "moe",
        rf"Config file not found at {_WANTED}\. Fallback to triton version (?P<triton>\S+) and use "
        rf"MoE kernel config from {_USED}\.",
    ),
    _message(Outcome.REUSED, "moe", rf"Down MoE config file not found at {_WANTED}; reusing"),
    _message(
        Outcome.REUSED,
        "moe",
        rf"Using MoE kernel config with down_moe=False\. .*Config file not found at {_WANTED}",
    ),
    _message(Outcome.LOADED, "moe", rf"Using MoE kernel config from {_USED}\."),
    _message(Outcome.LOADED, "moe", rf"Using configuration from {_USED} for MoE layer"),
    _message(Outcome.LOADED, "fp8_block", rf"Using configuration from {_USED} for {_BLOCK}"),
    # vLLM lists every place it looked at.
    _message(
        Outcome.DEFAULT,
        "moe",
        r"Using default MoE (?:kernel )?config\. .*Config file not found at (?P<wanted>.+\.json)",
    ),
    _message(
        Outcome.DEFAULT,
        "fp8_block",
        rf"Using default {_BLOCK} config\. .*Config file not found at (?P<wanted>.+\.json)",
    ),
    _message(
        Outcome.DETERMINISTIC,
        "moe",
        r"Deterministic inference is enabled, using default MoE kernel config",
    ),
)
_OVERRIDE = re.compile(
    r"down_moe config BLOCK_SIZE_M=(\d{1,9}) does not match up config BLOCK_SIZE_M=(\d{1,9}) "
    r"at M=(\d{1,9})"
)
_HOOK = re.compile(r"Applied (\d{1,9}) hook\(s\) to (\S+) \(from: (.*)\)")
_HOOK_FAILED = re.compile(r"Failed to (?:apply hooks to|execute general plugin:|load plugin) (\S+)")
_RANK = re.compile(
    r"\[[^\]]*\b((?:DP\d+ )?TP\d+(?: EP\d+)?)\]|\((\w*Worker\w*(?: \w+)? pid=\d+[^)]*)\)"
)
_PLACE = re.compile(r"[^,'\"\s\[][^'\"]*?\.json")  # one of a list of paths
_TRITON = re.compile(r"triton_(\d+(?:_\d+)+)")


@dataclass(frozen=True)
class Load:
    """What became of one config file in the processes that said so."""

    family: str  # moe or fp8_block
    key: str  # the file's name without .json, e.g. E=256,N=64,device_name=NVIDIA_L40S,...
    outcome: Outcome
    wanted: tuple[str, ...]  # paths looked at
    used: str  # path read, or empty
    triton: str  # version whose file was read, where the path or the message tells
    ranks: tuple[str, ...]  # as the log names them; empty where it names none
    lines: tuple[str, ...]  # where it is said: FILE:LINE, or the line's number


@dataclass(frozen=True)
class Override:
    """The down product's BLOCK_SIZE_M was replaced by the up product's."""

    batch_size: int
    down_block_m: int
    up_block_m: int


@dataclass(frozen=True)
class Hook:
    """A plugin's hook on a function of the engine."""

    target: str
    count: int  # 0: it failed
    sources: str


@dataclass(frozen=True)
class LoadProof:
    """What a server's log proves."""

    loads: tuple[Load, ...]
    overrides: tuple[Override, ...]
    hooks: tuple[Hook, ...]

    @property
    def ok(self) -> bool:
        """Files were loaded, all of them the ones asked for, and no hook failed."""
        return bool(self.loads) and not self.problems()

    def problems(self) -> list[str]:
        """One line for each thing that is not as tuned."""
        found = [f"{x.key}: {x.outcome.value}" for x in self.loads if x.outcome not in _GOOD]
        found += [f"hook on {h.target} failed" for h in self.hooks if not h.count]
        found += [
            f"M={o.batch_size}: down BLOCK_SIZE_M {o.down_block_m} replaced by {o.up_block_m}"
            for o in self.overrides
        ]
        outcomes: dict[tuple[str, str], set[Outcome]] = {}
        for load in self.loads:
            outcomes.setdefault((load.family, load.key), set()).add(load.outcome)
        found += [f"{key}: ranks disagree" for (_, key), o in outcomes.items() if len(o) > 1]
        return found

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"ok": self.ok, "problems": self.problems(), **asdict(self)}


def prove_loads(paths: Iterable[Path]) -> LoadProof:
    """Read servers' logs, one or several of the same launch. Raises UnreadableLog."""
    return _proof(_read(paths))


def parse_log(lines: Iterable[str]) -> LoadProof:
    """Take the loader's messages out of a log; other lines are passed over."""
    return _proof((str(number), line) for number, line in enumerate(lines, 1))


def _read(paths: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """(place, line), one by one: a server's log can be larger than the memory."""
    for path in paths:
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                for number, line in enumerate(file, 1):
                    yield f"{path.name}:{number}", line.rstrip("\n")
        except OSError as error:
            raise UnreadableLog(f"{path} cannot be read: {error.strerror}") from None


def _proof(lines: Iterable[tuple[str, str]]) -> LoadProof:
    loads: dict[tuple[str, str, Outcome, str], Load] = {}
    overrides: dict[Override, None] = {}
    hooks: dict[Hook, None] = {}
    for where, line in lines:
        load = _load(line, where)
        if load:
            identity = (load.family, load.key, load.outcome, load.used)
            loads[identity] = _merged(loads.get(identity), load)
        for match in _OVERRIDE.finditer(line):
            down, up, batch_size = (int(g) for g in match.groups())
            overrides[Override(batch_size, down, up)] = None
        for hook in _hooks(line):
            hooks[hook] = None
    return LoadProof(tuple(loads.values()), tuple(overrides), tuple(hooks))


def _load(line: str, where: str) -> Load | None:
    for message in _MESSAGES:
        match = message.pattern.search(line)
        if match:
            found = match.groupdict()
            used = found.get("used") or ""
            wanted = tuple(_PLACE.findall(found.get("wanted") or used))
            name = (wanted or ("",))[0].replace("\\", "/").rpartition("/")[2]
            in_path = _TRITON.search(used)
            triton = found.get("triton") or (in_path.group(1).replace("_", ".") if in_path else "")
            key = name.removesuffix(".json") or "every key"
            ranks = tuple(g for m in _RANK.finditer(line[:200]) for g in m.groups() if g)
            return Load(
                message.family, key, message.outcome, wanted, used, triton, ranks[:1], (where,)
            )
    return None


def _merged(old: Load | None, new: Load) -> Load:
    if old is None:
        return new
    ranks = tuple(dict.fromkeys((*old.ranks, *new.ranks)))
    places = tuple(dict.fromkeys((*old.wanted, *new.wanted)))
    lines = (*old.lines, *new.lines)
    return Load(old.family, old.key, old.outcome, places, old.used, old.triton, ranks, lines)


def _hooks(line: str) -> Iterator[Hook]:
    applied = _HOOK.search(line)
    if applied:
        yield Hook(applied.group(2), int(applied.group(1)), applied.group(3))
    failed = _HOOK_FAILED.search(line)
    if failed:
        yield Hook(failed.group(1), 0, "")


def render_proof(proof: LoadProof) -> str:
    """The proof as text for a terminal."""
    lines = []
    if not proof.loads:
        lines.append("no config file's message is in this log: the kernel was not reached yet, or")
        lines.append("the log level hides it (files that load are logged at INFO)")
    for load in proof.loads:
        lines.append(f"{load.outcome.value:15} {load.family:9} {load.key}")
        lines += [f"{'':16}{text}" for text in _details(load)]
    for override in proof.overrides:
        lines.append(
            f"{'override':15} M={override.batch_size}: down BLOCK_SIZE_M "
            f"{override.down_block_m} -> {override.up_block_m}, the up file's"
        )
    for hook in proof.hooks:
        state = f"{hook.count} hook(s), from {hook.sources}" if hook.count else "FAILED"
        lines.append(f"{'plugin':15} {hook.target}: {state}")
    if not proof.hooks:
        lines.append(f"{'plugin':15} no hook was applied")
    problems = proof.problems()
    verdict = "as tuned" if proof.ok else f"not as tuned: {len(problems)} problem(s)"
    return "\n".join(_printable(line) for line in [*lines, verdict]) + "\n"


def _details(load: Load) -> Iterator[str]:
    if load.used:
        yield f"read {load.used}" + (f" (Triton {load.triton})" if load.triton else "")
    if load.outcome is not Outcome.LOADED:
        for path in load.wanted:
            yield f"not found: {path}"
    yield f"{len(load.lines)} line(s)" + (f", {', '.join(load.ranks)}" if load.ranks else "")


def _printable(line: str) -> str:
    return "".join(c if c.isprintable() else " " for c in line)
