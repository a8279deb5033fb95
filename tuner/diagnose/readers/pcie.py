"""Whether GPUs have fewer PCIe lanes than they could, by `nvidia-smi -q`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tuner.diagnose.readers.reading import Reading, Whole, of_load

_GPU = re.compile(r"^\s*GPU ([0-9A-Fa-f]{8}:[0-9A-Fa-f:.]+|\d{1,3}\b)")
_PART = re.compile(r"^\s*(PCIe Generation|Link Width)\s*$")
_VALUE = re.compile(r"^\s*(Max|Current)\s*:\s*(\d{1,2})x?\s*$")


@dataclass
class PcieReader:
    """Keeps the width of each GPU's link: the largest, and what it is now."""

    opens: Sequence[bytes] = (b"LinkWidth", b"GPULinkInfo", b"GPU0000")
    marks: Sequence[bytes] = (b"GPU", b"PCIeGeneration", b"LinkWidth", b"Max:", b"Current:")
    _gpu: str = ""
    _part: str = ""
    _widths: dict[str, dict[str, int]] = field(default_factory=dict)
    _where: str = ""

    def read(self, line: str, where: str) -> None:
        if match := _GPU.match(line):
            self._gpu, self._part = match[1], ""
        elif match := _PART.match(line):
            self._part = match[1]
        elif self._part == "Link Width" and (match := _VALUE.match(line)):
            self._widths.setdefault(self._gpu, {})[match[1]] = int(match[2])
            self._where = where

    def told(self, whole: Whole) -> Iterator[Reading]:
        """GPUs with fewer lanes than they could have. A link's generation falls while it rests."""
        few = [
            f"GPU {gpu or '(its line is not here)'}: x{width['Current']} of x{width['Max']}"
            for gpu, width in self._widths.items()
            if width.get("Current", 99) < width.get("Max", 0)
        ]
        if few:
            yield of_load("pcie_few_lanes", self._where, "", {"listed": "; ".join(few)})
