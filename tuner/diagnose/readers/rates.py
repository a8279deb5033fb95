"""How the rate of decode goes on from line to line: it falls, or requests are put back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

from tuner.diagnose.readers.reading import Reading
from tuner.diagnose.table import Kind
from tuner.engines.logs.lines import rank_of
from tuner.profile.workload import LoadLine

_FALLEN = 10  # times below the usual rate
_FULL = 0.9  # of the KV cache
_LEAST_LINES = 2
_MOST_KEPT = 10_000
# More of the KV cache from line to line than so few tokens fill, so that a prompt does.
_PROMPT_FILLS = 0.003
_PROMPT = re.compile(r"Avg prompt throughput: (?!0\.0 )|Prefill batch")
_BACK = re.compile(r"Retract requests|#retracted_reqs:")
_PUT_BACK = re.compile(r"#retracted_reqs: (\d{1,7})")
_AGAIN = re.compile(r"Prefill batch\b.*?#new-token: (\d{1,9})")
_PARTNER = re.compile(r"(#(?:unbootstrapped|bootstrap|prealloc)-req): (\d{1,7})")
_MANY = 10  # requests that wait
_MORE = (
    "It begins as more requests run: CUDA graphs may end there. vLLM: cudagraph_capture_sizes in "
    "--compilation-config, up to the requests times (1 + draft tokens); sglang: "
    "--cuda-graph-max-bs, up to the requests."
)
_LESS = 0.7  # of the rate before, which is a fall


@dataclass
class Stall:
    """Lines in a row with far fewer tokens than the others, while no prompt was added."""

    lines: list[tuple[LoadLine, str]] = field(default_factory=list)  # and FILE:LINE
    _prompts: set[int] = field(default_factory=set)  # the numbers of lines that a prompt precedes

    def prompt(self, line: str) -> None:
        """Note that a prompt was computed before the next line of decode."""
        if _PROMPT.search(line):
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
        ran = max(quick, default=_MOST_KEPT)
        # vLLM counts a prompt when it is done.
        prompt = engine == "vllm" and row[-1] + 1 in self._prompts and not fills
        if max(used, default=0) < _FULL and not prompt:
            yield _stalled(slow, fills, speed, ran, self.lines[row[-1]][1], engine)


def _stalled(
    slow: list[LoadLine], fills: bool, usual: float, usual_running: int, where: str, engine: str
) -> Reading:
    used = [load.used for load in slow if load.used is not None]
    most, waiting = max(load.running for load in slow), max(load.waiting or 0 for load in slow)
    least = max(load.speed or 0 for load in slow)
    queue = f"up to {waiting} wait" if waiting else "none waits"
    room = f", and at most {100 * max(used):.0f} % of the KV cache is used" if used else ""
    cause = [
        f"{len(slow)} lines in a row say at most {least:.1f} tokens/s for up to {most} running "
        f"requests, and other lines say up to {usual:.1f}. Meanwhile {queue}{room}."
    ]
    if fills:
        cause.append(
            f"The KV cache fills from {100 * used[0]:.1f} to {100 * used[-1]:.1f} % there, by more "
            "than so few tokens need: a long prompt is computed in pieces, and each token of the "
            "other requests waits for a piece."
        )
        fix = [
            "vLLM: Make the pieces smaller with --max-num-batched-tokens (2048, then 1024).",
            "sglang: Make the pieces smaller with --chunked-prefill-size (2048, then 1024).",
            "Compare the rate while no long prompt comes: if it is as low, take the stack of each "
            "process of the server:",
            "$ py-spy dump --pid PID",
        ]
    else:
        more = min(load.running for load in slow) > usual_running
        cause.append(
            "A step takes many times as long as before, or the host starts it late: these lines "
            "do not say which."
        )
        fix = [
            "While it lasts, look at each GPU's use and clocks: 100 % of use is a kernel or a "
            "collective that takes long, and little use a host that is late. Clocks far below "
            "their maximum are heat or power:",
            "$ nvidia-smi -q -d UTILIZATION,CLOCK,PERFORMANCE",
            "Take the stack of each process of the server, several times, and give these to "
            "`tuner diagnose`:",
            "$ py-spy dump --pid PID",
            *([_MORE] if more else []),
            "With several GPUs on PCIe, start once with --disable-custom-all-reduce: where direct "
            "transfers do not work well, each step may take seconds.",
            "See whether it comes with some requests alone (structured output, long prompts, "
            "images): send one of each kind by itself.",
        ]
    return Reading(
        "decode_stalls",
        Kind.SLOW,
        f"decode gets more than {_FALLEN} times slower while requests run",
        where,
        cause,
        fix,
        {"lines": len(slow), "tokens_per_s": least, "usual": usual, "running": most},
        engine,
    )


@dataclass
class Retractions:
    """Requests that sglang throws out of a full KV cache, and what follows."""

    _times: int = 0
    _put_back: int = 0
    _again: int = 0  # tokens of prompts, after the first time
    _where: str = ""
    _before: list[float] = field(default_factory=list)  # tokens/s
    _after: list[float] = field(default_factory=list)
    _running: int = 0  # requests, before the first time

    def note(self, line: str, where: str) -> None:
        """Read a line that is none of decode."""
        if _BACK.search(line):
            self._times += 1
            self._where = where
            self._put_back += int(match[1]) if (match := _PUT_BACK.search(line)) else 0
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
        yield Reading(
            "retractions",
            Kind.SLOW,
            "the KV cache is full, requests are put back, and decode slows down",
            self._where,
            [
                f"Lines that say so: {self._times}. The cache held no more tokens, so sglang threw "
                "requests out; their prompts, and what was answered so far, are computed again. "
                f"The lines of prefill after the first time say {self._again:,} new tokens, those "
                "of new requests among them.",
                f"Decode had {before:,.0f} tokens/s before (median), and has {after:,.0f} after.",
            ],
            [
                "Let fewer requests run at once, so that all fit with their whole answers: "
                f"--max-running-requests below {self._running}"
                " (that many ran before the first time)."
                if self._running > 1
                else "Limit the tokens of an answer (max_tokens): one request fills the cache.",
                "Or admit requests more carefully: --schedule-conservativeness 1.3 or more (1.0, "
                "if it is not set). It costs some throughput where answers are short.",
                "Or give the cache more room: a higher --mem-fraction-static, if GPU memory is "
                "free, or more GPUs.",
            ],
            {"times": self._times, "requests": self._put_back, "before": before, "after": after},
            "sglang",
        )


@dataclass
class Partners:
    """Requests that wait for the other server of prefill and decode, by rank."""

    _counts: dict[str, list[int]] = field(default_factory=dict)
    _name: str = ""
    _where: str = ""

    def read(self, line: str, where: str) -> None:
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
        if last < _MANY or last < 1.5 * first:
            return
        yield Reading(
            "partner_waits",
            Kind.SLOW,
            "more and more requests wait for the other server of prefill and decode",
            self._where,
            [
                f"{self._name} rises from {first} to {last}. Such a request waits until the two "
                "servers have agreed where its KV cache goes: the other one is not reached, has "
                "no room, or is slower than requests come."
            ],
            [
                "Look at the other server's lines of the same time, at its `token usage`, queues "
                "and errors. Give the logs of both to `tuner diagnose` at once.",
                "If it is full or slow: add a server of its kind, or send fewer requests at once.",
                "If one was just started, see from there whether the prefill server's bootstrap "
                "port (--disaggregation-bootstrap-port) is open:",
                "$ nc -zv PREFILL_HOST 8998",
            ],
            {"first": first, "last": last},
            "sglang",
        )
