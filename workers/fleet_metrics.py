"""The metrics of all processes of one `tuner worker`, on one port.

Each process shows its own on a port of loopback. The fleet asks all of them when it is scraped, and
adds the label `worker`, the number of the process.
"""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from tuner.errors import BadInput

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
