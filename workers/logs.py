"""Logs of the service as JSON, one object a line, with the ids of requests and jobs."""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import datetime, timezone

from workers.tracing import current_trace_id

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
        if trace_id := current_trace_id():
            line["trace_id"] = trace_id
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
