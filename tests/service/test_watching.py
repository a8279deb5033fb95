"""Watches, coverage and nights from the command line: the same with a server and a local store."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta

import pytest
from api_server import serving
from store_writer import KEY
from typer.testing import CliRunner, Result

from api.settings import ApiSettings
from tuner.cli.commands import app
from tuner.problems.points import Config
from tuner.problems.results import Compiled, Entry, Environment, Status, Totals
from tuner.store.database import Database
from tuner.store.jobs import JobStore
from tuner.store.keys import KeyStore, Scope
from tuner.store.nights import NightStore, Round
from tuner.store.results import ResultStore
from workers.nightly import SCHEDULE
from workers.settings import Settings

Tuner = Callable[..., Result]
PROBLEM = KEY.problem.spec()
DAY = date(2026, 11, 1)


@pytest.fixture
def server(store_url):
    with serving(ApiSettings(Settings(store_url))) as running:
        running.key = running.app.state.api.keys.add("team", Scope.ADMIN)
        yield running


@pytest.fixture(params=["local", "server"])
def tuner(request, store_url, monkeypatch, tmp_path):
    for name in ("TUNER_BROKER_URL", "TUNER_SERVER", "TUNER_NIGHTLY", "TUNER_RECORDINGS"):
        monkeypatch.delenv(name, raising=False)
    if request.param == "local":
        monkeypatch.setenv("TUNER_DATABASE_URL", store_url)
    else:
        server = request.getfixturevalue("server")
        monkeypatch.setenv("TUNER_DATABASE_URL", "sqlite:////nowhere/tuner.db")
        monkeypatch.setenv("TUNER_SERVER", server.url)
        monkeypatch.setenv("TUNER_API_KEY", server.key)
    return lambda *arguments: CliRunner().invoke(app, arguments)


def tuned(store: Database, environment: Environment) -> None:
    entries = [
        Entry(point, Config({"BLOCK_SIZE_M": 16}), Status.OK, 9.0, Compiled(Status.OK), {}, "")
        for point in KEY.points
    ]
    run = ResultStore(store).begin_run(replace(KEY, environment=environment))
    ResultStore(store).finish_run(run, entries, Totals())


ADD = ("nightly", "watches", "add", PROBLEM, "--device", "l40s", "--batch-sizes", "1")


def test_watches_are_added_listed_and_removed(tuner, store):
    assert "no watch was added" in tuner("nightly", "watches").stderr
    added = tuner(*ADD, "--device", "H20", "--json")
    assert added.exit_code == 0, added.stderr
    row = json.loads(added.stdout)
    assert row["watch"]["devices"] == ["NVIDIA_L40S", "NVIDIA_H20"]
    assert row["created_at"].endswith("Z")
    assert json.loads(tuner(*ADD, "--device", "H20", "--json").stdout) == row
    assert json.loads(tuner("nightly", "watches", "--json").stdout) == [row]
    models = tuner(
        "nightly", "watches", "add", "DeepSeek_R1", "--device", "L40S", "--tp", "8", "--tp", "16"
    )
    assert "deepseek-r1 on NVIDIA_L40S\n     tp 8, 16; sglang; gpu; standard" in models.stdout
    listed = tuner("nightly", "watches").stdout
    assert PROBLEM in listed and "deepseek-r1" in listed
    assert tuner("nightly", "watches", "remove", str(row["id"])).exit_code == 0
    assert len(NightStore(store).watches()) == 1


MISTAKES: list[tuple[tuple[str, ...], str]] = [
    (
        ("nightly", "watches", "add", "deepseek-r11", "--device", "L40S"),
        "did you mean 'deepseek-r1'",
    ),
    (("nightly", "watches", "add", "deepseek-r1", "--device", "L40X"), "did you mean 'L40'"),
    (("nightly", "watches", "add", "fused_moe:E=8", "--device", "L40S"), "lacks N, K, top_k"),
    (("nightly", "watches", "add", "http://", "--device", "L40S"), "http://HOST:PORT"),
    # A watch reads no file, whatever is there.
    *(
        (("nightly", "watches", "add", text, "--device", "L40S"), f"called {text!r}; ")
        for text in (".", "no-such-model")
    ),
    ((*ADD, "--effort", "quik"), "did you mean 'quick'"),
    (("nightly", "watches", "remove", "77"), "there is no watch 77"),
    (("nightly", "watches", "--json", "remove", "77"), "write options behind `remove`"),
    (
        ("nightly", "watches", "--server", "http://x", "remove", "7"),
        "write options behind `remove`",
    ),
    (("nightly", "coverage", "--device", "L40X"), "did you mean 'L40'"),
    (("nightly", "run", "--last"), "there was no night yet"),
    (("nightly", "run", "--last", "--list"), "leave the other options out"),
    (("nightly", "run", "--list", "--force"), "leave the other options out"),
]


def test_bad_input_is_one_line(tuner, store):
    for arguments, reason in MISTAKES:
        refused = tuner(*arguments)
        assert (refused.exit_code, refused.stdout) == (2, ""), arguments
        assert reason in refused.stderr and refused.stderr.count("\n") == 1, arguments
        assert NightStore(store).watches() == [], arguments


def test_coverage_is_what_is_stored_and_what_is_watched(tuner, store):
    assert "nothing is stored" in tuner("nightly", "coverage").stderr
    assert "nothing is watched" in tuner("nightly", "coverage", "--watched").stderr
    place = replace(KEY.environment, engine_version="9.9.9", driver="580.1", torch="2.11.0")
    tuned(store, replace(place, driver="570.1"))
    tuned(store, place)
    rows = json.loads(tuner("nightly", "coverage", "--json").stdout)
    told = [(row["problem"], row["standing"]) for row in rows]
    assert told == [(PROBLEM, "stale"), (PROBLEM, "tuned")]
    assert rows[0]["newest"].endswith("Z")
    text = tuner("nightly", "coverage", "--device", "L40S").stdout
    heading, item, detail, *_ = text.splitlines()
    assert heading.startswith("NVIDIA_L40S, sglang 9.9.9, triton 3.6.0, torch 2.11.0, driver 570.1")
    assert item == f"stale    {PROBLEM}"
    assert detail.startswith("         2 measured; last on 20")
    assert detail.endswith("driver is now 580.1")
    assert json.loads(tuner("nightly", "coverage", "--device", "H20", "--json").stdout) == []
    tuner(*ADD, "--device", "H20")
    watched = json.loads(tuner("nightly", "coverage", "--watched", "--json").stdout)
    told = [(row["device"], row["standing"]) for row in watched]
    assert told == [("NVIDIA_L40S", "tuned"), ("NVIDIA_H20", "missing")]
    assert watched[0]["tuned_at"].endswith("Z")
    text = tuner("nightly", "coverage", "--watched", "--device", "H20").stdout
    assert text.splitlines() == [
        "NVIDIA_H20, sglang, gpu",
        f"missing  {PROBLEM}",
        "         2 of 2 points are not measured",
    ]


def test_pages_of_coverage_are_put_together(tuner, store):
    for number in range(105):
        tuned(store, replace(KEY.environment, engine_version=f"9.9.{number}"))
    rows = json.loads(tuner("nightly", "coverage", "--json").stdout)
    versions = [row["environment"]["engine_version"] for row in rows]
    assert versions == [f"9.9.{number}" for number in range(105)]
    assert [row["standing"] for row in rows] == ["stale"] * 104 + ["tuned"]
    tuner(*ADD, "--measure", "predict")
    nights = NightStore(store)
    (added,) = nights.watches()
    for tp in range(2, 106):
        nights.add_watch({**added.watch, "tp": [tp]}, f"{tp}", added.client)
    assert len(json.loads(tuner("nightly", "coverage", "--watched", "--json").stdout)) == 105


def test_a_night_is_planned_done_forced_and_listed(tuner, store):
    jobs = JobStore(store)
    empty = tuner("nightly", "run")
    first = "nothing is watched: begin with `tuner nightly watches add`"
    assert (empty.exit_code, first in " ".join(empty.stdout.split())) == (0, True)
    tuner(*ADD)
    planned = tuner("nightly", "run", "--dry-run")
    assert "1 watched, 1 to do" in planned.stdout and jobs.list() == []
    done = tuner("nightly", "run", "--json")
    assert done.exit_code == 0
    summary = json.loads(done.stdout)
    assert [job.id for job in jobs.list()] == summary["submitted"]
    assert "it was done at" in tuner("nightly", "run").stdout
    again = json.loads(tuner("nightly", "run", "--force", "--json").stdout)
    assert again["waiting"] == summary["submitted"]
    record = json.loads(tuner("nightly", "run", "--last", "--json").stdout)
    assert {name: record[name] for name in summary} == summary  # a second round queued no more
    assert "1 queued, 0 waiting before" in tuner("nightly", "run", "--last").stdout
    (night,) = json.loads(tuner("nightly", "run", "--list", "--json").stdout)
    assert (night["counts"]["submitted"], night["finished_at"][-1]) == (1, "Z")
    header, _, line = tuner("nightly", "run", "--list").stdout.splitlines()
    assert line.split()[:-1] == [night["date"], "1", "1", "0", "0", "1", "0", "0"]
    assert len(header) <= 80


def test_a_round_with_errors_exits_with_1(tuner, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")  # one line for each row
    layer = ("--device", "L40S", "--family", "fused_moe")
    tuner("nightly", "watches", "add", "deepseek-r1", *layer, "--tp", "7", "--tp", "8")
    for option in ("--dry-run", "--force"):
        done = tuner("nightly", "run", option)
        assert done.exit_code == 1
        assert "1 watched, 1 to do" in done.stdout.splitlines()[0]
        assert done.stdout.splitlines()[0].endswith("1 error")
        assert done.stdout.splitlines()[-2].startswith("error  ")
    assert tuner("nightly", "run", "--last").exit_code == 0


def test_a_server_has_its_own_watch_list(server, tmp_path):
    arguments = ("nightly", "run", "--server", server.url, "--watch-list", str(tmp_path / "x.toml"))
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code == 2
    assert "leave --watch-list out" in refused.stderr


def watched(server):
    """The problems that are watched, once for each device."""
    rows = server.call("GET", "/v1/coverage/watched").json["watched"]
    return [row["problem"] for row in rows]


class TestApi:
    def test_a_watch_is_shown(self, server):
        body = {"models": ["deepseek-r1"], "devices": ["L40S"]}
        added = server.call("POST", "/v1/watches", body).json
        assert server.call("GET", f"/v1/watches/{added['id']}").json == added
        said = server.call("GET", f"/v1/watches/{added['id'] + 1}").problem(404)
        assert said == f"there is no watch {added['id'] + 1}"

    def test_a_problem_of_a_watch_is_hidden_and_shown_again(self, server):
        body = {"models": ["deepseek-r1"], "devices": ["L40S", "H20"], "tp": [8, 16]}
        body["families"] = ["fused_moe"]
        added = server.call("POST", "/v1/watches", body).json
        hide, problems = f"/v1/watches/{added['id']}/hide", watched(server)
        hidden = server.call("POST", hide, {"problem": problems[0]}).json
        assert hidden == {**added, "watch": {**added["watch"], "hidden": [problems[0]]}}
        assert server.call("POST", hide, {"problem": problems[0]}).json == hidden
        assert watched(server) == [one for one in problems if one != problems[0]]
        server.app.state.api.matrix.forget()  # or what it knows may be a second old
        cells = server.call("GET", "/v1/coverage/matrix?state=missing").json["rows"]
        assert [row["problem"] for row in cells] == [problems[1]]
        night = server.call("POST", "/v1/nights", {"dry_run": True}).json
        assert night["watched"] == len(problems) - 2
        assert server.call("POST", "/v1/watches", body).json == hidden  # an equal watch
        shown = server.call("POST", hide, {"problem": problems[0], "hidden": False}).json
        assert (shown["watch"]["hidden"], watched(server)) == ([], problems)

    def test_what_cannot_be_hidden(self, server):
        body = {"models": ["deepseek-r1"], "devices": ["L40S"], "tp": [8]}
        added = server.call("POST", "/v1/watches", body).json
        hide = f"/v1/watches/{added['id']}/hide"
        other = {"problem": PROBLEM}
        assert "has no problem" in server.call("POST", hide, other).problem(404)
        assert server.call("POST", hide, {"problem": "moe"}).status == 422
        assert server.call("POST", "/v1/watches/77/hide", other).problem(404)
        key = server.app.state.api.keys.add("ci", Scope.SUBMIT)
        server.call("POST", hide, {"problem": watched(server)[0]}, key=key).problem(403)
        assert server.call("GET", f"/v1/watches/{added['id']}").json == added

    def test_only_admins_do_nights(self, server):
        keys: KeyStore = server.app.state.api.keys
        key = keys.add("ci", Scope.SUBMIT)
        server.call("POST", "/v1/nights", {"dry_run": True}, key=key).problem(403)
        assert server.call("GET", "/v1/nights", key=key).json == {"nights": [], "next": None}

    def test_a_night_wakes_workers_and_needs_no_body(self, store_url):
        woken = []
        announcer = type("Announcer", (), {"announce": lambda self, job: woken.append(job.id)})()
        with serving(ApiSettings(Settings(store_url)), announcer) as server:
            server.key = server.app.state.api.keys.add("team", Scope.ADMIN)
            body = {"models": ["deepseek-r1"], "devices": ["L40S"], "tp": [8]}
            server.call("POST", "/v1/watches", {**body, "families": ["fused_moe"]})
            night = server.call("POST", "/v1/nights")
            assert night.status == 200
            assert night.json["submitted"] == woken
            assert server.call("POST", "/v1/nights", {"forse": True}).status == 422
            last = server.call("GET", "/v1/nights/last").json
            summary = last.pop("summary")
            (done,) = summary.pop("rounds")
            assert (summary, done["error"]) == (night.json, "")
            (outcome,) = last.pop("outcomes")
            assert (outcome["kind"], outcome["job_id"]) == ("missing", woken[0])
            listed = server.call("GET", "/v1/nights").json
            counts = listed["nights"][0].pop("counts")
            assert listed == {"nights": [last], "next": None}
            lists = {k: len(v) for k, v in summary.items() if isinstance(v, list) and k in counts}
            assert counts == {**lists, "watched": 1, "rounds": 1}
            assert server.call("GET", f"/v1/nights/{last['date']}").json["outcomes"] == [outcome]
            assert server.call("GET", "/v1/nights/2020-02-02").problem(404)

    def test_a_list_of_long_nights_is_short(self, server):
        nights, entry = server.app.state.api.nights, {"problem": "fused_moe:" + "x" * 200}
        for days in range(3):
            day = DAY + timedelta(days=days)
            long = {"watched": 1000, "missing": [{**entry, "job_id": str(n)} for n in range(1000)]}
            nights.finish(SCHEDULE, day, Round(nights.begin(SCHEDULE, day)), long)
        listed = server.call("GET", "/v1/nights")
        assert [one["counts"]["missing"] for one in listed.json["nights"]] == [1000] * 3
        assert len(listed.body) < 2000
        server.call("GET", "/v1/nights?limit=51").problem(422)

    def test_nights_come_in_pages(self, server):
        for schedule in ("a", "b", "c"):
            server.app.state.api.nights.begin(schedule, DAY)
        first = server.call("GET", "/v1/nights?limit=2").json
        assert [night["schedule"] for night in first["nights"]] == ["c", "b"]
        rest = server.call("GET", f"/v1/nights?limit=2&after={first['next']}").json
        assert [night["schedule"] for night in rest["nights"]] == ["a"]
        assert rest["next"] is None
        for wrong in ("W10", "WyJ4IiwgMV0", "WyIyMDI2LTExLTAxIiwgLTFd"):
            server.call("GET", f"/v1/nights?after={wrong}").problem(422)
