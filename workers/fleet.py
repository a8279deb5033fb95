"""Run `tuner worker`: a worker process for each GPU, restarted when it dies."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType

from tuner.devices.table import find_device
from tuner.errors import BadInput
from tuner.store.database import Database
from workers.machine import FLEET_VARIABLE, LocalGpu, worker_environ
from workers.queue import queue_names, require_celery
from workers.settings import Settings
from workers.telemetry import log_json

log = logging.getLogger("tuner.worker")

RESTART_S = 2.0  # least time between two starts; doubled while the process dies soon
LONGEST_RESTART_S = 60.0
POLL_S = 0.5


def run_fleet(
    settings: Settings, gpus: Sequence[LocalGpu], devices: Sequence[str] | None, processes: int
) -> None:
    """Keep worker processes running until SIGTERM or SIGINT, then let each give its job back.

    `processes` is their number if there are no GPUs. Raises BadInput without a broker or Celery,
    and UnusableStore for a store that cannot be used.
    """
    if settings.broker_url is None:
        raise BadInput("a worker needs TUNER_BROKER_URL; `tuner serve` is a service without Redis")
    require_celery()
    Database.open(
        settings.database_url
    ).close()  # migrate it once, or fail before any process starts
    names = [find_device(device).name for device in devices] if devices else None
    log_json()
    for gpu in gpus:
        log.info("%s: jobs for %s", gpu.uuid, gpu.device)
    if not gpus:
        log.info("no GPU here: replay and predict jobs only")
    members = [
        Member(i, gpu, names, _metrics_environ(settings, i))
        for i, gpu in enumerate(gpus or (None,) * processes)
    ]
    _serve_metrics(settings, members)
    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    while not stopping:
        for member in members:
            member.keep_alive()
        time.sleep(POLL_S)
    for member in members:  # all of them first, so that they stop at the same time
        member.ask_to_stop()
    for member in members:
        member.wait()


class Member:
    """A worker process."""

    def __init__(
        self,
        number: int,
        gpu: LocalGpu | None,
        devices: Sequence[str] | None,
        environ: Mapping[str, str],
    ) -> None:
        self.starts = 0
        self._command = celery_command(number, gpu, devices)
        self._environ = {
            **os.environ,
            **worker_environ(gpu, devices, worker_name(number, gpu)),
            **environ,
            FLEET_VARIABLE: str(os.getpid()),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._pause_s = RESTART_S

    def keep_alive(self) -> None:
        """Start the process if it is not running and its last start was not just now."""
        running = self._process is not None and self._process.poll() is None
        lived_s = time.monotonic() - self._started
        if not running and lived_s >= self._pause_s:
            soon = lived_s < 2 * LONGEST_RESTART_S
            self._pause_s = min(2 * self._pause_s, LONGEST_RESTART_S) if soon else RESTART_S
            self._started = time.monotonic()
            self.starts += 1
            self._process = subprocess.Popen(  # noqa: S603 (our own command)
                self._command,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # Celery's banner; the log goes to stderr
                start_new_session=True,  # Ctrl-C reaches the fleet alone, which stops its members
            )

    def ask_to_stop(self) -> None:
        if self._process is not None:
            self._process.terminate()

    def wait(self) -> None:
        if self._process is not None:
            self._process.wait()


def worker_name(number: int, gpu: LocalGpu | None) -> str:
    """Return people's name for a fleet's worker; the host's name follows it."""
    return f"{gpu.device}-{number}" if gpu else f"cpu-{number}"


def _metrics_environ(settings: Settings, number: int) -> dict[str, str]:
    """Return the variables that show a member's metrics on loopback, at a port after
    the fleet's.
    """
    if settings.metrics_port is None:
        return {}
    return {
        "TUNER_METRICS_PORT": str(settings.metrics_port + 1 + number),
        "TUNER_METRICS_PORT_FILE": "",
        "TUNER_METRICS_HOST": "127.0.0.1",
        "TUNER_METRICS_HOST_FILE": "",
    }


def _serve_metrics(settings: Settings, members: Sequence[Member]) -> None:
    if (port := settings.metrics_port) is None:
        return
    from workers.metrics import serve_fleet_metrics  # noqa: PLC0415  # with Celery's extra

    ports = [port + 1 + number for number in range(len(members))]
    serve_fleet_metrics(
        settings.metrics_host, port, ports, lambda: [member.starts for member in members]
    )


def celery_command(number: int, gpu: LocalGpu | None, devices: Sequence[str] | None) -> list[str]:
    """Return the command of one worker process."""
    from workers.broker import CONTROL_QUEUE  # noqa: PLC0415  # Celery is an extra

    queues = [*queue_names(gpu, devices), CONTROL_QUEUE]
    # With this process's id, Celery's names of two fleets on one host are not the same. Nobody
    # listens to Celery's events. Without a broker, sending an event is tried again for ever, and
    # the worker neither says that the broker is away nor stops.
    name = f"{gpu.device if gpu else 'cpu'}-{os.getpid()}-{number}"
    return [
        *(sys.executable, "-m", "celery", "-A", "workers.app", "worker"),
        *("--pool", "threads", "--concurrency", "1", "--loglevel", "INFO"),
        *("--without-gossip", "--without-mingle", "--without-heartbeat"),
        *("--hostname", f"{name}@%h"),
        *("--queues", ",".join(queues)),
    ]
