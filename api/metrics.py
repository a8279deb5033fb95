"""Metrics for Prometheus: of this application, of its store, and of its process."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import REGISTRY, Collector

from tuner.errors import UnusableStore
from tuner.jobs.job import HELD, JobState
from tuner.store.figures import Figures, Nights, StoreFigures
from workers.metrics import PoolCollector
from workers.settings import Settings

log = logging.getLogger("tuner.api")

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
# Counting all finished jobs takes time in proportion to them. It may take this share of the time.
_COUNTING = 0.01
# What a living worker can be: it takes jobs, finishes its last one, takes none, or is broken.
WORKER_STATES = ("active", "draining", "drained", "set_aside")
NO_GPU = "none"  # the device of a worker without a GPU


class Metrics:
    """What one application counts, and what its store says when it is asked."""

    def __init__(self, figures: Figures, settings: Settings) -> None:
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
        self._registry.register(_Store(figures))
        self._registry.register(PoolCollector(figures))
        if settings.broker_url:
            from workers.broker import BrokerCollector  # noqa: PLC0415  # Celery is an extra

            self._registry.register(BrokerCollector(settings))

    def text(self) -> bytes:
        """Everything, in Prometheus' text format."""
        # A process may have several applications. They share what is of the process.
        return generate_latest(self._registry) + generate_latest(REGISTRY)


class _Store(Collector):
    """Reads the store when it is collected. A store that does not answer has one metric: 0."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self._finished: Mapping[JobState, int] = {}
        self._count_at = 0.0

    def describe(self) -> Iterator[Metric]:
        return iter(())  # without this, registering would query the database

    def collect(self) -> Iterator[Metric]:
        try:
            found = self._figures.read()
            self._count_finished()
        except UnusableStore as error:
            log.error("metrics: %s", error)  # the process's own figures are still worth having
            yield GaugeMetricFamily("tuner_store_up", "Whether the store answers.", 0)
            return
        yield GaugeMetricFamily("tuner_store_up", "Whether the store answers.", 1)
        yield from _of_jobs(found)
        finished = _gauge("tuner_jobs_finished", "Jobs at their end that are stored.", "state")
        for state, count in self._finished.items():
            finished.add_metric((state.value,), count)
        yield finished
        yield from _of_workers(found)
        yield from _of_nights(found.nights)

    def _count_finished(self) -> None:
        started = time.monotonic()
        if started >= self._count_at:
            self._finished = self._figures.finished()
            ended = time.monotonic()
            self._count_at = ended + (ended - started) / _COUNTING


def _of_jobs(found: StoreFigures) -> Iterator[Metric]:
    unfinished = _gauge("tuner_jobs_unfinished", "Jobs not at their end.", "state", "device")
    kind = "device", "needs_gpu"
    queued = _gauge("tuner_queue_jobs", "Queued jobs.", *kind)
    oldest = _gauge(
        "tuner_queue_oldest_seconds", "Since the oldest queued job was posted; 0: none.", *kind
    )
    able = _gauge(
        "tuner_queue_workers", "Living workers that take such jobs, if they have the engine.", *kind
    )
    queues = {(queue.device, queue.needs_gpu): queue for queue in found.queues}
    for device in sorted(found.devices):
        counts = {state: found.held.get((state, device), 0) for state in HELD}
        counts[JobState.QUEUED] = 0
        for needs_gpu in (True, False):
            labels = device, str(needs_gpu).lower()
            queue = queues.get((device, needs_gpu))
            counts[JobState.QUEUED] += queue.jobs if queue else 0
            queued.add_metric(labels, queue.jobs if queue else 0)
            oldest.add_metric(labels, queue.oldest_s if queue else 0)
            able.add_metric(
                labels, sum(one.serves(device, needs_gpu=needs_gpu) for one in found.workers)
            )
        for state, count in counts.items():
            unfinished.add_metric((state.value, device), count)
    yield from (unfinished, queued, oldest, able)
    yield GaugeMetricFamily(
        "tuner_leases_overdue", "Leases that have run out and are not taken back.", found.overdue
    )


def _of_workers(found: StoreFigures) -> Iterator[Metric]:
    alive = _gauge("tuner_workers", "Living workers by the device of their GPU.", "device", "state")
    having = _gauge(
        "tuner_engine_workers", "Living workers that have an engine.", "device", "engine"
    )
    counts = {(device, state): 0 for device in found.devices for state in WORKER_STATES}
    engines: dict[tuple[str, str], int] = {}
    for worker in found.workers:
        device = worker.device or NO_GPU
        if worker.state in WORKER_STATES:
            counts[device, worker.state] = counts.get((device, worker.state), 0) + 1
            for engine in worker.engines:
                engines[device, engine] = engines.get((device, engine), 0) + 1
    for labels, count in sorted(counts.items()):
        alive.add_metric(labels, count)
    for labels, count in sorted(engines.items()):
        having.add_metric(labels, count)
    yield from (alive, having)


def _of_nights(nights: Nights) -> Iterator[Metric]:
    """The last rounds; nothing before the first one."""
    if nights.started_at:
        name, at = "tuner_night_started_timestamp_seconds", nights.started_at.timestamp()
        yield GaugeMetricFamily(name, "When the last one began.", at)
    if nights.finished_at:
        summary = nights.summary
        errors = len(summary.get("errors", ())) + len(summary.get("not_submitted", ()))
        submitted = len(summary.get("submitted", ()))
        name, at = "tuner_night_finished_timestamp_seconds", nights.finished_at.timestamp()
        yield GaugeMetricFamily(name, "When the last finished one ended.", at)
        yield GaugeMetricFamily("tuner_night_errors", "Of the last finished one.", errors)
        yield GaugeMetricFamily("tuner_night_submitted", "Jobs it queued.", submitted)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=labels)
