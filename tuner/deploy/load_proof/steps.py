"""What to do about a launch: the commands for what was not tuned, with the facts of its log."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from tuner.devices.table import find_device
from tuner.engines.logs.facts import Facts
from tuner.engines.logs.served import CompletedHints, Hints
from tuner.errors import UnknownDevice


def tuning_steps(facts: Facts, logs: Iterator[Path], *, decode: bool) -> Iterator[str]:
    """Sentences, and commands that begin with "$ ", for the missing files that `logs` name, and
    with `decode` for decode attention.
    """
    server = CompletedHints(Hints(), facts)
    name, commands = server.engine_name(), []
    if missing := list(logs):
        if lacks := server.missing(name) or _old(server, name):
            yield f"missing files: {lacks}"
        else:
            commands += [f"tune {shlex.quote(str(log))} {server.options(name)}" for log in missing]
    if decode:
        model = server.target()
        if lacks := server.missing(name, model=True):
            yield f"decode attention: {lacks}"
        else:
            if not model:
                yield f"copy the config.json of {server.model} to this folder"
            target = shlex.quote(model or "config.json")
            commands.append(f"tune {target} --attention --tp {server.tp} {server.options(name)}")
    yield from (f"$ tuner {command}" for command in commands)
    if commands:
        yield f"$ tuner export {server.options(name)}"


def _old(server: CompletedHints, name: str) -> str:
    """A sentence where only "before a release" is known: newer ones look for other files."""
    before = server.facts.get(f"{name}_before")
    if not before or server.version(name):
        return ""
    return (
        f"The paths are of a release before {name} {before}, and newer ones look for other files: "
        "the command needs the release, which the text does not say."
    )


def other_server(facts: Facts, made_for: Mapping[str, str]) -> Iterator[str]:
    """A line for each fact of the log in which the files were made for another server."""
    for name, wanted in made_for.items():
        fact = facts.known.get(name)
        if fact is None or _same(name, fact.value, wanted):
            continue
        yield (
            f"the log says {name} {fact.value} ({fact.where}), and the files are for "
            f"{name} {wanted}"
        )


def _same(name: str, said: str, made_for: str) -> bool:
    if name == "device":
        try:
            return find_device(said) == find_device(made_for)
        except UnknownDevice:
            return False
    return said.partition("+")[0] == made_for.partition("+")[0]
