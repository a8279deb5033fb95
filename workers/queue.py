"""Send the messages that wake workers, and name the queues that they go to."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from queue import SimpleQueue
from typing import Protocol

from tuner.devices.table import devices as known_devices
from tuner.errors import BadInput
from tuner.jobs.job import Job, Priority
from workers.machine import LocalGpu
from workers.settings import Settings
from workers.telemetry import Outage

log = logging.getLogger("tuner.queue")

BACKOFF_S = 5.0


class Announces(Protocol):
    """An object that can wake workers."""

    def announce(self, job: Job) -> None: ...


def require_celery() -> None:
    """Raise BadInput if the extra that speaks to the broker is not installed."""
    if missing := [name for name in ("celery", "prometheus_client") if find_spec(name) is None]:
        raise BadInput(
            f"a service with TUNER_BROKER_URL needs {' and '.join(missing)}: "
            "pip install 'engine-tuner[service]'"
        )


def queue_name(device: str, priority: Priority, *, needs_gpu: bool) -> str:
    """Return `tune.<DEVICE>` for workers with that GPU, `compile.<DEVICE>` for all; perhaps
    `.urgent`.
    """
    kind = "tune" if needs_gpu else "compile"
    return f"{kind}.{device}" + (".urgent" if priority is Priority.URGENT else "")


def queue_names(gpu: LocalGpu | None, devices: Sequence[str] | None) -> list[str]:
    """Return the queues of a worker with that GPU, the urgent queues first.

    `devices` are the devices whose predictions and replays it does; None: all.
    """
    everything = [device.name for device in known_devices()]
    others = everything if devices is None else devices
    kinds = [(True, [gpu.device])] if gpu else []
    return [
        queue_name(device, priority, needs_gpu=needs_gpu)
        for priority in Priority
        for needs_gpu, names in [*kinds, (False, others)]
        for device in names
    ]


class InBackground:
    """Passes announcements on in a separate thread, so that the caller never waits."""

    def __init__(self, announcer: Announcer) -> None:
        self._announcer = announcer
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        threading.Thread(target=self._run, name="announce", daemon=True).start()

    def announce(self, job: Job) -> None:
        """Wake a worker for the job soon."""
        self._jobs.put(job)

    def _run(self) -> None:
        while True:
            self._announcer.announce(self._jobs.get())


class Announcer:
    """Tells workers that there is a job. A lost message costs time, never a job."""

    def __init__(self, settings: Settings, outage: Outage | None = None) -> None:
        self._send: Callable[[str], None] | None = None
        self._again_at = 0.0
        self._outage = outage or Outage("the broker")
        if settings.broker_url:
            require_celery()
            from workers.broker import sender  # noqa: PLC0415  # Celery is an extra

            self._send = sender(settings)

    def announce(self, job: Job) -> None:
        """Wake a worker for the job. Never raises: the job is stored, and will be found.

        After an error the broker is left alone for BACKOFF_S: each try may take seconds, and an
        unexpected error would be logged for each job.
        """
        if self._send is None or time.monotonic() < self._again_at:
            return
        request = job.request
        queue = queue_name(request.device, job.priority, needs_gpu=request.needs_gpu)
        try:
            self._send(queue)
        except ConnectionError as error:
            self._again_at = time.monotonic() + BACKOFF_S
            self._outage.begin(error, job.id)
        except Exception:  # any error: the thread of `InBackground` must not end
            self._again_at = time.monotonic() + BACKOFF_S
            log.exception("no worker was woken", extra={"job_id": job.id})
        else:
            self._outage.end()
