"""Results of a server, for the commands that read and write those of this machine's store."""

from __future__ import annotations

from typing import Protocol

from tuner.jobs.client import RemoteQueue
from tuner.problems.points import Problem
from tuner.problems.results import Winner
from tuner.store.result_files import read_winner


class StoredResults(Protocol):
    """What a server and the local store (`ResultStore`) have in common."""

    def winners(
        self, *, device: str, engine: str, engine_version: str | None = None
    ) -> list[Winner]: ...

    def withdraw(self, problem: Problem, device: str, engine: str) -> object: ...


class RemoteResults:
    """The results of a server. Methods raise what `RemoteQueue` raises."""

    def __init__(self, server: RemoteQueue) -> None:
        self._server = server

    def winners(
        self, *, device: str, engine: str, engine_version: str | None = None
    ) -> list[Winner]:
        """As `ResultStore.winners`."""
        spec = f"{engine}=={engine_version}" if engine_version else engine
        return list(self._server.winners(device, spec, read_winner))

    def withdraw(self, problem: Problem, device: str, engine: str) -> None:
        """As `ResultStore.withdraw`."""
        self._server.withdraw(problem.spec(), device, engine)
