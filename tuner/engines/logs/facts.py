"""The one reader of how a server was started, and on what, in whatever people paste.

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

from tuner.engines.logs.cards import Cards
from tuner.engines.logs.lines import BEGINS, BLANKS
from tuner.engines.logs.settings import MARKS, of_command, of_lines, of_log, waiting_flag, words_of
from tuner.files import shipped_toml
from tuner.models.table import presets

_COMMAND = re.compile(
    r"sglang\.launch_server|\b(?:sglang|vllm) serve\b|vllm\.entrypoints|docker run|--model-path\b"
    r"|\bbenchmark_moe\w*\.py|\btuning_\w+\.py|\bLLM\(|\bsgl(?:ang)?\.Engine\("
    r"|\b(?:command|args)[\"']?\s*[:=]\s*(?:[\[>|\"'-]|$)|ARGS[\"']?\s*[:=]\s*[\"']?-"
)
_STARTS = (  # of them, without blanks
    *(b"launch_server", b"sglangserve", b"vllmserve", b"vllm.entrypoints", b"dockerrun"),
    *(
        b"--model-path",
        b"command",
        b"args",
        b"ARGS",
        b"benchmark_moe",
        b"tuning_",
        b"LLM(",
        b".Engine(",
    ),
)
# What begins a server of its own, unless it goes on with a command: a launcher, or the same key of
# another container.
_SERVER = re.compile(
    r"sglang\.launch_server|\b(?:sglang|vllm) serve\b|vllm\.entrypoints|docker run|\bLLM\("
    r"|\bsgl(?:ang)?\.Engine\(|^\W*(?P<key>image|command|args)[\"']?\s*:"
)
# An argument of its own line, of a command or of a call in Python.
_GOES_ON = re.compile(r"\s*(?:-|\"|'|\[|\])|\s+\w+ ?=")
_SPREAD = re.compile(
    r"--enable[-_]expert[-_]parallel\b|(?<![\w-])-ep(?=[\s\\\"'\]`]|$)(?!\s+\d)"
    r"|\benable_expert_parallel[\"']?\s*[=:]\s*True"
)
_LONGEST = 80  # lines of a command
# Where an engine logs the arguments that it was started with, without blanks.
_ARGUMENTS = (b"ServerArgs(", b"args:{", b"args:Namespace(", b"withconfig:model=")
# In what logs write before a message: [2025-05-13 23:29:46 DP4 TP4], (Worker_TP0 pid=1).
_RANK = re.compile(rb"(?:\d |[_ ]DP\d+_| DP\d+ |Worker[_ ])TP(\d{1,3})\b")
# A shell's variable that is set in a line of its own, as scripts of launch commands do.
_SET = re.compile(rb"^[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)=[\"']?([^\s\"'$`;#]+)", re.MULTILINE)
_USED = re.compile(r"\$\{?(\w+)(?::?-([^}]*))?\}?")
_NUMBERS = {"tp", "ep", "pp", "dp"}
# An engine's name as a word of its own: no part of a path, a package, an image or a link.
_ENGINE = re.compile(r"(?<![\w/.@-])(?:sglang|vllm)(?![A-Za-z_/]|[.:-]\w)", re.IGNORECASE)
_WORKS_IN = re.compile(  # words before a version that is not the one in trouble
    r"(?<!not )(?<!n't )\b(?:works?|worked|(?:is|was) (?:fine|OK)) (?:in|with|on|using)"
    r" (?:[\w-]+ ){0,2}[\w./-]*$",
    re.IGNORECASE,
)
_IN_WORDS = 1 << 18  # bytes: people's words are short, and logs are long


@dataclass(frozen=True)
class Fact:
    """A value, and the place where it was read, FILE:LINE."""

    value: str
    where: str


@dataclass(frozen=True)
class _Form:
    anchor: bytes
    pattern: re.Pattern[str] | None
    sets: Mapping[str, str]


@dataclass
class Facts:
    """The facts of one server. The first value of each counts; `ranks` is the most that is seen."""

    known: dict[str, Fact] = field(default_factory=dict)
    cards: Cards = field(default_factory=Cards)  # what names of files and people's words say
    others: dict[str, Fact] = field(default_factory=dict)  # a second value of a server's fact
    _engines: set[str] = field(default_factory=set)  # that people's words name
    _models: dict[str, Fact] = field(
        default_factory=dict
    )  # that people's words name, by their keys
    _called: bool = False  # the model is that of people's words
    _read: int = 0  # bytes
    _shown: bool = False  # the device is that of a program's own output
    _command: int = 0  # lines of a command that may follow
    _continued: bool = False  # by a backslash
    _waits: str = ""  # the fact whose flag ended the line before
    _flag: str = ""  # a flag of `settings` that ended it
    _variables: dict[str, str] = field(default_factory=dict)  # of a shell, by their names
    _unset: dict[str, tuple[str, str]] = field(default_factory=dict)  # name: the variable, where
    _keys: set[str] = field(default_factory=set)  # of a container, in a compose or Kubernetes file
    _containers: bool = False  # the keys are of another container than the first server's
    _named: bool = False  # a command has named the model
    _served: bool = False  # a command has said how a server is started
    _another: bool = False  # the command is of another server than the first
    _spread: str = ""  # where the experts are said to be divided among all ranks
    settings: dict[str, str] = field(default_factory=dict)  # flags and variables of the server

    def get(self, name: str) -> str:
        """The value of a fact; "" if nothing says it."""
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
        commands = bool(self._command) or any(start in joined for start in _STARTS)
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
        self._see_words(lines, name, first)
        self._name_card()
        self._name_model()

    def _see_words(self, lines: Sequence[bytes], name: str, first: int) -> None:
        """The GPUs and the engines that people name in the first lines."""
        for number, line in enumerate(lines, first):
            self._read += len(line)
            if self._read > _IN_WORDS:
                return
            text = line.decode("utf-8", errors="replace")
            self.cards.read(text, f"{name}:{number}")
            self._engines |= {word.lower() for word in _ENGINE.findall(text)}
            for match in _models().finditer(text):
                key = re.sub(r"[\s_-]", "", match[0]).lower()
                self._models.setdefault(key, Fact(match[0].replace(" ", "-"), f"{name}:{number}"))

    @property
    def engine(self) -> str:
        """The engine that something shows, else the one that words name alone; "" if none does."""
        named = next(iter(self._engines)) if len(self._engines) == 1 else ""
        return self.get("engine") or named

    @property
    def in_words(self) -> bool:
        """Whether people's words alone tell the GPU."""
        card = self.cards.sole()
        return not self._shown and card is not None and card.in_words

    def _name_card(self) -> None:
        """Take the GPU that the text names, if it shows none and names one alone."""
        if not self._shown:
            self.known.pop("device", None)
            if card := self.cards.sole():
                self.known["device"] = Fact(card.name, card.where)

    def _name_model(self) -> None:
        """Take the model that the text names, if no command shows one and it names one alone.

        A name that begins another is the same model's: Qwen3-30B-A3B beside Qwen3-30B-A3B-FP8.
        """
        if self._called:
            self.known.pop("model", None)
        longest = max(self._models, key=len, default="")
        self._called = "model" not in self.known and all(map(longest.startswith, self._models))
        if self._called and longest:
            self.known["model"] = self._models[longest]

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
            texts = [line.decode("utf-8", errors="replace") for line in lines[at : at + _LONGEST]]
            while end + 1 - at < len(texts) and not BEGINS.match(texts[end + 1 - at]):
                end += 1
            found = of_log("".join(texts[: end + 1 - at]))
            self._keep_settings(found, f"{name}:{first + at}")

    def _keep_settings(self, found: Iterable[tuple[str, str]], where: str) -> None:
        """Keep settings; the first value of each counts, as of the other facts."""
        for name, value in found:
            if not value or value[0] in "$<{" or name in self.settings:
                continue
            self.settings[name] = value
            word = shlex.join(words_of(name, value))
            old = self.known.get("server_args")
            text = f"{old.value} {word}" if old else word
            self.known["server_args"] = Fact(text, old.where if old else where)

    def _set_variables(self, lines: Sequence[bytes]) -> None:
        """Keep what a script sets, and give facts that waited for it their values."""
        for name, value in _SET.findall(b"\n".join(lines)):
            self._variables.setdefault(name.decode(), value.decode("utf-8", errors="replace"))
        for fact, (variable, where) in list(self._unset.items()):
            if variable in self._variables:
                del self._unset[fact]
                self.add(fact, self._variables[variable], where)

    def _see_ranks(self, lines: Sequence[bytes], name: str, first: int) -> None:
        """The number of tensor-parallel ranks that lines show; there may be more."""
        for rank in sorted({*map(int, _RANK.findall(b"\n".join(lines)))}, reverse=True):
            if rank < int(self.get("ranks") or 0):
                return
            mark = b"TP%d" % rank
            at = next((i for i, line in enumerate(lines) if mark in line), None)
            if at is not None:
                self.known["ranks"] = Fact(str(rank + 1), f"{name}:{first + at}")
                return

    def _match(self, form: _Form, texts: Sequence[str], where: str) -> None:
        """Match a form in a line, else in the line and those into which it may be wrapped."""
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
        begins, goes_on = _SERVER.search(text), self._continued or _GOES_ON.match(text)
        if begins:
            self._begin_server(begins["key"] or "")
        if _COMMAND.search(text):
            self._command = _LONGEST
        elif not goes_on:
            self._command, self._another = 0, bool(begins) and self._another
        self._continued = text.rstrip().endswith(("\\", "`"))
        if not self._command:
            return
        self._command = self._command - 1
        for name, pattern in _flags().items():
            if match := pattern.search(text):
                self._add_of_command(name, match[1] or match[2], where)
            elif self._waits == name:
                self._add_of_command(name, text.strip(" \t-\"',[]\\"), where)
        self._waits = _flag_alone(text)
        found = list(of_command(text))
        if self._flag:
            found.append((self._flag, text.strip(" \t-\"',[]\\")))
        self._flag = waiting_flag(text)
        if not self._another:
            self._keep_settings(found, where)

    def _begin_server(self, key: str) -> None:
        """A launcher, or a key of a container, begins the first server or another one."""
        if key:
            self._containers |= key in self._keys and self._served
            self._keys.add(key)
            self._another = self._containers
        elif not self._continued:
            self._another = self._served

    def _add_of_command(self, name: str, value: str, where: str) -> None:
        """Keep a flag's value, unless the command is of another model than the first server's."""
        if name == "model" and self._named and _last(value) != _last(self.get("model")):
            self._another = True
        self.add(name, value, where)
        self._named |= name == "model"
        self._served |= name in _NUMBERS

    def _spread_experts(self, text: str, where: str) -> None:
        """Divide the experts among all ranks, if the first server's command or its log says so."""
        if not self._another and _SPREAD.search(text):
            self._spread = self._spread or where
        if self._spread and self.get("tp") and "ep" not in self.known:
            self.known["ep"] = Fact(self.get("tp"), self._spread)

    def add(self, name: str, value: str | None, where: str) -> None:
        """Keep a value, if it is one: not empty, no hole of a template.

        A shell's variable stands for what the text sets it to, before or after.
        """
        value = (value or "").strip().rstrip(".")
        if used := _USED.fullmatch(value):
            if used[1] not in self._variables and not used[2]:
                self._unset.setdefault(name, (used[1], where))
                return
            value = self._variables.get(used[1], used[2] or "")
        if not value or value[0] in "$<{-" or (name in _NUMBERS and not value.isdecimal()):
            return
        if name in ("card", "card_of_file"):
            self.cards.add(value, where, in_words=name == "card")
            return
        if name == "device" and not self._shown:
            self._shown = True
            self.known.pop("device", None)
        if name == "model" and self._called:
            self._called = False
            self.known.pop("model", None)
        old = self.known.get(name, Fact(value, where))
        if not self._another:
            self.known.setdefault(name, old)
        if _last(old.value) != _last(value):
            self.others.setdefault(name, Fact(value, where))


