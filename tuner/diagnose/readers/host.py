"""What `free` and `lsmod` show of a host: little memory, and no module for GPUDirect RDMA."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tuner.diagnose.readers.reading import Reading, Whole, of_load

_MEMORY = re.compile(r"^\s*Mem:((?:\s+[\d.]+[KMGTBi]*){6})\s*$")
_MODULE = re.compile(r"^\s*(nvidia\w*|nv_peer_mem)\s+\d+\s+\d+")
_PEER = {"nvidia_peermem", "nv_peer_mem"}
_LITTLE = 0.05  # of the memory


@dataclass
class HostReader:
    """Keeps the row of memory, and the names of NVIDIA's modules."""

    opens: Sequence[bytes] = (b"buff/cache", b"nvidia_uvm")
    marks: Sequence[bytes] = (b"buff/cache", b"Mem:", b"nvidia", b"nv_peer_mem")
    _memory: tuple[float, float] | None = None  # total, available, in one unit
    _modules: set[str] = field(default_factory=set)
    _at: dict[str, str] = field(default_factory=dict)  # FILE:LINE of each kind

    def read(self, line: str, where: str) -> None:
        if match := _MEMORY.match(line):
            total, *_, available = match[1].split()
            self._memory = _size(total), _size(available)
            self._at["memory"] = where
        elif match := _MODULE.match(line):
            self._modules.add(match[1])
            self._at["modules"] = where

    def told(self, whole: Whole) -> Iterator[Reading]:
        if self._memory and self._memory[1] < _LITTLE * self._memory[0]:
            percent = 100 * self._memory[1] / self._memory[0]
            yield of_load("host_memory", self._at["memory"], "", {"percent": percent})
        if {"nvidia", "nvidia_uvm"} <= self._modules and not self._modules & _PEER:
            yield of_load("no_peermem", self._at["modules"], "", {})


def _size(text: str) -> float:
    """A size of `free`, in bytes of its unit; KiB if it has none."""
    number, unit = re.match(r"([\d.]+)(\w?)", text).groups()  # type: ignore[union-attr]
    return float(number) * 1024.0 ** "KMGTP".find(unit or "K")
