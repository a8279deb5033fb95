"""The application: routes, middleware, the store, the OpenAPI document and its browser at /docs.

The browser is Swagger UI from an installed package; it loads nothing from another host.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from threading import Lock
from typing import Any

import anyio
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.routing import APIRoute
from prometheus_client.registry import Collector
from starlette.concurrency import run_in_threadpool
from starlette.staticfiles import StaticFiles

from api import errors
from api.auth import Authenticate
from api.bodies import CheckBody
from api.errors import MEDIA_TYPE
from api.examples import ANSWERS, EVENT, PROBLEMS
from api.limits import Limiter, TakeTurns
from api.middleware import AnswerHead, CompressPages, Observe, RefuseWithoutStore
from api.pages import compare, exports, fleet, login, render
from api.pages import coverage as coverage_page
from api.pages import jobs as job_pages
from api.pages import results as result_page
from api.pages.browser import DOCS
from api.pages.render import ShowErrors, theme_of
from api.routes import coverage, jobs, results, service
from api.settings import ApiSettings
from api.state import Api, Readiness
from tuner.models.table import presets
from tuner.store.database import Database, Probe
from tuner.store.workers import Figures
from workers.metrics import Metrics
from workers.queue import Announcer, Announces, InBackground
from workers.settings import Settings

_FOLDER = str(files("fastapi_swagger.resources"))  # of the package fastapi-swagger
_FILES = ("swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# Addresses are relative, so that a proxy may serve all of this below another path.
_HTML = """<!DOCTYPE html>
<html lang="en"{theme}>
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>engine-tuner API</title>
<link rel="icon" href="docs/assets/favicon-32x32.png">
<link rel="stylesheet" href="docs/assets/swagger-ui.css">
<link rel="stylesheet" href="docs/theme.css">
</head>
<body>
<p><a href="./">Back to the pages</a></p>
<div id="swagger-ui"></div>
<script src="docs/assets/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
# A key is forgotten with the page, because others may use this browser later.
_START = """SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  displayRequestDuration: true,
  persistAuthorization: false,
  validatorUrl: null,
});
"""


# Swagger has light colours alone. Inverted, the colours are dark, and their hues stay.
_THEME = """[data-theme="light"] { color-scheme: light; } [data-theme="dark"] { DARK }
@media (prefers-color-scheme: dark) { :root:not([data-theme]) { DARK } }
""".replace("DARK", "background: #fff; filter: invert(0.9) hue-rotate(180deg);")


def install_docs(app: FastAPI) -> None:
    """Add the API browser at /docs and its files."""

    @app.get(DOCS, include_in_schema=False)
    async def show_docs(request: Request) -> Response:
        theme = f' data-theme="{chosen}"' if (chosen := theme_of(request)) else ""
        headers = {"Content-Security-Policy": _POLICY, "Referrer-Policy": "no-referrer"}
        return HTMLResponse(_HTML.format(theme=theme), headers=headers)

    @app.get(f"{DOCS}/theme.css", include_in_schema=False)
    async def theme_docs() -> Response:
        return Response(_THEME, media_type="text/css")

    @app.get(f"{DOCS}/start.js", include_in_schema=False)
    async def start_docs() -> Response:
        return Response(_START, media_type="text/javascript")

    app.mount(f"{DOCS}/assets", _Assets(directory=_FOLDER))


class _Assets(StaticFiles):
    """Serves the files that the page loads, without the compiled Python beside them."""

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        return super().lookup_path(path) if path in _FILES else ("", None)


PATH = "/openapi.json"
DESCRIPTION = """Finds, proves and stores launch configurations of LLM engines' Triton kernels.

**Keys.** Send `Authorization: Bearer KEY`. Each operation names the least scope that a key needs:
`read`, `submit` or `admin`; each includes those before it.

**Errors** are problem details (RFC 9457). `errors` points at each wrong field (RFC 6901).

**Lists** come in pages: send a page's `next` as `after`, with the same filters. On the last page
`next` is null.

**Rates.** After a 429 or 503, wait for `Retry-After` seconds.

Times are in microseconds (`_us`), sizes in bytes (`_bytes`).
"""
TAGS = {
    "jobs": "Post tuning jobs, list them, follow them and cancel them.",
    "results": "The results of jobs: winners, trials, and the files that an engine loads.",
    "coverage": "Stored results, watched models, and problems that are still missing.",
    "workers": "The worker processes: their abilities, and whether they take jobs.",
    "keys": "List, create, rotate and revoke keys.",
    "tables": "The devices and models that are known by name.",
    "health": "For load balancers and Prometheus.",
}
_HEADERS: dict[str, dict[str, Any]] = {
    "X-Request-ID": {
        "description": "The id that the request sent, or a new id; the server's log has it too.",
        "schema": {"type": "string"},
        "example": "2ccf662ab06a1f80",
    },
    "Retry-After": {
        "description": "Seconds to wait before another try.",
        "schema": {"type": "integer", "minimum": 1},
        "example": 5,
    },
}
_OF_BODIES = ("400", "413", "415")  # the body of a GET is not read


def operation_id(route: APIRoute) -> str:
    """Return the name of the route's function, as JavaScript and Java spell it: submitJob."""
    first, *others = route.name.split("_")
    return first + "".join(word.capitalize() for word in others)


def package_version() -> str:
    """Return the installed version of this package; 0 if it runs from a bare folder."""
    try:
        return version("engine-tuner")
    except PackageNotFoundError:
        return "0"


