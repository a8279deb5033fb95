"""Valid keys are remembered for two seconds, and wrong ones counted: few requests ask the store.

The tokens of sessions are keys here, too.

Only the event loop uses what is here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import anyio
from starlette.concurrency import run_in_threadpool

from tuner.store.api_key import ApiKey, key_hash

log = logging.getLogger("tuner.api.auth")

FRESH_S = 2.0  # a revoked key is refused after so long at most
MOST_WRONG = 30  # keys from one address in WINDOW_S; keys cannot be guessed, but asking takes time
WINDOW_S = 60.0
LOGGED = 3  # wrong keys from one address that get a line each; the others are summed up


class KeyLookup(Protocol):
    """Where keys are looked up: `KeyStore`, or `SessionStore` for the tokens of sessions."""

    def find(self, token: str) -> ApiKey | None: ...

    def hashes(self) -> frozenset[str]: ...


class TooManyWrong(Exception):
    """An address sent too many wrong keys; `wait_s` says when its keys are looked up again."""

    def __init__(self, wait_s: int) -> None:
        super().__init__()
        self.wait_s = wait_s


class KnownKeys:
    """The keys of a store, asked for as seldom as possible.

    An address that sent too many wrong keys may share a proxy or a router with honest clients. So a
    key that is valid is never refused: its hash is among those of all valid keys, which are read at
    most every FRESH_S.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong = WrongKeys(clock)
        self._fresh: dict[str, tuple[float, ApiKey]] = {}  # no more than there were valid keys
        self._hashes: frozenset[str] = frozenset()
        self._hashes_until = 0.0
        self._reading = anyio.Lock()

    async def find(self, keys: KeyLookup, token: str, address: str, path: str) -> ApiKey | None:
        """What `keys.find` answers, or answered at most FRESH_S ago.

        Raises TooManyWrong for a wrong key from an address that sent many.
        """
        name = key_hash(token)
        until, key = self._fresh.get(name, (0.0, None))
        if key is not None and self._clock() < until:
            return key
        self._fresh.pop(name, None)
        if self._wrong.too_many(address) and name not in await self._valid_hashes(keys):
            self._wrong.add(address, path)
            raise TooManyWrong(self._wrong.wait_s(address))
        until = self._clock() + FRESH_S  # from before the answer: it may be older than its arrival
        with self._wrong.asking(address):
            key = await run_in_threadpool(keys.find, token)
        if key is None:
            self._wrong.add(address, path)
        else:
            self._fresh[name] = (until, key)
        return key

    def forget(self, token: str) -> None:
        """Ask the store the next time, because the key has ended."""
        self._fresh.pop(key_hash(token), None)

    async def _valid_hashes(self, keys: KeyLookup) -> frozenset[str]:
        async with self._reading:
            if self._clock() >= self._hashes_until:
                until = self._clock() + FRESH_S
                self._hashes = await run_in_threadpool(keys.hashes)
                self._hashes_until = until
            return self._hashes


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
        tally = self._tallies.get(address)
        return tally is not None and tally.wrong + tally.asking >= MOST_WRONG

    def wait_s(self, address: str) -> int:
        """Whole seconds until the count starts again, at least 1."""
        tally = self._tallies.get(address)
        return max(1, round(tally.ends - self._clock())) if tally else 1

    @contextmanager
    def asking(self, address: str) -> Iterator[None]:
        """Count a key while it may turn out to be wrong."""
        tally = self._tallies.setdefault(address, _Tally())
        tally.asking += 1
        try:
            yield
        finally:
            tally.asking -= 1
            if not (tally.asking or tally.wrong):
                del self._tallies[address]

    def add(self, address: str, path: str) -> None:
        """Count a wrong key, and log it if it is among the first."""
        tally = self._tallies.setdefault(address, _Tally())
        if not tally.wrong:
            tally.ends = self._clock() + WINDOW_S
            asyncio.get_running_loop().call_later(WINDOW_S, self._end, address)
        tally.wrong += 1
        if tally.wrong <= LOGGED:
            log.warning("a wrong key", extra={"address": address, "path": path})

    def _end(self, address: str) -> None:
        tally = self._tallies.pop(address)
        if tally.wrong > LOGGED:
            text = "%d wrong keys in %d s"
            log.warning(text, tally.wrong, WINDOW_S, extra={"address": address})
