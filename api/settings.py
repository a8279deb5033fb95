"""The API's settings, and bounds of the texts of others before they are parsed.

Only this module reads environment variables for the API. (`api.keys` looks for the command line's
key, as the command line does.) NAME_FILE may stand for NAME, as in `workers.settings`.

Parsers take far longer than the bytes take to arrive, and some take quadratic time: so each text is
measured first, in linear time. A text within the bounds is parsed in a thread, unless its body is
small. The bounds of TOML itself stand in `tuner.files`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from limits import RateLimitItem, parse_many

from tuner.errors import BadInput
from tuner.files import read_value
from tuner.store.connect import PoolLimits
from workers.settings import Settings, read_settings

CLUSTER_CHARS = 1 << 15  # a posted cluster.toml; one of 100 nodes has 10,000

# JSON. Each of these characters brings a value, which takes far longer to make than to send. The
# largest config.json that was seen has 70,000.
VALUES = 200_000
BRING_VALUES = b",:[{&"
JSON_DEPTH = 64  # a config.json has 6
DIGITS = 400  # of one number: Python takes quadratic time to read more, then refuses

# Requests.
HEAD_BYTES = 1 << 15  # a request's line and headers, or bytes that look like the rest of a body
HEADERS = 100  # of a request; a browser behind two proxies sends 40
COOKIE_BYTES = 1 << 12  # of a request's cookies: the session's has 150
QUERY_BYTES = 1 << 14  # after the "?"
QUERY_FIELDS = 200
SERVER_ARGS = 4096  # characters of a server's flags
FORM_FIELDS = 200
PIECES, PIECE_BYTES = 100, 256  # of a body: above so many, each has so many bytes on average
SMALL_BYTES = 1 << 12  # a body that is parsed in the event loop: a thread would take longer
# Requests with a larger body are worked on one at a time, and have a rate of their own: each keeps
# Python's lock for long. Without a key, none is read.
LARGE_BYTES = 1 << 16
MIB = 1 << 20


def _rate(text: str) -> tuple[RateLimitItem, ...]:
    """Read `10/second;300/minute`, or `none`."""
    if text == "none":
        return ()
    try:
        return tuple(parse_many(text))
    except ValueError:
        raise BadInput(f"a rate is like 10/second;300/minute, or none: not {text!r}") from None


def _whole(default: int, low: int, high: int) -> int:
    """Return a field that TUNER_API_NAME sets, within these bounds."""
    found: int = field(default=default, metadata={"bounds": (low, high)})
    return found


@dataclass(frozen=True)
class ApiSettings:
    """The service's settings, and the API's limits: TUNER_API_RATE sets `rate`, and so on."""

    service: Settings
    max_body_bytes: int = _whole(4 * MIB, 1024, 64 * MIB)  # the largest config.json seen has 3 MiB
    rate: tuple[RateLimitItem, ...] = _rate("1200/minute")
    submit_rate: tuple[RateLimitItem, ...] = _rate("300/minute")
    queued: int = _whole(10_000, 1, 1_000_000)  # jobs of one key in the queue
    # An event stream ends after so many seconds, and its client reconnects.
    stream_s: int = _whole(3600, 1, 86_400)
    streams: int = _whole(200, 1, 10_000)  # event streams at once
    no_auth: bool = False  # requests from this machine need no key: `tuner serve --no-auth`
    streams_per_key: int = _whole(20, 1, 10_000)
    body_s: int = _whole(20, 1, 3600)  # a body must have arrived after so many seconds
    large_rate: tuple[RateLimitItem, ...] = _rate("60/minute")
    connections: int = _whole(1000, 10, 100_000)  # of clients, at once
    connections_per_address: int = _whole(100, 1, 100_000)
    # PostgreSQL gives a statement of a request up after so many seconds.
    statement_s: int = _whole(10, 1, 3600)
    lock_s: int = _whole(5, 1, 3600)  # and a wait for a lock, or for a connection to the store

    @property
    def store_limits(self) -> PoolLimits:
        """Return how long a request waits for the store."""
        wait_s = self.lock_s
        connect_s = min(wait_s, PoolLimits.connect_s)
        return PoolLimits(wait_s, self.statement_s, lock_s=wait_s, connect_s=connect_s)


def read_api_settings(environ: Mapping[str, str] = os.environ) -> ApiSettings:
    """Return the settings of this process. Raises BadInput for an invalid value."""
    given: dict[str, Any] = {}
    for one in fields(ApiSettings):
        bounds, name = one.metadata.get("bounds"), f"TUNER_API_{one.name.upper()}"
        if not (bounds or one.name.endswith("rate")) or (text := read_value(name, environ)) is None:
            continue
        if not bounds:
            given[one.name] = _rate(text)
        elif text.isascii() and text.isdigit() and bounds[0] <= int(text[:12]) <= bounds[1]:
            given[one.name] = int(text)
        else:
            raise BadInput(f"{name} is a whole number, {bounds[0]} to {bounds[1]}, not {text!r}")
    return ApiSettings(read_settings(environ), **given)
