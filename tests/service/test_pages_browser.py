"""The pages in a real browser: live jobs, forms, themes, and what a screen reader needs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

import pytest
from api_server import ENTRY, WHOLE, Server, serving
from axe_playwright_python.sync_playwright import Axe
from browsers import chromium
from playwright.sync_api import Browser, BrowserContext, Page, expect
from servers import free_port
from sqlalchemy import insert
from store_writer import ENVIRONMENT, KEY, POINTS, PROBLEM, batch, trial
from test_pages import PAGES, RESULT, all_pages, filled_server, job_ids
from tiers import only

from api.settings import ApiSettings
from tuner.devices.table import devices
from tuner.families.fused_moe.problem import Gemm
from tuner.jobs.job import JobFilter, Lease
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Compiled, Measurement, Outlook, RunKey, Status, Totals, Trial
from tuner.store.database import Database, utc_now
from tuner.store.keys import Scope
from tuner.store.leases import Leases
from tuner.store.results import ResultStore
from tuner.store.rows import entry_row, environment_row, run_row
from tuner.store.tables import environments, problems, runs, winners
from workers.settings import Settings

# Two environments of a device side by side.
COMPARED = f"/compare?problem={quote(PROBLEM.spec())}&left=L40S:0&right=L40S:1"
OTHERS = ("/nowhere", "/?q=nothing", "/jobs?client=nobody", COMPARED)
WIDTHS = (360, 1280, 2560)
SHEET = 957  # pixels of an upright A4 sheet, if the browser shrinks a page as far as it does
INK = "rgb(27, 31, 35)"
# What a browser itself logs of an answer that the page expects.
EXPECTED = "Failed to load resource"


@pytest.fixture(autouse=True)
def always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.matrix.FRESH_S", 0.0)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with something on each page; its tests only read."""
    url = f"sqlite:///{tmp_path_factory.mktemp('pages') / 'tuner.db'}"
    yield from filled_server(url)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'tuner.db'}"


@pytest.fixture
def server(url: str) -> Iterator[Server]:
    with serving(ApiSettings(Settings(url))) as running:
        running.key = running.app.state.api.keys.add("me", Scope.ADMIN)
        yield running


