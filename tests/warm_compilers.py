"""Compile processes that go from one farm to the next.

A process needs most of a second to import Triton and compile its first kernel, and a tenth for
each later kernel. The farms of hundreds of tests need one or two kernels each.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tuner.childprocess import ChildDied, ChildProcess

MOST = 4  # that wait for the next farm: two of each of two Tritons
# What compile processes do not read.
NOT_READ = ("PYTEST_", "TUNER_")


class WarmProcess(ChildProcess):
    """A compile process that waits for the next farm when a farm ends that it owes no answer.

    Only a farm with the same environment gets it, and so the same cache of kernels, which lies in
    `shared`: the processes of other farms start and end with them.
    """

    shared: Path
    _waiting: list[WarmProcess] = []
    _taking = threading.Lock()

    def __init__(self, module: str, env: dict[str, str]) -> None:
        self._turn = threading.Lock()
        self._ready: dict[str, Any] | None = None
        self._owes = self._waits = False
        self._for = {n: value for n, value in env.items() if not n.startswith(NOT_READ)}
        if (other := self._take()) is None:
            super().__init__(module, env)
            return
        self._process, self._stderr, self._ready = other._process, other._stderr, other._ready
        self._buffer, self.ended = b"", False

    def _take(self) -> WarmProcess | None:
        with self._taking:
            for other in self._waiting:
                if other._for == self._for and other._process.poll() is None:
                    self._waiting.remove(other)
                    return other
        return None

    def wait_until_ready(self, timeout_s: float) -> dict[str, Any]:
        self._ready = self._ready or super().wait_until_ready(timeout_s)
        return self._ready

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        with self._turn:
            if self.ended:
                raise ChildDied("its farm has ended")
            self._owes = True
        answer = super().ask(request, timeout_s)
        self._owes = False
        return answer

    def end(self) -> None:
        with self._turn:
            if self._waits:
                return
            can_wait = not (self.ended or self._owes) and self._ready is not None
            if can_wait and self._for["TRITON_CACHE_DIR"].startswith(f"{self.shared}/"):
                self._waits = self.ended = True
                with self._taking:
                    self._waiting.append(self)
                self.end_all(but=MOST)
                return
        super().end()

    def reap(self) -> None:
        if not self._waits:
            super().reap()

    @classmethod
    def end_all(cls, but: int = 0) -> None:
        """End the processes that have waited longest, all but so many."""
        while True:
            with cls._taking:
                if len(cls._waiting) <= but:
                    return
                one = cls._waiting.pop(0)
            one._waits = False
            super(WarmProcess, one).end()
            one.reap()


@contextmanager
def warm_compilers(shared: Path) -> Iterator[None]:
    """Farms whose cache lies in `shared` hand their processes on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tuner.compile.farm.ChildProcess", WarmProcess)
        patch.setattr(WarmProcess, "shared", shared, raising=False)
        patch.setattr(WarmProcess, "_waiting", [])
        try:
            yield
        finally:
            WarmProcess.end_all()
