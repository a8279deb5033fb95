"""What a comparison in a live engine found: as JSON, and as a table of 80 columns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.served.loads import Load, Speed
from benchmarks.served.outputs import OutputCheck, outputs_text
from benchmarks.served.server import Server
from tuner.deploy.bench_report.samples import FEWEST_RUNS, Key, LoadKind, Pair, missed, paired
from tuner.export.files import write_all
from tuner.render import table


@dataclass(frozen=True)
class Column:
    """A column of `Speed`, its title in a comparison's table, and its metric in bench-report."""

    field: str
    title: str
    metric: str


COLUMNS = (
    Column("prefill_tok_s", "prefill", "prefill_throughput"),
    Column("decode_tok_s", "decode", "decode_throughput"),
    Column("ttft_ms", "TTFT", "median_ttft_ms"),
    Column("tpot_ms", "TPOT", "median_tpot_ms"),
)


@dataclass(frozen=True)
class LoadGain:
    """One column of one load, before and after. A gain above 1 is better, for times too."""

    load: Load
    column: Column
    before: tuple[float, ...]  # of each round
    after: tuple[float, ...]
    pair: Pair

    @property
    def verdict(self) -> str:
        """Return faster, slower, or same if the interval holds 1 or the rounds are too few.

        An end that is shown as 1.00 counts as 1: servers side by side differ by as much in what
        the files do not touch (decode beside chunked scans: 0.4 % in all rounds on an H100).
        """
        low, high = round(self.pair.gain_low, 2), round(self.pair.gain_high, 2)
        if len(self.before) < FEWEST_RUNS or low <= 1 <= high:
            return "same"
        return "faster" if low > 1 else "slower"


def gains_of(load: Load, before: Sequence[Speed], after: Sequence[Speed]) -> list[LoadGain]:
    """The gains of a load's columns; round `i` of one side is paired with round `i` of the other.

    A column that a round lacks is left out.
    """
    found = []
    for column in COLUMNS:
        old = tuple(getattr(speed, column.field) for speed in before)
        new = tuple(getattr(speed, column.field) for speed in after)
        if None not in (*old, *new):
            key = Key(LoadKind.SERVING, load.sequences, load.prompt, load.answer)
            pair = paired(key, column.metric, old, new)
            found.append(LoadGain(load, column, old, new, pair))
    return found


_PHASES = {"prefill": "prefill_tok_s", "decode": "decode_tok_s"}
_OWN = "the engine's own choice"


def backend_advice(
    server: Server, before: Sequence[str], after: Sequence[str], gains: Sequence[LoadGain]
) -> list[str]:
    """A line for each load: "1x8192+128: use --attention-backend fa3 here".

    Empty where both sides' flags choose the same backends. Where the interval of a gain holds 1,
    the files' side is kept.
    """
    named = {
        phase: (server.backend(before, phase) or _OWN, server.backend(after, phase) or _OWN)
        for phase in _PHASES
    }
    if all(old == new for old, new in named.values()):
        return []
    by_load: dict[str, dict[str, LoadGain]] = {}
    for gain in gains:
        by_load.setdefault(str(gain.load), {})[gain.column.field] = gain
    return [f"{load}: {_line(server, named, found)}" for load, found in by_load.items()]


def _line(
    server: Server, named: Mapping[str, tuple[str, str]], gains: Mapping[str, LoadGain]
) -> str:
    best, clear = {}, False
    for phase, field in _PHASES.items():
        gain = gains.get(field)
        verdict = gain.verdict if gain else "same"
        old, new = named[phase]
        best[phase] = old if verdict == "slower" else new
        clear |= verdict != "same" and old != new
    if not clear:
        return "no backend is clearly faster"
    if _OWN not in best.values():
        return f"use {server.backend_flags(best['prefill'], best['decode'])} here"
    if best["prefill"] == best["decode"]:
        return f"leave the attention backend to {_OWN} here"
    return f"use {best['prefill']} for prefill and {best['decode']} for decode here"


FORMAT = 1


@dataclass(frozen=True)
class Subject:
    """What was served, and where."""

    model: str
    device: str
    engine: str
    engine_version: str
    driver: str
    tp: int
    weights: str  # "the model's", or "dummy, N layers"
    files: str  # the hash of the tuned files
    before_args: str
    after_args: str
    rounds: int
    sides: str = ""  # "side by side" or "in turn"


