"""Links that log a browser in once: `tuner serve` prints one to the person who started it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from api.known_keys import TooManyWrong, WrongKeys
from tuner.store.key_text import key_hash

VALID_S = 600.0


class Links:
    """The links of this process that were not used yet. Only the event loop uses them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong = WrongKeys(clock)
        self._unused: dict[str, tuple[float, str]] = {}  # by hash: until when, and the key's name

    def add(self, key_name: str) -> str:
        """The secret of a new link, which stands for the key of that name."""
        token = secrets.token_urlsafe(32)
        self._unused[key_hash(token)] = self._clock() + VALID_S, key_name
        return token

    def take(self, token: str, address: str) -> str | None:
        """The name of a link's key, once; None for a link that was used, or is too old or unknown.

        Raises TooManyWrong for an address that tried many.
        """
        if self._wrong.too_many(address):
            raise TooManyWrong(self._wrong.wait_s(address))
        until, name = self._unused.pop(key_hash(token), (0.0, ""))
        if self._clock() < until:
            return name
        self._wrong.add(address, "/login")
        return None
