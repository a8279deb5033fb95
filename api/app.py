"""The application: routes, middleware and the store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from api import errors
from api.auth import Authenticate
from api.metrics import Metrics
from api.middleware import CheckBody, Observe, TakeTurns
from api.rates import Limiter
from api.routes import coverage, events, health, jobs, nights, results, retry, tables
from api.settings import ApiSettings
from api.state import Api
from tuner.jobs.job import Job
from tuner.store import Store
from tuner.store.lookups import Lookups
from workers.reconcile import Announces
from workers.settings import Settings

DESCRIPTION = """Finds, proves and stores launch configurations of LLM engines' Triton kernels.

Errors are problem details (RFC 9457). Lists come in pages: send the `next` of one as `after`.
"""


def create_app(settings: ApiSettings, announcer: Announces | None = None) -> FastAPI:
    """The API over the store that the settings name. Start-up opens and migrates the store.

    `announcer` wakes workers; by default, it wakes the workers of the settings' broker, if there is
    one. Start-up raises UnusableStore where the store cannot be opened.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with Store.open(settings.service.database_url) as store:
            wakes = _announcer(settings.service) if announcer is None else announcer
            metrics = Metrics(Lookups.sharing(store).unfinished)
            app.state.api = Api(settings, store, wakes, metrics)
            yield

    app = FastAPI(
        title="engine-tuner",
        version="1",
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # FastAPI's pages load their scripts from another host
        redoc_url=None,
        redirect_slashes=False,
    )
    for part in (jobs, retry, events, results, coverage, nights, tables, health):
        app.include_router(part.router)
    errors.install(app)
    # Starlette runs them from the last to the first: Observe, TakeTurns, Authenticate, CheckBody.
    app.add_middleware(CheckBody, largest=settings.max_body_bytes)
    app.add_middleware(Authenticate, limiter=Limiter(settings.service))
    app.add_middleware(TakeTurns)
    app.add_middleware(Observe)
    _describe_problems(app)
    return app


class _SilentAnnouncer:
    def announce(self, job: Job) -> None:
        """Do nothing: workers find the job the next time they poll."""


def _announcer(settings: Settings) -> Announces:
    if settings.broker_url is None:
        return _SilentAnnouncer()
    from workers.queue import Announcer  # noqa: PLC0415 (without a broker, no Celery is needed)

    return Announcer(settings)


def _describe_problems(app: FastAPI) -> None:
    make = app.openapi

    def openapi() -> dict[str, Any]:
        schema = make()
        schemas = schema["components"]["schemas"]
        if "Problem" not in schemas:
            problem = errors.ProblemDetails.model_json_schema(
                ref_template="#/components/schemas/{model}"
            )
            schemas |= problem.pop("$defs")
            schemas["Problem"] = problem
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
