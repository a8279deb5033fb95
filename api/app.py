"""The application: routes, middleware and the store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from fastapi import FastAPI

from api import docs, errors, openapi
from api.auth import OPEN_PATHS, Authenticate
from api.bodies import CheckBody
from api.metrics import Metrics
from api.middleware import AnswerHead, CompressPages, ContinueTrace, Observe, RefuseWithoutStore
from api.pages import bundles as bundle_page
from api.pages import compare, exports, fleet, login, several, static
from api.pages import coverage as coverage_page
from api.pages import jobs as job_pages
from api.pages import keys as key_pages
from api.pages import results as result_page
from api.pages.errors import ShowErrors
from api.rates import Limiter
from api.readiness import Readiness
from api.routes import (
    bundles,
    coverage,
    events,
    health,
    jobs,
    keys,
    nights,
    results,
    submissions,
    tables,
    workers,
)
from api.settings import ApiSettings
from api.state import Api
from api.turns import TakeTurns
from tuner.jobs.job import Job
from tuner.store import Store
from tuner.store.database import Probe
from tuner.store.figures import Figures
from workers.queue import Announces
from workers.settings import Settings

if TYPE_CHECKING:  # FastAPI before 0.165 has none
    from fastapi.telemetry import TelemetryConfig

_PARTS = (
    *(submissions, jobs, events, results, bundles, coverage, nights),
    *(workers, keys, tables, health),
    *(coverage_page, result_page, several, job_pages, fleet, exports, compare),
    *(bundle_page, key_pages, login, static),
)
# Spans of requests, where `start_tracing` found a collector. FastAPI before 0.165 ignores this.
_TELEMETRY: TelemetryConfig = {
    "auto_configure": False,
    "operation_spans": False,
    "metrics": False,
    "logs": False,
    "exclude": lambda scope: scope["path"] in (*OPEN_PATHS, "/metrics"),
}


def create_app(settings: ApiSettings, announcer: Announces | None = None) -> FastAPI:
    """The API over the store that the settings name. Start-up opens and migrates the store.

    `announcer` wakes workers; by default, it wakes the workers of the settings' broker, if there is
    one. Start-up raises UnusableStore where the store cannot be opened.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        url = settings.service.database_url
        with Store.open(url, settings.store_limits) as store, Probe.of(url) as probe:
            wakes = _announcer(settings.service) if announcer is None else announcer
            metrics = Metrics(Figures(store), settings.service)
            api = Api(settings, store, wakes, metrics, Readiness(probe))
            app.state.api = api
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(api.readiness.watch)
                tasks.start_soon(api.streams.watch)
                tasks.start_soon(api.matrix.warm)
                yield
                tasks.cancel_scope.cancel()

    app = FastAPI(
        title="engine-tuner",
        version=openapi.package_version(),
        description=openapi.DESCRIPTION,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        servers=[{"url": "/", "description": "The server that this document came from"}],
        openapi_tags=openapi.tags(),
        generate_unique_id_function=openapi.operation_id,
        lifespan=lifespan,
        openapi_url=None,  # see openapi.install
        docs_url=None,  # FastAPI's pages load their scripts from another host: see api.docs
        redoc_url=None,
        redirect_slashes=False,
        telemetry=_TELEMETRY,
    )
    for part in _PARTS:
        app.include_router(part.router)
    openapi.install(app)
    app.state.methods = openapi.methods_by_path(part.router for part in _PARTS)
    docs.install(app)
    errors.install(app)
    # Starlette runs them from the last to the first: ContinueTrace, AnswerHead, and so on.
    app.add_middleware(CheckBody, settings=settings)
    app.add_middleware(Authenticate, limiter=Limiter(settings.service))
    app.add_middleware(TakeTurns)
    app.add_middleware(RefuseWithoutStore)
    app.add_middleware(Observe)
    app.add_middleware(ShowErrors)
    app.add_middleware(CompressPages)
    app.add_middleware(AnswerHead)
    app.add_middleware(ContinueTrace)
    return app


class _SilentAnnouncer:
    def announce(self, job: Job) -> None:
        """Do nothing: workers find the job the next time they poll."""


def _announcer(settings: Settings) -> Announces:
    if settings.broker_url is None:
        return _SilentAnnouncer()
    from workers.queue import Announcer, InBackground  # noqa: PLC0415 (no Celery without a broker)

    return InBackground(Announcer(settings))
