"""Count for Prometheus, read the store's figures, and serve the endpoints that show both.

These metrics are in `REGISTRY`, which also has the metrics of the process, the interpreter and its
garbage collector; an application of the API counts in a registry of its own. The help text of each
metric says what it is.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import REGISTRY, Collector

from tuner.errors import BadInput, UnusableStore
from tuner.jobs.job import HELD, JobState
from tuner.store.workers import Figures, NewestNights, StoreFigures
from workers.settings import Settings

log = logging.getLogger("tuner.metrics")

disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the number of series, and nobody asks for them

_STORE_UP = "Whether the store answers and has the schema of this version."
_MINUTE, _HOUR = 60, 3600
_WAITS = (1, 5, 15, _MINUTE, 300, 900, _HOUR, 4 * _HOUR, 12 * _HOUR, 24 * _HOUR, 72 * _HOUR)
_DURATIONS = (1, 5, 15, _MINUTE, 300, 900, 1800, _HOUR, 2 * _HOUR, 4 * _HOUR, 8 * _HOUR, 24 * _HOUR)

WAIT = Histogram(
    "tuner_job_wait_seconds",
    "From the posting of a job to its first claim.",
    ("device",),
    buckets=_WAITS,
)
DURATION = Histogram(
    "tuner_job_duration_seconds",
    "From a job's first claim to its end, by the worker that ended it.",
    ("device", "state"),
    buckets=_DURATIONS,
)
ATTEMPTS = Counter("tuner_attempts", "Attempts at jobs, by how they ended.", ("device", "outcome"))
LOST_LEASES = Counter(
    "tuner_leases_lost", "Jobs that another worker was given while this worker had them."
)
EXPIRED_LEASES = Counter(
    "tuner_leases_expired", "Leases that this worker took from another worker."
)
MESSAGES = Counter(
    "tuner_broker_messages",
    "Messages that wake workers: sent, failed, or not needed because enough are waiting.",
    ("result",),
)
_BUILD = Gauge("tuner_build_info", "1; the labels say what runs.", ("version", "python"))
_BUILD.labels(version("engine-tuner"), platform.python_version()).set(1)
for _result in ("sent", "failed", "enough"):
    MESSAGES.labels(_result)  # it begins at zero, so that its first increase is seen


class PoolCollector(Collector):
    """The connections of a database's pool, now."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the pool's gauges; none if connections are not pooled."""
        use = self._figures.pool()
        if use is None:
            return
        name, text = "tuner_store_connections", "Connections to the store that are open now."
        yield GaugeMetricFamily("tuner_store_pool_size", "Connections kept open.", use.size)
        opened = GaugeMetricFamily(name, text, labels=("state",))
        opened.add_metric(("idle",), use.idle)
        opened.add_metric(("used",), use.used)
        yield opened


def serve_metrics(settings: Settings) -> None:
    """Answer scrapes on the port of the settings, in a thread; do nothing if there is none.

    A port that is taken is logged. Jobs go on, because they are worth more than their figures.
    """
    if settings.metrics_port is None:
        return
    try:
        start_http_server(settings.metrics_port, settings.metrics_host)
    except OSError as error:
        log.error(
            "no metrics on %s:%d: %s", settings.metrics_host, settings.metrics_port, error.strerror
        )


ANSWER_S = 3.0  # a process that takes longer is shown as down; Prometheus waits for 10 s


def serve_fleet_metrics(
    host: str, port: int, ports: Sequence[int], starts: Callable[[], Sequence[int]]
) -> None:
    """Answer scrapes on `port`, in a thread. `ports` are the processes' ports, in their order.

    `starts` says how often each process was started. Raises BadInput if `port` cannot be had.
    """
    registry = CollectorRegistry()
    registry.register(_Processes(ports, starts))
    try:
        start_http_server(port, host, registry)
    except OSError as error:
        raise BadInput(
            f"TUNER_METRICS_PORT: cannot listen on {host}, port {port}: {error.strerror}"
        ) from None


class _Processes(Collector):
    """Asks all processes of one `tuner worker`, each on a port of loopback, when it is scraped.

    It adds the label `worker`, the number of the process.
    """

    def __init__(self, ports: Sequence[int], starts: Callable[[], Sequence[int]]) -> None:
        self._ports = ports
        self._starts = starts

    def describe(self) -> Iterator[Metric]:
        return iter(())  # registering must not ask processes that have not started yet

    def collect(self) -> Iterator[Metric]:
        with ThreadPoolExecutor(len(self._ports)) as threads:
            answers = list(threads.map(_metrics_of, self._ports))
        up = GaugeMetricFamily(
            "tuner_worker_up", "Whether the worker process answers.", labels=("worker",)
        )
        starts = CounterMetricFamily(
            "tuner_worker_starts", "Starts of the worker process.", labels=("worker",)
        )
        merged: dict[str, Metric] = {}
        for number, (answer, count) in enumerate(zip(answers, self._starts(), strict=True)):
            up.add_metric((str(number),), int(answer is not None))
            starts.add_metric((str(number),), count)
            for family in answer or ():
                into = Metric(family.name, family.documentation, family.type)
                into = merged.setdefault(family.name, into)
                into.samples += [
                    sample._replace(labels={**sample.labels, "worker": str(number)})
                    for sample in family.samples
                ]
        yield up
        yield starts
        yield from merged.values()


def _metrics_of(port: int) -> list[Metric] | None:
    """Return the metrics of one process; None if it does not answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
    with contextlib.closing(connection):
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        except (OSError, http.client.HTTPException):
            return None
    return list(text_string_to_metric_families(text))


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
# Counting all finished jobs takes time in proportion to them. It may take this share of the time.
_COUNTING = 0.01
# The states of a living worker: it takes jobs, finishes its last job, takes none, or is broken.
WORKER_STATES = ("active", "draining", "drained", "set_aside")
NO_GPU = "none"  # the device of a worker without a GPU


