"""Read the decode lines of servers' logs, without the ones that count time without requests."""

from __future__ import annotations

import re

from tuner.deploy.bench_report.samples import Key, LoadKind, Sample
from tuner.deploy.bench_report.values import samples_of

_DECODE = re.compile(
    r"Decode batch.*?#running-req: (\d{1,9}),.*gen throughput \(token/s\): ([0-9.]{1,20})"
)
# A prompt comes to an idle server. sglang divides the tokens of the next decode line by the time
# since the last decode line, so its throughput counts the time without requests.
_PREFILL = re.compile(r"Prefill batch\b.*?#running-req: (\d{1,9}),")
_RANK = re.compile(r"\b(?:DP\d+ )?(?:TP|PP)\d+[^\]]*")


class Pauses:
    """Tells the decode lines that count time without requests, for each rank of a log."""

    def __init__(self) -> None:
        self.paused: set[str] = set()  # ranks whose next decode line is the first after a pause
        self.left_out = 0

    def feed(self, line: str) -> None:
        match = _PREFILL.search(line)
        if match and match.group(1) == "0":
            self.paused.add(_rank(line))

    def counts(self, line: str) -> bool:
        """Whether a decode line counts a pause."""
        rank = _rank(line)
        if rank not in self.paused:
            return False
        self.paused.discard(rank)
        self.left_out += 1
        return True


def _rank(line: str) -> str:
    found = _RANK.search(line[:100])
    return found.group() if found else ""


def decode_line(line: str, source: str) -> list[Sample]:
    """The throughput that a line of a log says; none if it is no decode line."""
    match = _DECODE.search(line)
    if not match:
        return []
    key = Key(LoadKind.DECODE, int(match.group(1)))
    return samples_of(key, {"decode_throughput": match.group(2)}, source)
