"""The keys of a store, asked for as seldom as possible.

Valid keys are remembered for two seconds, and wrong ones counted: few requests ask the store. The
tokens of sessions are keys here, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio
from starlette.concurrency import run_in_threadpool

from api.wrong_keys import TooManyWrong, WrongKeys
from tuner.store.api_key import ApiKey, key_hash
from tuner.store.keys import KeyStore, SessionStore

FRESH_S = 2.0  # a revoked key is refused after so long at most


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

    async def find(
        self, keys: KeyStore | SessionStore, token: str, address: str, path: str
    ) -> ApiKey | None:
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

    async def _valid_hashes(self, keys: KeyStore | SessionStore) -> frozenset[str]:
        async with self._reading:
            if self._clock() >= self._hashes_until:
                until = self._clock() + FRESH_S
                self._hashes = await run_in_threadpool(keys.hashes)
                self._hashes_until = until
            return self._hashes
