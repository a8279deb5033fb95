"""Each page as a browser without scripts shows it: links lead on, and texts stay texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from html import escape, unescape
from urllib.parse import quote, urlencode, urljoin

import pytest
from api_server import ENTRY, NEVER, Server, serving, work
from sqlalchemy import insert
from store_writer import ENVIRONMENT, KEY, POINTS, PROBLEM, trial
from visitor import Visitor, links_of

from api.matrix import CellState
from api.pages.coverage import cells_of
from api.pages.names import device_short, model_words, plain, problem_words
from api.pages.render import code_words
from api.pages.results import map_of
from api.settings import ApiSettings
from tuner.devices.table import find_device
from tuner.draw.shapes import Colour
from tuner.families.fused_moe.family import least_us
from tuner.jobs.job import JobFilter
from tuner.jobs.workers import WorkerInfo
from tuner.models.served_as import models_of
from tuner.problems.registry import parse_problem
from tuner.problems.results import Measurement, Status, Totals
from tuner.store.database import Database
from tuner.store.keys import Scope
from tuner.store.leases import Leases
from tuner.store.results import ResultStore
from tuner.store.tables import job_events
from workers.settings import Settings

# What a client, a worker or a compiler may say. The name of a job may hold no control characters.
SCRIPT = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>{{7*7}}"
STEERING = f"{SCRIPT}\u202e\u0085\x1b[31m\u2066"
WORKER = WorkerInfo("w-1", STEERING, STEERING, "", "", None, (STEERING,), {"triton": SCRIPT})
PAGES = (
    *("/", "/jobs", "/jobs/new", "/workers", "/nights", "/watches", "/keys", "/exports"),
    *("/exports/L40S", "/bundles", "/devices", "/models", "/compare", "/sessions"),
    "/jobs/plan?model=deepseek-r1&device=L40S&tp=8",
    *("/?state=nothing&tick=true", "/?device=NVIDIA_A100_80GB_PCIe", "/watches?models=glm-4.5"),
)
HIDDEN = re.compile(r'type="hidden" name="([^"]+)" value="([^"]*)"')
RESULT = f"/results?problem={quote(PROBLEM.spec())}&device=L40S"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    url = f"sqlite:///{tmp_path_factory.mktemp('pages') / 'tuner.db'}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("api.matrix.FRESH_S", 0.0)
        yield from filled_server(url)


def filled_server(url: str) -> Iterator[Server]:
    """A server with something on each page."""
    with serving(ApiSettings(Settings(url))) as running:
        running.key = running.app.state.api.keys.add("me", Scope.ADMIN)
        fill(running, url)
        yield running


def fill(server: Server, url: str) -> None:
    """Jobs of each kind, results in two environments, a worker and a watch, all hostile."""
    body = {"model": PROBLEM.spec(), "device": "L40S", "name": SCRIPT}
    assert server.call("POST", "/v1/jobs", body).status == 202
    with Leases.open(url) as leases:
        work(leases)
        server.submit(seed=1, name=SCRIPT)
        lease = leases.claim([JobFilter(needs_gpu=True)], "test")
        assert lease
        leases.fail(lease, STEERING)
        server.submit(seed=3, name=SCRIPT)
        lease = leases.claim([JobFilter(needs_gpu=True)], STEERING)
        assert lease
        leases.store(lease).begin_run(replace(KEY, seed=3))
        then = datetime.now(timezone.utc) - timedelta(minutes=2)
        Leases(leases.database, lambda: then).heartbeat(lease)  # nobody hears of its worker again
    server.submit(seed=2, urgent=True)
    newer = replace(ENVIRONMENT, engine_version="0.5.23", kernel_hash="cd" * 32)
    with Database.open(url) as store:
        for place in (ENVIRONMENT, newer, replace(ENVIRONMENT, device="NVIDIA_H200")):
            run = ResultStore(store).begin_run(replace(KEY, environment=place, seed=7))
            failed = trial(3)
            broken = Measurement(Status.WRONG_RESULT, detail=STEERING)
            some = [replace(failed, measurement=broken), trial(4), trial(5), trial(6)]
            ResultStore(store).add_trials(run, some)
            ResultStore(store).finish_run(run, [replace(ENTRY, reason=STEERING)], Totals())
    api = server.app.state.api
    api.workers.beat(WORKER)
    api.workers.set_aside("w-1", STEERING)
    server.call("POST", "/v1/watches", {"models": ["mixtral-8x7b"], "devices": ["H20"], "tp": [8]})
    server.call("POST", "/v1/nights", {})


def job_ids(server: Server) -> list[str]:
    return [job["id"] for job in server.call("GET", "/v1/jobs").json["jobs"]]


def all_pages(server: Server) -> list[str]:
    return [*PAGES, RESULT, *(f"/jobs/{one}" for one in job_ids(server))]


@pytest.fixture(scope="module")
def opened(server: Server) -> dict[str, str]:
    """Each page, by its address."""
    someone = Visitor(replace(server, key=None))
    someone.log_in(server.key or "")
    return {path: someone.open(path) for path in all_pages(server)}


# The last words of addresses to which forms are sent, and of event streams.
POSTED = (
    *("cancel", "chosen", "retry", "drain", "resume", "remove", "hide", "rotate", "revoke"),
    *("logout", "several", "plan", "withdraw", "delete", "end-others", "events"),
)


def test_every_page_is_there_and_its_links_lead_on(
    opened: dict[str, str], visitor: Visitor
) -> None:
    links = {link: path for path, html in opened.items() for link in links_of(html, path)}
    followed = [one for one in links if one.partition("?")[0].rpartition("/")[2] not in POSTED]
    for link in followed:
        answer = visitor.send("GET", link)
        refused = answer.status == 409 and "/v1/exports/" in link
        assert answer.status == 200 or refused, (links[link], link, answer.status)
    assert len(followed) > 60


def test_pages_speak_of_no_flag_of_the_command_line(
    opened: dict[str, str], visitor: Visitor
) -> None:
    """Commands to copy stand in <code>; sentences say what a page can do."""
    for path, whole in opened.items():
        html = re.sub(r"<(code|textarea|pre)\b.*?</\1>", "", whole, flags=re.S)
        said = unescape(re.sub(r"<[^>]*>", " ", html))
        assert re.findall(r".{0,60}(?<![\w-])--[a-z][a-z-]+", said) == [], path
    answer = visitor.post("/jobs", {"model": "deepseek-r11", "device": "L40S"})
    html = unescape(answer.body.decode())
    assert "no preset is called 'deepseek-r11'; did you mean 'deepseek-r1'?" in html
    assert "folder" not in html


def test_hostile_texts_are_texts(opened: dict[str, str], visitor: Visitor) -> None:
    found = 0
    for path, html in opened.items():
        assert "<script>alert" not in html and "<img src=x" not in html, path
        assert "onerror=alert(2)&gt;49" not in html, path  # no template in a text is filled in
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", html), path
        found += html.count("&lt;script&gt;alert(1)")
    assert found > 10
    forged = f"/jobs/new?model={quote(SCRIPT)}&name={quote(STEERING)}&device={quote(SCRIPT)}"
    assert escape(SCRIPT[:3]).replace("&quot;", "&#34;")[:5] in visitor.open(forged)
    for path in ("/jobs?model=", "/?q=", "/login?next="):
        assert "<script>alert" not in visitor.open(path + quote(SCRIPT))
    nowhere = visitor.send("GET", f"/{quote(SCRIPT)}")
    assert nowhere.status == 404 and b"<script>alert" not in nowhere.body


def test_why_a_cell_is_stale_is_a_text_in_it() -> None:
    stale = {"state": CellState.STALE, "why": STEERING, "over": SCRIPT, "speedup": 1.25}
    stale["newest"] = datetime.now(timezone.utc)
    missing = {**stale, "state": CellState.MISSING, "newest": None}
    html = cells_of({"a": stale, "b": missing}, ["a", "b"], "/results?device=", "/jobs/new?device=")
    titles = re.findall(r'<a class="[^"]+" href="[^"]+" title="([^"]+)" aria-label=', html)
    assert len(titles) == 2 and not re.search(r"<(?!/?(td|a)\b)", html)
    for title in titles:
        assert unescape(title) == f"{plain(STEERING)}; over {SCRIPT}"


def test_the_first_page_says_what_there_is(server: Server, visitor: Visitor) -> None:
    html = visitor.open("/")
    counts = server.call("GET", "/v1/coverage/matrix").json["counts"]
    assert counts["measured"] == 2 and counts["missing"] == 1  # the older environment is hidden
    for state, count in counts.items():
        assert re.search(rf"<b>{count}</b> {state if state != 'untuned' else ''}", html), state
    assert "deepseek-r1 int8_w8a8 TP 32" in html and "1.25×" in html
    assert "mixtral-8x7b TP 8" in html
    # The same problem of two engines has two rows.
    assert len(re.findall(r'class="sub" title="[^"]+">sglang · fused moe', html)) == 2
    assert "No problem matches" in visitor.open("/?q=nothing-has-this-name")
    only = visitor.open("/?state=missing")
    assert "mixtral-8x7b TP 8" in only and "deepseek-r1" not in only
    (first,) = re.findall(r'class="model"[^>]*>([^<]+)', visitor.open("/?device=H20"))
    assert first.strip() == "mixtral-8x7b TP 8"


def test_the_style_has_each_colour_of_charts_for_light_and_dark(visitor: Visitor) -> None:
    style = visitor.send("GET", "/static/0/pages.css").body.decode()
    for name, colour in Colour.__members__.items():
        assert f".f-{name}{{fill:light-dark({colour.value[0]},{colour.value[1]})}}" in style


def test_withdrawing_names_all_that_it_withdraws(visitor: Visitor) -> None:
    assert "Withdraw the results of all 2 environments</button>" in visitor.open(RESULT)
    assert ">Withdraw</button>" in visitor.open(RESULT.replace("L40S", "H200"))


def test_a_result_shows_its_reasons_and_its_history(server: Server, visitor: Visitor) -> None:
    html = visitor.open(RESULT)
    assert "1.25×" in html and "0.5.23" in html and "0.5.16" in html
    assert "engine_version is now 0.5.23" in html
    assert "<svg" in html and "12.5" in html
    (winner,) = server.call("GET", f"/v1{RESULT}").json["environments"][0]["winners"]
    assert winner["least_us"] == least_us(PROBLEM, POINTS[0], find_device("L40S"))
    assert f"{100 * winner['least_us'] / 10:.0f} %" in html and ">roofline</text>" in html
    older = visitor.open(f"{RESULT}&environment=1")
    assert "stale" in older
    assert visitor.send("GET", f"{RESULT}&environment=x").status == 422
    assert visitor.send("GET", RESULT.replace("L40S", "H20")).status == 404
    tried = visitor.open(f"{RESULT}&across=num_stages")
    assert "No two parameters vary" in tried


def test_a_form_queues_a_job_or_says_what_is_wrong(server: Server, visitor: Visitor) -> None:
    fields = {"model": "mixtral-8x7b", "device": "L40S", "measure": "predict", "tp": "8"}
    answer = visitor.post("/jobs", {**fields, "batch_sizes": "1, 64", "effort": "quick"})
    assert answer.status == 303, answer.body
    before = server.app.state.api.jobs.list()
    path = "/" + answer.headers["location"].removeprefix("./")
    html = visitor.open(path)
    assert "mixtral-8x7b" in html and "Nothing is queued yet" in html
    assert "1 of 3 problems to tune, without a GPU." in html and "s of one" not in html
    assert server.app.state.api.jobs.list() == before
    given = {name: unescape(value) for name, value in HIDDEN.findall(html) if name != "proof"}
    (tick,) = re.findall(
        r'name="(tick [^"]+)" value="true" aria-label="[^"]+" checked', html
    )  # the rest is measured
    assert "the times of attention are not predicted" in html
    none = visitor.post("/jobs/plan", given)
    assert (none.status, b"no box is ticked" in none.body) == (422, True)
    (other, *_) = re.findall(r'name="(tick decode_attention[^"]+)"', html)
    none = visitor.post("/jobs/plan", {**given, unescape(other): "true"})
    said = "nothing is queued: the times of attention are not predicted"
    assert (none.status, said in unescape(none.body.decode())) == (422, True)
    answer = visitor.post("/jobs/plan", {**given, unescape(tick): "true"})
    html = visitor.open(urljoin("/jobs/plan", answer.headers["location"]))
    assert "mixtral-8x7b" in html and "queued" in html
    for wrong, said in (
        ({"model": "mixtrall"}, "did you mean"),
        ({"tp": "eight"}, "should be a number"),
        ({"tp": "3"}, "3"),
        ({"batch_sizes": "1,x"}, "should be a number"),
        ({"device": "<script>"}, "should be the name of a GPU"),
        ({"unknown": "1"}, "unknown field"),
        ({"measure": "replay:x"}, "replays no recordings"),
    ):
        refused = visitor.post("/jobs", {**fields, **wrong})
        assert (refused.status, said in refused.body.decode()) == (422, True), (wrong, refused.body)
        assert b'value="mixtral' in refused.body  # what was filled in stays


def test_commands_and_flags_in_sentences_are_code() -> None:
    for text, shown in (
        ("after `unset A_DIR`", "after <code>unset A_DIR</code>"),
        (
            "with `tuner tune --tp 8`, or --tp 8",
            "with <code>tuner tune --tp 8</code>, or <code>--tp 8</code>",
        ),
        ("--a and <b> ` alone", "<code>--a</code> and &lt;b&gt; ` alone"),
    ):
        assert code_words(text) == shown


def test_pages_carry_the_flags_of_servers_and_the_checkpoint(visitor: Visitor) -> None:
    problem = "fused_moe:E=8,N=64,K=128,top_k=2,dtype=int8_w8a8,per_channel_quant"
    stored = {"checkpoint": "int8_w8a8 compressed-tensors int8", "architecture": "A1"}
    posted = {"model": problem, "device": "L40S", "measure": "predict", **stored}
    answer = visitor.post("/jobs", {**posted, "server_args": "--moe-runner-backend triton"})
    assert answer.status == 303, answer.body
    html = visitor.open("/" + answer.headers["location"].removeprefix("./"))
    assert "<code>--moe-runner-backend triton</code>" in html
    (link,) = re.findall(r'href="[./]*(jobs/new\?[^"]+)">Post a similar job', html)
    form = unescape(visitor.open(f"/{unescape(link)}"))
    for name, value in {**stored, "server_args": "--moe-runner-backend triton"}.items():
        assert re.search(rf'name="{name}" value="{value}"', form), name
    refused = visitor.post("/jobs", {**posted, "server_args": "--a 'b"})
    assert (refused.status, b'id="server_args-mistake"' in refused.body) == (422, True)


def test_a_similar_job_has_the_same_sizes(server: Server, visitor: Visitor) -> None:
    html = visitor.open(f"/jobs/{server.submit(seed=8, batch_sizes=[1, 64])['id']}")
    (link,) = re.findall(r'href="[./]*(jobs/new\?[^"]+)">Post a similar job', html)
    assert 'name="batch_sizes" value="1 64"' in visitor.open(f"/{unescape(link)}")


def test_no_link_of_a_reader_is_refused(sqlite_url: str) -> None:
    for server in filled_server(sqlite_url):
        key = server.app.state.api.keys.add("reads", Scope.READ)
        reader = Visitor(replace(server, key=None))
        reader.log_in(key)
        for path in all_pages(server):
            shown = reader.send("GET", path)
            html = shown.body.decode() if shown.status == 200 else ""
            for link in re.findall(r'<a [^>]*href="([^"]*)"', html):
                to = urljoin(path, unescape(link)).partition("#")[0]
                assert reader.send("GET", to).status in (200, 303, 409), (path, to)


def test_a_form_takes_any_name_of_a_device(visitor: Visitor) -> None:
    assert '<option value="NVIDIA_L40S" selected>' in visitor.open("/jobs/new?device=L40S")


def test_the_device_of_a_new_job_is_of_a_worker_or_of_the_newest_result(sqlite_url: str) -> None:
    with serving(ApiSettings(Settings(sqlite_url))) as running:
        api = running.app.state.api
        mine = Visitor(replace(running, key=None))
        mine.log_in(api.keys.add("me", Scope.ADMIN))
        api.workers.beat(WORKER)  # it has no GPU
        assert chosen(mine) == []
        for device in ("NVIDIA_H200", "NVIDIA_L40S"):
            key = replace(KEY, environment=replace(ENVIRONMENT, device=device))
            api.results.finish_run(api.results.begin_run(key), [ENTRY], Totals())
        assert chosen(mine) == ["NVIDIA_L40S"]
        api.workers.beat(replace(WORKER, id="w-2", gpu="0", device="NVIDIA_H20"))
        api.fleet._seen = None  # its workers are a moment old
        assert chosen(mine) == ["NVIDIA_H20"]


def chosen(visitor: Visitor) -> list[str]:
    """The device that the form has chosen; without one, the browser asks for it."""
    html = visitor.open("/jobs/new")
    assert re.search('<select id="device"[^>]* required[^>]*><option value="">', html)
    return re.findall('<option value="(NVIDIA_[^"]+)" selected>', html)


def test_results_without_a_query_lead_to_where_a_result_is_chosen(visitor: Visitor) -> None:
    answer = visitor.send("GET", "/results")
    assert (answer.status, urljoin("/results", answer.headers["location"])) == (303, "/")
    assert visitor.send("GET", "/results?device=L40S").status == 422


def test_models_name_their_dtype_as_the_api_does(visitor: Visitor) -> None:
    html = visitor.open("/models")
    assert ">fp8_w8a8</td>" in html and "Dtype." not in html


def test_lists_are_searched(visitor: Visitor) -> None:
    def rows(path: str) -> list[str]:
        return re.findall(r'<th scope="row"><a [^>]*>([^<]+)', visitor.open(path))

    assert rows("/models?q=DeepSeek+v3.1") == ["deepseek-v3.1"]
    assert 2 < len(rows("/models?q=qwen3+moe")) < len(rows("/models")) / 2
    assert rows("/devices?q=ada+l40") == ["L40", "L40S"]
    assert len(rows("/devices?q=")) > 40
    for path in ("/models?q=nothing", "/devices?q=nothing"):
        html = visitor.open(path)
        assert "matches</h2>" in html and "<table" not in html
    offer = re.compile(r'<li><a href="\?problem=')
    assert len(offer.findall(visitor.open("/compare?q=deepseek+h200"))) == 1
    assert not offer.findall(visitor.open("/compare?q=deepseek+gb300"))


def test_jobs_are_found_by_a_part_of_their_model_and_counted_so(
    server: Server, visitor: Visitor
) -> None:
    server.submit(seed=41, name="a%b_odd-Name")
    for part, found in (("odd-name", True), ("a%b_", True), ("a_b", False), ("odd name", False)):
        html = visitor.open(f"/jobs?{urlencode({'model': part})}")
        assert ("No job matches" not in html) is found, part
        assert bool(re.search(r"<b>1</b> queued", html)) is found, part
    every = visitor.open("/jobs")
    assert int(re.findall(r"<b>(\d+)</b> queued", every)[0]) > 1


@pytest.fixture
def empty(sqlite_url: str) -> Iterator[Server]:
    """A server with a store of its own."""
    with serving(ApiSettings(Settings(sqlite_url))) as running:
        running.key = running.app.state.api.keys.add("me", Scope.ADMIN)
        yield running


def visitor_of(server: Server) -> Visitor:
    someone = Visitor(replace(server, key=None))
    someone.log_in(server.key or "")
    return someone


def test_a_reason_that_many_jobs_share_stands_once(empty: Server) -> None:
    for seed in range(3):
        empty.submit(seed=seed)
    html = visitor_of(empty).open("/jobs")
    told = re.findall(r'<span class="sub why" title="(no worker[^"]*)">([^<]+)', html)
    assert [said for _, said in told] == [told[0][0], "as above", "as above"]


def test_a_queued_job_says_what_was_posted_before_it(
    empty: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.state.SEEN_FOR_S", 0.0)
    worker = replace(WORKER, gpu="GPU-1", device="NVIDIA_H20", engines=("sglang==0.5.16",))
    empty.app.state.api.workers.beat(worker)
    server, visitor = empty, visitor_of(empty)
    of_h20 = {"device": "H20", "engine": "sglang==0.5.16"}
    first, second, third = (server.submit(seed=n, **of_h20)["id"] for n in (51, 52, 53))
    assert "nothing on this device was posted before it" in visitor.open(f"/jobs/{first}")
    html = visitor.open(f"/jobs/{third}")
    assert re.search(r"2 queued jobs for this device were posted before it, about [\d.]+ \w+", html)
    assert "1 queued job for this device was posted" in visitor.open(f"/jobs/{second}")


def test_a_failed_job_leads_to_what_helps(server: Server, visitor: Visitor) -> None:
    (failed,) = server.call("GET", "/v1/jobs?state=failed").json["jobs"]
    html = visitor.open(f"/jobs/{failed['id']}")
    assert re.search(
        r'<a class="button main" href="[^"]*jobs/new\?[^"]*">Post a similar job</a>', html
    )
    assert "<button>Try again</button>" in html
    assert "Best times" not in html and 'id="bests"' not in html
    server.submit(seed=61)
    cancelled = server.submit(seed=62)["id"]
    server.call("POST", f"/v1/jobs/{cancelled}/cancel")
    assert '<button class="main">Try again</button>' in visitor.open(f"/jobs/{cancelled}")


def test_entries_that_were_not_tuned_are_folded(empty: Server, sqlite_url: str) -> None:
    untuned = replace(ENTRY, status=Status.INCUMBENT, median_us=None)
    rest = [replace(untuned, point=POINTS[1])]
    with ResultStore.open(sqlite_url) as store:
        store.finish_run(store.begin_run(KEY), [ENTRY, *rest], Totals())
    html = visitor_of(empty).open(RESULT)
    shown, folded = html.split("<details>", 1)
    assert "1 entry that was not tuned" in folded
    assert shown.count('title="trials at this size"') == 1
    assert folded.count('title="trials at this size"') == len(rest)


def test_docs_follow_the_theme(visitor: Visitor) -> None:
    assert '<html lang="en">' in visitor.open("/docs")
    visitor.cookies["theme"] = "dark"
    assert '<html lang="en" data-theme="dark">' in visitor.open("/docs")
    visitor.cookies["theme"] = '"><script>'
    assert '<html lang="en">' in visitor.open("/docs")
    style = visitor.send("GET", "/docs/theme.css")
    assert style.status == 200 and '[data-theme="dark"]' in style.body.decode()


def test_a_job_is_cancelled_and_tried_again(server: Server, visitor: Visitor) -> None:
    job = server.submit(seed=99)["id"]
    assert "Cancel" in visitor.open(f"/jobs/{job}")
    assert visitor.post(f"/jobs/{job}/cancel").status == 303
    html = visitor.open(f"/jobs/{job}")
    assert "Try again" in html and "data-events" not in html
    assert visitor.post(f"/jobs/{job}/retry").status == 303
    assert server.call("GET", f"/v1/jobs/{job}").json["state"] == "queued"
    assert visitor.post(f"/jobs/{NEVER}/cancel").status == 404


def test_a_done_job_may_lack_totals(server: Server, visitor: Visitor) -> None:
    job = server.submit(seed=98)["id"]
    done = {"job_id": job, "seq": 99, "kind": "done", "at": datetime.now(timezone.utc), "data": {}}
    with server.app.state.api.store.engine.begin() as connection:
        connection.execute(insert(job_events).values(done))
    assert "Times taken" not in visitor.open(f"/jobs/{job}")


def test_watches_nights_and_workers_are_worked_with(server: Server, visitor: Visitor) -> None:
    fields = {"models": "qwen3-235b-a22b\nmixtral-8x7b", "devices": "H100, H20"}
    fields["server_args"] = "--moe-runner-backend triton"
    answer = visitor.post("/watches", fields)
    assert answer.status == 303, answer.body
    watch = server.call("GET", "/v1/watches").json["watches"][-1]
    assert watch["watch"]["models"] == ["qwen3-235b-a22b", "mixtral-8x7b"]
    assert watch["watch"]["server_args"] == fields["server_args"]
    refused = visitor.post("/watches", {"models": "mixtrall", "devices": "H20"})
    assert refused.status == 422 and b"did you mean" in refused.body
    hide = f"/watches/{watch['id']}/hide"
    problem = re.search(rf'{hide}.*?name="problem" value="([^"]*)"', visitor.open("/watches"))
    assert problem
    assert visitor.post(hide, {"problem": problem[1]}).status == 303
    assert f'"{problem[1]}"' in visitor.open("/watches").partition("hidden: ")[2]  # to show it
    assert visitor.post(hide, {"problem": problem[1], "hidden": "false"}).status == 303
    assert "hidden: " not in visitor.open("/watches")
    assert visitor.post(hide).status == 422
    assert visitor.post(f"/watches/{watch['id']}/remove").status == 303
    planned = visitor.post("/nights", {"dry_run": "true"})
    assert b"Tonight would" in planned.body
    server.app.state.api.workers.beat(WORKER)  # its last beat may be a minute ago by now
    assert visitor.post("/workers/w-1/drain").status == 303
    assert visitor.post("/workers/w-1/resume").status == 303
    assert visitor.post("/workers/nobody/drain").status == 404


def test_a_night_shows_what_came_of_each_thing(server: Server, visitor: Visitor) -> None:
    night = server.call("GET", "/v1/nights/last").json
    (outcome,) = night["outcomes"]
    assert outcome["kind"] == "missing"
    assert outcome["job_id"] in night["summary"]["submitted"]
    assert (outcome["gain_before"], outcome["gain_after"]) == (None, None)
    page = visitor.open("/nights")
    assert f'href="./jobs/{outcome["job_id"]}"' in page
    planned = visitor.post("/nights", {"dry_run": "true"}).body.decode()
    assert "Tonight would" in planned


def test_errors_are_pages_for_browsers_and_problems_for_others(
    server: Server, visitor: Visitor
) -> None:
    answer = visitor.send("GET", f"/jobs/{NEVER}")
    assert (answer.status, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert answer.headers["x-request-id"] in answer.body.decode()
    assert "there is no job" in visitor.send("GET", f"/jobs/{NEVER}", Accept="*/*").problem(404)
    visitor.send("GET", f"/v1/jobs/{NEVER}").problem(404)


def test_the_results_of_the_api_are_those_of_the_page(server: Server) -> None:
    result = server.call("GET", f"/v1{RESULT}").json
    versions = [one["environment"]["engine_version"] for one in result["environments"]]
    assert sorted(versions) == ["0.5.16", "0.5.23"]
    assert result["models"] == list(models_of(PROBLEM))
    (winner,) = result["environments"][0]["winners"]
    trials = server.call("GET", f"/v1/runs/{winner['run_id']}/trials").json["trials"]
    assert len(trials) == 4
    job = next(j for j in server.call("GET", "/v1/jobs?state=done").json["jobs"])
    progress = server.call("GET", f"/v1/jobs/{job['id']}/progress").json
    assert progress["trials"] == {"ok": 100}
    assert {one["point"] for one in progress["best"]} == {str(point) for point in POINTS}
    keys = server.call("GET", "/v1/keys").json["keys"]
    assert [(key["name"], key["state"]) for key in keys] == [("me", "valid")]
    assert "hash" not in str(keys)


def test_names_are_read_back_from_problems() -> None:
    mixtral = "fused_moe:E=8,N=1792,K=4096,top_k=2,dtype=bfloat16"
    assert list(models_of(parse_problem(mixtral))) == ["mixtral-8x7b TP 8"]
    shared = "fused_moe:E=257,N=64,K=7168,top_k=9,dtype=int8_w8a8,per_channel_quant"
    shared += ",shared_experts=1"
    assert "deepseek-r1 int8_w8a8 TP 32" in models_of(parse_problem(shared))
    assert model_words("deepseek-r1", shared) == "deepseek-r1 TP 32"  # of a dtype not its own
    assert model_words("ours", shared) == "ours"
    assert models_of(parse_problem("fused_moe:E=8,N=64,K=128,top_k=2,dtype=bfloat16")) == ()
    assert problem_words(mixtral) == "fused moe · E 8 · N 1792 · K 4096 · top 2 · bfloat16"
    assert device_short("NVIDIA_H100_80GB_HBM3") == "H100 80GB HBM3"


def test_a_map_shows_the_best_of_each_pair_and_what_does_not_fit() -> None:
    def one(m: int, n: int, time: float | None, status: Status = Status.OK) -> dict[str, object]:
        config = {"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": n, "num_warps": 4}
        return {"config": config, "median_us": time, "status": status, "shared_bytes": m * n}

    trials = [one(16, 64, 10.0), one(16, 64, 20.0), one(16, 128, 25.0)]
    trials.append(one(64, 128, None, Status.OUT_OF_RESOURCES))
    found = map_of(trials, "", "")
    assert found and (found.across, found.down) == ("BLOCK_SIZE_M", "BLOCK_SIZE_N")
    assert found.names == ["BLOCK_SIZE_M", "BLOCK_SIZE_N"]
    best, slow, large = found.rows[64][16], found.rows[128][16], found.rows[128][64]
    assert (best.best_us, best.count, best.shade) == (10.0, 2, 0)
    assert (slow.best_us, slow.shade) == (25.0, 4)
    assert (large.best_us, large.status, large.shared_bytes) == (None, "out_of_resources", 8192)
    assert map_of(trials[:1], "", "") is None
