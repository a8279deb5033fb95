"""Set up Celery, which only wakes workers here. The database keeps the jobs."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterator
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from workers.metrics import MESSAGES
from workers.settings import Settings
from workers.telemetry import Outage

WAKE = "tuner.wake"
NIGHTLY = "tuner.nightly"
CONTROL_QUEUE = "control"  # of the nightly task: any worker takes it

# Redis delivers an unacknowledged message again after this: its worker was killed. That does no
# harm, because a message only makes a worker look at the database.
VISIBILITY_S = 600
CONNECT_S = 2  # a submission must not hang on a broker that cannot be reached
ANSWER_S = 2  # a reconciler must not hang on a broker that does not answer
WAITING = 100  # most messages in a queue: enough to wake many workers, too few to fill Redis
SHUTDOWN_S = 30  # for giving back the running job
_AWAY = (OperationalError, RedisError, ConnectionError, TimeoutError)


def make_app(settings: Settings) -> Celery:
    """Return a Celery app for the settings' broker. It connects when it is first used."""
    app = Celery("tuner", set_as_current=False)
    app.conf.update(
        broker_url=settings.broker_url,
        broker_use_ssl=_tls(settings),
        broker_transport_options={
            "visibility_timeout": VISIBILITY_S,
            "queue_order_strategy": "priority",  # in the order of --queues: urgent queues first
            "priority_steps": [0],  # otherwise Celery makes four lists for each queue
            "socket_connect_timeout": CONNECT_S,
            "socket_keepalive": True,
            "health_check_interval": 10,
        },
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        accept_content=["json"],
        task_serializer="json",
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=False,
        worker_prefetch_multiplier=1,
        worker_concurrency=1,
        worker_pool="threads",  # a task only wakes a thread, or does the night
        worker_soft_shutdown_timeout=SHUTDOWN_S,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        task_default_queue=CONTROL_QUEUE,
        timezone="UTC",
    )
    return app


def sender(settings: Settings) -> Callable[[str], None]:
    """Return a function that sends the message which wakes a queue's workers.

    It raises ConnectionError if it cannot. A queue with WAITING messages gets no more.
    """
    app = make_app(settings)
    options = {**app.conf.broker_transport_options, "socket_timeout": ANSWER_S}
    app.conf.broker_transport_options = options  # only here: a worker waits longer for messages

    def send(queue: str) -> None:
        try:
            with app.producer_or_acquire() as producer:
                waiting = producer.channel.queue_declare(queue).message_count
                if waiting < WAITING:
                    app.send_task(
                        WAKE, queue=queue, retry=False, ignore_result=True, producer=producer
                    )
                MESSAGES.labels("sent" if waiting < WAITING else "enough").inc()
        except (OperationalError, RedisError, OSError) as error:
            MESSAGES.labels("failed").inc()
            raise ConnectionError(str(error)) from None

    return send


class BrokerErrors(logging.Filter):
    """Takes Celery's records of a broker that does not answer for the begin of an outage.

    Celery logs a record at each try to connect, and some with a traceback.
    """

    def __init__(self, outage: Outage) -> None:
        super().__init__()
        self._outage = outage

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(("celery", "kombu")):
            return True
        error = next((one for one in _errors_of(record) if isinstance(one, _AWAY)), None)
        if error is not None:
            self._outage.begin(error)
        return error is None


def _errors_of(record: logging.LogRecord) -> Iterator[BaseException]:
    """Yield the exceptions that a record was made with, and the exceptions that they were raised
    from.
    """
    given = record.args if isinstance(record.args, tuple) else ()
    for error in (record.exc_info and record.exc_info[1], *given):
        while isinstance(error, BaseException):
            yield error
            error = error.__cause__ or error.__context__


class BrokerCollector(Collector):
    """A metric that says whether the broker answers, asked when it is collected."""

    def __init__(self, settings: Settings) -> None:
        assert settings.broker_url
        self._client = Redis.from_url(
            settings.broker_url,
            socket_connect_timeout=CONNECT_S,
            socket_timeout=ANSWER_S,
            retry=Retry(NoBackoff(), 1),  # the connection of the last time may be gone
            **(_tls(settings) or {}),
        )

    def describe(self) -> Iterator[Metric]:
        """Return nothing: registering must not ask the broker."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the gauge. A broker that does not answer costs twice CONNECT_S or ANSWER_S."""
        try:
            up = bool(self._client.ping())
        except (RedisError, OSError):
            up = False
        yield GaugeMetricFamily("tuner_broker_up", "Whether the broker answers.", int(up))


def _tls(settings: Settings) -> dict[str, Any] | None:
    if not (settings.broker_url or "").startswith("rediss:"):
        return None
    options: dict[str, Any] = {"ssl_cert_reqs": ssl.CERT_REQUIRED}
    if settings.broker_ca:
        options["ssl_ca_certs"] = str(settings.broker_ca)
    return options
