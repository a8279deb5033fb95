"""Describe kernels of sgl-kernel that are compiled ahead: which cards have them, which tiles fit.

They read no file, so nothing can be tuned. A server finds out at its first batch of a size whose
tile is too large. compiled_kernels.toml has the tiles and their source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tuner.devices.table import Device
from tuner.engines.engine import version_order
from tuner.files import shipped_toml
from tuner.problems.points import Problem


@dataclass(frozen=True)
class Tile:
    """The tile of a kernel for problems up to a number of rows and columns of C."""

    tile: tuple[int, int, int]  # rows, columns and reduced length of one block, in elements
    stages: int | None  # None: as many as fit
    element_bytes: int
    m_to: float = math.inf
    n_to: float = math.inf

    @property
    def shared_bytes(self) -> int | None:
        """Return the shared memory of a block; None if the kernel takes as many stages as fit."""
        m, n, k = self.tile
        return self.stages * (m + n) * k * self.element_bytes if self.stages else None

    def fits(self, device: Device) -> bool:
        return self.shared_bytes is None or self.shared_bytes <= device.shared_optin_bytes


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel of sgl-kernel and its tables of tiles."""

    name: str
    source: str
    k_multiple: int
    n_multiple: int
    cards: Sequence[Mapping[str, Any]]
    tables: Mapping[str, Sequence[Tile]]

    def tiles(self, version: str, device: Device) -> Sequence[Tile]:
        """Return the tiles of a card in a version of sglang; none if the card has no kernel."""
        newest = version_order(version)
        known = [
            card
            for card in self.cards
            if device.target.name in card["on"] and version_order(card["since"]) <= newest
        ]
        if not known:
            return ()
        last = max(known, key=lambda card: version_order(card["since"]))
        return self.tables[last["table"]]

    def tile(self, version: str, device: Device, m: int, n: int) -> Tile | None:
        """Return the tile for C of m rows and n columns; None if the card has no kernel."""
        rows = (row for row in self.tiles(version, device) if m <= row.m_to and n <= row.n_to)
        return next(rows, None)

    def sizes_too_large(self, version: str, device: Device, n: int) -> list[tuple[int, int, Tile]]:
        """List (first m, last m, tile) for which the tile does not fit, at n columns of C."""
        found: list[tuple[int, int, Tile]] = []
        first = 1
        for last in sorted({row.m_to for row in self.tiles(version, device)} - {math.inf}):
            tile = self.tile(version, device, first, n)
            if tile is not None and not tile.fits(device):
                again = found and found[-1][1] == first - 1 and found[-1][2].tile == tile.tile
                found.append((found.pop()[0] if again else first, int(last), tile))
            first = int(last) + 1
        return found


def compiled_kernel(name: str) -> CompiledKernel:
    """Return the kernel of that name in compiled_kernels.toml."""
    return _kernels()[name]


def refusals(name: str, version: str, problem: Problem, device: Device) -> list[str]:
    """Say in sentences why a kernel cannot run a dense GEMM (N, K) on a device; none if it can."""
    kernel = compiled_kernel(name)
    if not kernel.tiles(version, device):
        return [
            f"{name} is not built for {device.target.name}, so a server stops at its first batch"
        ]
    N, K = int(vars(problem)["N"]), int(vars(problem)["K"])
    found = []
    for axis, value, multiple in (("K", K, kernel.k_multiple), ("N", N, kernel.n_multiple)):
        if value % multiple:
            found.append(f"{name} refuses {axis}={value}: it is no multiple of {multiple}")
    for first, last, tile in kernel.sizes_too_large(version, device, N):
        found.append(
            f"{name} fails at batch sizes {first} to {last}: its tile needs {tile.shared_bytes:,} "
            f"bytes of shared memory, and a block has {device.shared_optin_bytes:,}"
        )
    return found


@cache
def _kernels() -> Mapping[str, CompiledKernel]:
    values = shipped_toml("tuner.engines.sglang", "compiled_kernels.toml")
    return {name: _kernel(name, row) for name, row in values.items()}


def _kernel(name: str, row: Mapping[str, Any]) -> CompiledKernel:
    def tile(values: Mapping[str, Any]) -> Tile:
        m, n, k = values["tile"]
        stages = None if values.get("auto_stages") else int(values["stages"])
        limits = {key: values[key] for key in ("m_to", "n_to") if key in values}
        return Tile((m, n, k), stages, row["element_bytes"], **limits)

    return CompiledKernel(
        name=name,
        source=row["source"],
        k_multiple=row["k_multiple"],
        n_multiple=row["n_multiple"],
        cards=row["cards"],
        tables={table: [tile(values) for values in rows] for table, rows in row["tables"].items()},
    )
