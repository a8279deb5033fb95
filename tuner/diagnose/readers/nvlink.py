"""What `nvidia-smi nvlink` shows: fewer active links than a GPU's neighbours have, and errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tuner.diagnose.readers.reading import Reading, Whole
from tuner.diagnose.table import Kind

_GPU = re.compile(r"\bGPU (\d{1,3}): (.+?) \(UUID")
_LINK = re.compile(r"\bLink \d{1,3}: (?:(<inactive>)|[\d.]+ GB/s)")
_ERRORS = re.compile(r"\bLink (\d{1,3}): ((?:Replay|Recovery|CRC|ECC)\b[\w ]*?)s?: (\d{1,20})\b")
_NAMED = 8
_LOST = (
    "Look at errors of the links and of the driver (Xid 74 is NVLink):",
    "$ nvidia-smi nvlink -s; nvidia-smi nvlink -e; sudo dmesg -T | grep -i xid | tail",
    "Reset the GPUs or restart the node; if it stays, seat the bridge or the module anew.",
)


@dataclass
class NvlinkReader:
    """Counts the links of each GPU."""

    opens: Sequence[bytes] = (b"<inactive>", b"ReplayErrors:", b"CRCErrors:", b"RecoveryErrors:")
    marks: Sequence[bytes] = (b"Link", b"(UUID")
    # The model and the links of each GPU, by its log and index: how many are active, and how many
    # there are.
    _gpus: dict[tuple[str, str], tuple[str, int, int]] = field(default_factory=dict)
    _at: tuple[str, str] = ("", "")  # none is named yet
    _where: str = ""
    _errors: dict[str, int] = field(default_factory=dict)  # by GPU, link and kind
    _counted: str = ""  # FILE:LINE of the last of these

    def read(self, line: str, where: str) -> None:
        log = where.rpartition(":")[0]
        if match := _GPU.search(line):
            self._at = log, match[1]
            self._gpus[self._at] = match[2], 0, 0
        elif match := _LINK.search(line):
            name, active, links = self._gpus.get(self._at, ("", 0, 0))
            self._gpus[self._at] = name, active + (not match[1]), links + 1
            self._where = where if match[1] else self._where
        elif (match := _ERRORS.search(line)) and int(match[3]):
            gpu = f"GPU {self._at[1]}, " if self._at[1] else ""
            self._errors[f"{gpu}link {match[1]}, {match[2]}s"] = int(match[3])
            self._counted = where

    def _wrong(self) -> Iterator[Reading]:
        """Links that count errors."""
        worst = sorted(self._errors.items(), key=lambda item: -item[1])[:_NAMED]
        if worst:
            listed = "; ".join(f"{name}: {count:,}" for name, count in worst)
            yield Reading(
                "nvlink_errors",
                Kind.NOTE,
                "NVLinks count errors",
                self._counted,
                [
                    f"{listed}.",
                    "Counts add up since the driver was loaded, and what came wrong is sent again: "
                    "a few are harmless. Many on one link, or counts that grow while a server "
                    "runs, are a bad contact, cable or bridge, and slow all that crosses it.",
                ],
                (
                    "See which counts grow while the server runs:",
                    "$ nvidia-smi nvlink -e; sleep 60; nvidia-smi nvlink -e; "
                    "sudo dmesg -T | grep -i xid | tail",
                    "If one link's counts do, seat its bridge or module anew, or have it replaced.",
                ),
                dict(worst),
            )

    def told(self, whole: Whole) -> Iterator[Reading]:
        """Yield what the counts show beside each other, if a link is inactive, and errors."""
        yield from self._wrong()
        if not self._where:
            return
        counts: dict[str, set[int]] = {}
        for name, active, links in self._gpus.values():
            if links:
                counts.setdefault(name, set()).add(active)
        listed = "; ".join(
            f"{f'GPU {index}' if index else 'one GPU'}: {active} of {links}"
            for (_, index), (_, active, links) in self._gpus.items()
            if links
        )
        differ = any(len(active) > 1 for active in counts.values())
        cause, fix = _compared(counts, len(self._gpus), differ)
        yield Reading(
            "nvlink_inactive",
            Kind.SLOW if differ else Kind.NOTE,
            "a GPU has fewer active NVLinks than another" if differ else "NVLinks are inactive",
            self._where,
            [f"Active links: {listed}.", cause],
            fix,
            {"active": {index: active for (_, index), (_, active, _) in self._gpus.items()}},
        )


def _compared(counts: dict[str, set[int]], gpus: int, differ: bool) -> tuple[str, Sequence[str]]:
    """A sentence on what the counts mean, and steps."""
    if any(len(active - {0}) > 1 for active in counts.values()):
        lost = "A GPU with fewer links than others of its kind has lost some, if no line is cut"
        return f"{lost}: NCCL is then as slow as the worst link.", _LOST
    if differ:
        none = (
            "A GPU without any has no bridge to another card, as built if cards are joined in "
            "pairs and one is left over, or it has lost all: what it sends goes over PCIe."
        )
        return none, ("See which GPUs NVLink joins:", "$ nvidia-smi topo -m", *_LOST)
    if any(active == {0} for active in counts.values()):
        none = "No link is active: there is no bridge, it sits badly, or Fabric Manager is not up."
        return none, (
            "GPUs on a board with NVSwitches need Fabric Manager; other cards need a bridge:",
            "$ systemctl status nvidia-fabricmanager; nvidia-smi topo -m",
        )
    if gpus < 2:
        alone = "Whether some are lost shows beside another GPU of its kind, which is not here."
        return alone, ("Compare all GPUs of the node:", "$ nvidia-smi nvlink -s")
    same = (
        "All GPUs of a kind have as many, so no link seems lost: bridges of PCIe cards and some "
        "boards join only a part of a GPU's links (H100 NVL: 12 of 18)."
    )
    return same, ()
