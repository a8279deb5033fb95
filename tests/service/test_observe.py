"""docker/'s alerts and dashboard: what they ask for is what the service shows."""

import json
import re
import shutil
import subprocess
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from api_server import JOB, serving
from cases import submit
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from scraping import Scrape, add_worker, beat, fleet, running, scrape, scrape_port
from servers import free_ports, postgres_database
from worker_processes import replay, wait_for

from api.settings import ApiSettings
from tuner.store.jobs import JobStore
from tuner.store.leases import Leases
from tuner.store.nights import NightStore, Round
from workers.settings import Settings

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DOCKER / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((DOCKER / "grafana-dashboard.json").read_text())
PANELS: list[dict[str, Any]] = [one for one in DASHBOARD["panels"] if one["type"] != "row"]
SCRAPES: dict[str, Any] = yaml.safe_load((DOCKER / "prometheus.yml").read_text())
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
OF_PROMETHEUS = {"job", "instance"}  # labels that it adds
UP = {"up": {"job": {"tuner-api"}, "instance": {"api:8765"}}}  # a series that it makes

# The labels of each sample, and their values.
Shown = dict[str, dict[str, set[str]]]


def shown_by(scrapes: list[Scrape]) -> Shown:
    found: Shown = {}
    for seen in scrapes:
        for family in seen.families.values():
            for sample in family.samples:
                labels = found.setdefault(sample.name, {})
                for name, value in sample.labels.items():
                    labels.setdefault(name, set()).add(value)
    return found


@pytest.fixture(scope="module")
def scrapes(postgres, redis_url, tmp_path_factory):
    """What the API, a worker and beat show of a service that has done some work."""
    port = free_ports(3)
    folder = tmp_path_factory.mktemp("observe")
    with ExitStack() as stack:
        database = stack.enter_context(postgres_database(postgres))
        server = stack.enter_context(
            serving(ApiSettings(Settings(database, redis_url), no_auth=True))
        )
        leases = stack.enter_context(Leases.open(database))
        environ = {"TUNER_DATABASE_URL": database, "TUNER_BROKER_URL": redis_url}
        of_fleet = {**environ, "TUNER_METRICS_PORT": str(port)}
        of_beat = {**environ, "TUNER_METRICS_PORT": str(port + 2)}
        stack.enter_context(running(fleet("--device", "H200"), of_fleet))
        stack.enter_context(running(beat(folder), of_beat))
        jobs, nights = JobStore(leases.database), NightStore(leases.database)
        done = submit(jobs, replay()).job.id
        server.submit()
        server.call("POST", "/v1/jobs", {**JOB, "device": "nothing"})
        server.call("GET", "/healthz")
        add_worker(leases, 1)
        began = nights.begin("nightly", date(2026, 11, 20))
        nights.finish("nightly", date(2026, 11, 20), Round(began), {})
        wait_for(lambda: jobs.get(done).state.finished)

        def worker() -> Scrape | None:
            seen = scrape_port(port)
            counted = seen and "tuner_job_duration_seconds" in seen.families
            return seen if counted and seen.value("tuner_worker_up", worker="0") else None

        found = [scrape(server), wait_for(worker), wait_for(lambda: scrape_port(port + 2))]
        yield [one for one in found if one]


@pytest.fixture(scope="module")
def shown(scrapes):
    return shown_by(scrapes) | UP


def selectors(query: str) -> list[promql.VectorSelector]:
    """The series that a query asks for. Raises ValueError for what is no PromQL."""
    plain = query.replace("$__rate_interval", "5m").replace("$device", ".*")
    found: list[promql.VectorSelector] = []

    def visit(node: promql.Expr) -> None:
        if isinstance(node, promql.VectorSelector):
            found.append(node)

    promql.walk(promql.parse(plain), visit)
    return found


