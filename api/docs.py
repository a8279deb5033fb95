"""The API browser at /docs: Swagger UI from an installed package, and nothing from another host."""

from __future__ import annotations

import os
from importlib.resources import files

from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse
from starlette.staticfiles import StaticFiles

PAGE = "/docs"
_FOLDER = str(files("fastapi_swagger.resources"))  # of the package fastapi-swagger
_FILES = ("swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# Addresses are relative, so that a proxy may serve all of this below another path.
_HTML = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>engine-tuner API</title>
<link rel="icon" href="docs/assets/favicon-32x32.png">
<link rel="stylesheet" href="docs/assets/swagger-ui.css">
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


def is_page(path: str) -> bool:
    """Whether a path belongs to the API browser, which needs no key: it shows nothing stored."""
    return path == PAGE or path.startswith(f"{PAGE}/")


def install(app: FastAPI) -> None:
    """Add the page and its files."""

    @app.get(PAGE, include_in_schema=False)
    async def show_docs() -> Response:
        headers = {"Content-Security-Policy": _POLICY, "Referrer-Policy": "no-referrer"}
        return HTMLResponse(_HTML, headers=headers)

    @app.get(f"{PAGE}/start.js", include_in_schema=False)
    async def start_docs() -> Response:
        return Response(_START, media_type="text/javascript")

    app.mount(f"{PAGE}/assets", _Assets(directory=_FOLDER))


class _Assets(StaticFiles):
    """Serves what the page loads. The folder also holds compiled Python, which has its path."""

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        return super().lookup_path(path) if path in _FILES else ("", None)
