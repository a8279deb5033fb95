"""Read and withdraw a server's results, in place of this machine's store."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from tuner.jobs.client import RemoteQueue
from tuner.problems.points import Problem
from tuner.problems.results import Winner
from tuner.store.result_files import read_winner

if TYPE_CHECKING:
    from tuner.store.results import ResultStore


class RemoteResults:
    """The results of a server. Methods raise the errors of `RemoteQueue`."""

    def __init__(self, server: RemoteQueue) -> None:
        self._server = server

    def winners(
        self, *, device: str, engine: str, engine_version: str | None = None
    ) -> list[Winner]:
        """Return winners as `ResultStore.winners` does."""
        spec = f"{engine}=={engine_version}" if engine_version else engine
        return list(self._server.winners(device, spec, read_winner))

    def withdraw(self, problem: Problem, device: str, engine: str) -> None:
        """Withdraw winners as `ResultStore.withdraw` does."""
        self._server.withdraw(problem.spec(), device, engine)


StoredResults: TypeAlias = "ResultStore | RemoteResults"
