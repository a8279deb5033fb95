"""Read benchmark results: printed tables, JSON lines, decode log lines, markdown tables.

The formats come from sglang's bench_serving (0.4.4 to 0.5.23) and from vLLM's `bench serve`. A file
may hold several runs in several formats; each reader takes the lines that it knows.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.deploy.bench_report.samples import (
    Key,
    LoadKind,
    Sample,
    mean,
    number_of,
    samples_of,
    serving_key,
    whole_number,
)
from tuner.errors import MalformedBenchmark

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
        """Say whether a decode line counts a pause."""
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
    """Return the throughput in a line of a log; none if it is no decode line."""
    match = _DECODE.search(line)
    if not match:
        return []
    key = Key(LoadKind.DECODE, int(match.group(1)))
    return samples_of(key, {"decode_throughput": match.group(2)}, source)


# In a command, or in its arguments as printed.
_ASKED = re.compile(r"\bnum[-_]prompts[ =](\d{1,9})")
_APART = 1.1  # results of the same server differ by less
_TABLE_START = re.compile(r"^=+ Serving Benchmark Result =+\s*$")
_TABLE_END = re.compile(r"^={20,}\s*$")
_TABLE_LINE = re.compile(r"^\s*([A-Za-z0-9][^:]*(?:\([^)]*\))?):\s+(\S.*?)\s*$")
_LATENCY_LABEL = re.compile(
    r"(mean|median|max|p[0-9]{1,2}) (ttft|tpot|itl|e2e latency|e2el) \(ms\)", re.IGNORECASE
)
_THROUGHPUT_LABELS = {
    "request throughput (req/s)": "request_throughput",
    "input token throughput (tok/s)": "input_throughput",
    "output token throughput (tok/s)": "output_throughput",
    "total token throughput (tok/s)": "total_throughput",
}
# The first is misspelt in sglang 0.4.4; vLLM writes the third.
_CONCURRENCY_LABELS = (
    "max reqeuest concurrency",
    "max request concurrency",
    "maximum request concurrency",
)
_RATE_LABELS = ("traffic request rate", "request rate configured (rps)")
_JSON_NAMES = {"total_token_throughput": "total_throughput"}
_JSON_LATENCY = re.compile(r"(mean|median|max|p[0-9]{1,2})_(ttft|tpot|itl|e2el|e2e_latency)_ms")
_MARKDOWN = {
    "concurrency": "concurrency",
    "mean ttft (ms)": "mean_ttft_ms",
    "mean tpot (ms)": "mean_tpot_ms",
    "mean itl (ms)": "mean_itl_ms",
    "input throughput (tokens/s)": "input_throughput",
    "output throughput (tokens/s)": "output_throughput",
    "total throughput (tokens/s)": "total_throughput",
    "mean input len": "input_len",
    "mean output len": "output_len",
}


@dataclass(frozen=True)
class Failure:
    """A run in which requests failed."""

    failed: int
    succeeded: int
    source: str  # FILE:LINE


@dataclass(frozen=True)
class Results:
    """The values of files, and the number of decode lines that were left out."""

    samples: list[Sample]
    after_pauses: int  # decode lines that count time without requests
    failures: tuple[Failure, ...] = ()

    def notes(self, path: Path) -> Iterator[str]:
        """Yield sentences about left-out lines, failed requests, and runs that seem to be of
        different servers.
        """
        n = self.after_pauses
        if n:
            yield (
                f"{path}: {n} decode line{'s' * (n > 1)} left out: the first after a pause counts "
                "the time without requests"
            )
        for one in self.failures:
            yield (
                f"{path}: {one.failed:,} requests failed ({one.source}): all figures are of the "
                f"{one.succeeded:,} that succeeded. See the server's log and the client's errors "
                "(timeouts, open files), or send fewer at once (--max-concurrency, --request-rate)"
            )
        yield from self._mixed(path)

    def _mixed(self, path: Path) -> Iterator[str]:
        """Yield a sentence about the first load for which a text has several, different results."""
        groups: dict[tuple[Key, str], list[Sample]] = {}
        for one in self.samples:
            if one.key.load is LoadKind.SERVING and path.is_file():
                groups.setdefault((one.key, one.metric), []).append(one)
        for (key, name), runs in groups.items():
            low, high = min(one.value for one in runs), max(one.value for one in runs)
            if high > _APART * low:
                at = runs[0].source.rpartition(":")[2]
                text = shlex.quote(str(path))
                split = f"; of two: head -n {at} {text} > before.txt; tail -n +$(({at} + 1)) {text}"
                split += " > after.txt; tuner bench-report before.txt after.txt"
                yield (
                    f"{path}: {len(runs)} results at {key} differ, {name} from {low:,g} to "
                    f"{high:,g}, and the table shows their median. If they are not runs of the "
                    "same server (before and after, say), put each into a file of its own"
                    + (split if len(runs) == 2 else "")
                )
                return


def read_samples(path: Path) -> list[Sample]:
    """Return the samples of `read_results`."""
    return read_results(path).samples


def read_results(path: Path) -> Results:
    """Return every value in a file, or in the files of a folder, in the order of their names.

    Raises MalformedBenchmark if there is none, or if a file cannot be read.
    """
    pauses, failures = Pauses(), list[Failure]()
    try:
        files = sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]
        samples = []
        for file in files:
            with file.open(encoding="utf-8", errors="replace") as lines:
                samples += parse_samples(lines, file.name, pauses, failures)
    except OSError as error:
        raise MalformedBenchmark(f"{path} cannot be read: {error.strerror}") from None
    if not samples and not failures:
        raise MalformedBenchmark(
            f"{path} holds no benchmark result: give bench_serving's printed table or JSON lines, "
            "a server's log with `Decode batch` lines, or a markdown table "
            "with a Concurrency column and a row for each load"
        )
    return Results(samples, pauses.left_out, tuple(failures))


def parse_samples(
    lines: Iterable[str],
    name: str = "",
    pauses: Pauses | None = None,
    failures: list[Failure] | None = None,
) -> list[Sample]:
    """Return every value in the lines, whatever their format. Only a JSON document is kept whole.

    Decode lines that count a pause are left out; `pauses` counts them. `failures` gets the runs in
    which requests failed.
    """
    pauses = pauses or Pauses()
    failures = [] if failures is None else failures
    pauses.paused.clear()  # another file may be another server's
    table = _ServingTable(failures)
    header: list[str] = []  # of the markdown table that the line is in
    samples: list[Sample] = []
    whole: list[str] | None = None  # lines of a JSON document that spans lines
    for number, raw in enumerate(lines, 1):
        line, source = raw.rstrip("\r\n"), f"{name}:{number}"
        if number == 1 and line.strip() in ("{", "["):
            whole = []
        if whole is not None:
            whole.append(line)
            continue
        samples += table.feed(line, source)
        pauses.feed(line)
        decoded = decode_line(line, source)
        samples += [] if decoded and pauses.counts(line) else decoded
        if line.lstrip().startswith("{"):
            samples += parse_json(line, source, failures)
        if line.lstrip().startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            header, found = _markdown_row(header, cells, source)
            samples += found
        else:
            header = []
    if whole is not None:
        samples += parse_json("\n".join(whole), f"{name}:1", failures)
    return samples + table.finish(name)


class _ServingTable:
    """Collects the lines of a printed table."""

    def __init__(self, failures: list[Failure]) -> None:
        self.fields: dict[str, str] | None = None
        self.above = ""  # the source of the line above
        self.asked: set[int] = set()  # requests, by the commands since the table before
        self.failures = failures

    def feed(self, line: str, source: str) -> list[Sample]:
        above, self.above = self.above, source
        if "prompts" in line:
            self.asked.update(map(int, _ASKED.findall(line)))
        if _TABLE_START.match(line):
            found = self.finish(above)  # a run that was cut off before its end
            self.fields = {}
            return found
        if self.fields is None:
            return []
        if _TABLE_END.match(line):
            return self.finish(source)
        match = _TABLE_LINE.match(line)
        if match:
            self.fields.setdefault(match.group(1).strip().lower(), match.group(2))
        return []

    def finish(self, source: str) -> list[Sample]:
        fields, self.fields = self.fields, None
        if not fields:
            return []
        concurrency = next((fields[x] for x in _CONCURRENCY_LABELS if x in fields), "")
        rate = next((fields[x] for x in _RATE_LABELS if x in fields), "inf")
        requests = number_of(fields.get("successful requests"))
        asked = max(self.asked) if len(self.asked) == 1 else None
        self.asked.clear()
        failed = _failed(requests, number_of(fields.get("failed requests")), asked)
        if failed:
            self.failures.append(Failure(failed, whole_number(requests), source))
        key = serving_key(
            concurrency,
            mean(number_of(fields.get("total input tokens")), requests),
            mean(number_of(fields.get("total generated tokens")), requests),
            rate,
        )
        values: dict[str, object] = {}
        for label, text in fields.items():
            latency = _LATENCY_LABEL.fullmatch(label)
            if latency:
                values[_latency_name(*latency.groups())] = text
            elif label in _THROUGHPUT_LABELS:
                values[_THROUGHPUT_LABELS[label]] = text
        return samples_of(key, values, source, failed)


def _failed(succeeded: float | None, failed: float | None, asked: float | None) -> int:
    """Return how many requests failed: the given number, else the requests that did not succeed."""
    if failed is None and succeeded is not None and asked is not None:
        failed = asked - succeeded
    return whole_number(failed)


def parse_json(text: str, source: str, failures: list[Failure] | None = None) -> list[Sample]:
    """Return the values of a JSON object or a list of objects; none for anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    found: list[Sample] = []
    for run in value if isinstance(value, list) else [value]:
        if isinstance(run, dict):
            found += _json_run(run, source, [] if failures is None else failures)
    return found


