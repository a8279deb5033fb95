"""The messages that wake workers: which queue they go to, and sending them."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from kombu.exceptions import OperationalError

from tuner.devices import devices
from tuner.jobs import Ask, Job, Priority
from workers.broker import WAKE, make_app
from workers.settings import Settings

log = logging.getLogger("tuner.queue")


def queue_name(device: str, priority: Priority, *, needs_gpu: bool) -> str:
    """`tune.<DEVICE>` for those with that GPU, `compile.<DEVICE>` for anybody; both `.urgent`."""
    kind = "tune" if needs_gpu else "compile"
    return f"{kind}.{device}" + (".urgent" if priority is Priority.URGENT else "")


def queue_names(asks: Iterable[Ask]) -> list[str]:
    """The queues of a worker that does the jobs asked for, the urgent ones first."""
    everything = tuple(device.name for device in devices())
    return [
        queue_name(device, priority, needs_gpu=ask.needs_gpu)
        for priority in Priority
        for ask in asks
        for device in (everything if ask.devices is None else ask.devices)
    ]


class Announcer:
    """Tells workers that there is a job. A message that is lost costs time, never a job."""

    def __init__(self, settings: Settings) -> None:
        self._app = make_app(settings) if settings.broker_url else None

    def announce(self, job: Job) -> None:
        """Wake a worker for the job; never raises, as the row is there already."""
        if self._app is None:
            return
        request = job.request
        queue = queue_name(request.device, job.priority, needs_gpu=request.needs_gpu)
        try:
            self._app.send_task(WAKE, queue=queue, retry=False, ignore_result=True)
        except OperationalError as error:
            log.warning("job %s: nobody was woken: %s", job.id, error, extra={"job_id": job.id})