@dataclass
class Tab:
    """A page of a browser that is logged in, and what went wrong on it."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)

    def open(self, path: str) -> None:
        self.page.goto(path)


@contextmanager
def logged_in(browser: Browser, server: Server, **options: object) -> Iterator[Tab]:
    """A tab of somebody who came by the link that works once. It must not complain."""
    context: BrowserContext = browser.new_context(base_url=server.url, **options)  # type: ignore[arg-type]
    tab = Tab(context.new_page())
    page = tab.page
    page.on("console", lambda message: _note(tab, message.type, message.text))
    page.on("pageerror", lambda error: tab.complaints.append(str(error)))
    page.on("dialog", lambda dialog: tab.complaints.append(dialog.message))
    page.on("request", lambda request: tab.asked.add(request.url.partition("/v1")[0]))
    page.goto(f"/login?once={_link(server)}")
    page.wait_for_url(f"{server.url}/")
    yield tab
    context.close()
    assert tab.complaints == []
    assert all(one.startswith(server.url) for one in tab.asked)


def _note(tab: Tab, kind: str, text: str) -> None:
    if kind in ("error", "warning") and EXPECTED not in text:
        tab.complaints.append(text)


def _link(server: Server) -> str:
    made: str = server.app.state.api.links.add("me")
    return made


def claim(url: str) -> tuple[Leases, Lease]:
    leases = Leases(Database.open(url))
    lease = leases.claim([JobFilter(needs_gpu=True), JobFilter(needs_gpu=False)], "worker-1")
    assert lease is not None
    return leases, lease


def test_a_gap_becomes_a_job_that_ends_before_ones_eyes(
    browser: Browser, server: Server, url: str
) -> None:
    with Database.open(url) as store:  # something is stored for one device, and nothing for another
        for device in ("NVIDIA_L40S", "NVIDIA_H200"):
            run = ResultStore(store).begin_run(key_at(device))
            if device == "NVIDIA_L40S":
                ResultStore(store).add_trials(run, batch(0))
            ResultStore(store).finish_run(run, [ENTRY], Totals())
    server.call("POST", "/v1/watches", {"models": [PROBLEM.spec()], "devices": ["H20"]})
    with logged_in(browser, server) as tab:
        page = tab.page
        page.get_by_role("link", name="missing: queue a job").click()
        expect(page.get_by_label("Device")).to_have_value("NVIDIA_H20")
        page.get_by_role("button", name="Queue the job").click()
        expect(page.locator(".facts .badge")).to_have_text("queued")
        leases, lease = claim(url)
        with leases.database:
            expect(page.locator(".facts .badge")).to_have_text("starting")
            store = leases.store(lease)
            run = store.begin_run(key_at("NVIDIA_H20"))
            expect(page.locator(".facts .badge")).to_have_text("running")
            own = trial(199)  # the slowest of its point in the first batch, on purpose
            store.expect(run, Outlook(400, {POINTS[1]: {"default": own.candidate.config}}))
            row = page.locator("#bests tr")
            expect(row).to_contain_text("1down––")
            expect(page.locator("#left")).to_have_text("–")
            store.add_trials(run, batch(1))
            expect(page.locator("#tried")).to_have_text("100")
            expect(row.nth(0)).to_contain_text("1down101.5199.5")
            expect(row.nth(0)).to_contain_text("1.96×")
            expect(row).to_have_count(2)  # and the point that nobody planned
            expect(page.locator("[data-status=ok] b")).to_have_text("100")
            store.add_trials(run, batch(2))
            expect(page.locator("#tried")).to_have_text("200")
            expect(page.locator("[data-status=ok] b")).to_have_text("200")
            page.reload()
            expect(row.nth(0)).to_contain_text("1.96×")
            store.finish_run(run, WHOLE, Totals(measurements=200, wall_s=2.0))
        expect(page.locator(".facts .badge").first).to_have_text("done")
        expect(page).to_have_title("done: " + page.locator("h1").inner_text() + " · engine-tuner")
        page.get_by_role("link", name="See the result").click()
        expect(page.locator("h1")).to_contain_text("H20")
        with page.expect_download() as download:
            page.get_by_role("link", name="Download the files").click()
        assert download.value.suggested_filename.endswith(".tar")
        assert download.value.failure() is None
        tab.open("/")
        expect(page.get_by_role("link", name="1.25× measured")).to_have_count(3)


def test_the_chart_of_a_running_job_follows_its_trials(
    browser: Browser, server: Server, url: str
) -> None:
    small, large = Point(1, Gemm.DOWN), Point(64, Gemm.DOWN)
    own = {small: timed(small, 1, 100.0), large: timed(large, 2, 200.0)}
    job = server.submit()["id"]
    with logged_in(browser, server) as tab:
        tab.open(f"/jobs/{job}")
        dots = tab.page.locator(".chart[data-part=down] circle[data-key=tuned]")
        leases, lease = claim(url)
        with leases.database:
            store = leases.store(lease)
            run = store.begin_run(replace(KEY, points=(small, large)))
            plan = {point: {"default": one.candidate.config} for point, one in own.items()}
            store.expect(run, Outlook(400, plan))
            store.add_trials(run, own.values())
            expect(dots).to_have_count(2)
            tab.page.evaluate("document.querySelector('.chart').dataset.kept = 'yes'")
            before = float(dots.nth(1).get_attribute("cy") or 0)
            store.add_trials(run, [timed(large, 3, 150.0)])
            expect(dots.nth(1)).to_contain_text("best so far, 64: 150.0 µs")
            assert float(dots.nth(1).get_attribute("cy") or 0) > before  # it sank
            expect(tab.page.locator(".chart[data-kept]")).to_have_count(1)
            store.add_trials(run, [timed(large, 4, 1.0)])  # below the axis, so the server draws
            expect(dots.nth(1)).to_contain_text("best so far, 64: 1 µs")
            expect(tab.page.locator(".chart[data-kept]")).to_have_count(0)


def timed(point: Point, number: int, time_us: float) -> Trial:
    """A trial of the configuration with that number of stages."""
    config = Config({"BLOCK_SIZE_M": 16, "num_stages": number})
    measured = Measurement(Status.OK, median_us=time_us, min_us=time_us, samples=3)
    return Trial(Candidate(point, config), Compiled(Status.OK), measured)


def key_at(device: str) -> RunKey:
    """The run of another device."""
    return replace(KEY, environment=replace(ENVIRONMENT, device=device))


def test_cancelling_asks_once_more(browser: Browser, server: Server) -> None:
    job = server.submit()["id"]
    with logged_in(browser, server) as tab:
        tab.open(f"/jobs/{job}")
        button = tab.page.get_by_role("button", name="Cancel")
        button.click()
        expect(button).to_have_text("Cancel: sure?")
        assert server.call("GET", f"/v1/jobs/{job}").json["state"] == "queued"
        button.click()
        expect(tab.page.locator(".facts .badge")).to_have_text("cancelled")


def test_a_double_click_does_not_answer_the_question_that_it_asks(
    browser: Browser, server: Server
) -> None:
    with logged_in(browser, server) as tab:
        tab.open("/keys")
        button = tab.page.get_by_role("button", name="New secret for me")
        button.dblclick()
        expect(button).to_have_text("New secret: sure?")
        expect(tab.page.locator("#secret")).to_have_count(0)


def test_a_button_counts_the_boxes_that_the_browser_has_put_back(
    browser: Browser, server: Server
) -> None:
    with logged_in(browser, server) as tab:
        tab.open("/jobs/plan?model=deepseek-r1&tp=8&device=L40S&engine=sglang==0.5.16")
        tab.page.locator(".boxes input:checked").first.uncheck()
        button = tab.page.locator("button[data-many]")
        said = button.inner_text()
        tab.open("/devices")
        tab.page.go_back()
        expect(button).to_have_text(said)
        assert tab.page.locator(".boxes input:checked").count() == int(said.split()[1])


def test_a_download_that_is_refused_says_why(browser: Browser, server: Server, url: str) -> None:
    slower = replace(
        ENTRY, incumbents={"default": replace(ENTRY.incumbents["default"], median_us=9)}
    )
    with Database.open(url) as store:
        run = ResultStore(store).begin_run(KEY)
        ResultStore(store).finish_run(run, [slower], Totals())
    with logged_in(browser, server) as tab:
        tab.open(RESULT)
        tab.page.get_by_role("link", name="Download the files").click()
        expect(tab.page.locator("h1")).to_have_text("That is not possible now")
        expect(tab.page.locator("main")).to_contain_text("leave it")


def test_a_sheet_of_paper_is_light_and_wide_enough(browser: Browser, filled: Server) -> None:
    with logged_in(browser, filled, viewport={"width": SHEET, "height": 900}) as tab:
        cookie = {"name": "theme", "value": "dark", "url": filled.url}
        tab.page.context.add_cookies([cookie])  # type: ignore[list-item]
        for path in all_pages(filled):
            tab.open(path)
            tab.page.emulate_media(media="print")
            assert tab.page.locator("h1").evaluate("one => getComputedStyle(one).color") == INK
            assert tab.page.evaluate("document.documentElement.scrollWidth") <= SHEET, path
            tab.page.emulate_media(media="screen")


def test_a_session_that_ends_leads_to_the_log_in(browser: Browser, server: Server) -> None:
    api = server.app.state.api
    with logged_in(browser, server) as tab:
        tab.open("/jobs?state=dead")
        (token,) = (c["value"] for c in tab.page.context.cookies())
        api.sessions.end(token)
        api.known_sessions.forget(token)
        tab.open("/jobs?state=dead")
        expect(tab.page.locator("h1")).to_have_text("Log in")
        tab.page.get_by_label("Key").fill(server.key or "")
        tab.page.get_by_role("button", name="Log in").click()
        tab.page.wait_for_url(f"{server.url}/jobs?state=dead")
        tab.page.get_by_role("button", name="Log out").click()
        expect(tab.page.locator("h1")).to_have_text("Log in")
        tab.page.go_back()
        expect(tab.page.locator("h1")).to_have_text("Log in")


def test_a_page_goes_on_when_the_server_is_back(browser: Browser, url: str) -> None:
    settings, port = ApiSettings(Settings(url)), free_port()
    with serving(settings, port=port) as server:
        server.key = server.app.state.api.keys.add("me", Scope.ADMIN)
        job = server.submit()["id"]
        with logged_in(browser, server) as tab:
            tab.open(f"/jobs/{job}")
            expect(tab.page.locator(".facts .badge")).to_have_text("queued")
            expect(tab.page.locator("#offline")).to_be_hidden()
            server.stop()
            expect(tab.page.locator("#offline")).to_be_visible()
            with serving(settings, port=port):
                leases, lease = claim(url)
                with leases.database:
                    expect(tab.page.locator(".facts .badge")).to_have_text(
                        "starting", timeout=20_000
                    )
                    expect(tab.page.locator("#offline")).to_be_hidden()


def test_the_theme_is_the_system_s_until_one_is_chosen(browser: Browser, filled: Server) -> None:
    with logged_in(browser, filled, color_scheme="dark") as tab:

        def shade() -> str:
            found: str = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
            return found

        dark = shade()
        tab.page.locator("#theme").click()
        assert shade() != dark
        tab.open("/jobs")
        assert shade() != dark
        tab.page.locator("#theme").click()
        assert shade() == dark


def test_the_keyboard_reaches_the_content_first(browser: Browser, filled: Server) -> None:
    with logged_in(browser, filled) as tab:
        tab.page.keyboard.press("Tab")
        expect(tab.page.get_by_text("Skip to the content")).to_be_focused()
        tab.page.keyboard.press("Enter")
        expect(tab.page.locator("main")).to_be_focused()


# A colour that changes takes a moment.
_CHANGED = """Promise.all(document.getAnimations()
  .filter((one) => one instanceof CSSTransition).map((one) => one.finished)).then(() => true)"""


# The rows of a table are alike.
_FEW_ROWS = "document.querySelectorAll('tbody tr:nth-child(n + 9)').forEach((one) => one.remove())"


@pytest.mark.parametrize("whole", only([False], [False, True]))
def test_axe_finds_nothing(browser: Browser, filled: Server, whole: bool) -> None:
    """On each commit, it looks at eight rows of each table, and at a few pages in the dark.

    In the dark, only colours are others.
    """
    axe = Axe()
    of_light = {"resultTypes": ["violations"]}  # of other rules, no list of what they passed
    of_dark = of_light if whole else {**of_light, "runOnly": ["color-contrast"]}

    def look(page: Page, path: str) -> None:
        page.goto(path)
        if not whole:
            page.evaluate(_FEW_ROWS)
        for scheme, options in (("light", of_light), ("dark", of_dark)):
            if scheme == "dark" and not whole and path not in ("/", RESULT, COMPARED):
                continue
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            page.evaluate(_CHANGED)
            found = axe.run(page, options=options)
            assert found.violations_count == 0, (path, scheme, found.generate_report())

    with logged_in(browser, filled) as tab:
        for path in [*all_pages(filled), *OTHERS]:
            look(tab.page, path)
    page = browser.new_page()
    look(page, f"{filled.url}/login?next=jobs")
    page.close()


def test_values_have_names_on_a_phone(browser: Browser, filled: Server) -> None:
    before = "one => getComputedStyle(one, '::before').content"
    for width, named in ((400, True), (1280, False)):
        with logged_in(browser, filled, viewport={"width": width, "height": 800}) as tab:
            for path, name in (
                ("/keys", "last used"),
                ("/watches", "times from"),
                ("/workers", "Triton, torch"),
                ("/models", "experts"),
                ("/devices", "memory"),
                (RESULT, "registers"),
                (COMPARED, "as fast"),
            ):
                tab.open(path)
                cell = tab.page.locator(f"td[data-name='{name}']").first
                assert (cell.evaluate(before) == f'"{name} "') is named, path
                assert (
                    tab.page.locator("main thead").first.evaluate(
                        "one => getComputedStyle(one).position === 'absolute'"
                    )
                    is named
                )


def test_the_devices_of_coverage_stay_in_sight_while_the_page_scrolls(
    browser: Browser, filled: Server
) -> None:
    with logged_in(browser, filled, viewport={"width": 1280, "height": 330}) as tab:
        tab.open("/")
        table = tab.page.locator(".matrix")
        tab.page.evaluate("scrollTo(0, document.querySelector('.matrix').offsetTop + 400)")
        assert tab.page.evaluate("scrollY") > 100
        box, frame = table.locator("thead").bounding_box(), tab.page.locator(".top").bounding_box()
        assert box and frame and abs(box["y"] - frame["height"]) < 4
        assert table.evaluate(
            "one => one.parentElement.scrollHeight <= one.parentElement.clientHeight + 2"
        )


@pytest.mark.parametrize("load_at", only(WIDTHS[:1], WIDTHS))
def test_no_page_is_wider_than_its_window(browser: Browser, filled: Server, load_at: int) -> None:
    """Whichever width it was loaded at, and however long its texts are."""
    long = filled.submit(seed=5, name="n" * 200)["id"]
    texts = [COMPARED, f"/jobs/{long}", "/exports/H20", f"/{'x' * 190}", f"/?q={'q' * 190}"]
    with logged_in(browser, filled) as tab:
        for path in [*all_pages(filled), *texts]:
            tab.page.set_viewport_size({"width": load_at, "height": 800})
            tab.open(path)
            for width in (load_at, *WIDTHS):
                tab.page.set_viewport_size({"width": width, "height": 800})
                wide = tab.page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, (path, width)
        tab.page.set_viewport_size({"width": 1280, "height": 800})
        tab.open("/jobs")  # nor does a long name push the other columns out of sight
        cut = "(one) => one.scrollWidth - one.clientWidth"
        assert tab.page.locator("[aria-label=Jobs]").evaluate(cut) == 0


def test_pages_read_well_without_scripts(browser: Browser, filled: Server) -> None:
    context = browser.new_context(base_url=filled.url, java_script_enabled=False)
    page = context.new_page()
    page.goto(f"/login?once={_link(filled)}")
    page.wait_for_url(f"{filled.url}/")  # a page's own refresh
    expect(page.locator("table.matrix")).to_be_visible()
    for path in [*PAGES, RESULT, f"/jobs/{job_ids(filled)[0]}"]:
        page.goto(path)
        expect(page.locator("h1")).to_be_visible()
    expect(page.locator("time").first).to_contain_text("UTC")
    page.goto(f"/?q={quote('mixtral')}")
    expect(page.locator("table.matrix tbody tr")).to_have_count(1)
    context.close()


@pytest.mark.parametrize("count", only([80], [80, 400]))
def test_thousands_of_cells_are_shown(
    browser: Browser, server: Server, url: str, count: int
) -> None:
    names = [one.name for one in devices()][:25]
    with Database.open(url) as store, store.write() as connection:
        for number in range(count):
            problem = replace(PROBLEM, E=8 + number, top_k=2)
            row = {"spec": problem.spec(), "family": problem.family}
            connection.execute(insert(problems), row)
        places = [environment_row(key_at(name).environment) for name in names]
        connection.execute(insert(environments), places)
        run = {**run_row(KEY), "problem_id": 1, "environment_id": 1, "state": "done", "reason": ""}
        now = {"created_at": utc_now(), "updated_at": utc_now()}
        connection.execute(insert(runs), {**run, **now})
        each = {"run_id": 1, "published_at": utc_now(), **entry_row(ENTRY)}
        every = itertools.product(range(1, count + 1), range(1, len(names) + 1))
        rows = [{**each, "problem_id": p, "environment_id": e} for p, e in every]
        connection.execute(insert(winners), rows)
    with logged_in(browser, server, viewport={"width": 1280, "height": 800}) as tab:
        tab.open(f"/?limit={count}")
        expect(tab.page.locator("a.cell.measured")).to_have_count(count * len(names))
        tab.page.get_by_label("Search").fill("E=79")
        tab.page.get_by_role("button", name="Show").click()
        expect(tab.page.locator("table.matrix tbody tr")).to_have_count(1)
