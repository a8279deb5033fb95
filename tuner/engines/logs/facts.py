"""Read how a server was started, and on which machine, from any text that people paste.

Logs of both engines, reports of their environment, launch commands, compose files and Kubernetes'
lists of arguments, paths of tracebacks, and names of config files: facts.toml has their forms.
"""

from __future__ import annotations

import re
import shlex
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import Any

from tuner.engines.logs.commands import LONGEST, NUMBERS, Commands, last_part
from tuner.engines.logs.lines import BEGINS, BLANKS
from tuner.engines.logs.settings import MARKS, of_lines, of_log, words_of
from tuner.engines.logs.words import Fact, Words
from tuner.files import shipped_toml

_SPREAD = re.compile(
    r"--enable[-_]expert[-_]parallel\b|(?<![\w-])-ep(?=[\s\\\"'\]`]|$)(?!\s+\d)"
    r"|\benable_expert_parallel[\"']?\s*[=:]\s*True"
)
# The text before the arguments that an engine logs at start, without blanks.
_ARGUMENTS = (b"ServerArgs(", b"args:{", b"args:Namespace(", b"withconfig:model=")
# The text of logs before a message: [2025-05-13 23:29:46 DP4 TP4], (Worker_TP0 pid=1).
_RANK = re.compile(rb"(?:\d |[_ ][DP]P\d+_| [DP]P\d+ |Worker[_ ])TP(\d{1,3})\b")
# A shell's variable that is set in a line of its own, as scripts of launch commands do.
_SET = re.compile(rb"^[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)=[\"']?([^\s\"'$`;#]+)", re.MULTILINE)
_USED = re.compile(r"\$\{?(\w+)(?::?-([^}]*))?\}?")
_WORKS_IN = re.compile(  # words before a version that is not the version in trouble
    r"(?<!not )(?<!n't )\b(?:works?|worked|(?:is|was) (?:fine|OK)) (?:in|with|on|using)"
    r" (?:[\w-]+ ){0,2}[\w./-]*$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class _Form:
    anchor: bytes
    pattern: re.Pattern[str] | None
    sets: Mapping[str, str]


@dataclass
class Facts:
    """The facts of one server. The first value of each counts; `ranks` is the highest seen."""

    known: dict[str, Fact] = field(default_factory=dict)
    others: dict[str, Fact] = field(default_factory=dict)  # a second value of a server's fact
    settings: dict[str, str] = field(default_factory=dict)  # flags and variables of the server
    words: Words = field(default_factory=Words)
    _commands: Commands = field(default_factory=Commands)
    _variables: dict[str, str] = field(default_factory=dict)  # of a shell, by their names
    _unset: dict[str, tuple[str, str]] = field(default_factory=dict)  # name: variable, place
    _shown: bool = False  # a program's own output names the device
    _called: bool = False  # people's words name the model
    _spread: str = ""  # the place that says that all ranks share the experts out

    def get(self, name: str) -> str:
        """Return the value of a fact; "" if nothing says it."""
        return self.known[name].value if name in self.known else ""

    def as_json(self) -> dict[str, Any]:
        return {
            name: {"value": fact.value, "where": fact.where} for name, fact in self.known.items()
        }

    def read(
        self, lines: Sequence[bytes], squeezed: Sequence[bytes], name: str, first: int
    ) -> None:
        """Read lines in their order; `squeezed` are the lines without blanks."""
        self._set_variables(lines)
        joined, starts = b"".join(squeezed), list(accumulate(map(len, squeezed), initial=0))
        hits: dict[int, list[_Form]] = {}
        for form in _forms():
            place = joined.find(form.anchor)
            while place >= 0:
                at = bisect_right(starts, place) - 1
                hits.setdefault(at, []).append(form)
                place = joined.find(form.anchor, starts[at + 1])
        commands = self._commands.within(joined)
        if commands:
            hits = {at: hits.get(at, []) for at in range(len(lines))}
        for at in sorted(hits):
            texts = [line.decode("utf-8", errors="replace") for line in lines[at : at + 4]]
            where = f"{name}:{first + at}"
            if commands:
                self._read_command(texts[0], where)
            for form in hits[at]:
                self._match(form, texts, where)
            self._spread_experts(texts[0], where)
        self._read_settings(lines, joined, starts, name, first)
        self._see_ranks(lines, name, first)
        self.words.read(lines, name, first)
        self._name_card()
        self._name_model()

    @property
    def engine(self) -> str:
        """Return the engine that a text shows, else the only engine that words name."""
        return self.get("engine") or self.words.engine

    @property
    def in_words(self) -> bool:
        """Say whether only people's words tell the GPU."""
        card = self.words.cards.sole()
        return not self._shown and card is not None and card.in_words

    def _name_card(self) -> None:
        """Take the GPU that the text names, if it shows none and names only one."""
        if not self._shown:
            self.known.pop("device", None)
            if card := self.words.cards.sole():
                self.known["device"] = Fact(card.name, card.where)

    def _name_model(self) -> None:
        """Take the model that the text names, if no command shows a model and it names only one."""
        if self._called:
            self.known.pop("model", None)
        model = self.words.model
        self._called = "model" not in self.known and model is not None
        if self._called and model:
            self.known["model"] = model

    def _read_settings(
        self, lines: Sequence[bytes], joined: bytes, starts: list[int], name: str, first: int
    ) -> None:
        """Read the variables that lines set, and the arguments that an engine logs."""
        if any(mark in joined for mark in MARKS):
            for at, line in enumerate(lines):
                if any(mark in line for mark in MARKS):
                    text = b"\n".join(lines[at : at + 2]).decode("utf-8", errors="replace")
                    self._keep_settings(of_lines(text), f"{name}:{first + at}")
        for anchor in _ARGUMENTS:
            if (place := joined.find(anchor)) < 0:
                continue
            at = end = bisect_right(starts, place) - 1
            texts = [line.decode("utf-8", errors="replace") for line in lines[at : at + LONGEST]]
            while end + 1 - at < len(texts) and not BEGINS.match(texts[end + 1 - at]):
                end += 1
            found = of_log("".join(texts[: end + 1 - at]))
            self._keep_settings(found, f"{name}:{first + at}")

    def _keep_settings(self, found: Iterable[tuple[str, str]], where: str) -> None:
        """Keep settings; the first value of each counts, as for the other facts."""
        for name, value in found:
            if not value or value[0] in "$<{" or name in self.settings:
                continue
            self.settings[name] = value
            word = shlex.join(words_of(name, value))
            old = self.known.get("server_args")
            text = f"{old.value} {word}" if old else word
            self.known["server_args"] = Fact(text, old.where if old else where)

    def _set_variables(self, lines: Sequence[bytes]) -> None:
        """Keep a script's variables, and give facts that waited for a variable their values."""
        for name, value in _SET.findall(b"\n".join(lines)):
            self._variables.setdefault(name.decode(), value.decode("utf-8", errors="replace"))
        for fact, (variable, where) in list(self._unset.items()):
            if variable in self._variables:
                del self._unset[fact]
                self.add(fact, self._variables[variable], where)

    def _see_ranks(self, lines: Sequence[bytes], name: str, first: int) -> None:
        """Keep the number of tensor-parallel ranks that lines show; there may be more."""
        for rank in sorted({*map(int, _RANK.findall(b"\n".join(lines)))}, reverse=True):
            if rank < int(self.get("ranks") or 0):
                return
            mark = b"TP%d" % rank
            at = next((i for i, line in enumerate(lines) if mark in line), None)
            if at is not None:
                self.known["ranks"] = Fact(str(rank + 1), f"{name}:{first + at}")
                return

    def _match(self, form: _Form, texts: Sequence[str], where: str) -> None:
        """Match a form in a line, else in the line and the lines into which it may be wrapped."""
        matches: list[re.Match[str]] = []
        if form.pattern:
            found = map(form.pattern.finditer, (texts[0], "".join(texts)))
            matches = next(filter(None, map(list, found)), [])
            if not matches:
                return
        for match, (name, value) in (
            (one, pair) for one in matches for pair in one.groupdict().items()
        ):
            engine = self.get("engine")
            if name == "version" and _WORKS_IN.search(match.string, 0, match.start()):
                continue
            if name == "version" and engine not in ("", form.sets.get("engine", engine)):
                continue  # of the other engine, which is installed too
            self.add(name, value, where)
        for name, value in form.sets.items():
            self.add(name, value, where)

    def _read_command(self, text: str, where: str) -> None:
        """Read the flags and variables of a launch command, which may take several lines."""
        commands = self._commands
        if not commands.goes_on(text):
            return
        for name, value in commands.facts(text, self.get("model")):
            self.add(name, value, where)
        found = commands.settings(text)
        if not commands.another:
            self._keep_settings(found, where)

    def _spread_experts(self, text: str, where: str) -> None:
        """Divide the experts among all ranks, if the first server's command or its log says so."""
        if not self._commands.another and _SPREAD.search(text):
            self._spread = self._spread or where
        if self._spread and self.get("tp") and "ep" not in self.known:
            self.known["ep"] = Fact(self.get("tp"), self._spread)

    def add(self, name: str, value: str | None, where: str) -> None:
        """Keep a value, unless it is empty or a hole of a template.

        A shell's variable stands for the value that the text sets, before or after.
        """
        value = (value or "").strip().rstrip(".")
        if used := _USED.fullmatch(value):
            if used[1] not in self._variables and not used[2]:
                self._unset.setdefault(name, (used[1], where))
                return
            value = self._variables.get(used[1], used[2] or "")
        if not value or value[0] in "$<{-" or (name in NUMBERS and not value.isdecimal()):
            return
        if name in ("card", "card_of_file"):
            self.words.cards.add(value, where, in_words=name == "card")
            return
        if name == "device" and not self._shown:
            self._shown = True
            self.known.pop("device", None)
        if name == "model" and self._called:
            self._called = False
            self.known.pop("model", None)
        old = self.known.get(name, Fact(value, where))
        if not self._commands.another:
            self.known.setdefault(name, old)
        if last_part(old.value) != last_part(value):
            self.others.setdefault(name, Fact(value, where))


def facts_of_line(line: str) -> Facts:
    """Read the facts of one line, such as the name of a config file."""
    found, data = Facts(), line.encode("utf-8", errors="replace")
    found.read([data], [data.translate(None, BLANKS)], "input", 1)
    return found


@cache
def _forms() -> tuple[_Form, ...]:
    rows = shipped_toml(__package__, "facts.toml")["fact"]
    return tuple(
        _Form(
            anchor.encode().translate(None, BLANKS),
            re.compile(row["pattern"]) if "pattern" in row else None,
            row.get("sets", {}),
        )
        for row in rows
        for anchor in row.get("anchors") or [row["anchor"]]
    )
