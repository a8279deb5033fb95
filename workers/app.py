"""Define the Celery app of `celery -A workers.app` for this environment, and its tasks."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
import warnings
from typing import Any

from celery import bootsteps
from celery.exceptions import CPendingDeprecationWarning
from celery.schedules import crontab
from celery.signals import (
    after_task_publish,
    beat_init,
    celeryd_after_setup,
    celeryd_init,
    setup_logging,
    worker_shutting_down,
)
from prometheus_client import REGISTRY

from tuner.errors import BadInput, TunerError, UnusableStore
from tuner.store.database import Database
from tuner.store.leases import Leases
from tuner.store.workers import Figures
from workers.broker import (
    CONTROL_QUEUE,
    NIGHTLY,
    WAKE,
    BrokerCollector,
    BrokerErrors,
    make_app,
)
from workers.machine import FLEET_VARIABLE, describe, devices_of, gpu_of, name_of
from workers.metrics import PoolCollector, serve_metrics
from workers.nightly import errors_of, headline, run_nightly
from workers.queue import Announcer
from workers.service import Service
from workers.settings import STORE_LIMITS, read_settings
from workers.telemetry import Outage, log_json

log = logging.getLogger("tuner.worker")
settings = read_settings()
if settings.broker_url is None:
    raise BadInput("a Celery worker needs TUNER_BROKER_URL, a redis:// or rediss:// URL")
app = make_app(settings)
app.set_current()
app.conf.beat_schedule = {
    "nightly": {
        "task": NIGHTLY,
        # Every hour, until one worker has done the round of the last night whose hour has come:
        # beat, the database or the worker may have been down at that hour.
        "schedule": crontab(minute=0),
        "options": {"queue": CONTROL_QUEUE},
    }
}
_service: Service | None = None
_broker = Outage("the broker")


@celeryd_init.connect  # type: ignore[untyped-decorator]  # before a worker's first warning
@setup_logging.connect  # type: ignore[untyped-decorator]  # Celery then sets up no logs itself
def _log_json(loglevel: int | None = None, **_: Any) -> None:  # noqa: ANN401 (Celery's signature)
    log_json(loglevel or logging.INFO, BrokerErrors(_broker))


@celeryd_after_setup.connect  # type: ignore[untyped-decorator]
def _hush(**_: Any) -> None:  # noqa: ANN401
    # At each outage, Celery announces another default of a setting that is set here.
    warnings.filterwarnings("ignore", category=CPendingDeprecationWarning)


@after_task_publish.connect  # type: ignore[untyped-decorator]
def _published(**_: Any) -> None:  # noqa: ANN401
    _broker.end()


def _follow(fleet: int) -> None:
    """End this process when `tuner worker` is gone, which alone starts and stops it."""
    while os.getppid() == fleet:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)


class Jobs(bootsteps.StartStopStep):  # type: ignore[misc]
    """Starts work once signals are handled, before Celery connects: jobs need no broker."""

    requires = ("celery.worker.components:Pool",)

    def start(self, worker: object) -> None:
        global _service
        gpu = gpu_of()
        info = describe(gpu, devices_of(), name_of())
        try:
            leases = Leases(Database.open(settings.database_url, STORE_LIMITS))
            REGISTRY.register(PoolCollector(Figures(leases.database)))
            _serve_metrics()
            _service = Service(leases, Announcer(settings, _broker), gpu, info, settings.limits)
            _service.start()
        except UnusableStore as error:  # Celery would go on; `tuner worker` restarts this
            log.error("%s", error)
            os._exit(1)
        if fleet := os.environ.get(FLEET_VARIABLE):
            threading.Thread(target=_follow, args=(int(fleet),), daemon=True).start()

    def stop(self, worker: object) -> None:
        if _service is not None:
            _service.stop()

    def terminate(self, worker: object) -> None:
        self.stop(worker)


class Connected(bootsteps.StartStopStep):  # type: ignore[misc]
    """Notes each new connection to the broker."""

    requires = ("celery.worker.consumer.connection:Connection",)

    def start(self, consumer: object) -> None:
        _broker.end()


@beat_init.connect  # type: ignore[untyped-decorator]
def _serve_metrics(**_: Any) -> None:  # noqa: ANN401 (Celery's signature)
    REGISTRY.register(BrokerCollector(settings))
    serve_metrics(settings)


app.steps["worker"].add(Jobs)
app.steps["consumer"].add(Connected)


@worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _ask_to_stop(**_: Any) -> None:  # noqa: ANN401 (Celery's signature)
    if _service is not None:
        _service.ask_to_stop()


@app.task(name=WAKE)  # type: ignore[untyped-decorator]
def wake() -> None:
    """Look for queued jobs, in another thread: the next message may ask for the night."""
    if _service is not None:
        _service.wake()


@app.task(name=NIGHTLY)  # type: ignore[untyped-decorator]
def nightly() -> None:
    """Do tonight's round, unless another process has done it."""
    try:
        summary = run_nightly(settings)
    except TunerError as error:
        log.error("tonight's round was not done: %s", error)
        return
    log.log(logging.WARNING if errors_of(summary) else logging.INFO, headline(summary))
    for one in errors_of(summary):
        log.warning("%s: %s", one["what"], one["why"])
