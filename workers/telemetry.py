"""Logs as JSON, outages, which are logged once, and one trace from a request to its job's trials.

Traces follow W3C Trace Context and OpenTelemetry. A caller's traceparent always travels with the
job. Spans are made and sent only where the environment names a collector
(OTEL_EXPORTER_OTLP_ENDPOINT) and the extra `trace` is installed; without them nothing of
OpenTelemetry is imported here.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workers.otel import OtelSpans


log = logging.getLogger("tuner.tracing")

_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
# The traceparent that was passed to this request or job. Threads that work on it inherit it.
_passed: ContextVar[str] = ContextVar("traceparent", default="")

Attributes = Mapping[str, str | int | float | bool]


_spans: OtelSpans | None = None


def start_tracing(service: str) -> None:
    """Send this process's spans to the collector that the environment names, if it names one."""
    global _spans
    if not any(os.environ.get(name) for name in _ENDPOINTS) or _spans is not None:
        return
    try:
        from workers.otel import OtelSpans  # noqa: PLC0415  # OpenTelemetry is an extra
    except ModuleNotFoundError as error:
        log.warning("no traces are sent: no %s here: pip install 'engine-tuner[trace]'", error.name)
        return
    _spans = OtelSpans.sending(service)


def checked_traceparent(text: str) -> str:
    """A traceparent of a caller; "" where it is not a valid one of version 00."""
    return text if _TRACEPARENT.fullmatch(text) else ""


def current_traceparent() -> str:
    """What the next process continues: the current span, else what was passed here; or ""."""
    return (_spans.current() if _spans else "") or _passed.get()


def current_trace_id() -> str:
    """The id of the current trace, 32 hexadecimal digits; "" outside of all traces."""
    return current_traceparent()[3:35]


@contextmanager
def continued(traceparent: str) -> Iterator[None]:
    """Continue a caller's trace in the block; "" begins none."""
    token = _passed.set(traceparent)
    try:
        yield
    finally:
        _passed.reset(token)


@contextmanager
def span(name: str, attributes: Attributes, kind: str = "internal") -> Iterator[None]:
    """Make a span of the block: internal, producer (makes a job) or consumer (does one).

    An exception that leaves the block is recorded as the span's error.
    """
    if _spans is None:
        yield
    else:
        with _spans.span(name, current_traceparent(), kind, attributes):
            yield


def add_span(name: str, start_ns: int, end_ns: int, attributes: Attributes) -> None:
    """Add a span that has ended; the times are nanoseconds since 1970."""
    if _spans is not None:
        _spans.add(name, current_traceparent(), (start_ns, end_ns), attributes)


def describe_span(attributes: Attributes, error: str = "") -> None:
    """Give the current span attributes and, unless it is empty, an error."""
    if _spans is not None:
        _spans.describe(attributes, error)


def flush_spans() -> None:
    """Send the spans that have ended, before this process may be killed."""
    if _spans is not None:
        _spans.flush()


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


outages = logging.getLogger("tuner.outages")


class Outage:
    """Logs once that something is away, and once that it is back. Threads may share it."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self._lock = threading.Lock()
        self._since: float | None = None

    def begin(self, error: BaseException, job_id: str | None = None) -> None:
        """It did not answer. Only an outage's first error is logged."""
        with self._lock:
            if self._since is not None:
                return
            self._since = self._clock()
        extra = {} if job_id is None else {"job_id": job_id}
        outages.warning("%s does not answer: %s", self._what, error, extra=extra)

    def end(self) -> None:
        """It answered."""
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            outages.info("%s answers again after %.0f s", self._what, self._clock() - since)
