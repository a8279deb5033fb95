"""What a server's log proves, as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

EVERY_KEY = "every key"
ATTENTION = "attention"  # the family of the files that this package's plugin reads


class LoadOutcome(str, Enum):
    """Where a key's configurations came from, best first."""

    LOADED = "loaded"  # the file asked for
    FALLBACK = "fallback"  # the same file of another Triton version
    REUSED = "up file reused"  # no `_down` file: the up file's entries serve both products
    REFUSED = "refused"  # attention: made for something else; a folder may hold such files
    DEFAULT = "default"  # no file: the engine's own choice
    DETERMINISTIC = "deterministic"  # files are ignored on purpose
    MALFORMED = "malformed"  # attention: no file that could be read
    FAILED = "failed"  # attention: the plugin could not do its work


# A refused file is no trouble by itself: another one may serve in its place.
_GOOD = (LoadOutcome.LOADED, LoadOutcome.REFUSED)


@dataclass(frozen=True)
class FileLoad:
    """What became of one config file in the processes that said so."""

    family: str  # moe, fp8_block or attention
    key: str  # the file's name without .json, e.g. E=256,N=64,device_name=NVIDIA_L40S,...
    outcome: LoadOutcome
    wanted: tuple[str, ...]  # paths looked at
    used: str  # path read, or empty
    triton: str  # version whose file was read, where the path or the message tells
    ranks: tuple[str, ...]  # as the log names them; empty where it names none
    lines: tuple[str, ...]  # where it is said: FILE:LINE, or the line's number
    reason: str = ""  # attention: what the plugin says of it


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

    loads: tuple[FileLoad, ...]
    overrides: tuple[Override, ...]
    hooks: tuple[Hook, ...]

    @property
    def ok(self) -> bool:
        """Files were loaded, all of them the ones asked for, and no hook failed."""
        return (
            any(load.outcome is LoadOutcome.LOADED for load in self.loads) and not self.problems()
        )

    def problems(self) -> list[str]:
        """One line for each thing that is not as tuned."""
        found = [_trouble(x) for x in self.loads if x.outcome not in _GOOD]
        found += _unserved(self.loads)
        found += [f"hook on {h.target} failed" for h in self.hooks if not h.count]
        found += [
            f"M={o.batch_size}: down BLOCK_SIZE_M {o.down_block_m} replaced by {o.up_block_m}"
            for o in self.overrides
        ]
        outcomes: dict[tuple[str, str], set[LoadOutcome]] = {}
        for load in self.loads:
            outcomes.setdefault((load.family, load.key), set()).add(load.outcome)
        found += [f"{key}: ranks disagree" for (_, key), o in outcomes.items() if len(o) > 1]
        return found

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"ok": self.ok, "problems": self.problems(), **asdict(self)}


def merged(loads: Iterable[FileLoad]) -> tuple[FileLoad, ...]:
    """Each file once an outcome, with all ranks and lines that say so."""
    found: dict[tuple[str, ...], FileLoad] = {}
    for new in loads:
        identity = new.family, new.key, new.outcome.value, new.used, new.reason
        old = found.get(identity)
        found[identity] = _both(old, new) if old else new
    return tuple(found.values())


def _both(old: FileLoad, new: FileLoad) -> FileLoad:
    ranks = tuple(dict.fromkeys((*old.ranks, *new.ranks)))
    places = tuple(dict.fromkeys((*old.wanted, *new.wanted)))
    lines = (*old.lines, *new.lines)
    return FileLoad(
        *(old.family, old.key, old.outcome, places, old.used, old.triton, ranks, lines, old.reason)
    )


def _trouble(load: FileLoad) -> str:
    name = f"{ATTENTION}: {load.key}" if load.family == ATTENTION else load.key
    return ": ".join(text for text in (name, load.outcome.value, load.reason) if text)


def _unserved(loads: Iterable[FileLoad]) -> Iterator[str]:
    """Phases of attention for which there are files, of which none is used."""
    served: dict[str, list[FileLoad]] = {}
    for load in loads:
        if load.family == ATTENTION and load.outcome in _GOOD:
            served.setdefault(load.key.partition(",")[0], []).append(load)
    for phase, some in served.items():
        if all(load.outcome is LoadOutcome.REFUSED for load in some):
            reasons = dict.fromkeys(load.reason for load in some)
            yield f"{phase}: every file was refused: {'; '.join(reasons)}"
