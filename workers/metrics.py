"""What a process counts for Prometheus, and the endpoint on which workers and beat show it.

These metrics are in `REGISTRY`, which also has the ones of the process, the interpreter and its
garbage collector. docs/operations.md lists all of them.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import platform
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from tuner.errors import BadInput
from tuner.store.figures import Figures
from workers.settings import Settings

log = logging.getLogger("tuner.metrics")

disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the number of series, and nobody asks for them

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
GPU_SECONDS = Counter(
    "tuner_job_gpu_seconds",
    "Seconds that GPUs belonged to jobs that are done; idle: neither checking nor timing.",
    ("device", "state"),
)
CPU_SECONDS = Counter(
    "tuner_job_cpu_seconds",
    "CPU seconds of jobs that are done.",
    ("device",),
)
ATTEMPTS = Counter("tuner_attempts", "Attempts at jobs, by how they ended.", ("device", "outcome"))
LOST_LEASES = Counter(
    "tuner_leases_lost", "Jobs that another worker was given while this one had them."
)
EXPIRED_LEASES = Counter("tuner_leases_expired", "Leases that this worker took from another one.")
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
        """The pool's gauges; none where connections are not pooled."""
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
    """Answer scrapes on the port of the settings, in a thread; do nothing where there is none.

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
    """Answer scrapes on `port`, in a thread. `ports` are those of the processes, in their order.

    `starts` says how often each process was started. Raises BadInput where `port` cannot be had.
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
    """The metrics of one process; None where it does not answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
    with contextlib.closing(connection):
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        except (OSError, http.client.HTTPException):
            return None
    return list(text_string_to_metric_families(text))
