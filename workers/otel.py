"""OpenTelemetry's spans, sent over OTLP/HTTP. `workers.telemetry` imports it if they are wanted."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

# A collector that is away must delay neither the end of a job nor the end of a process for long.
FLUSH_S = 2.0
SEND_S = 3.0  # unless the environment says otherwise
_TIMEOUTS = ("OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT")
_PROPAGATOR = TraceContextTextMapPropagator()
Attributes = Mapping[str, AttributeValue]


class OtelSpans:
    """Makes spans with a provider."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("engine-tuner", version("engine-tuner"))

    @classmethod
    def sending(cls, service: str) -> OtelSpans:
        """Spans for the collector of the environment. The provider becomes the process's own.

        FastAPI then makes a span of each request.
        """
        given = any(os.environ.get(name) for name in _TIMEOUTS)
        exporter = OTLPSpanExporter(timeout=None if given else SEND_S)
        found = OTELResourceDetector().detect().attributes  # OTEL_SERVICE_NAME wins
        named = {"service.name": service, "service.version": version("engine-tuner"), **found}
        provider = TracerProvider(resource=Resource.create(named))
        provider.add_span_processor(BatchSpanProcessor(exporter))
        trace.set_tracer_provider(provider)
        return cls(provider)

    def current(self) -> str:
        """The traceparent of the current span; "" outside of all spans."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier)
        return carrier.get("traceparent", "")

    @contextmanager
    def span(self, name: str, parent: str, kind: str, attributes: Attributes) -> Iterator[None]:
        """Make a span current, below `parent`. It records an exception that leaves the block."""
        with self._tracer.start_as_current_span(
            name,
            context=self._below(parent),
            kind=SpanKind[kind.upper()],
            attributes=attributes,
        ):
            yield

    def add(
        self, name: str, parent: str, times_ns: tuple[int, int], attributes: Attributes
    ) -> None:
        """Add a span that has ended; the times are its start and its end."""
        start_ns, end_ns = times_ns
        made = self._tracer.start_span(
            name, context=self._below(parent), start_time=start_ns, attributes=attributes
        )
        made.end(end_ns)

    def _below(self, parent: str) -> Context:
        here = context.get_current()
        if parent == self.current():
            return here
        return _PROPAGATOR.extract({"traceparent": parent}, here)  # it is of another process

    def describe(self, attributes: Attributes, error: str) -> None:
        """Give the current span attributes and, unless it is empty, an error."""
        here = trace.get_current_span()
        here.set_attributes(attributes)
        if error:
            here.set_status(Status(StatusCode.ERROR, error))

    def flush(self) -> None:
        """Send what has ended. It takes FLUSH_S at most."""
        # The SDK takes a limit and does not obey it.
        sending = threading.Thread(target=self._provider.force_flush, daemon=True)
        sending.start()
        sending.join(FLUSH_S)
