"""Runs the API in this process, and workers too where there is no broker."""

from __future__ import annotations

import contextlib
import gc
import signal
from collections.abc import Iterator
from typing import NoReturn

import uvicorn

from api.app import create_app
from api.auth import is_loopback
from api.connections import uvicorn_options
from api.logs import log_json
from api.settings import ApiSettings
from tuner.errors import BadInput
from tuner.store.keys import KeyStore
from workers.embedded import EmbeddedWorker

GRACE_S = 5  # for open event streams, when the process is asked to stop


def serve(settings: ApiSettings, host: str, port: int, *, workers: bool) -> None:
    """Answer requests until the process is asked to stop.

    Raises BadInput for an address that other machines can reach while the store has no key.
    """
    refuse_without_key(settings, host)
    log_json()
    # Uvicorn shuts down on a signal and raises it again, which then ends this process.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    with _embedded(settings, workers) as worker:
        app = create_app(settings, worker)
        # The objects of start-up live as long as the process. Each full collection would scan them,
        # and stop all requests for a tenth of a second.
        gc.collect()
        gc.freeze()
        uvicorn.run(
            app,
            host=host,
            port=port,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # with them, any client could claim to be on loopback
            timeout_graceful_shutdown=GRACE_S,
            **uvicorn_options(settings),
        )


def _leave(number: int, frame: object) -> NoReturn:
    raise SystemExit(0)


def refuse_without_key(settings: ApiSettings, host: str) -> None:
    """Raises BadInput for an address beyond loopback while the store has no key."""
    with KeyStore.open(settings.service.database_url) as keys:
        if not is_loopback(host) and not keys.any():
            raise BadInput(
                f"{host} can be reached by others: make a key first, with "
                "`tuner keys add NAME --scope admin`, or serve on 127.0.0.1"
            )


@contextlib.contextmanager
def _embedded(settings: ApiSettings, workers: bool) -> Iterator[EmbeddedWorker | None]:
    if not workers:
        yield None
        return
    worker = EmbeddedWorker(settings.service)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()
