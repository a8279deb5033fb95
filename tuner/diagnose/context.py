"""Complete the known facts of a server: from its log, and from the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.diagnose.findings import LogFinding
from tuner.engines.engine import matching_packages, parse_spec
from tuner.engines.logs.served import ENGINES, CompletedHints
from tuner.errors import UnknownEngine
from tuner.shell import command_line

_COMMAND_FOR = re.compile(r"\$ tuner .* --engine (\S+)")
_UNIFIED = {"sm_87", "sm_110", "sm_121"}  # Jetson Orin, Jetson Thor, GB10 (DGX Spark)


@dataclass(frozen=True)
class Context(CompletedHints):
    """Complete the hints by the facts that were read, and by findings."""

    def engine_of(self, finding: LogFinding) -> str:
        """Return a message's engine: as hints, its paths or its form tell, else as the log does."""
        if not self.hints.engine:
            for text in (*finding.values.values(), *(frame.path for frame in finding.frames)):
                for name in ENGINES:
                    if f"/{name}/" in "/" + text.replace("\\", "/"):
                        return name
            programs = {origin.program.lower() for origin in finding.form.origins}
            if len(programs & ENGINES.keys()) == 1:
                return (programs & ENGINES.keys()).pop()
        return self.engine_name()

    @property
    def unified(self) -> bool:
        """Tell whether the GPU has no memory of its own, and shares the host's."""
        device = self.device()
        return device is not None and device.target.name in _UNIFIED

    def values(self, finding: LogFinding) -> dict[str, str]:
        """Return the values that sentences may name: facts, and the holes of the message's forms.

        A hole of a form hides a fact of its name: `device` of RDMA is no GPU. `unified` and
        `not_unified` are empty, and say whether the GPU shares the host's memory.
        """
        own = {name for form in finding.message.forms for name in form.pattern.groupindex}
        known = {"model": self.model, "tp": str(self.tp or "")}
        own |= known.keys()
        known |= {k: fact.value for k, fact in self.facts.known.items() if k not in own}
        known |= {k: v.rstrip(".") for k, v in finding.values.items()}
        named = {k: v for k, v in known.items() if v}
        return {**named, ("unified" if self.unified else "not_unified"): ""}


def with_engines(steps: Sequence[str], told: set[str]) -> Iterator[str]:
    """Put the command that adds a release before the first command for a missing release.

    `told` are the releases that have such a command, and grows.
    """
    for step in steps:
        named = _COMMAND_FOR.match(step)
        if named and named[1] not in told and not _is_here(named[1]):
            told.add(named[1])
            yield f"$ {command_line('tuner', 'list', 'engines', '--add', named[1])}"
        yield step


def _is_here(spec: str) -> bool:
    try:
        matching_packages(*parse_spec(spec))
    except UnknownEngine:
        return False
    return True
