"""What the table of a benchmark shows: how many requests ran at once, and how long they waited.

The tables are those of sglang's bench_serving and vLLM's `bench serve`, which `tuner bench-report`
compares.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tuner.diagnose.readers.reading import NUM, Reading, Whole, of_load

_LINE = re.compile(rf"^\W*([A-Z][\w ./-]*?(?: \([\w/%]+\))?):\s+({NUM})\s*$")
FEW_DRAFTS = 0.4  # of the drafts are accepted: most are thrown away
_WAITED_S = 1.0  # of a mean time to the first token, which a prompt alone seldom takes
_SHARE = 0.05  # of the run
_OTHERS = 3  # times as long as the run took for each request: others were served meanwhile


@dataclass
class BenchmarkReader:
    """Keeps the figures of the first table."""

    opens: Sequence[bytes] = (b"ServingBenchmarkResult",)
    marks: Sequence[bytes] = (
        b"ServingBenchmarkResult",
        b"(ms):",
        b"(s):",
        b"/s):",
        b"requests:",
        b"Acceptance",
    )
    _figures: dict[str, float] = field(default_factory=dict)
    _tables: int = 0
    _where: str = ""

    def read(self, line: str, where: str) -> None:
        if "Benchmark Result" in line:
            self._tables += 1
            self._where = self._where or where
        elif self._tables == 1 and (match := _LINE.match(line)):
            self._figures[match[1].lower()] = float(match[2])

    def told(self, whole: Whole) -> Iterator[Reading]:
        """Yield what the figures of the table say together, and drafts that are rejected."""
        rate = self._figures.get("acceptance rate (%)", 100.0) / 100
        if rate < FEW_DRAFTS:
            tokens = self._first("acceptance length")
            shown = {"rate": rate, "tokens_per_step": tokens, "percent": 100 * rate}
            by = "the benchmark's own figure"
            yield of_load("drafts_rejected", self._where, "", {**shown, "by": by})
        speed = self._figures.get("output token throughput (tok/s)", 0.0)
        step = self._first("mean tpot (ms)", "mean itl (ms)") / 1000
        first = self._first("mean ttft (ms)") / 1000
        whole_s = self._first("benchmark duration (s)")
        if not speed or not step or whole.stops:
            return
        failed = self._first("failed requests")
        each_s = whole_s / max(1.0, self._first("successful requests"))
        waited = first > max(_WAITED_S, _SHARE * whole_s, 10 * step, _OTHERS * each_s)
        values = {
            **{"running": speed * step, "each": 1 / step, "ms": 1000 * step, "speed": speed},
            **{"first": first, "share": 100 * first / whole_s if whole_s else 0.0},
            **{"failed": failed, "tables": self._tables},
        }
        when = ["waited"] * (waited and whole_s > 0) + ["failures"] * bool(failed)
        when += ["several"] * (self._tables > 1)
        yield of_load("benchmark", self._where, "", values, *when)

    def _first(self, *names: str) -> float:
        return next((self._figures[name] for name in names if name in self._figures), 0.0)