@dataclass(frozen=True)
class ServedComparison:
    """The whole result."""

    subject: Subject
    gains: Sequence[LoadGain]
    outputs: OutputCheck
    loading: Sequence[str]  # what stands against the files' use, one line each; see load-proof
    advice: Sequence[str] = ()  # which attention backend to use at which load
    notes: Sequence[str] = ()

    @property
    def proven(self) -> bool:
        """Whether the files were used, outputs stayed and nothing became slower.

        Too few rounds prove nothing.
        """
        slower = any(gain.verdict == "slower" for gain in self.gains)
        return not (slower or self.loading or self._too_few) and self.outputs.ok

    @property
    def _too_few(self) -> str:
        """The sentence about too few rounds, empty if there are enough."""
        rounds = min((len(gain.before) for gain in self.gains), default=0)
        if rounds >= FEWEST_RUNS:
            return ""
        return f"{rounds} rounds cannot tell faster from slower: {FEWEST_RUNS} can (--rounds)"

    @property
    def _by_chance(self) -> str:
        """The sentence about verdicts of chance alone, empty if fewer than half is expected."""
        expected = sum(missed(len(gain.before)) for gain in self.gains)
        if self._too_few or expected < 0.5:
            return ""
        cells = len(self.gains)
        return f"of {cells} unchanged cells, chance calls about {expected:.1f} faster or slower"

    def verdict(self) -> str:
        """One line."""
        counts = dict.fromkeys(("faster", "same", "slower"), 0)
        for gain in self.gains:
            counts[gain.verdict] += 1
        total = len(self.gains)
        said = f"{counts['faster']} of {total} faster, {counts['slower']} slower"
        faults = [
            *(["outputs differ"] if not self.outputs.ok else []),
            *(["files not used as tuned"] if self.loading else []),
            *(["too few rounds"] if self._too_few else []),
        ]
        word = "proven" if self.proven else "NOT PROVEN"
        return "; ".join([f"{word}: {said}, {counts['same']} within the spread", *faults])

    def as_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {
            "format": FORMAT,
            "proven": self.proven,
            "verdict": self.verdict(),
            **vars(self.subject),
            "gains": [_gain_json(gain) for gain in self.gains],
            "outputs": self.outputs.as_json(),
            "loading": list(self.loading),
            "advice": list(self.advice),
            "notes": [*self.notes, *filter(None, (self._too_few, self._by_chance))],
        }

    def as_text(self) -> str:
        return report_text(self.as_json())


def write_report(comparison: ServedComparison, folder: Path) -> None:
    """Write report.json, which has each round, and report.txt. Raises UnwritableOutput."""
    texts = {
        "report.json": json.dumps(comparison.as_json(), indent=2),
        "report.txt": comparison.as_text(),
    }
    write_all(folder, {folder / name: f"{text}\n".encode() for name, text in texts.items()})


def report_text(report: Mapping[str, Any]) -> str:
    """The text of a report's JSON."""
    lines = [
        f"{report['model']} on {report['device']}, TP {report['tp']}, {report['weights']} weights",
        f"{report['engine']} {report['engine_version']}, {report['sides']}, "
        f"paired medians of {report['rounds']}",
        *([f"before: {report['before_args']}"] if report["before_args"] else []),
        *([f"after:  {report['after_args']}"] if report["after_args"] else []),
        "",
        _table(report["gains"]),
        "prefill and decode: tokens/s; TTFT (until the first token) and TPOT (between",
        "tokens): ms; a gain above 1 is better, for times too",
        "",
        outputs_text(report["outputs"]),
        *_loading_text(report["loading"]),
        *report["advice"],
        *report["notes"],
        report["verdict"],
    ]
    return "\n".join(lines)


def _table(gains: Sequence[Mapping[str, Any]]) -> str:
    headers = ["load", "", "before", "after", "gain (low..high)", ""]
    rows: list[tuple[str, ...]] = []
    last = None
    for gain in gains:
        shown = "{} ({}..{})".format(*(_ratio(gain[name]) for name in ("gain", "low", "high")))
        rows.append(
            (
                gain["load"] if gain["load"] != last else "",
                gain["title"],
                _number(gain["before"]),
                _number(gain["after"]),
                shown,
                gain["verdict"] if gain["verdict"] != "same" else "",
            )
        )
        last = gain["load"]
    return table(headers, rows, right=("before", "after"))


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _gain_json(gain: LoadGain) -> dict[str, Any]:
    pair = gain.pair
    return {
        "load": str(gain.load),
        "metric": gain.column.field,
        "title": gain.column.title,
        "before": pair.before.median,
        "after": pair.after.median,
        "gain": pair.gain,
        "low": pair.gain_low,
        "high": pair.gain_high,
        "verdict": gain.verdict,
        "rounds": {"before": list(gain.before), "after": list(gain.after)},
    }


def _loading_text(loading: Sequence[str]) -> Iterator[str]:
    if not loading:
        yield "files: every tuned file was used"
        return
    yield "files: not used as tuned"
    yield from (f"  {line}" for line in loading)
