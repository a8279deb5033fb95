"""Each form of each page in a real browser: sent with a mistake, then corrected and sent again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html import unescape
from urllib.parse import quote, urljoin, urlsplit

import pytest
from api_server import CLUSTER, ENTRY, Server
from browsers import chromium
from playwright.sync_api import Browser, Page, expect
from store_writer import ENVIRONMENT, KEY, PROBLEM
from test_pages import PAGES, RESULT
from test_pages_browser import Tab, logged_in
from test_pages_forms import server_of_forms
from tiers import only
from visitor import Visitor

from tuner.jobs.workers import WorkerInfo
from tuner.problems.results import Totals
from tuner.store.database import Database
from tuner.store.results import ResultStore

IDLE = WorkerInfo("w-2", "idle", "host", "", "", None, (), {})
GAPS = "/?device=H20&state=nothing"
COMPARISON = f"/compare?problem={quote(PROBLEM.spec())}"
TOO_OLD = "this form is too old"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    url = f"sqlite:///{tmp_path_factory.mktemp('forms') / 'tuner.db'}"
    for running in server_of_forms(url):
        running.app.state.api.workers.beat(IDLE)
        yield running


def said(page: Page, field: str, text: str) -> None:
    """The mistake of a field stands under it, and the field says so to a screen reader."""
    expect(page.locator(f"#{field}-mistake")).to_contain_text(text)
    expect(page.locator(f"#{field}")).to_have_attribute("aria-describedby", f"{field}-mistake")


def press_twice(page: Page, path: str, button: str, *, danger: bool = False) -> None:
    """A form of one button: with the proof of another session, and then from its page again."""
    for wrong in (True, False):
        page.goto(path)
        if wrong:
            page.evaluate("for (const one of document.getElementsByName('proof')) one.value = 'x'")
        page.locator(button).first.click()
        if danger:
            page.get_by_role("button", name="sure?").or_(page.locator(button)).first.click()
        if wrong:
            expect(page.locator("main")).to_contain_text(TOO_OLD, ignore_case=True)
            known = "That is not allowed" if "logout" in button else "This form is too old"
            expect(page.locator("h1")).to_have_text(known)


def new_job(page: Page, server: Server) -> None:
    page.goto("/jobs/new")
    wrong = {"model": "deepseek-r11", "tp": "abc", "engine": "sglangg", "measure": "predikt"}
    fill(page, wrong)
    page.get_by_role("button", name="Show the plan").click()
    said(page, "model", "did you mean 'deepseek-r1'")
    said(page, "tp", "should be a number")
    said(page, "measure", "did you mean 'predict'")
    said(page, "engine", "did you mean 'sglang'")
    fill(page, {"model": "mixtral-8x7b", "tp": "3", "engine": "sglang", "measure": "predict"})
    page.get_by_role("button", name="Show the plan").click()
    said(page, "tp", "the nearest that works is tp=")
    fill(page, {"tp": "8"})
    page.get_by_role("button", name="Show the plan").click()
    expect(page.locator("h1")).to_contain_text("mixtral-8x7b TP 8 on")
    page.get_by_role("button", name="Queue 1 job").click()
    expect(page.locator(".facts .badge")).to_have_text("queued")


def plan(page: Page, server: Server) -> None:
    page.goto("/jobs/plan?model=deepseek-r1&tp=8&device=L40S&engine=sglang==0.5.16")
    boxes = page.locator("input[type=checkbox]")
    expect(boxes).to_have_count(10)
    expect(page.locator("tbody tr").nth(3)).to_contain_text("about 21 s")
    for box in boxes.all():
        box.uncheck()
    expect(page.get_by_role("button", name="Queue 0 jobs")).to_be_disabled()
    page.evaluate("for (const one of document.querySelectorAll('.boxes button')) one.disabled = 0")
    page.get_by_role("button", name="Queue 0 jobs").click()
    expect(page.get_by_role("alert")).to_contain_text("no box is ticked")
    boxes.nth(0).uncheck()
    for box in boxes.all()[4:]:
        box.uncheck()
    page.get_by_role("button", name="Queue 3 jobs").click()
    expect(page.locator("tbody")).to_contain_text("decode")
    jobs = server.app.state.api.jobs.list()
    kinds = [one.request.spec.partition(":")[0] for one in jobs if one.request.device[7:] == "L40S"]
    assert kinds.count("extend_attention") == 2 and kinds.count("decode_attention") == 1


def fill(page: Page, fields: dict[str, str]) -> None:
    for name, text in fields.items():
        page.locator(f"#{name}").fill(text)


def several_jobs(page: Page, server: Server) -> None:
    page.goto(GAPS)
    expect(page.get_by_role("button", name="Queue 0 jobs")).to_be_disabled()
    page.evaluate("for (const one of document.querySelectorAll('.boxes button')) one.disabled = 0")
    page.get_by_role("button", name="Queue 0 jobs").click()
    expect(page.locator(".mistake")).to_contain_text("no box is ticked")
    page.get_by_role("link", name="Back to Coverage").click()
    page.get_by_role("link", name="Tick all").click()
    page.get_by_label("Times from").select_option("predict")
    page.get_by_role("button", name="Queue 1 job").click()
    expect(page.locator("h1")).to_have_text("1 job is queued")


def watch(page: Page, server: Server) -> None:
    page.goto("/watches")
    page.get_by_label("Models").fill("mixtral-8x7b\nmixtrall\nqwen3-32")
    page.get_by_label("Devices").fill("H20, H21")
    page.get_by_label("TP").fill("8, x")
    page.get_by_label("Engine").fill("sglangg")
    page.get_by_role("button", name="Watch", exact=True).click()
    said(page, "models", "'mixtrall'")
    said(page, "models", "'qwen3-32'")
    said(page, "devices", "unknown device 'H21'")
    said(page, "tp", "should be a number")
    said(page, "engine", "did you mean 'sglang'")
    fill(page, {"models": "mixtral-8x7b\nqwen3-235b-a22b", "devices": "H20", "tp": "8"})
    fill(page, {"engine": "sglang"})
    page.get_by_role("button", name="Watch", exact=True).click()
    expect(page.locator(".card.split strong").last).to_have_text("mixtral-8x7b, qwen3-235b-a22b")


def key(page: Page, server: Server) -> None:
    page.goto("/keys")
    fill(page, {"name": "bad name!", "expires": "tomorrow"})
    page.get_by_role("button", name="Make the key").click()
    said(page, "name", "should be letters, digits, - and _")
    said(page, "expires", "2027-01-31")
    fill(page, {"name": "local", "expires": "2001-01-01"})
    page.get_by_role("button", name="Make the key").click()
    said(page, "name", "is the service's own")
    said(page, "expires", "has begun already")
    fill(page, {"name": "good-name", "expires": "90d"})
    page.get_by_role("button", name="Make the key").click()
    expect(page.locator("#secret")).to_have_value(re.compile("^tuner_"))


def new_secret(page: Page, server: Server) -> None:
    server.call("POST", "/v1/keys", {"name": "turning"})
    press_twice(page, "/keys", "form[action$='/turning/rotate'] button", danger=True)
    expect(page.locator("#secret")).to_have_value(re.compile("^tuner_"))
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    page.reload()  # shows the keys, and does not make another secret
    expect(page.locator("#secret")).to_have_count(0)
    expect(page).to_have_url(re.compile("/keys$"))


def bundle(page: Page, server: Server) -> None:
    page.goto("/bundles?device=L40S")
    page.get_by_label("cluster.toml").fill(f"{CLUSTER}\n[nodes")
    page.get_by_role("button", name="See its files").click()
    said(page, "cluster", "is not TOML")
    assert "\ufffd" not in page.get_by_label("cluster.toml").input_value()
    page.get_by_label("cluster.toml").fill(CLUSTER)
    page.get_by_role("button", name="See its files").click()
    expect(page.get_by_role("heading", name="No bundle")).to_be_visible()
    page.get_by_label("even if files are missing").check()
    page.get_by_role("button", name="See its files").click()
    expect(page.get_by_role("alert")).to_contain_text("files are missing")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download one-node").click()
    assert download.value.suggested_filename == "one-node-NVIDIA_L40S.tar.gz"


def withdraw(page: Page, server: Server) -> None:
    url = server.app.state.api.settings.service.database_url
    with Database.open(url) as store:
        place = replace(ENVIRONMENT, device="NVIDIA_A10")
        ResultStore(store).finish_run(
            ResultStore(store).begin_run(replace(KEY, environment=place)), [ENTRY], Totals()
        )
    path = RESULT.replace("L40S", "A10")
    press_twice(page, path, "form[action$='/withdraw'] button", danger=True)
    expect(page.locator("h1")).to_have_text("Coverage")
    page.goto(path)
    expect(page.locator("h1")).to_have_text("There is nothing here")


def log_in_and_out(page: Page, server: Server) -> None:
    page.goto("/jobs")
    page.get_by_role("button", name="Log out").click()
    page.goto("/jobs")
    page.get_by_label("Key").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("not known, or was revoked")
    page.get_by_label("Key").fill(server.key or "")
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("h1")).to_have_text("Jobs")
    press_twice(page, "/jobs", "form[action$='logout'] button")
    expect(page.locator("h1")).to_have_text("Log in")


def comparisons(page: Page, server: Server) -> None:
    page.goto("/compare")
    for text in ("nothing-like-this", "int8_w8a8"):
        page.get_by_label("model").fill(text)
        page.locator("form.filters button").click()
        if text == "nothing-like-this":
            expect(page.locator("main")).to_contain_text("No result matches")
    page.locator(".list a").first.click()
    page.goto(f"{COMPARISON}&left=H200:9")
    expect(page.locator("main")).to_contain_text("for this problem on H200")
    page.goto(COMPARISON)
    page.get_by_label("First").select_option("NVIDIA_L40S:0")
    expect(page).to_have_url(re.compile("left=NVIDIA_L40S"))


def export(page: Page, server: Server) -> None:
    page.goto("/exports/L40S")
    page.get_by_label("Engine").fill("sglangg")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#engine-mistake")).to_contain_text("did you mean 'sglang'")
    page.get_by_label("Engine").fill("sglang==0.5.16")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#engine-mistake")).to_have_count(0)
    expect(page.locator("main")).to_contain_text("SGLANG_MOE_CONFIG_DIR=")


# By the address of a form, with a star for what names a job, a key, a worker or a watch.
CASES: dict[str, Callable[[Page, Server], None]] = {
    "post /jobs": new_job,
    "post /jobs/plan": plan,
    "post /jobs/several": several_jobs,
    "post /watches": watch,
    "post /keys": key,
    "post /keys/*/rotate": new_secret,
    "post /bundles": bundle,
    "post /results/withdraw": withdraw,
    "post /login": log_in_and_out,
    "get /compare": comparisons,
    "get /exports/*": export,
}
# Forms of a button, boxes or a search alone, which the other tests of pages send without a browser;
# `TestForms` of test_pages_login sends each with a wrong proof.
PLAIN = {
    *(
        "get /",
        "get /jobs",
        "get /models",
        "get /devices",
        "post /jobs/*/cancel",
        "post /jobs/*/retry",
        "post /jobs/*/delete",
    ),
    *("post /jobs/chosen", "post /keys/*/revoke", "post /logout", "post /nights"),
    *("post /sessions/end-others", "post /watches/several", "post /watches/*/hide"),
    *("post /watches/*/remove", "post /workers/*/drain", "post /workers/*/resume"),
}
VERBS = {name.rpartition("/")[2] for name in (*CASES, *PLAIN)}
# Menus alone, in which nothing can be wrong.
MENUS = {"get /results"}


def forms_of(html: str, page: str) -> set[str]:
    """The forms of a page, as `CASES` names them."""
    found = set()
    for form, inside in re.findall(r"<form\b([^>]*)>(.*?)</form>", html, re.DOTALL):
        given = dict(re.findall(r'([\w-]+)="([^"]*)"', form))
        for action in (given.get("action", ""), *re.findall(r'formaction="([^"]*)"', inside)):
            address = urlsplit(urljoin(page, unescape(action))).path
            first, *rest = address.strip("/").split("/")
            parts = [first, *(one if one in VERBS else "*" for one in rest)]
            found.add(f"{given.get('method', 'get')} /{'/'.join(parts)}")
    return found


def test_every_form_has_a_case(server: Server, visitor: Visitor) -> None:
    """A new form needs a case, or a line in PLAIN or MENUS and a test without a browser."""
    ids = [job["id"] for job in server.call("GET", "/v1/jobs").json["jobs"]]
    server.app.state.api.workers.beat(IDLE)
    server.app.state.api.sessions.start("me")  # another one, which can be ended
    found = forms_of(Visitor(server).open("/login"), "/login")
    for path in (*PAGES, RESULT, GAPS, COMPARISON, *(f"/jobs/{one}" for one in ids)):
        found |= forms_of(visitor.open(path), path)
    assert found - MENUS == CASES.keys() | PLAIN


# One of each kind: fields with mistakes, boxes, a button, a download, a log in, a search.
EACH_COMMIT = (
    *(
        "post /jobs",
        "post /jobs/plan",
        "post /jobs/several",
        "post /keys/*/rotate",
        "post /bundles",
        "post /login",
    ),
    *("post /results/withdraw", "post /watches", "get /compare"),
)


@pytest.mark.parametrize("name", only(EACH_COMMIT, CASES))
def test_a_form_is_corrected_and_sent_again(browser: Browser, server: Server, name: str) -> None:
    with logged_in(browser, server) as tab:
        assert isinstance(tab, Tab)
        CASES[name](tab.page, server)
