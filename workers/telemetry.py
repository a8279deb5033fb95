"""Log as JSON, and log an outage once."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime, timezone

# The id of the request that is being answered. Threads that work on the answer inherit it.
current_request: ContextVar[str] = ContextVar("current_request", default="")

_OURS = ("job_id", "client", "method", "path", "route", "status", "ms", "address")


class JsonFormatter(logging.Formatter):
    """Formats a record and the known fields of its `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": datetime.fromtimestamp(record.created, timezone.utc).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := current_request.get():
            line["request_id"] = request_id
        line |= {name: vars(record)[name] for name in _OURS if name in vars(record)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_json(level: int = logging.INFO, *filters: logging.Filter) -> None:
    """Send every logger's records that pass the filters, and Python's warnings, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for one in filters:
        handler.addFilter(one)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    logging.getLogger("alembic").setLevel(logging.WARNING)  # at INFO it logs every start


outages = logging.getLogger("tuner.outages")


class Outage:
    """Logs once that a service is away, and once that it is back. Threads may share it."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self._lock = threading.Lock()
        self._since: float | None = None

    def begin(self, error: BaseException, job_id: str | None = None) -> None:
        """Note that it did not answer. Only an outage's first error is logged."""
        with self._lock:
            if self._since is not None:
                return
            self._since = self._clock()
        extra = {} if job_id is None else {"job_id": job_id}
        outages.warning("%s does not answer: %s", self._what, error, extra=extra)

    def end(self) -> None:
        """Note that it answered."""
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            outages.info("%s answers again after %.0f s", self._what, self._clock() - since)
