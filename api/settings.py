"""The API's settings, and how much a text of others may hold before it is parsed.

Only this module reads environment variables for the API. (`api.keys` looks for the command line's
key, as the command line does.) NAME_FILE may stand for NAME, as in `workers.settings`.

Parsers take far longer than the bytes take to arrive, and some of them by the square: so each text
is measured first, in linear time. What is left is parsed in a thread, apart from small bodies. The
bounds of TOML itself stand in `tuner.toml_table`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from limits import RateLimitItem, parse_many

from tuner.errors import BadInput
from tuner.store.connect import PoolLimits
from workers.settings import Settings, read_settings, read_value

CLUSTER_CHARS = 1 << 15  # a posted cluster.toml; one of 100 nodes has 10,000

# JSON. Each of these characters brings a value, which takes far longer to make than to send. The
# largest config.json that was seen has 70,000.
VALUES = 200_000
BRING_VALUES = b",:[{&"
JSON_DEPTH = 64  # a config.json has 6
DIGITS = 400  # of one number: Python takes quadratic time to read more, then refuses

# Requests.
HEAD_BYTES = 1 << 15  # a request's line and headers, or what only looks like the rest of a body
QUERY_BYTES = 1 << 14  # after the "?": the flags of a server have up to 4,096 characters
QUERY_FIELDS = 200
FORM_FIELDS = 200
SMALL_BYTES = 1 << 12  # a body that is parsed in the event loop: a thread would take longer
# Requests with a larger body are worked on one at a time, and have a rate of their own: each keeps
# Python's lock for long. Without a key, none is read.
LARGE_BYTES = 1 << 16
MIB = 1 << 20


@dataclass(frozen=True)
class ApiSettings:
    """The service's settings, and the API's limits."""

    service: Settings
    max_body_bytes: int = 4 * MIB  # the largest config.json seen has 3 MiB
    rate: tuple[RateLimitItem, ...] = field(default_factory=lambda: _rate("1200/minute"))
    submit_rate: tuple[RateLimitItem, ...] = field(default_factory=lambda: _rate("300/minute"))
    queued: int = 10_000  # jobs of one key in the queue
    stream_s: int = 3600  # an event stream ends after so many seconds, and its client reconnects
    streams: int = 200  # event streams at once
    wait_s: int = 60  # a request waits at most so long for its job's end
    no_auth: bool = False  # requests from this machine need no key: `tuner serve --no-auth`
    streams_per_key: int = 20
    body_s: int = 20  # a body must have arrived after so many seconds
    large_rate: tuple[RateLimitItem, ...] = field(default_factory=lambda: _rate("60/minute"))
    connections: int = 1000  # of clients, at once
    connections_per_address: int = 100
    statement_s: int = 10  # PostgreSQL gives a statement of a request up after so many seconds
    lock_s: int = 5  # and a wait for a lock, or for a free connection to the store

    @property
    def store_limits(self) -> PoolLimits:
        """How long a request waits for the store."""
        wait_s = self.lock_s
        return PoolLimits(connection_s=wait_s, statement_s=self.statement_s, lock_s=wait_s)


def read_api_settings(environ: Mapping[str, str] = os.environ) -> ApiSettings:
    """The settings of this process. Raises BadInput for an invalid value."""
    defaults = ApiSettings(read_settings(environ))

    def rate(name: str, default: tuple[RateLimitItem, ...]) -> tuple[RateLimitItem, ...]:
        text = read_value(f"TUNER_API_{name}", environ)
        return default if text is None else _rate(text)

    def whole(name: str, low: int, high: int, default: int) -> int:
        text = read_value(f"TUNER_API_{name}", environ)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and low <= int(text[:12]) <= high):
            raise BadInput(f"TUNER_API_{name} is a whole number, {low} to {high}, not {text!r}")
        return int(text)

    return ApiSettings(
        service=defaults.service,
        max_body_bytes=whole("MAX_BODY_BYTES", 1024, 64 * MIB, defaults.max_body_bytes),
        rate=rate("RATE", defaults.rate),
        submit_rate=rate("SUBMIT_RATE", defaults.submit_rate),
        queued=whole("QUEUED", 1, 1_000_000, defaults.queued),
        stream_s=whole("STREAM_S", 1, 86_400, defaults.stream_s),
        wait_s=whole("WAIT_S", 0, 60, defaults.wait_s),
        streams=whole("STREAMS", 1, 10_000, defaults.streams),
        streams_per_key=whole("STREAMS_PER_KEY", 1, 10_000, defaults.streams_per_key),
        body_s=whole("BODY_S", 1, 3600, defaults.body_s),
        large_rate=rate("LARGE_RATE", defaults.large_rate),
        connections=whole("CONNECTIONS", 10, 100_000, defaults.connections),
        connections_per_address=whole(
            "CONNECTIONS_PER_ADDRESS", 1, 100_000, defaults.connections_per_address
        ),
        statement_s=whole("STATEMENT_S", 1, 3600, defaults.statement_s),
        lock_s=whole("LOCK_S", 1, 3600, defaults.lock_s),
    )


def _rate(text: str) -> tuple[RateLimitItem, ...]:
    """Read `10/second;300/minute`, or `none`."""
    if text == "none":
        return ()
    try:
        return tuple(parse_many(text))
    except ValueError:
        raise BadInput(f"a rate is like 10/second;300/minute, or none: not {text!r}") from None
