"""How the rate of decode goes on from line to line: it falls, or requests are put back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from tuner.diagnose.readers.reading import Reading, of_load
from tuner.engines.logs.lines import rank_of
from tuner.engines.logs.workload import LoadLine

_FALLEN = 10  # times below the usual rate
_FULL = 0.9  # of the KV cache
_LEAST_LINES = 2
_MOST_KEPT = 10_000
# More of the KV cache from line to line than so few tokens fill, so that a prompt does.
_PROMPT_FILLS = 0.003
_NO_PROMPT = re.compile(r"Avg prompt throughput: 0\.0 ")
_BACK = re.compile(r"Retract requests|#retracted_reqs:")
_AGAIN = re.compile(r"Prefill batch\b.*?#new-token: (\d{1,9})")
_PARTNER = re.compile(r"(#(?:unbootstrapped|bootstrap|prealloc)-req): (\d{1,7})")
_ALIKE = 1.2  # times as many requests, which are as good as equally many
_SLOWER = 1.3  # times, which is more than noise
_LONGER = 10  # % of the KV cache more
_MANY = 10  # requests that wait
_LESS = 0.7  # of the rate before, which is a fall


@dataclass
class Stall:
    """Lines in a row with far fewer tokens than the others, while no prompt was added."""

    lines: list[tuple[LoadLine, str]] = field(default_factory=list)  # and FILE:LINE
    _prompts: set[int] = field(default_factory=set)  # the numbers of lines that a prompt precedes

    def prompt(self, line: str, prefill: bool) -> None:
        """Note that a prompt was computed before the next line of decode."""
        if prefill or ("Avg prompt" in line and not _NO_PROMPT.search(line)):
            self._prompts.add(len(self.lines))

    def read(self, load: LoadLine, where: str) -> None:
        if load.speed is not None and len(self.lines) < _MOST_KEPT:
            self.lines.append((load, where))

    def told(self, engine: str) -> Iterator[Reading]:
        """The longest such row, if nothing that the lines show is the reason."""
        if len(self.lines) <= _LEAST_LINES:
            return
        # The second highest: one line alone shows little.
        speed = sorted(load.speed or 0 for load, _ in self.lines)[-2]
        each = sorted((load.speed or 0) / load.running for load, _ in self.lines)[-2]
        rows: list[list[int]] = [[]]
        for at, (load, _) in enumerate(self.lines):
            # Of all, too: one of many requests that is left gets more than it did, and all less.
            low = (load.speed or 0) * _FALLEN < min(speed, each * load.running)
            if not low or at in self._prompts:
                rows.append([])
            if low and at not in self._prompts:
                rows[-1].append(at)
        row = max(rows, key=len)
        slow = [self.lines[at][0] for at in row]
        if sum(bool(load.speed) for load in slow) < _LEAST_LINES:
            return
        used = [load.used for load in slow if load.used is not None]
        fills = bool(used) and used[-1] - used[0] >= _PROMPT_FILLS * max(1, len(used) - 1)
        quick = [
            load.running
            for at, (load, _) in enumerate(self.lines)
            if at not in self._prompts and (load.speed or 0) * _FALLEN >= speed
        ]
        # vLLM counts a prompt when it is done.
        prompt = engine == "vllm" and row[-1] + 1 in self._prompts and not fills
        if max(used, default=0) >= _FULL or prompt:
            return
        waiting = max(load.waiting or 0 for load in slow)
        values = {
            **{"lines": len(slow), "usual": speed, "running": max(load.running for load in slow)},
            "tokens_per_s": max(load.speed or 0 for load in slow),
            "queue": f"up to {waiting} wait" if waiting else "none waits",
            "percent": 100 * max(used, default=0),
            **({"first": 100 * used[0], "last": 100 * used[-1]} if used else {}),
        }
        more = min(load.running for load in slow) > max(quick, default=_MOST_KEPT)
        when = ["fills"] if fills else ["unknown", *(["more"] * more)]
        yield of_load("decode_stalls", self.lines[row[-1]][1], engine, values, *when)


def prompts_alone(
    beside: Sequence[tuple[LoadLine, float]], lines: int, where: str
) -> Iterator[Reading]:
    """Prompts of vLLM that are computed in each line, while no token comes."""
    few = len(beside) < max(_LEAST_LINES, lines)
    if few or any(load.speed or load.waiting for load, _ in beside):
        return
    rate = median(prompt for _, prompt in beside)
    running = max(load.running for load, _ in beside)
    values = {"lines": len(beside), "prompt": rate, "running": running, "seconds": 10_000 / rate}
    yield of_load("prompts_alone", where, "vllm", values)


def falls(lines: Sequence[tuple[LoadLine, str]], engine: str) -> Iterator[Reading]:
    """A rate that falls from line to line as texts of the same number of requests get longer."""
    loads = [load for load, _ in lines]
    speeds = [load.speed or 0 for load in loads]
    if len(loads) <= _LEAST_LINES or speeds != sorted(speeds, reverse=True) or not speeds[-1]:
        return
    running = [load.running for load in loads]
    used = [100 * (load.used or 0) for load in loads]
    alike = max(running) <= _ALIKE * min(running)
    if alike and speeds[0] >= _SLOWER * speeds[-1] and used[-1] - used[0] >= _LONGER:
        values = {"running": max(running), "fast": speeds[0], "slow": speeds[-1]}
        values |= {"first": used[0], "last": used[-1]}
        yield of_load("decode_falls", lines[-1][1], engine, values)


@dataclass
class Retractions:
    """Requests that sglang throws out of a full KV cache, and what follows."""

    _times: int = 0
    _again: int = 0  # tokens of prompts, after the first time
    _where: str = ""
    _before: list[float] = field(default_factory=list)  # tokens/s
    _after: list[float] = field(default_factory=list)
    _running: int = 0  # requests, before the first time

    def note(self, line: str, where: str) -> None:
        """Read a line that is none of decode."""
        if "etract" in line and _BACK.search(line):
            self._times += 1
            self._where = where
        elif self._times and (match := _AGAIN.search(line)):
            self._again += int(match[1])

    def read(self, load: LoadLine) -> None:
        speeds = self._after if self._times else self._before
        if load.speed is not None and len(speeds) < _MOST_KEPT:
            speeds.append(load.speed)
        self._running = self._running if self._times else load.running

    def told(self) -> Iterator[Reading]:
        """That decode is slower after requests were put back, and their tokens come again."""
        if not self._times or not self._again or not self._before or not self._after:
            return
        before, after = median(self._before), median(self._after)
        if after > _LESS * before:
            return
        values = {
            **{"times": self._times, "again": self._again, "running": self._running},
            **{"before": before, "after": after},
        }
        when = "many" if self._running > 1 else "one"
        yield of_load("retractions", self._where, "sglang", values, when)


@dataclass
class Partners:
    """Requests that wait for the other server of prefill and decode, by rank."""

    _counts: dict[str, list[int]] = field(default_factory=dict)
    _name: str = ""
    _where: str = ""

    def read(self, line: str, where: str) -> None:
        if "strap" not in line and "prealloc" not in line:  # most lines
            return
        if (match := _PARTNER.search(line)) and len(self._counts) < _MOST_KEPT:
            counts = self._counts.setdefault("".join(rank_of(line)), [])
            counts[3:] = [int(match[2])]  # the first ones and the last
            self._name, self._where = match[1], where

    def told(self) -> Iterator[Reading]:
        """That more and more wait on a rank."""
        first, last = max(
            ((counts[0], counts[-1]) for counts in self._counts.values() if len(counts) > 2),
            key=lambda pair: pair[1] - pair[0],
            default=(0, 0),
        )
        if last >= _MANY and last >= 1.5 * first:
            values = {"queue": self._name, "first": first, "last": last}
            yield of_load("partner_waits", self._where, "sglang", values)
