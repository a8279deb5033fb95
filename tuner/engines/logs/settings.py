"""Read the flags and variables by which a server chooses its kernels, from commands and logs.

The names that count are the names that the engines' rules ask for: `tuner/engines/*/dispatch.toml`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache

from tuner.engines.dispatch_table import dispatch_table
from tuner.files import shipped_toml

_ENGINES = ("sglang", "vllm")
# Marks of the lines that set one of the variables.
MARKS = (b"VLLM_", b"SGLANG_", b"SGL_", b"W8A8_FP8_KERNEL")
# Flags without a value, as the engines name them.
_SWITCH = re.compile(r"--(?:enable|disable|enforce|use)-")
_FLAG = re.compile(
    r"(?<![\w-])(--[a-z][\w-]*)(?:(?:=|[\"',]*\s+(?:-\s+)?)[\"']?([^\s\"',\\\]-][^\s\"',\\\]]*))?"
)
_VARIABLE = re.compile(r"\b([A-Z][A-Z0-9_]{2,})=[\"']?([^\s\"'\\]+)")
_OURS = re.compile(r"(?:VLLM|SGLANG|SGL|NCCL|TRITON)_")
# A line that does nothing but set a variable, as scripts, Dockerfiles and compose files have it.
_SET = re.compile(
    r"^[ \t$]*(?:(?:export|set|ENV|-e|-)[ \t]+)?[\"']?([A-Z][A-Z0-9_]{2,})[=:][ \t]*[\"']?"
    r"([\w./-]+)[\"']?[ \t;\\]*$"
)
# A line that sets several, of systemd, a Dockerfile or a shell.
_SEVERAL = re.compile(r"^[ \t]*(?:Environment=|ENV[ \t]|export[ \t])")
# Kubernetes' pairs, whose value has a line of its own.
_PAIR = re.compile(r"name:\s*[\"']?([A-Z][A-Z0-9_]{2,})[\"']?\s+value:\s*[\"']?([\w./-]+)")
_FIELD = re.compile(r"[\"']?\b([a-z]\w*)[\"']?\s*[=:]\s*(?:'([^']*)'|\"([^\"]*)\"|([\w.+-]+))")
_UNSET = {"none", "null", "auto", "false", ""}


def of_command(text: str) -> Iterator[tuple[str, str]]:
    """Yield the flags and variables of a line of a launch command; a flag without a
    value has "1".
    """
    for flag, value in _FLAG.findall(text):
        if flag in _names() or flag.endswith("backend"):
            if _SWITCH.match(flag):
                yield flag, "1"
            elif value:
                yield flag, value
    for name, value in _VARIABLE.findall(text):
        if name in _names() or _OURS.match(name):
            yield name, value


def waiting_flag(text: str) -> str:
    """Return the flag that is alone in a line, so that the next line has its value; ""
    if none is.
    """
    flag = text.strip(" \t\"',[]\\").removeprefix("- ").strip(" \"'")
    return flag if flag in _names() and flag[0] == "-" and not _SWITCH.match(flag) else ""


def of_lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield the variables that lines set outside of a command."""
    for line in text.split("\n"):
        for match in _VARIABLE.finditer(line) if _SEVERAL.match(line) else [_SET.match(line)]:
            yield from _if_known(match) if match else ()
    for match in _PAIR.finditer(text):
        yield from _if_known(match)


def _if_known(match: re.Match[str]) -> Iterator[tuple[str, str]]:
    if match[1] in _names():
        yield match[1], match[2]


def of_log(text: str) -> Iterator[tuple[str, str]]:
    """Yield the flags in the arguments that an engine logs at start: ServerArgs(...),
    args: {...}.
    """
    for name, single, double, bare in _FIELD.findall(text):
        yield from of_fields({name: single or double or bare})


def of_fields(values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the flags of an engine's fields: {"tp_size": "8"}; unset fields are left out."""
    fields = _fields()
    for name, value in values.items():
        if name in fields and value.lower() not in _UNSET:
            yield fields[name], "1" if value == "True" else value


def as_words(settings: Mapping[str, str], engine: str) -> str:
    """Write the settings that the engine's rules ask for as a text for --server-args; "" for none.

    A value that is the engine's default is left out.
    """
    table = dispatch_table(engine) if engine in _ENGINES else None
    if table is None:
        return ""
    words = []
    for name, value in settings.items():
        renamed = next(iter(table.with_new_names({name: value})))
        if renamed not in table.names or table.defaults.get(renamed) == value:
            continue
        words += words_of(name, value)
    return shlex.join(words)


def words_of(name: str, value: str) -> list[str]:
    """Write a flag or a variable as the words of a command."""
    if not name.startswith("--"):
        return [f"{name}={value}"]
    return [name] if _SWITCH.match(name) else [name, value]


@cache
def _names() -> frozenset[str]:
    """Return the flags and variables that some engine's rules ask for, or that shape problems."""
    names = {*shipped_toml(__package__, "facts.toml")["settings"]["shaping"]}
    for engine in _ENGINES:
        if table := dispatch_table(engine):
            names |= table.names
            names |= {
                old + name.removeprefix(new)
                for name in table.names
                for old, new in table.other_names.items()
                if old.endswith("_") and name.startswith(new)
            }
    return frozenset(names)


@cache
def _fields() -> Mapping[str, str]:
    """Return the flag of each field that an engine logs."""
    named: Mapping[str, str] = shipped_toml(__package__, "facts.toml")["settings"]["fields"]
    flags = (name for name in _names() if name.startswith("--"))
    return {**{flag.lstrip("-").replace("-", "_"): flag for flag in flags}, **named}
