"""One trace from a request to the trials of its job, by W3C Trace Context and OpenTelemetry.

A caller's traceparent always travels with the job. Spans are made and sent only where the
environment names a collector (OTEL_EXPORTER_OTLP_ENDPOINT) and the extra `trace` is installed;
without them nothing of OpenTelemetry is imported here.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
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