class Metrics:
    """The counters of one application, and the figures of its store."""

    def __init__(self, figures: Figures, *more: Collector) -> None:
        """Register the counters. `more` collectors are asked too."""
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "tuner_http_requests",
            "Requests answered.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self.seconds = Histogram(
            "tuner_http_request_seconds",
            "Time until the answer began.",
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
        for one in more:
            self._registry.register(one)

    def text(self) -> bytes:
        """Return everything, in Prometheus' text format."""
        # A process may have several applications. They share the process's metrics.
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
            yield GaugeMetricFamily("tuner_store_up", _STORE_UP, 0)
            return
        yield GaugeMetricFamily("tuner_store_up", _STORE_UP, 1)
        yield from _of_jobs(found)
        finished = _gauge(
            "tuner_jobs_finished", "Stored jobs that have ended; the figure may lag.", "state"
        )
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
    unfinished = _gauge("tuner_jobs_unfinished", "Jobs that have not ended.", "state", "device")
    kind = "device", "needs_gpu"
    queued = _gauge("tuner_queue_jobs", "Queued jobs.", *kind)
    oldest = _gauge(
        "tuner_queue_oldest_seconds", "Time since the oldest queued job was posted; 0: none.", *kind
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
    alive = _gauge("tuner_workers", "Workers seen in the last minute.", "device", "state")
    having = _gauge(
        "tuner_engine_workers",
        "Workers seen in the last minute that have the engine.",
        "device",
        "engine",
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


def _of_nights(nights: NewestNights) -> Iterator[Metric]:
    """Yield the last rounds; nothing before the first."""
    if nights.started_at:
        name, at = "tuner_night_started_timestamp_seconds", nights.started_at.timestamp()
        yield GaugeMetricFamily(name, "When the last night began.", at)
    if nights.finished_at:
        summary = nights.summary
        errors = len(summary.get("errors", ())) + len(summary.get("not_submitted", ()))
        submitted = len(summary.get("submitted", ()))
        name, at = "tuner_night_finished_timestamp_seconds", nights.finished_at.timestamp()
        yield GaugeMetricFamily(name, "When the last finished night ended.", at)
        yield GaugeMetricFamily(
            "tuner_night_errors", "Watches and jobs that the last night could not queue.", errors
        )
        yield GaugeMetricFamily(
            "tuner_night_submitted", "Jobs that the last finished night queued.", submitted
        )


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=labels)
