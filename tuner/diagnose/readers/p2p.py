"""What p2pBandwidthLatencyTest and nvbandwidth measured between the GPUs of a node."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tuner.diagnose.readers.reading import Reading, Whole
from tuner.diagnose.table import Kind

_MATRIX = re.compile(r"\b(Uni|Bi)directional P2P=(Enabled|Disabled) Bandwidth\b")
_OTHER = re.compile(r"\bMatrix\b")
_ROW = re.compile(r"^[#\s]*(\d{1,2})((?:\s+(?:\d{1,5}\.\d{1,3}|N/A)){2,64})\s*$")
_NVBANDWIDTH = re.compile(r"\bRunning device_to_device_(memcpy|bidirectional)\w*")
_RUNNING = re.compile(r"\bRunning \w|^SUM ")
_NONE = re.compile(r"Device=(\d{1,3}) CANNOT Access Peer Device=(\d{1,3})")
_ALIKE = 1.15  # times as fast, which is no gain
_SLOWER = 0.7
_UNEVEN = 2  # times between the fastest and the slowest pair

_THROUGH_HOST = (
    "See why: a card or driver without peer access (most GeForce cards), a virtual machine, or "
    "GPUs below different processors. The first command has the driver's word for each pair:",
    "$ nvidia-smi topo -p2p r; nvidia-smi topo -m",
    "Compare with pipeline parallelism, which sends much less.",
)
_BROKEN = (
    "Direct transfers are turned back to the processor if ACS or the IOMMU is on. Look, and switch "
    "them off (in the BIOS, or with iommu=pt and setpci):",
    "$ sudo lspci -vvv | grep -i acsctl; grep -i iommu /proc/cmdline",
    "Until then start the server with NCCL_P2P_DISABLE=1 and --disable-custom-all-reduce.",
)
_GROUPS = (
    "Let tensor parallelism stay within GPUs that are near each other (CUDA_VISIBLE_DEVICES), and "
    "put pipeline or data parallelism between them. Which these are:",
    "$ nvidia-smi topo -m",
)

_Pairs = dict[tuple[int, int], float]  # GB/s from a GPU to another one


@dataclass
class P2pReader:
    """Keeps the matrices of bandwidth, with direct transfers and without them."""

    opens: Sequence[bytes] = (b"P2P=", b"Runningdevice_to_device")
    marks: Sequence[bytes] = (b"P2P", b"Matrix", b"PeerDevice", b"Running", b"SUM", b".")
    _found: dict[tuple[str, str], _Pairs] = field(default_factory=dict)
    _at: tuple[str, str] | None = None
    _none: list[tuple[str, str]] = field(default_factory=list)  # pairs without peer access
    _where: str = ""

    def read(self, line: str, where: str) -> None:
        if match := _MATRIX.search(line):
            self._at = match[1], match[2]
            self._where = where if match[2] == "Enabled" else self._where
        elif match := _NVBANDWIDTH.search(line):
            self._at, self._where = ("Uni" if match[1] == "memcpy" else "Bi", "Enabled"), where
        elif _OTHER.search(line) or _RUNNING.search(line):
            self._at = None
        elif match := _NONE.search(line):
            self._none.append((match[1], match[2]))
        elif self._at and (match := _ROW.search(line)):
            pairs = self._found.setdefault(self._at, {})
            for to, value in enumerate(match[2].split()):
                if to != int(match[1]) and value != "N/A":
                    pairs[int(match[1]), to] = float(value)

    def told(self, whole: Whole) -> Iterator[Reading]:
        """What direct transfers bring, and how unequal the pairs are."""
        way = next((way for way in ("Uni", "Bi") if (way, "Enabled") in self._found), "")
        direct = self._found.get((way, "Enabled"), {})
        host = self._found.get((way, "Disabled"), {})
        if not direct:
            return
        least, most = min(direct, key=direct.__getitem__), max(direct, key=direct.__getitem__)
        gains = [value / host[pair] for pair, value in direct.items() if host.get(pair)]
        kind, title, fix = _judged(gains, direct[most] / max(direct[least], 1e-3))
        alone = [f"{len(self._none)} directions have no peer access."] if self._none else []
        over = (
            f"; without them {min(host.values()):,.1f} to {max(host.values()):,.1f}" if host else ""
        )
        shown = (
            f"Direct transfers get {direct[least]:,.1f} GB/s (GPU {least[0]} to {least[1]}) to "
            f"{direct[most]:,.1f} (GPU {most[0]} to {most[1]}){over}."
        )
        pace = "Tensor parallelism sends in each layer, and the slowest of its pairs sets the pace."
        figures: Mapping[str, float] = {"least": direct[least], "most": direct[most]}
        yield Reading("p2p", kind, title, self._where, [shown, *alone, pace], fix, dict(figures))


def _judged(gains: Sequence[float], spread: float) -> tuple[Kind, str, Sequence[str]]:
    """What the gains of direct transfers over the host's memory mean, and steps."""
    if gains and min(gains) < _SLOWER:
        return (
            Kind.SLOW,
            "direct transfers between GPUs are slower than those through the host",
            _BROKEN,
        )
    if gains and max(gains) < _ALIKE:
        return Kind.SLOW, "transfers between GPUs go through the host's memory", _THROUGH_HOST
    if spread >= _UNEVEN:
        return (
            Kind.NOTE,
            "direct transfers work, between some GPUs much faster than others",
            _GROUPS,
        )
    return Kind.NOTE, "direct transfers between GPUs work, and all pairs are about as fast", ()