def facts_of_line(line: str) -> Facts:
    """The facts of one line, such as the name of a config file."""
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


@cache
def _flags() -> dict[str, re.Pattern[str]]:
    """The pattern of each fact's flags with a value in the same line."""
    rows = shipped_toml(__package__, "facts.toml")["flags"]
    value = r"[\"']?([^\s\"',\\\]`;)]+)"
    found = {}
    for name, flags in rows.items():
        words = "|".join(map(_spellings, flags))
        fields = "|".join(flag.strip("-").replace("-", "_") for flag in flags)
        found[name] = re.compile(
            rf"(?<![\w-])(?:{words})(?:=|[\"']?,?\s+(?:-\s+)?){value}|\b(?:{fields})={value}"
        )
    return found


def _spellings(flag: str) -> str:
    """A flag's pattern: vLLM takes underscores too."""
    return flag[:2] + re.escape(flag[2:]).replace("\\-", "[-_]")


def _last(value: str) -> str:
    return value.rstrip("/").rpartition("/")[2].lower()


@cache
def _models() -> re.Pattern[str]:
    """The names of known models in people's words, with what stands behind: -FP8, -Instruct."""
    names = {name for model in presets() for name in (model.name, *model.aliases)}
    words = [
        r"[\s_-]?".join(map(re.escape, name.split("-")))
        for name in sorted(names, key=len, reverse=True)
    ]
    words.append(r"[A-Za-z][\w.]*(?:-[\w.]+){0,3}-\d+B-A\d+B")  # Qwen3-Omni-30B-A3B
    ends = r"(?:[-_](?!down\b)[A-Za-z0-9][\w.]*\w)*(?![\w-])"
    parser = "".join(rf"(?<!parser{before})" for before in (" ", "='", ' "', " '", '", "', '=\\"'))
    return re.compile(rf"(?<![\w./=-]){parser}(?:{'|'.join(words)}){ends}", re.IGNORECASE)


def _flag_alone(text: str) -> str:
    """The fact whose flag ends a line, so that the next line has its value."""
    return _bare_flags().get(text.strip(" \t-\"',[]\\"), "")


@cache
def _bare_flags() -> dict[str, str]:
    """The fact of each flag, which is written without its dashes."""
    rows = shipped_toml(__package__, "facts.toml")["flags"]
    return {flag.lstrip("-"): name for name, flags in rows.items() for flag in flags}
