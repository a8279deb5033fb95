"""Wrong keys, counted for each address. Keys cannot be guessed, but asking the store takes time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from api.addresses import counted

log = logging.getLogger("tuner.api.auth")

MOST_WRONG = 30  # keys from one address in WINDOW_S
WINDOW_S = 60.0
LOGGED = 3  # wrong keys from one address that get a line each; the others are summed up


class TooManyWrong(Exception):
    """An address sent too many wrong keys; `wait_s` says when its keys are looked up again."""

    def __init__(self, wait_s: int) -> None:
        super().__init__()
        self.wait_s = wait_s


@dataclass
class _Tally:
    """The wrong keys of an address. `ends` is 0 until the first."""

    ends: float = 0.0
    wrong: int = 0
    asking: int = 0  # keys that the store is being asked for: they may be wrong, too


class WrongKeys:
    """Counts the wrong keys of each address for WINDOW_S from its first, then logs their number."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tallies: dict[str, _Tally] = {}

    def too_many(self, address: str) -> bool:
        tally = self._tallies.get(counted(address))
        return tally is not None and tally.wrong + tally.asking >= MOST_WRONG

    def wait_s(self, address: str) -> int:
        """Whole seconds until the count starts again, at least 1."""
        tally = self._tallies.get(counted(address))
        return max(1, round(tally.ends - self._clock())) if tally else 1

    @contextmanager
    def asking(self, address: str) -> Iterator[None]:
        """Count a key while it may turn out to be wrong."""
        tally = self._tallies.setdefault(network := counted(address), _Tally())
        tally.asking += 1
        try:
            yield
        finally:
            tally.asking -= 1
            if not (tally.asking or tally.wrong):
                del self._tallies[network]

    def add(self, address: str, path: str) -> None:
        """Count a wrong key, and log it if it is among the first."""
        tally = self._tallies.setdefault(network := counted(address), _Tally())
        if not tally.wrong:
            tally.ends = self._clock() + WINDOW_S
            asyncio.get_running_loop().call_later(WINDOW_S, self._end, network)
        tally.wrong += 1
        if tally.wrong <= LOGGED:
            log.warning("a wrong key", extra={"address": address, "path": path})

    def _end(self, address: str) -> None:
        tally = self._tallies.pop(address)
        if tally.wrong > LOGGED:
            text = "%d wrong keys in %d s"
            log.warning(text, tally.wrong, WINDOW_S, extra={"address": address})
