"""Write a diagnosis as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tuner.diagnose.computed_answer import LocalRemedy
from tuner.diagnose.findings import Findings, LogFinding
from tuner.diagnose.table import Kind
from tuner.engines.logs.served import ENGINES
from tuner.engines.logs.words import Fact
from tuner.render import printable
from tuner.shell import command_line

_NAMED = 8  # ranks and problems that are listed by name


@dataclass(frozen=True)
class Explanation:
    """Hold the explanation of a finding."""

    finding: LogFinding
    cause: Sequence[str]  # sentences
    fix: Sequence[str]  # sentences; a command begins with "$ "
    details: Mapping[str, Any]
    mends: LocalRemedy | None = None

    def as_json(self) -> dict[str, Any]:
        finding = self.finding
        return {
            "message": finding.message.name,
            "kind": finding.message.kind.value,
            "title": finding.message.title,
            "where": finding.where,
            "text": finding.text,
            "count": finding.count,
            "ranks": list(finding.ranks),
            "values": dict(finding.values),
            "cause": list(self.cause),
            "fix": [step for step in self.fix if not step.startswith("$ ")],
            "commands": [step[2:] for step in self.fix if step.startswith("$ ")],
            "releases": [asdict(origin) for origin in finding.form.origins],
            "details": dict(self.details),
        }

    def lines(self) -> Iterator[str]:
        """Yield the answer's lines, without its number. Nothing is wrapped."""
        finding = self.finding
        yield f"{finding.message.kind.value}: {finding.message.title}"
        yield f"   {_where(finding)}"
        yield f"   | {printable(finding.text)}"
        for sentence in self.cause:
            yield f"   {printable(sentence)}"
        yield from map(_step, self.fix)
        known = "; ".join(origin.releases() for origin in finding.form.origins)
        yield f"   (message of {known})"


@dataclass(frozen=True)
class Diagnosis:
    """Hold the answers to the findings in logs."""

    answers: Sequence[Explanation]
    findings: Findings
    error: Fact | None = None  # the first exception that no message explains

    @property
    def known(self) -> bool:
        """Say whether a recognised message names a cause."""
        return any(answer.finding.message.kind is not Kind.FOLLOWS for answer in self.answers)

    @property
    def unknown(self) -> Fact | None:
        """Return the exception that may be the cause; None if a message says why it ends."""
        stops = any(answer.finding.message.kind is Kind.STOPS for answer in self.answers)
        return None if stops else self.error

    def as_json(self) -> dict[str, Any]:
        unknown = self.unknown
        return {
            "lines": self.findings.lines,
            "facts": self.findings.facts.as_json(),
            "found": [answer.as_json() for answer in self.answers],
            "unknown": {"text": unknown.value, "where": unknown.where} if unknown else None,
        }

    def as_text(self) -> str:
        blocks = []
        told: dict[tuple[str, ...], int] = {}  # steps, and the first answer that has them
        for number, answer in enumerate(self.answers, 1):
            of = told.setdefault(tuple(answer.fix), number)
            again = [f"The steps of {of} are for this too."] if answer.fix and of < number else []
            first, *rest = replace(answer, fix=again or answer.fix).lines()
            blocks.append("\n".join([f"{number}. {first}", *rest]))
        knows = "`tuner diagnose` knows kernels, their config files and the network between nodes"
        if error := self.unknown:
            blocks.append(printable(f"not known: {error.where}: {error.value}; {knows}"))
        elif not self.answers:
            blocks.append(f"nothing known in {self.findings.lines:,} lines; {knows}")
        return "\n\n".join(blocks)


def _step(step: str) -> str:
    command = step.startswith("$ ")
    return f"     {printable(step[2:])}" if command else f"   - {printable(step)}"


def for_engine(steps: Sequence[str], engine: str) -> Iterator[str]:
    """Yield the steps for an engine, or all of them if the engine is not known."""
    for step in steps:
        name, colon, rest = step.partition(": ")
        if not colon or name not in ENGINES.values():
            yield step
        elif name.lower() == engine:
            yield rest
        elif not engine:
            yield step


def filled(sentences: Sequence[str], values: Mapping[str, str]) -> Iterator[str]:
    """Yield the sentences with their holes filled, without sentences whose hole has no known value.

    A command gets each value as a single word, whatever the text says.
    """
    words = {name: command_line(value) for name, value in values.items()}
    for sentence in sentences:
        try:
            yield sentence.format_map(words if sentence.startswith("$ ") else values)
        except (KeyError, IndexError, ValueError):
            continue


def _where(finding: LogFinding) -> str:
    times = "" if finding.count == 1 else f", {finding.count:,} times"
    ranks = list(finding.ranks)
    if not ranks:
        return f"{printable(finding.where)}{times}"
    named = ", ".join(ranks[:_NAMED]) + (
        f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    )
    return f"{printable(finding.where)}{times}, on {printable(named)}"
