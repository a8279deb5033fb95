"""Read the settings of the service's processes from environment variables.

Every variable may also come from a file, as container secrets do: TUNER_BROKER_URL_FILE names a
file that holds the value of TUNER_BROKER_URL.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tuner.errors import BadInput
from tuner.files import read_value
from tuner.jobs.attempts import AttemptLimits
from tuner.store.connect import PoolLimits, database_url

# The limits of a worker, its child and its nights. A worker that is to stop gives a frozen
# PostgreSQL up before Compose kills the worker, after 60 s.
STORE_LIMITS = PoolLimits(statement_s=20, connect_s=5)
_SCHEMES = ("redis", "rediss")
_LONGEST_LIMIT_S = 7 * 86_400


@dataclass(frozen=True)
class Settings:
    """The places of the service's database, broker and files. Raises BadInput for
    invalid values.
    """

    # Not shown: the URLs may hold passwords.
    database_url: str = field(repr=False)
    # redis:// or rediss://; None: no messages wake workers
    broker_url: str | None = field(default=None, repr=False)
    broker_ca: Path | None = None  # CA certificates to check Redis's with; None: the system's
    recordings: Path | None = None  # replay:NAME is a file of this folder; None: any path
    nightly: Path | None = None  # the watch list, a nightly.toml
    nightly_hour: int = 1  # UTC
    carry_over: bool = True  # keep stored entries unless something is clearly faster
    limits: AttemptLimits = AttemptLimits()
    metrics_port: int | None = None  # of `tuner worker` and beat; None: they show no metrics
    metrics_host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        if self.broker_url and urlsplit(self.broker_url).scheme not in _SCHEMES:
            raise BadInput("TUNER_BROKER_URL starts with redis:// or, for TLS, rediss://")
        if not 0 <= self.nightly_hour < 24:
            raise BadInput(f"TUNER_NIGHTLY_HOUR is 0 to 23, not {self.nightly_hour}")
        if self.metrics_port is not None and not 1024 <= self.metrics_port <= 65_000:
            raise BadInput(f"TUNER_METRICS_PORT is 1024 to 65000, not {self.metrics_port}")

    def recording(self, name: str) -> Path:
        """Return the file of `replay:name` here. Raises BadInput for a file outside the folder."""
        if self.recordings is None:
            return Path(name)
        path = (self.recordings / name).resolve()
        if not path.is_relative_to(self.recordings.resolve()):
            raise BadInput(f"recording {name!r} is not in the folder of recordings")
        return path


def read_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings of this process. Raises BadInput for an invalid value."""
    values = {
        name: read_value(f"TUNER_{name.upper()}", environ)
        for name in ("broker_url", "broker_ca", "recordings", "nightly")
    }
    paths = {name: values.pop(name) for name in ("broker_ca", "recordings", "nightly")}
    hour = read_value("TUNER_NIGHTLY_HOUR", environ) or str(Settings.nightly_hour)
    if not (hour.isascii() and hour.isdigit()):
        raise BadInput(f"TUNER_NIGHTLY_HOUR is 0 to 23, not {hour!r}")
    carry_over = read_value("TUNER_CARRY_OVER", environ) or "yes"
    if carry_over not in ("yes", "no"):
        raise BadInput(f"TUNER_CARRY_OVER is yes or no, not {carry_over!r}")
    port = read_value("TUNER_METRICS_PORT", environ)
    if port is not None and not (port.isascii() and port.isdigit()):
        raise BadInput(f"TUNER_METRICS_PORT is 1024 to 65000, not {port!r}")
    return Settings(
        database_url=database_url(environ),
        broker_url=values["broker_url"],
        nightly_hour=int(hour),
        carry_over=carry_over == "yes",
        limits=_read_limits(environ),
        metrics_port=None if port is None else int(port),
        metrics_host=read_value("TUNER_METRICS_HOST", environ) or Settings.metrics_host,
        **{name: Path(path) if path else None for name, path in paths.items()},
    )


def _read_limits(environ: Mapping[str, str]) -> AttemptLimits:
    given: dict[str, float] = {}
    for name in ("start", "first_trial", "next_trial", "attempt"):
        text = read_value(f"TUNER_{name.upper()}_LIMIT_S", environ)
        if text is None:
            continue
        if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= _LONGEST_LIMIT_S):
            raise BadInput(
                f"TUNER_{name.upper()}_LIMIT_S is a whole number of seconds, "
                f"1 to {_LONGEST_LIMIT_S}, not {text!r}"
            )
        given[f"{name}_s"] = float(text)
    return AttemptLimits(**given)
