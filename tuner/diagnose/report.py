"""A diagnosis as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.diagnose.added import Mend
from tuner.diagnose.findings import Findings, LogFinding
from tuner.diagnose.readers import Reading
from tuner.engines.logs.served import ENGINES
from tuner.render import printable
from tuner.shell import command_line

_NAMED = 8  # ranks and problems that are listed by name


@dataclass(frozen=True)
class Explanation:
    """What is to be said of a finding."""

    finding: LogFinding
    cause: Sequence[str]  # sentences
    fix: Sequence[str]  # sentences; a command begins with "$ "
    details: Mapping[str, Any]
    mends: Mend | None = None

    def as_json(self) -> dict[str, Any]:
        origins = self.finding.form.origins
        return {
            **self.finding.as_json(),
            "title": self.finding.message.title,
            "cause": list(self.cause),
            "fix": [step for step in self.fix if not step.startswith("$ ")],
            "commands": [step[2:] for step in self.fix if step.startswith("$ ")],
            "releases": [
                {
                    "program": origin.program,
                    "since": origin.since or None,
                    "until": origin.until or None,
                    "source": origin.source,
                }
                for origin in origins
            ],
            "threads": list(self.finding.message.threads),
            "details": dict(self.details),
        }

    def lines(self) -> Iterator[str]:
        """The answer's lines, without its number. Nothing is wrapped."""
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
    """The answers to what was found in logs."""

    answers: Sequence[Explanation]
    findings: Findings
    unsupported: str = ""  # a sentence on the server's GPU, if no command can be for it
    program: str = ""  # what serves, if it is neither sglang nor vLLM
    instead: Sequence[str] = ()  # steps for a text without a known message, "$ " before commands
    read: Sequence[str] = ()  # sentences for exceptions that no message explains
    readings: Sequence[Reading] = ()  # what many lines show together
    told: Sequence[str] = ()  # what the text tells of its server

    @property
    def known(self) -> bool:
        """Whether a message or a GPU was recognised that says what is the matter."""
        kinds = {answer.finding.message.kind.value for answer in self.answers}
        kinds |= {reading.kind.value for reading in self.readings}
        return bool(self.unsupported or kinds - {"follows"})

    @property
    def unknown(self) -> Mapping[str, str]:
        """Exceptions that may be the cause and that no message explains, with FILE:LINE."""
        stops = any(answer.finding.message.kind.value == "stops" for answer in self.answers)
        return {} if stops else self.findings.errors

    def as_json(self) -> dict[str, Any]:
        return {
            "lines": self.findings.lines,
            "facts": self.findings.facts.as_json(),
            "found": [answer.as_json() for answer in self.answers],
            "shown": [reading.as_json() for reading in self.readings],
            "unsupported": self.unsupported or None,
            "program": self.program or None,
            "instead": list(self.instead),
            "unknown": [{"text": text, "where": where} for text, where in self.unknown.items()],
        }

    def as_text(self) -> str:
        blocks = []
        told: dict[tuple[str, ...], int] = {}  # steps, and the first answer that has them
        for number, answer in enumerate(self.answers, 1):
            of = told.setdefault(tuple(answer.fix), number)
            again = [f"The steps of {of} are for this too."] if answer.fix and of < number else []
            first, *rest = replace(answer, fix=again or answer.fix).lines()
            blocks.append("\n".join([f"{number}. {first}", *rest]))
        for number, reading in enumerate(self.readings, len(self.answers) + 1):
            blocks.append(
                "\n".join([f"{number}. {reading.kind.value}: {reading.title}", *_shown(reading)])
            )
        if self.unsupported and not any(self.unsupported in one for one in blocks):
            blocks.append(
                f"note: a GPU that this tuner does not have\n   {printable(self.unsupported)}"
            )
        if self.program:
            blocks.append(
                f"note: a text of {self.program}, and of neither sglang nor vLLM\n   This tuner "
                "knows messages of CUDA, Triton and NCCL there too; it tunes no kernel of that "
                "program."
            )
        cut = "".join(
            f"the traceback ends at {printable(frame.path)}, line {frame.line}, in "
            f"{printable(frame.function)}, above the line that names the error; give the lines "
            "below it too"
            for frame in self.findings.last_frames[-1:]
        )
        if self.unknown:
            lines = ["unknown: no message of the table explains"]
            for text, where in self.unknown.items():
                lines.append(f"   {where}: {printable(text)}")
            ends = [f"Cut off: {cut}."] if self.findings.names_no_error and cut else []
            kinds = {answer.finding.message.kind.value for answer in self.answers}
            before = kinds == {"follows"} and not self.readings  # it is what these follow
            unknown = "\n".join([*lines, *map(_step, [*self.read, *ends])])
            blocks.insert(0 if before else len(blocks), unknown)
        if not blocks:
            blocks.append(f"nothing known in {self.findings.lines:,} lines{cut and ': '}{cut}")
        elif self.findings.cut and cut and not self.known and not self.unknown:
            blocks.append("\n".join([f"unknown: {cut}", *map(_step, self.read)]))
        if self.instead:
            blocks[-1] = "\n".join([blocks[-1], *map(_step, self.instead)])
        text = "\n\n".join(blocks)
        shown = (self.answers or self.readings) and not any(one in text for one in self.told)
        return "\n\n".join([text, *map(printable, self.told)]) if shown else text


def _shown(reading: Reading) -> Iterator[str]:
    yield f"   {printable(reading.where)}"
    yield from (f"   {printable(sentence)}" for sentence in reading.cause)
    yield from map(_step, reading.fix)


def _step(step: str) -> str:
    command = step.startswith("$ ")
    return f"     {printable(step[2:])}" if command else f"   - {printable(step)}"


def for_engine(steps: Sequence[str], engine: str) -> Iterator[str]:
    """The steps for one engine, or all of them where it is not known."""
    for step in steps:
        name, colon, rest = step.partition(": ")
        if not colon or name not in ENGINES.values():
            yield step
        elif name.lower() == engine:
            yield rest
        elif not engine:
            yield step


def filled(sentences: Sequence[str], values: Mapping[str, str]) -> Iterator[str]:
    """The sentences with their holes filled; one with a hole of unknown value is left out.

    A command gets each value as one word, whatever the text says.
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
