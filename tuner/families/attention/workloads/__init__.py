"""Read workloads: the batches that attention is tuned for, as points with weights.

A workload is a TOML file. The files of the named uses lie beside this module.

    [[point]]
    batch_size = 4        # sequences
    new_tokens = 512      # of the longest sequence; without it this is a decode batch
    cached_tokens = 4096  # average per sequence; default 0, but required for decode
    weight = 2.0          # default 1
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from tuner.errors import MalformedWorkload, did_you_mean
from tuner.families.attention.problem import Attention, AttentionPhase
from tuner.files import Table, parse_toml, read_limited, shipped_toml

USES = ("chat", "long-context", "offline")
USUAL = "chat"
MAX_BATCH, MAX_NEW, MAX_CACHED, MAX_WEIGHT = 4096, 1 << 17, 1 << 21, 1e6
_MAX_BYTES = 1 << 20
MAX_POINTS = 256  # every configuration is measured at every point


@dataclass(frozen=True)
class WorkPoint:
    """A batch and its weight."""

    batch_size: int  # sequences
    new_tokens: int  # of the longest sequence; 1: a decode batch
    cached_tokens: int  # average per sequence
    weight: float = 1.0

    @property
    def size(self) -> tuple[int, int, int]:
        return self.batch_size, self.new_tokens, self.cached_tokens

    @property
    def decodes(self) -> bool:
        return self.new_tokens == 1


@dataclass(frozen=True)
class Workload:
    """The batches of a use, for all phases or for one phase."""

    name: str  # the use, or the file
    points: tuple[WorkPoint, ...]

    def of(self, phase: AttentionPhase) -> Workload:
        """Return the points of a phase. Prefill has extend's points without cached tokens.

        Raises MalformedWorkload if there are no such points.
        """
        points = tuple(p for p in self.points if p.decodes == (phase is AttentionPhase.DECODE))
        if phase is AttentionPhase.PREFILL:
            points = tuple(p for p in points if not p.cached_tokens)
        if not points:
            raise MalformedWorkload(f"{self.name} has no point of {phase.value}: {_NEEDS[phase]}")
        return Workload(self.name, points)

    def for_problem(self, problem: Attention) -> Workload:
        """Return the points at which an engine runs the problem.

        With a sliding window, sglang passes only the window's cached tokens to the kernel. It runs
        latent (MLA) attention with separate keys per head only if nothing is cached. Raises
        MalformedWorkload if there are no points.
        """
        points: Iterable[WorkPoint] = self.of(problem.phase).points
        if problem.phase is AttentionPhase.EXTEND and _is_unabsorbed(problem):
            points = [p for p in points if not p.cached_tokens] or points
        if problem.window:
            points = [
                replace(p, cached_tokens=min(p.cached_tokens, problem.window)) for p in points
            ]
        return Workload(self.name, _merged(points))


def usual_workload(phase: AttentionPhase) -> Workload:
    """Return the points of the default use at a phase."""
    return default_workload(phase, USUAL)


def default_workload(phase: AttentionPhase, use: str) -> Workload:
    """Return the points of a use at a phase. Raises MalformedWorkload, which names the nearest
    use.
    """
    if use not in USES:
        raise MalformedWorkload(_unknown(use))
    return _shipped(use).of(phase)


def parse_workload(text: str) -> str | Workload:
    """Return the name of a use (chat, long-context, offline), or the workload of a TOML file.

    Raises MalformedWorkload, which names the nearest use, or the field.
    """
    if text in USES:
        return text
    if text.endswith(".toml") or "/" in text:
        return read_workload(Path(text))
    raise MalformedWorkload(
        f"{_unknown(text)}; a file is named by an existing path such as ./server.log"
    )


def read_points(values: object) -> tuple[WorkPoint, ...]:
    """Read points from a list of TOML tables or JSON objects. Raises MalformedWorkload."""
    if not isinstance(values, list):
        raise MalformedWorkload("write [[point]], with two brackets, for each point")
    if not 0 < len(values) <= MAX_POINTS:
        raise MalformedWorkload(f"{len(values)} points are not 1 to {MAX_POINTS}")
    points = tuple(_point(value, f"point {i + 1}") for i, value in enumerate(values))
    sizes = [point.size for point in points]
    for i, size in enumerate(sizes):
        if size in sizes[:i]:
            raise MalformedWorkload(f"point {i + 1} is point {sizes.index(size) + 1} again")
    return points


def read_workload(path: Path) -> Workload:
    """Read a workload's TOML file. Raises MalformedWorkload, which names the field."""
    data = read_limited(path, _MAX_BYTES, "workload", MalformedWorkload)
    table = parse_toml(data, str(path), MalformedWorkload)
    try:
        return Workload(str(path), _points(table))
    except MalformedWorkload as error:
        raise MalformedWorkload(f"{path}: {error}") from None


@cache
def _shipped(use: str) -> Workload:
    return Workload(use, _points(shipped_toml("tuner.families.attention.workloads", f"{use}.toml")))


def _points(values: Mapping[str, Any]) -> tuple[WorkPoint, ...]:
    table = Table(values, "", MalformedWorkload)
    rows = table.take("point")
    table.done()
    return read_points(rows)


def _point(values: object, where: str) -> WorkPoint:
    table = Table(values, where, MalformedWorkload)
    batch_size = table.whole("batch_size", 1, MAX_BATCH)
    new_tokens = table.whole("new_tokens", 1, MAX_NEW, 1)
    # At decode a sequence has at least one cached token, so there is no default.
    least = 1 if new_tokens == 1 else 0
    cached_tokens = table.whole("cached_tokens", least, MAX_CACHED, None if least else 0)
    weight = table.take("weight", 1.0)
    table.done()
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise MalformedWorkload(f"{where}.weight must be a number, not {weight!r:.60}")
    if not 0 < weight <= MAX_WEIGHT:  # also refuses NaN
        raise MalformedWorkload(
            f"{where}.weight must be more than 0 and at most {MAX_WEIGHT:g}, not {weight!r:.60}"
        )
    return WorkPoint(batch_size, new_tokens, cached_tokens, float(weight))


def _is_unabsorbed(problem: Attention) -> bool:
    """Say whether the shape looks like latent attention before absorption."""
    return problem.group == 1 and problem.Lq != problem.Lv


def _merged(points: Iterable[WorkPoint]) -> tuple[WorkPoint, ...]:
    """Merge points of the same size and add up their weights."""
    weights: dict[tuple[int, int, int], float] = {}
    for point in points:
        weights[point.size] = weights.get(point.size, 0.0) + point.weight
    return tuple(WorkPoint(*size, weight) for size, weight in weights.items())


def _unknown(use: str) -> str:
    near = did_you_mean(use, USES) or f"; the uses are {', '.join(USES)}"
    return f"no use is called {use[:200]!r}{near}"


_NEEDS = {
    AttentionPhase.EXTEND: "give a point new_tokens, 2 or more",
    AttentionPhase.PREFILL: "give a point new_tokens, 2 or more, and no cached_tokens",
    AttentionPhase.DECODE: "leave new_tokens out of a point",
}
