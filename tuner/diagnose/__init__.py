"""Read logs of servers, and explain their messages about kernels and the network.

The messages stand in messages.toml. A new message is a new row.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from tuner.diagnose.answers import ANSWERS
from tuner.diagnose.computed_answer import ComputedAnswer
from tuner.diagnose.context import Context, with_engines
from tuner.diagnose.explanation import Diagnosis, Explanation, filled, for_engine
from tuner.diagnose.findings import Findings, LogFinding
from tuner.diagnose.scan import scan
from tuner.diagnose.table import Kind, known_messages
from tuner.engines.engine import release_of
from tuner.engines.logs.served import Hints, check_hints
from tuner.engines.logs.words import Fact
from tuner.errors import BadProblem, UnreadableLog

__all__ = ["Diagnosis", "Hints", "diagnose", "diagnose_text", "read_log"]


def diagnose(paths: Iterable[Path], hints: Hints = Hints()) -> Diagnosis:
    """Read logs of a server or cluster; "-" is the standard input.

    Raises UnreadableLog, and BadInput for hints that name no GPU or engine.
    """
    check_hints(hints)
    return _answered(scan(_streams(paths), known_messages()), hints)


def diagnose_text(text: str, hints: Hints = Hints()) -> Diagnosis:
    """Read lines that somebody pasted, as `diagnose` reads logs."""
    check_hints(hints)
    stream = io.BytesIO(text.encode("utf-8", errors="replace"))
    return _answered(scan([("input", stream)], known_messages()), hints)


def read_log(path: Path) -> Findings:
    """Read the findings and the server's facts from a log. Raises UnreadableLog."""
    return scan(_streams([path]), known_messages())


def _streams(paths: Iterable[Path]) -> Iterator[tuple[str, BinaryIO]]:
    for path in paths:
        if str(path) == "-":
            yield "stdin", sys.stdin.buffer
            continue
        with contextlib.ExitStack() as stack:
            try:
                stream = stack.enter_context(path.open("rb"))
                stream.peek(1)
            except (OSError, ValueError) as error:  # ValueError: the name holds a NUL
                reason = getattr(error, "strerror", None) or error
                raise UnreadableLog(f"{path} cannot be read: {reason}") from None
            yield path.name, stream


def _answered(findings: Findings, hints: Hints) -> Diagnosis:
    context = Context(hints, findings.facts)
    answers, error, told = [], findings.error, set[str]()
    steps: dict[tuple[str, ...], list[str]] = {}  # the same steps are the same once more
    for finding in findings.found:
        answer = _answer(finding, context)
        if answer:
            fix = steps.setdefault(tuple(answer.fix), [*with_engines(answer.fix, told)])
            answers.append(replace(answer, fix=fix))
        elif finding.message.kind is Kind.STOPS:  # the same words of something else
            error = error or Fact(finding.text, finding.where)
    return Diagnosis(answers, findings, error)


def _answer(finding: LogFinding, context: Context) -> Explanation | None:
    """Return the explanation of a finding; None if the finding says nothing here."""
    message = finding.message
    added = ANSWERS[message.answer](finding, context) if message.answer else ComputedAnswer()
    if added is None:
        return None
    engine, values = context.engine_of(finding), context.values(finding)
    fix = () if added.instead else message.fix
    steps = [*filled([*for_engine(fix, engine)], values), *for_engine(added.fix, engine)]
    return Explanation(
        _of_release(finding, engine, context.version(engine)),
        [*filled(message.cause, values), *added.cause],
        [*steps, *_of_words(steps, context)],
        added.details,
        added.mends,
    )


def _of_release(finding: LogFinding, engine: str, version: str) -> LogFinding:
    """Return the finding with the origins of the server's engine alone, if it has some.

    A release that is older than all known releases has no origin: no release is told then.
    """
    own = [one for one in finding.form.origins if one.program.lower() == engine]
    if not own:
        return finding
    with contextlib.suppress(BadProblem):  # a version that a text cuts
        if version and all(o.since and release_of(version) < release_of(o.since) for o in own):
            own = [replace(one, since="", until="") for one in own[:1]]
    return replace(finding, form=replace(finding.form, origins=own))


def _of_words(steps: Sequence[str], context: Context) -> Iterator[str]:
    """Yield notes on parts of commands that come from people's words or from builds."""
    commands = [one for one in steps if one.startswith("$ tuner ")]
    engine = context.engine_name()
    version, spec = context.version(engine), context.spec(engine)
    if version and version not in spec and any(" --engine " in one for one in commands):
        yield f"The server's version, {version}, is not on PyPI: the commands are for {spec}."
    given = any(" --device " in one for one in commands) and not context.hints.device
    if context.facts.in_words and given:
        yield (
            f"--device is what the text calls {context.facts.get('device')}: if `nvidia-smi -L` "
            "names another GPU on the server, give that name."
        )
