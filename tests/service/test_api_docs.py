"""The API browser at /docs, in a real browser: it works, and asks no other host for anything."""

import re
from urllib.parse import urlsplit

import pytest
from api_server import serving
from browsers import chromium

from api.settings import ApiSettings
from tuner.store.keys import Scope
from workers.settings import Settings


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    url = f"sqlite:///{tmp_path_factory.mktemp('docs') / 'tuner.db'}"
    with serving(ApiSettings(Settings(url))) as running:
        running.app.state.api.keys.add("somebody", Scope.READ)
        yield running


def test_a_browser_shows_the_operations_and_tries_one(server):
    key = server.app.state.api.keys.add("me", Scope.READ)
    document = server.call("GET", "/openapi.json").json
    operations = [one for path in document["paths"].values() for one in path.values()]
    complaints, asked = [], []
    with chromium() as browser:
        page = browser.new_page()
        page.on("console", lambda message: complaints.append((message.type, message.text)))
        page.on("pageerror", lambda error: complaints.append(("uncaught", str(error))))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{server.url}/docs")
        page.locator(".opblock").first.wait_for()
        assert urlsplit(page.url).path == "/docs"
        assert page.locator(".opblock").count() == len(operations)
        page.locator(".btn.authorize").click()
        page.locator(".auth-container input").fill(key)
        page.locator(".auth-btn-wrapper .authorize").click()
        page.locator(".btn-done").click()
        devices = page.locator("#operations-tables-listDevices")
        devices.locator(".opblock-summary-control").click()
        devices.locator(".try-out__btn").click()
        devices.locator(".execute").click()
        answer = devices.locator(".live-responses-table .response")
        assert answer.locator(".response-col_status").inner_text().split()[0] == "200"
        assert "NVIDIA_L40S" in answer.inner_text()
    assert [text for kind, text in complaints if kind in ("error", "warning", "uncaught")] == []
    assert f"{server.url}/v1/devices" in asked
    assert {"{0.scheme}://{0.netloc}".format(urlsplit(url)) for url in asked} == {server.url}


def test_the_document_is_written_once(server, monkeypatch):
    """All may ask for it, as often as they like."""
    first = server.call("GET", "/openapi.json")
    assert first.headers["content-type"] == "application/json"
    monkeypatch.setattr("fastapi.responses.JSONResponse.render", None)
    assert server.call("GET", "/openapi.json").body == first.body


def test_the_page_needs_no_key_and_may_load_nothing_from_elsewhere(server):
    page = server.call("GET", "/docs")
    html = page.body.decode()
    policy = page.headers["content-security-policy"]
    sources = {word for part in policy.split(";") for word in part.split()[1:]}
    assert sources == {"'self'", "'none'", "data:"}
    assert "img-src 'self' data:" in policy  # Swagger UI's style has small pictures in it
    back, *loaded = re.findall(r'(?:src|href)="([^"]+)"', re.sub("(?s)^.*<body>", "", html))
    assert back == "./"  # the first page, which needs a key
    for address in [*loaded, *re.findall(r'<link [^>]*href="([^"]+)"', html)]:
        found = server.call("GET", f"/{address}")
        assert (found.status, found.headers["x-content-type-options"]) == (200, "nosniff")
    server.call("GET", "/v1/jobs").problem(401)


@pytest.mark.parametrize(
    "path", ["__init__.py", "__pycache__", "../main.py", "..%2fmain.py", "%00", ""]
)
def test_nothing_else_of_the_package_is_served(server, path):
    answer = server.call("GET", f"/docs/assets/{path}")
    assert answer.problem(404)
    assert "site-packages" not in answer.body.decode()
