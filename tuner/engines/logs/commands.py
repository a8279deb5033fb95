"""Read launch commands, which may take several lines, and tell one server from another."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from tuner.engines.logs.settings import of_command, waiting_flag
from tuner.files import shipped_toml

_COMMAND = re.compile(
    r"sglang\.launch_server|\b(?:sglang|vllm) serve\b|vllm\.entrypoints|docker run|--model-path\b"
    r"|\bbenchmark_moe\w*\.py|\btuning_\w+\.py|\bLLM\(|\bsgl(?:ang)?\.Engine\("
    r"|\b(?:command|args)[\"']?\s*[:=]\s*(?:[\[>|\"'-]|$)|ARGS[\"']?\s*[:=]\s*[\"']?-"
)
STARTS = (  # of them, without blanks
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
# The beginning of another server, unless it goes on with a command: a launcher, or the same key of
# another container.
_SERVER = re.compile(
    r"sglang\.launch_server|\b(?:sglang|vllm) serve\b|vllm\.entrypoints|docker run|\bLLM\("
    r"|\bsgl(?:ang)?\.Engine\(|^\W*(?P<key>image|command|args)[\"']?\s*:"
)
# An argument of its own line, of a command or of a call in Python.
_GOES_ON = re.compile(r"\s*(?:-|\"|'|\[|\])|\s+\w+ ?=")
LONGEST = 80  # lines of a command
NUMBERS = {"tp", "ep", "pp", "dp"}
_AROUND = " \t-\"',[]\\"  # characters that may stand around a value in a line of its own


@dataclass
class Commands:
    """The place in a text's launch commands: whether a command goes on, and which
    server it starts.
    """

    another: bool = False  # the command is of another server than the first
    _left: int = 0  # lines of a command that may follow
    _continued: bool = False  # by a backslash
    _waits: str = ""  # the fact whose flag ended the line before
    _flag: str = ""  # a flag of `settings` that ended it
    _keys: set[str] = field(default_factory=set)  # of a container, in a compose or Kubernetes file
    _containers: bool = False  # the keys are of another container than the first server's
    _named: bool = False  # a command has named the model
    _served: bool = False  # a command has said how a server is started

    def within(self, joined: bytes) -> bool:
        """Say whether lines, joined without blanks, may hold a part of a command."""
        return bool(self._left) or any(start in joined for start in STARTS)

    def goes_on(self, text: str) -> bool:
        """Take the next line, and say whether it belongs to a command."""
        begins, goes_on = _SERVER.search(text), self._continued or _GOES_ON.match(text)
        if begins:
            self._begin_server(begins["key"] or "")
        if _COMMAND.search(text):
            self._left = LONGEST
        elif not goes_on:
            self._left, self.another = 0, bool(begins) and self.another
        self._continued = text.rstrip().endswith(("\\", "`"))
        within = self._left > 0
        self._left = max(0, self._left - 1)
        return within

    def facts(self, text: str, model: str) -> Iterator[tuple[str, str]]:
        """Yield the facts that a command's line sets; `model` is the server's, as far as known."""
        for name, pattern in _flags().items():
            if match := pattern.search(text):
                yield from self._fact(name, match[1] or match[2], model)
            elif self._waits == name:
                yield from self._fact(name, text.strip(_AROUND), model)
        self._waits = _bare_flags().get(text.strip(_AROUND), "")

    def settings(self, text: str) -> list[tuple[str, str]]:
        """List the flags and variables in a command's line that choose kernels."""
        found = list(of_command(text))
        if self._flag:
            found.append((self._flag, text.strip(_AROUND)))
        self._flag = waiting_flag(text)
        return found

    def _begin_server(self, key: str) -> None:
        """Begin the first server or another, at a launcher or at a key of a container."""
        if key:
            self._containers |= key in self._keys and self._served
            self._keys.add(key)
            self.another = self._containers
        elif not self._continued:
            self.another = self._served

    def _fact(self, name: str, value: str, model: str) -> Iterator[tuple[str, str]]:
        """Yield a flag's value; a command of another model is of another server than the first."""
        if name == "model" and self._named and last_part(value) != last_part(model):
            self.another = True
        yield name, value
        self._named |= name == "model"
        self._served |= name in NUMBERS


def last_part(value: str) -> str:
    """Return the last part of a path or of a model's name, without capitals."""
    return value.rstrip("/").rpartition("/")[2].lower()


@cache
def _flags() -> dict[str, re.Pattern[str]]:
    """Return the pattern of each fact's flags with a value in the same line."""
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
    """Return a flag's pattern: vLLM takes underscores too."""
    return flag[:2] + re.escape(flag[2:]).replace("\\-", "[-_]")


@cache
def _bare_flags() -> dict[str, str]:
    """Return the fact of each flag, which is written without its dashes."""
    rows = shipped_toml(__package__, "facts.toml")["flags"]
    return {flag.lstrip("-"): name for name, flags in rows.items() for flag in flags}
