"""Read and look up the table of KV splits in a decode file: the parts of each sequence's cache.

The numbers are looked up by the number of sequences and by a sequence's length. This module needs
only the standard library, because it runs inside a server.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.bindings.sglang.plugin.json_fields import whole_field
from tuner.errors import MalformedConfigFile
from tuner.export.file_checks import SERVED_OCTAVES

MOST = 1024  # a larger number in a file is a mistake


@dataclass(frozen=True)
class SplitsRow:
    """The numbers of splits for a number of sequences."""

    batch_size: int  # sequences
    room: int  # the most splits of a sequence that a launch has room for; 0: the engine's own rule
    by_length: tuple[tuple[int, int], ...]  # (cached tokens, splits), the shortest first

    @property
    def engines(self) -> bool:
        """Say whether the engine's own rule stays."""
        return not self.room

    def at(self, cached_tokens: int) -> int:
        """Return the number for the nearest length, by ratio."""
        bounds = _between([length for length, _ in self.by_length])
        return self.by_length[bisect_right(bounds, cached_tokens)][1]


@dataclass(frozen=True)
class SplitsTable:
    """The rows by number of sequences, the smallest first."""

    rows: tuple[SplitsRow, ...]

    @property
    def most(self) -> int:
        """Return the most splits that a launch has room for; 0 if no row has numbers."""
        return max((row.room for row in self.rows), default=0)

    @property
    def chosen(self) -> tuple[SplitsRow, ...]:
        """Return the rows that have numbers."""
        return tuple(row for row in self.rows if not row.engines)

    def row(self, batch_size: int) -> SplitsRow:
        """Return the row of the nearest number of sequences by ratio; of two, the smaller.

        If no row is near, return a row that says that the engine's own rule stays.
        """

        def distance(row: SplitsRow) -> tuple[float, int]:
            return abs(math.log2(row.batch_size / batch_size)), row.batch_size

        nearest = min(self.rows, key=distance)
        far = distance(nearest)[0] > SERVED_OCTAVES
        return SplitsRow(batch_size, 0, ()) if far else nearest

    def grid(self) -> Grid:
        """Return the numbers of the `chosen` rows on a common grid of lengths."""
        rows = self.chosen
        lengths = sorted(
            {bound for row in rows for bound in _between([n for n, _ in row.by_length])}
        )
        starts = [0, *lengths]
        return Grid(
            rows=_between([row.batch_size for row in rows]),
            lengths=lengths,
            numbers=[[row.at(start) for start in starts] for row in rows],
        )

    def as_json(self) -> list[dict[str, Any]]:
        return [
            {
                "batch_size": row.batch_size,
                "room": row.room,
                "by_cached_tokens": {str(length): splits for length, splits in row.by_length},
            }
            for row in self.rows
        ]


@dataclass(frozen=True)
class Grid:
    """A table as thresholds: a value has as many thresholds at or below it as its index."""

    rows: Sequence[int]  # thresholds of the number of sequences
    lengths: Sequence[int]  # thresholds of the cached tokens
    numbers: Sequence[Sequence[int]]  # by row, by length


def read_splits(rows: object) -> SplitsTable:
    """Read `SplitsTable.as_json`. Raises MalformedConfigFile."""
    if not isinstance(rows, list) or not rows:
        raise MalformedConfigFile("kv_splits must be a list of rows")
    table = SplitsTable(tuple(_row(row, f"kv_splits row {i}") for i, row in enumerate(rows)))
    sizes = [row.batch_size for row in table.rows]
    if sizes != sorted(set(sizes)):
        raise MalformedConfigFile("kv_splits must have each batch_size once, the smallest first")
    return table


def _row(row: object, where: str) -> SplitsRow:
    if not isinstance(row, dict):
        raise MalformedConfigFile(f"{where} must be an object")
    room = whole_field(row, "room", where, least=0)
    if room > MOST:
        raise MalformedConfigFile(f"{where}: room must be at most {MOST}, not {room}")
    by_length = row.get("by_cached_tokens")
    if not isinstance(by_length, dict) or bool(by_length) != bool(room):
        raise MalformedConfigFile(
            f"{where}: by_cached_tokens must be an object, which is empty if room is 0"
        )
    found = SplitsRow(
        whole_field(row, "batch_size", where), room, tuple(_lengths(by_length, where))
    )
    if any(splits > room for _, splits in found.by_length):
        raise MalformedConfigFile(f"{where} has more splits than its room of {room}")
    lengths = [length for length, _ in found.by_length]
    if lengths != sorted(set(lengths)):
        raise MalformedConfigFile(f"{where} must have the shortest length first")
    return found


def _lengths(by_length: Mapping[str, object], where: str) -> Iterable[tuple[int, int]]:
    for length, splits in by_length.items():
        if not length.isascii() or not length.isdigit() or not int(length):
            raise MalformedConfigFile(f"{where}: {length[:50]!r} is no number of cached tokens")
        yield int(length), whole_field({"splits": splits}, "splits", where)


def _between(sizes: Sequence[int]) -> list[int]:
    """Return the least whole numbers that are nearer to the next size, by ratio."""
    pairs = zip(sizes, sizes[1:], strict=False)
    return [math.isqrt(small * large) + 1 for small, large in pairs]