def install_document(app: FastAPI) -> None:
    """Serve the completed document at /openapi.json. It is made at the first request for it.

    The document takes longer to make than the rest of a server's start. The bytes are kept too: its
    clients need no key, and to write it each time would delay other requests.
    """
    make, making = app.openapi, Lock()
    made: list[tuple[dict[str, Any], bytes]] = []

    def document() -> tuple[dict[str, Any], bytes]:
        with making:
            if not made:
                found = complete(make())
                made.append((found, bytes(JSONResponse(found).body)))
        return made[0]

    app.openapi = lambda: document()[0]  # type: ignore[method-assign]

    @app.get(PATH, include_in_schema=False)
    async def show_document() -> Response:
        _, text = made[0] if made else await run_in_threadpool(document)
        return Response(text, media_type="application/json")


def methods_by_path(
    routers: Iterable[APIRouter], *, in_document: bool = True
) -> dict[str, list[str]]:
    """Return the paths of the document, or the others, each with its methods in order."""
    found: dict[str, list[str]] = {}
    for router in routers:
        for route in router.routes:
            if isinstance(route, APIRoute) and route.include_in_schema is in_document:
                found[route.path] = sorted({*found.get(route.path, ()), *(route.methods or ())})
    return found


def complete(document: dict[str, Any]) -> dict[str, Any]:
    """Return FastAPI's document with names, examples and facts that its routes do not show."""
    components = document["components"]
    for name, example in ANSWERS.items():
        components["schemas"][name]["examples"] = [example]
    components["headers"] = _HEADERS
    components["responses"] = {}
    for operations in document["paths"].values():
        for method, operation in operations.items():
            _complete(operation, method)
            for status, response in operation["responses"].items():
                if MEDIA_TYPE in response.get("content", {}):
                    name = f"Error{status}"
                    components["responses"].setdefault(name, _problem(int(status), response))
                    operation["responses"][status] = {"$ref": f"#/components/responses/{name}"}
    return document


def _complete(operation: dict[str, Any], method: str) -> None:
    operation["summary"] = operation["description"].partition(".")[0]
    for requirement in operation.get("security", ()):
        for scopes in requirement.values():
            operation["description"] += f"\n\nThe key needs the scope `{', '.join(scopes)}`."
    if method in ("get", "head"):
        for status in _OF_BODIES:
            operation["responses"].pop(status, None)
    for response in operation["responses"].values():
        response["headers"] = _refer("X-Request-ID") | response.get("headers", {})
        if events := response.get("content", {}).get("text/event-stream"):
            # FastAPI describes an event with OpenAPI 3.2's itemSchema, in a 3.1 document. Many
            # tools refuse 3.2; for streams before it, they take `schema` as that of an event.
            events |= {"schema": events.pop("itemSchema"), "example": EVENT}


def _problem(status: int, response: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of an error's answer that all operations share, and its headers."""
    title = HTTPStatus(status).phrase
    kind, detail = PROBLEMS.get(status, ("about:blank", title))
    example = {"type": kind, "title": title, "status": status, "detail": detail}
    example["request_id"] = _HEADERS["X-Request-ID"]["example"]
    schema = response["content"][MEDIA_TYPE]["schema"]
    later = ("Retry-After",) if status in (409, 429, 503) else ()
    return {
        "description": title,
        "headers": _refer("X-Request-ID", *later),
        "content": {MEDIA_TYPE: {"schema": schema, "example": example}},
    }


def _refer(*headers: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in headers}


_ROUTERS = (
    *(jobs.router, results.router, coverage.router, *service.routers),
    *(coverage_page.router, result_page.router, job_pages.router, fleet.router, compare.router),
    *(exports.router, exports.bundles, login.router, login.keys, render.router),
)


def create_app(settings: ApiSettings, announcer: Announces | None = None) -> FastAPI:
    """Create the API over the store that the settings name. Start-up opens and migrates the store.

    `announcer` wakes workers; by default, it wakes the workers of the settings' broker, if there is
    a broker. Start-up raises UnusableStore if the store cannot be opened.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        url = settings.service.database_url
        presets()  # read here, and not by the first request, in the event loop
        with Database.open(url, settings.store_limits) as store, Probe.of(url) as probe:
            wakes = _announcer(settings.service) if announcer is None else announcer
            metrics = Metrics(Figures(store), *_broker_collectors(settings.service))
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
        version=package_version(),
        description=DESCRIPTION,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        servers=[{"url": "/", "description": "The server that this document came from"}],
        openapi_tags=[{"name": name, "description": text} for name, text in TAGS.items()],
        generate_unique_id_function=operation_id,
        lifespan=lifespan,
        openapi_url=None,  # see install_document
        docs_url=None,  # FastAPI's pages load their scripts from another host: see install_docs
        redoc_url=None,
        redirect_slashes=False,
    )
    for router in _ROUTERS:
        app.include_router(router)
    install_document(app)
    app.state.methods = methods_by_path(_ROUTERS)
    install_docs(app)
    app.state.page_methods = methods_by_path([*_ROUTERS, app.router], in_document=False)
    errors.install(app)
    # Starlette runs them from the last to the first: AnswerHead, CompressPages, and so on.
    app.add_middleware(CheckBody, settings=settings)
    app.add_middleware(Authenticate, limiter=Limiter(settings.service))
    app.add_middleware(TakeTurns)
    app.add_middleware(RefuseWithoutStore)
    app.add_middleware(Observe)
    app.add_middleware(ShowErrors)
    app.add_middleware(CompressPages)
    app.add_middleware(AnswerHead)
    return app


def _broker_collectors(settings: Settings) -> list[Collector]:
    if settings.broker_url is None:
        return []
    from workers.broker import BrokerCollector  # noqa: PLC0415 (no Celery without a broker)

    return [BrokerCollector(settings)]


def _announcer(settings: Settings) -> Announces:
    announcer = Announcer(settings)  # without a broker, workers find a job when they next poll
    return announcer if settings.broker_url is None else InBackground(announcer)