def check_query(query: str, shown: Shown) -> set[str]:
    """Check that the service shows what a query asks for, and return the labels it can use."""
    labels: set[str] = set()
    for selector in selectors(query):
        assert selector.name in shown, f"nobody shows {selector.name}"
        mine = shown[selector.name]
        labels |= {*mine, *OF_PROMETHEUS}
        for matcher in selector.matchers.matchers:
            assert matcher.name in {*mine, *OF_PROMETHEUS}, (selector.name, matcher.name)
            if matcher.op == promql.MatchOp.Equal and matcher.name in mine:
                assert matcher.value in mine[matcher.name], (selector.name, matcher.value)
    grouped = re.findall(r"\b(?:by|on) \(([^)]*)\)", query)
    wanted = {name.strip() for names in grouped for name in names.split(",") if name.strip()}
    assert wanted <= labels
    by = {name.strip() for name in grouped[0].split(",")} if grouped else set()
    return by - {""} if grouped else labels


def test_an_alert_asks_for_what_is_shown(shown):
    for rule in RULES:
        labels = check_query(rule["expr"], shown)
        for text in rule["annotations"].values():
            assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels, rule["alert"]


def test_alerts_are_rules_of_prometheus():
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    for rule in RULES:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"Tuner[A-Z]\w+", rule["alert"])
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert re.fullmatch(r"\d+[mh]", rule.get("for", "1m"))


@pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool here")
def test_alerts_say_what_they_should_of_invented_series():
    tests = Path(__file__).with_name("alerts_test.yml")
    subprocess.run(["promtool", "check", "rules", DOCKER / "alerts.yml"], check=True)
    subprocess.run(["promtool", "test", "rules", tests], check=True)


def test_a_panel_asks_for_what_is_shown(shown):
    for panel in PANELS:
        for target in panel["targets"]:
            labels = check_query(target["expr"], shown)
            wanted = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert wanted <= labels, panel["title"]


def test_the_dashboard_is_one_of_grafana():
    plugins.register_default_plugins()
    read = Dashboard.from_json(DASHBOARD)
    # Grafana's own model keeps every field that it knows, so each field here is one of Grafana's.
    assert known(DASHBOARD, json.loads(JSONEncoder().encode(read)))
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    cells = [
        (x, y)
        for grid in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for x in range(grid["x"], grid["x"] + grid["w"])
        for y in range(grid["y"], grid["y"] + grid["h"])
    ]
    assert len(set(cells)) == len(cells)  # no panel covers another
    assert max(x for x, _ in cells) < 24
    variables = {f"${{{one['name']}}}" for one in DASHBOARD["templating"]["list"]}
    assert {target["datasource"]["uid"] for p in PANELS for target in p["targets"]} <= variables


def known(ours: Any, theirs: Any) -> bool:
    """Whether `theirs` has everything that `ours` has."""
    if isinstance(ours, dict):
        return all(name in theirs and known(ours[name], theirs[name]) for name in ours)
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(known, ours, theirs))
    return bool(ours == theirs)


def test_prometheus_scrapes_what_the_compose_file_starts():
    services = COMPOSE["services"]
    jobs = {job["job_name"]: job for job in SCRAPES["scrape_configs"]}
    (api,) = jobs["tuner-api"]["static_configs"][0]["targets"]
    command = services["api"]["command"]
    assert api == f"api:{command[command.index('--port') + 1]}"
    (beat,) = jobs["tuner-beat"]["static_configs"][0]["targets"]
    (workers,) = jobs["tuner-worker"]["dns_sd_configs"]
    for name in ("beat", *workers["names"]):
        environ = services[name]["environment"]
        assert environ["TUNER_METRICS_HOST"] == "0.0.0.0"  # noqa: S104
        assert environ["TUNER_METRICS_PORT"] == str(workers["port"]) == beat.partition(":")[2]
    mounted = {one["source"]: one["target"] for one in services["prometheus"]["configs"]}
    assert {Path(target).name for target in mounted.values()} >= set(SCRAPES["rule_files"])
    key = jobs["tuner-api"]["authorization"]["credentials_file"]
    assert Path(key).name in services["prometheus"]["secrets"]


def test_each_metric_says_what_it_is(scrapes):
    families = [one for seen in scrapes for one in seen.families.values()]
    ours = {one.name: one.documentation for one in families if one.name.startswith("tuner_")}
    assert "tuner_store_up" in ours
    assert [name for name, text in ours.items() if not text] == []


def test_the_page_says_what_to_do_about_each_alert():
    page = (ROOT / "docs" / "operations.md").read_text()
    assert [rule["alert"] for rule in RULES if f"`{rule['alert']}`" not in page] == []