def _json_run(run: dict[str, Any], source: str, failures: list[Failure]) -> list[Sample]:
    requests = number_of(run.get("completed"))
    failed = _failed(requests, number_of(run.get("failed")), number_of(run.get("num_prompts")))
    if failed:
        failures.append(Failure(failed, whole_number(requests), source))
    key = serving_key(
        run.get("max_concurrency"),
        mean(number_of(run.get("total_input_tokens")), requests),
        mean(number_of(run.get("total_output_tokens")), requests),
        run.get("request_rate"),
    )
    values: dict[str, object] = {}
    for name, value in run.items():
        latency = _JSON_LATENCY.fullmatch(name)
        if latency:
            values[_latency_name(*latency.groups())] = value
        else:
            values[_JSON_NAMES.get(name, name)] = value
    return samples_of(key, values, source, failed)


def _markdown_row(
    header: list[str], cells: list[str], source: str
) -> tuple[list[str], list[Sample]]:
    """Return (header for the next rows, values of this row)."""
    names = [_MARKDOWN.get(cell.lower(), "") for cell in cells]
    if "concurrency" in names:
        return names, []
    if not header or set("".join(cells)) <= set("-: "):
        return header, []
    row: dict[str, object] = {n: c for n, c in zip(header, cells, strict=False) if n}
    key = serving_key(
        row.get("concurrency"),
        number_of(row.get("input_len")),
        number_of(row.get("output_len")),
        "",
    )
    return header, samples_of(key, row, source)


def _latency_name(statistic: str, quantity: str) -> str:
    """Return the name of a latency metric; sglang's E2E Latency and vLLM's E2EL are the same
    metric.
    """
    short = "e2e" if quantity.lower().startswith("e2e") else quantity.lower()
    return f"{statistic.lower()}_{short}_ms"
