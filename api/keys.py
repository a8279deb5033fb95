"""Keys of requests: the first key, the keys that a server needs, and few questions to the store.

Valid keys are remembered for two seconds, and wrong keys are counted for each address: keys cannot
be guessed, but the store takes time to answer. The tokens of sessions are keys here, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network
from pathlib import Path

import anyio
from starlette.concurrency import run_in_threadpool

from api.settings import ApiSettings
from tuner.errors import BadInput, UnusableStore, UnwritableOutput
from tuner.jobs.client import KEY_VARIABLE, api_key, key_path
from tuner.jobs.web import is_loopback
from tuner.store.api_key import LOCAL, ApiKey, KeyState, key_hash
from tuner.store.database import utc_now
from tuner.store.keys import KeyStore, SessionStore

log = logging.getLogger("tuner.api.auth")

MOST_WRONG = 30  # keys from one address in WINDOW_S
WINDOW_S = 60.0
LOGGED = 3  # wrong keys from one address that get a line each; the others are summed up
FRESH_S = 2.0  # a revoked key is refused after so long at most
ADD = "`tuner admin keys create NAME --scope admin`"  # for messages


def counted(address: str) -> str:
    """Return the address, or the /64 of an IPv6 address: a client may have the whole /64."""
    if ":" not in address:
        return address
    host = IPv6Address(address)
    return str(host.ipv4_mapped or IPv6Network((int(host), 64), strict=False))


class TooManyWrong(Exception):
    """An address sent too many wrong keys; its keys are looked up again after `wait_s`."""

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
        """Return the whole seconds until the count starts again, at least 1."""
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


class KnownKeys:
    """Remembers the keys of a store, to ask the store seldom.

    An address that sent too many wrong keys may share a proxy or a router with honest clients. So a
    valid key is never refused: its hash is among the hashes of all valid keys, which are read at
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
        """Return the answer of `keys.find`, at most FRESH_S old.

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


def make_first_key(keys: KeyStore, environ: Mapping[str, str]) -> bool:
    """Make the first key. Return False if another process made it meanwhile.

    Raises BadInput if the command line has a key already, which the first key must not replace.
    """
    if environ.get(KEY_VARIABLE):
        raise BadInput(
            f"{KEY_VARIABLE} is set, and the store has no key: unset it, and `tuner serve` makes a "
            f"key; or make a key with {ADD}"
        )
    path, written = key_path(environ), []

    def keep(key: str) -> None:
        _write(path, key)
        written.append(path)

    try:
        return keys.add_first(keep)
    except UnusableStore:
        for one in written:
            one.unlink(missing_ok=True)
        raise


def _write(path: Path, key: str) -> None:
    """Write a file that only its owner may read, whole or not at all, never over another file."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".api-key-")  # mode 0600
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(f"{key}\n")
                file.flush()
                os.fsync(descriptor)
            _link(name, path)
        finally:
            with contextlib.suppress(OSError):
                Path(name).unlink()
    except OSError as error:
        raise UnwritableOutput(
            f"cannot write a key to {path}: {error.strerror}; name another file in "
            f"{KEY_VARIABLE}_FILE, or make a key with {ADD}"
        ) from None


def _link(name: str, path: Path) -> None:
    try:
        os.link(name, path)
    except FileExistsError:
        raise BadInput(
            f"{path} holds a key that is not in this store: name another file for this store's "
            f"key in {KEY_VARIABLE}_FILE, or make a key with {ADD}, or remove the file if nobody "
            "needs it"
        ) from None


@dataclass(frozen=True)
class KeyPolicy:
    """Which keys requests need, in a sentence.

    If the user has a valid key, `key_name` is its name, and `key_file` its file, if the key is in a
    file.
    """

    words: str
    key_file: Path | None = None
    key_name: str | None = None


def check_keys(
    settings: ApiSettings, host: str, environ: Mapping[str, str] = os.environ
) -> KeyPolicy:
    """Make the first key of a store that never had a key, and say which keys requests need.

    Raises BadInput for `no_auth` beyond loopback or with a store that ever had a key; for an
    address beyond loopback without a valid key; and if the command line has a key already, which
    the first key must not replace.
    """
    with KeyStore.open(settings.service.database_url) as keys:
        if settings.no_auth:
            _refuse_no_auth(keys, host)
            return KeyPolicy("Requests from this machine need no key (--no-auth).")
        if not is_loopback(host):
            if keys.any():
                return KeyPolicy("Every request needs a key.")
            raise BadInput(
                f"{host} can be reached by others: make a key first, with {ADD}, or serve on "
                "127.0.0.1"
            )
        if not keys.any_ever() and make_first_key(keys, environ):
            path = key_path(environ)
            return KeyPolicy(
                f"Every request needs a key. The first key, of scope admin, is in {path}.",
                path,
                LOCAL,
            )
        return _key_policy(keys, environ)


def _refuse_no_auth(keys: KeyStore, host: str) -> None:
    if not is_loopback(host):
        raise BadInput(
            f"--no-auth is for this machine alone, and {host} can be reached by others: leave "
            "--no-auth out, or serve on 127.0.0.1"
        )
    if keys.any_ever():
        raise BadInput(
            "--no-auth is refused, because the store has or had keys: leave it out, and use a key "
            f"({ADD} makes a key)"
        )


def _key_policy(keys: KeyStore, environ: Mapping[str, str]) -> KeyPolicy:
    if not keys.any():
        return KeyPolicy(f"Every request needs a key, and none is valid: {ADD} makes a key.")
    try:
        mine = api_key(environ)
    except BadInput as error:
        return KeyPolicy(f"Every request needs a key. The command line has none: {error}.")
    if mine is None:
        return KeyPolicy(
            f"Every request needs a key. The command line has none: {ADD} makes a key."
        )
    where = KEY_VARIABLE if environ.get(KEY_VARIABLE) else key_path(environ)
    key = keys.find(mine)
    if key is None or key.state(utc_now()) is not KeyState.VALID:
        return KeyPolicy(
            f"Every request needs a key. The key in {where} is not valid: {ADD} makes a key."
        )
    file = where if isinstance(where, Path) else None
    return KeyPolicy(
        f"Every request needs a key. The command line's is in {where}.", file, key.name
    )
