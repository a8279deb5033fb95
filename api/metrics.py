"""Metrics for Prometheus. Each application has its own registry."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tuner.errors import UnusableStore

log = logging.getLogger("tuner.api")

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


class Metrics:
    """Counters of this process, and the queue's lengths, read from the database when asked."""

    def __init__(self, unfinished: Callable[[], Mapping[tuple[str, str], int]]) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "tuner_http_requests",
            "Requests answered.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self.seconds = Histogram(
            "tuner_http_request_seconds",
            "Until the answer began.",
            ("method", "route"),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.submitted = Counter(
            "tuner_jobs_submitted",
            "Submissions accepted; created: whether a job was added for it.",
            ("device", "created"),
            registry=self._registry,
        )
        self.streams = Gauge(
            "tuner_event_streams", "Event streams open now.", registry=self._registry
        )
        self._registry.register(_Queue(unfinished))

    def text(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self._registry)


class _Queue(Collector):
    def __init__(self, unfinished: Callable[[], Mapping[tuple[str, str], int]]) -> None:
        self._unfinished = unfinished

    def collect(self) -> Iterator[GaugeMetricFamily]:
        gauge = GaugeMetricFamily(
            "tuner_jobs_unfinished", "Jobs not at their end.", labels=("state", "device")
        )
        try:
            for labels, count in self._unfinished().items():
                gauge.add_metric(labels, count)
        except UnusableStore as error:
            log.error("metrics: %s", error)  # the process's own figures are still worth having
        yield gauge

    def describe(self) -> Iterator[GaugeMetricFamily]:
        return iter(())  # without this, registering would query the database
