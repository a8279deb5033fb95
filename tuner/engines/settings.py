"""A server's settings as its engine's rules take them, and as jobs and winners keep them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from tuner.engines.dispatch import class_alone, options_text, server_settings
from tuner.engines.dispatch_table import ARCHITECTURE, CHECKPOINT, dispatch_table
from tuner.engines.engine import parse_spec
from tuner.engines.launch import read_flags
from tuner.problems.points import Problem
from tuner.problems.server import UNKNOWN_SERVER, ServerSettings


def settings_to_keep(engine: str, problem: Problem, settings: Mapping[str, str]) -> ServerSettings:
    """Return of a server's settings what its engine's rules ask for. Others may hold secrets.

    Flags that say what holds without them are left out too.
    """
    if (table := dispatch_table(engine)) is None:
        return UNKNOWN_SERVER
    given, usual = table.with_new_names(settings), table.defaults
    asked = sorted(table.names_for(problem) & given.keys())
    kept = {name: given[name] for name in asked if usual.get(name) != given[name]}
    architecture, checkpoint = kept.pop(ARCHITECTURE, ""), kept.pop(CHECKPOINT, "")
    return ServerSettings(architecture, checkpoint, shlex.join(_words(kept)))


def flags_to_keep(engine: str, server_args: str) -> str:
    """Return of a server's flags those that change problems, or that an engine's rules ask for.

    Others may hold secrets. `engine` is its name or its name and version. Raises BadInput.
    """
    name, _ = parse_spec(engine)
    table, kept = dispatch_table(name), server_settings(server_args)
    asked = table.names if table else frozenset()
    kept = table.with_new_names(kept) if table else kept
    said = read_flags(name, kept)
    for flag in sorted(kept.keys() - asked):
        others = {one: value for one, value in kept.items() if one != flag}
        if read_flags(name, others) == said:
            kept = others
    return shlex.join(_words(kept))


def _words(flags: Mapping[str, str]) -> Iterator[str]:
    """The words of a command line: variables, then flags."""
    for name, value in sorted(flags.items(), key=lambda one: one[0].startswith("-")):
        if name.startswith("-") and value and not value.startswith("-"):
            yield from (name, value)
        else:
            yield f"{name}={value}"


def settings_kept(server: ServerSettings) -> dict[str, str]:
    """Return the settings as `what_runs` takes them. Raises BadInput for flags without an end."""
    named = {ARCHITECTURE: server.architecture, CHECKPOINT: server.checkpoint}
    known = {name: text for name, text in named.items() if text}
    return {**known, **server_settings(server.server_args)}


def flags_alone(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the flags and variables among a server's settings."""
    model = class_alone(settings)
    return {name: value for name, value in settings.items() if name not in model}


def with_flags(server: ServerSettings) -> str:
    """Say with which flags a server is started: " with --quantization w8a8_int8", or nothing."""
    flags = server_settings(server.server_args)
    return f" with {options_text(flags)}" if flags else ""
