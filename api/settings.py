"""The API's settings. Only this module reads environment variables for the API.

(`api.first_key` looks for the command line's key, as the command line does.)

NAME_FILE may stand for NAME, as in `workers.settings`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from limits import RateLimitItem, parse_many

from tuner.errors import BadInput
from workers.settings import Settings, read_settings, read_value

MIB = 1 << 20


@dataclass(frozen=True)
class ApiSettings:
    """The service's settings, and the API's limits."""

    service: Settings
    max_body_bytes: int = 4 * MIB  # the largest config.json seen has 3 MiB
    rate: tuple[RateLimitItem, ...] = field(default_factory=lambda: _rate("1200/minute"))
    submit_rate: tuple[RateLimitItem, ...] = field(default_factory=lambda: _rate("300/minute"))
    stream_s: int = 3600  # an event stream ends after so many seconds, and its client reconnects
    streams: int = 200  # event streams at once
    no_auth: bool = False  # requests from this machine need no key: `tuner serve --no-auth`


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
        stream_s=whole("STREAM_S", 1, 86_400, defaults.stream_s),
        streams=whole("STREAMS", 1, 10_000, defaults.streams),
    )


def _rate(text: str) -> tuple[RateLimitItem, ...]:
    """Read `10/second;300/minute`, or `none`."""
    if text == "none":
        return ()
    try:
        return tuple(parse_many(text))
    except ValueError:
        raise BadInput(f"a rate is like 10/second;300/minute, or none: not {text!r}") from None
