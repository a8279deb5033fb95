"""Read the targets of a command line. Imports are late, so that --help is quick."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.cli.app import say
from tuner.errors import UnknownModel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tuner.devices.table import Device
    from tuner.diagnose import Hints
    from tuner.diagnose.context import Context
    from tuner.diagnose.findings import Findings
    from tuner.jobs.running import RunningServer
    from tuner.models.model import Model
    from tuner.problems.points import Problem
    from tuner.targets import Target


@dataclass(frozen=True)
class CommandTarget:
    """A target of a command line, read once: a problem, an engine's line, a model, a running server
    or a log.
    """

    text: str
    found: Target | None  # None: a log
    findings: Findings | None = None  # what a log or a line says
    server: RunningServer | None = None  # `found` is its model

    @property
    def model(self) -> Model | None:
        return self.found.model if self.found else None

    @property
    def is_one(self) -> bool:
        """Return whether it is a problem, or an engine's line about a file."""
        return self.found is not None and self.found.family is not None

    def served_by(self) -> tuple[str, str]:
        """Return the engine of a running server; else the engine and the GPU that a log or a line
        names, "" for an unnamed engine or GPU.
        """
        if self.server:
            return self.server.spec, ""
        if self.findings is None:
            return "", ""
        from tuner.diagnose import Hints

        context = self.context(Hints())
        device = context.device()
        return context.spec(context.engine_name()), device.name if device else ""

    def context(self, hints: Hints) -> Context:
        """Return the facts of a log or a line, beside the hints."""
        from tuner.diagnose.context import Context

        assert self.findings is not None
        return Context(hints, self.findings.facts)

    def settings(self, server_args: str) -> dict[str, str]:
        """Return the flags and variables of a server, and the facts about kernels from its model.

        Flags of a log or a running server count if `server_args` does not say otherwise. Raises
        BadInput for quotation marks that are not closed.
        """
        from tuner.engines.settings import of_model, server_settings

        said: Mapping[str, str] = {}
        if self.server:
            said = server_settings(self.server.server_args or "")
        if self.findings and self.found is None:
            said = self.findings.facts.settings
        settings = {**said, **server_settings(server_args)}
        return of_model(settings, self.model) if self.model else settings

    def shown_settings(
        self,
        problems: Sequence[Problem],
        engine: str,
        version: str | None,
        device: Device,
        flags: Mapping[str, str],
    ) -> dict[str, str]:
        """Return the settings with the facts of lines about missing files."""
        from tuner.engines.dispatch import seen_to_run

        if self.findings is None:
            return dict(flags)
        from tuner.diagnose.missing import names_missing_file

        if not any(map(names_missing_file, self.findings.found)):
            return dict(flags)
        return {**flags, **seen_to_run(engine, version or "", problems, device, flags)}


def read_command_target(text: str) -> CommandTarget:
    """Read a target of a command line. Raises as `read_target` and `ask_server` do.

    The error about a pasted message names the command that knows messages.
    """
    from tuner.targets import is_url, read_target

    if is_url(text):
        return _of_server(text)
    if is_log(text):
        from tuner.diagnose import read_log

        return CommandTarget(text, None, read_log(Path(text)))
    try:
        found = read_target(text)
    except UnknownModel as error:
        from tuner.diagnose import diagnose_text

        if diagnose_text(text).known:
            error.add(cli="; it is a server's message: `tuner diagnose FILE` knows it", api="")
        raise
    if found.family is None or found.is_problem:
        return CommandTarget(text, found)
    from tuner.diagnose import diagnose_text

    return CommandTarget(text, found, diagnose_text(text).findings)


def _of_server(url: str) -> CommandTarget:
    """Read the model of a running server. Raises UnknownModel if it cannot be read here."""
    from tuner.jobs.running import ask_server
    from tuner.models.table import find_model
    from tuner.targets import Target

    server = ask_server(url)
    try:
        model = find_model(server.model)
    except UnknownModel as error:
        options = ["--engine", server.spec]
        options += ["--server-args", server.server_args] if server.server_args else []
        error.add(
            cli=f"; {server.url} serves it: name its config.json instead, with "
            + shlex.join(options),
            api="",
        )
        raise
    if server.server_args is None:
        say(f"{server.url} does not tell its flags: --tp and --server-args are taken as given")
    return CommandTarget(url, Target(url, model=model), server=server)


def is_log(target: str) -> bool:
    """Return whether a target is a log, and not a line, a model or a config.json."""
    path = Path(target)
    return target == "-" or (path.suffix != ".json" and _is_file(path))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a pasted line can be no path at all
        return False
