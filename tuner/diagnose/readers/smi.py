"""What nvidia-smi's table shows of GPUs at work: which wait, and for which."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tuner.diagnose.readers.reading import Reading, Whole, of_load

_GPU = re.compile(
    r"\|\s+(\d{1,3})\s{2,}\S.*?\b[0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]+\s+\w+\s+\|\s+(\S+) \|"
)
_USE = re.compile(
    r"P\d+\s+(\d+)W / +(\d+)W \|\s+(\d+)MiB / +(\d+)MiB \|\s+(\d{1,3})%\s+(?:Default|E\. )"
)
_BUSY = 95  # % of the time a kernel runs
# Of its power limit, W. A kernel that computes or reads memory takes more, one that waits less.
_WAITS = 0.2
_HELD = 0.5  # of the memory: a server is loaded


@dataclass
class SmiReader:
    """Keeps the last use, power and memory of each GPU."""

    opens: Sequence[bytes] = (b"GPU-Util",)
    marks: Sequence[bytes] = (b"|",)
    _at: str = ""
    _ecc: dict[str, int] = field(default_factory=dict)
    # Of each GPU: % of use, part of the power limit, part of the memory in use.
    _gpus: dict[str, tuple[int, float, float]] = field(default_factory=dict)
    _where: str = ""

    def read(self, line: str, where: str) -> None:
        if match := _GPU.search(line):
            self._at = match[1]
            self._ecc[self._at] = int(match[2]) if match[2].isdigit() else 0
        elif self._at and (match := _USE.search(line)):
            power, limit, used, memory, use = map(int, match.groups())
            self._gpus[self._at] = use, power / max(1, limit), used / max(1, memory)
            self._where, self._at = where, ""

    def told(self, whole: Whole) -> Iterator[Reading]:
        """Errors of memory; and which GPUs wait, if no message says why the server stopped."""
        bad = [f"GPU {gpu}: {count:,}" for gpu, count in self._ecc.items() if count]
        if bad:
            yield self._of("smi_errors", {"listed": ", ".join(bad)})
        if whole.stops or whole.failed:
            return
        loaded = {gpu: one for gpu, one in self._gpus.items() if one[2] >= _HELD}
        waits = [gpu for gpu, (use, power, _) in loaded.items() if use >= _BUSY and power < _WAITS]
        idle = [gpu for gpu, (use, *_) in loaded.items() if use == 0]
        if waits and len(waits) + len(idle) == len(loaded) > 1:
            values = {"waits": _named(waits), "idle": _named(idle), "gpus": len(waits)}
            yield self._of("smi_waits", values, "some" if idle else "all")
        elif idle and len(idle) == len(loaded):
            yield self._of("smi_idle", {"gpus": len(idle)})

    def _of(self, name: str, values: Mapping[str, object], *when: str) -> Reading:
        return of_load(name, self._where, "", values, *when)


def _named(gpus: Sequence[str]) -> str:
    return ", ".join(gpus)
