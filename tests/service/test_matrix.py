"""Problems by device: what is kept in memory follows the store, on each database."""

import asyncio
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from api_server import ENTRY, serving
from databases import both_databases, superuser
from sqlalchemy import make_url
from store_writer import ENVIRONMENT, KEY, POINTS, PROBLEM, batch
from worker_processes import wait_for

from api import matrix
from api.matrix import CellState, CoverageRow, Matrix, MatrixOrder, RowFilter, counts_of, devices_of
from api.settings import ApiSettings
from tuner.families.fused_moe.problem import FusedMoe
from tuner.problems.results import Entry, Environment, Incumbent, Status, Totals
from tuner.store.database import Database, utc_now
from tuner.store.keys import Scope
from tuner.store.lookups import Lookups
from tuner.store.results import ResultStore
from workers.settings import Settings
from workers.watches import Watch

OLD, NEW = ENVIRONMENT, replace(ENVIRONMENT, engine_version="0.5.23", kernel_hash="cd" * 32)
OTHER = replace(PROBLEM, E=8, top_k=2)


@pytest.fixture(autouse=True)
def always_fresh(monkeypatch):
    monkeypatch.setattr(matrix, "FRESH_S", 0.0)


def publish(store: Database, place: Environment, *entries: Entry, seed: int = 0) -> int:
    run = ResultStore(store).begin_run(replace(KEY, environment=place, seed=seed))
    ResultStore(store).finish_run(run, entries, Totals())
    return run.id


def entry(point: int, time: float | None, alone: float, status: Status = Status.OK) -> Entry:
    """An entry whose engine alone takes `alone`, with a default that is never run."""
    shipped = Incumbent(ENTRY.config, Status.OK, alone)
    default = Incumbent(ENTRY.config, Status.OK, 1000.0)
    return replace(
        ENTRY,
        point=POINTS[point],
        median_us=time,
        status=status,
        incumbents={"default": default, "shipped": shipped},
    )


def cell(rows: Iterable[CoverageRow]) -> dict[str, object]:
    (row,) = rows
    return dict(row.cells["NVIDIA_L40S"])


@both_databases
def test_it_follows_what_is_published(store):
    lookups = Lookups(store)
    found = Matrix(lookups, list, list)
    assert list(found.rows()) == []
    publish(store, OLD, entry(0, 10.0, 20.0), entry(1, 30.0, 30.0))
    first = cell(found.rows())
    # Both gemms of the size take 50 us in the engine alone.
    assert (first["state"], first["engine_version"]) == (CellState.MEASURED, "0.5.16")
    assert first["speedup"] == pytest.approx(50 / 40)
    publish(store, OLD, entry(0, 5.0, 20.0), entry(1, 30.0, 30.0))  # replaces the winners
    assert cell(found.rows())["speedup"] == pytest.approx(50 / 35)
    publish(store, NEW, entry(0, 16.0, 20.0, Status.PREDICTED))
    newer = cell(found.rows())
    # A prediction makes no measured result stale: the older one stays.
    assert newer["state"] in (CellState.MEASURED, CellState.PREDICTED)
    publish(store, NEW, entry(0, 10.0, 20.0), seed=1)
    latest = cell(found.rows())
    assert (latest["engine_version"], latest["state"]) == ("0.5.23", CellState.MEASURED)
    assert latest["speedup"] == pytest.approx(2.0)


def test_a_stale_cell_says_why(store):
    found = Matrix(Lookups(store), list, list)
    publish(store, OLD, entry(0, 10.0, 20.0))
    newer = ResultStore(store).begin_run(replace(KEY, problem=OTHER, environment=NEW))
    ResultStore(store).finish_run(newer, [entry(0, 10.0, 20.0)], Totals())
    cells = {row.problem: row.cells["NVIDIA_L40S"] for row in found.rows()}
    assert cells[PROBLEM.spec()]["state"] is CellState.STALE
    assert "engine_version is now 0.5.23" in cells[PROBLEM.spec()]["why"]
    assert cells[OTHER.spec()]["state"] is CellState.MEASURED


def test_only_what_has_changed_is_read_again(store):
    lookups = Lookups(store)
    publish(store, OLD, entry(0, 10.0, 20.0))
    found, known = lookups.changed_summaries(None)
    assert [one.environment for one in found] == [OLD]
    assert lookups.changed_summaries(known)[0] == []
    publish(store, NEW, entry(0, 10.0, 20.0))
    found, known = lookups.changed_summaries(known)
    assert [one.environment for one in found] == [NEW]
    publish(store, NEW, entry(0, 20.0, 20.0))
    (again,), _ = lookups.changed_summaries(known)
    assert again.speedup == pytest.approx(1.0)


@pytest.mark.parametrize("replaces", [False, True])
@both_databases
def test_what_is_published_later_is_seen_and_counts_whatever_the_clock_says(store, replaces, clock):
    found = Matrix(Lookups(store), list, list)
    clock.now = utc_now() + timedelta(hours=1)
    ahead = ResultStore(store, clock)
    run = ahead.begin_run(replace(KEY, environment=OLD))
    ahead.finish_run(run, [entry(0, 10.0, 20.0), entry(1, 10.0, 20.0)], Totals())
    assert cell(found.rows())["speedup"] == pytest.approx(2.0)
    clock.now -= timedelta(hours=2)
    behind = ahead.begin_run(replace(KEY, environment=OLD, seed=1))
    ahead.finish_run(behind, [entry(0 if replaces else 1, 5.0, 20.0)], Totals())
    assert cell(found.rows())["speedup"] == pytest.approx(40 / 15)


@pytest.mark.parametrize("database", ["postgresql"])
def test_the_database_s_clock_says_when_a_winner_was_published(store, monkeypatch):
    ahead = utc_now() + timedelta(hours=1)
    for module in ("database", "results"):
        monkeypatch.setattr(f"tuner.store.{module}.utc_now", lambda: ahead, raising=False)
    publish(store, OLD, entry(0, 10.0, 20.0))
    (winner,) = ResultStore(store).winners_at(PROBLEM, OLD.device, OLD.engine)
    assert winner.published_at < ahead - timedelta(minutes=30)


@pytest.mark.parametrize("database", ["postgresql"])
def test_publishers_of_an_environment_wait_for_each_other(store_url, store):
    """So nobody sees the later one of two winners first, and then takes both for seen."""
    first, second = (ResultStore(store).begin_run(replace(KEY, seed=seed)) for seed in range(2))
    later = threading.Thread(
        target=ResultStore(store).finish_run, args=(second, [entry(1, 10.0, 20.0)], Totals())
    )
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s"
    with superuser(store_url) as watching, store.write() as connection:
        ResultStore(store)._finish(connection, first, [entry(0, 10.0, 20.0)], Totals())
        later.start()
        name = make_url(store_url).database
        wait_for(lambda: watching.execute(waits, [name]).fetchone() == (1,))
    later.join()
    found = ResultStore(store).winners_in(PROBLEM, ENVIRONMENT)
    times = {one.entry.point: one.published_at for one in found}
    assert times[POINTS[0]] < times[POINTS[1]]


def test_what_has_no_time_has_no_gain(store):
    publish(store, OLD, entry(0, None, 20.0, Status.INCUMBENT))
    found = Matrix(Lookups(store), list, list)
    untuned = cell(found.rows())
    assert (untuned["state"], untuned["speedup"]) == (CellState.UNTUNED, None)
    nothing = replace(entry(0, 10.0, 20.0), incumbents={})
    ResultStore(store).finish_run(ResultStore(store).begin_run(KEY), [nothing], Totals())
    assert cell(found.rows())["speedup"] is None


def test_what_is_watched_is_missing_until_it_is_there(store):
    watches = [Watch((PROBLEM.spec(),), ("L40S",))]
    found = Matrix(Lookups(store), lambda: watches, list)
    assert cell(found.rows())["state"] is CellState.MISSING
    watches.append(Watch((OTHER.spec(), "no-model"), ("H200",)))  # one of them cannot be resolved
    assert devices_of(found.rows()) == ["NVIDIA_H200", "NVIDIA_L40S"]
    watches.pop()
    publish(store, OLD, entry(0, 10.0, 20.0))
    assert cell(found.rows())["state"] is CellState.MEASURED


@pytest.fixture
def found(store):
    """Build the matrix of two problems of an L40S, of which an H200 has the first too."""
    publish(store, OLD, entry(0, 10.0, 20.0))
    publish(store, replace(OLD, device="NVIDIA_H200"), entry(0, 20.0, 20.0))
    other = ResultStore(store).begin_run(replace(KEY, problem=OTHER))
    ResultStore(store).finish_run(other, [entry(0, 10.0, 90.0)], Totals())
    return Matrix(Lookups(store), list, list)


def test_pages_go_on_where_they_ended_whatever_was_published_meanwhile(store, store_url):
    others = [replace(OTHER, N=n) for n in (128, 256, 384, 512, 640)]

    def tune(problem: FusedMoe) -> None:
        run = ResultStore(store).begin_run(replace(KEY, problem=problem, seed=next(seeds)))
        ResultStore(store).finish_run(run, [entry(0, 10.0, 20.0)], Totals())

    seeds = iter(range(100))
    for problem in others[:4]:
        tune(problem)
    with serving(ApiSettings(Settings(store_url))) as server:
        server.key = server.app.state.api.keys.add("me", Scope.ADMIN)
        path = "/v1/coverage/matrix?order=newest&limit=2"
        first = server.call("GET", path).json
        tune(others[4])
        second = server.call("GET", f"{path}&after={first['next']}").json
        shown = [row["problem"] for page in (first, second) for row in page["rows"]]
        assert shown == [one.spec() for one in reversed(others[:4])]
        assert second["next"] is None
        wrong = server.call("GET", f"{path}&family=fused_moe&after={first['next']}")
        assert "other filters" in wrong.problem(422)
        watched = "/v1/coverage/watched?limit=1"
        body = {"models": [one.spec() for one in others], "devices": ["L40S"]}
        server.call("POST", "/v1/watches", body)
        cursor = server.call("GET", watched).json["next"]
        assert server.call("GET", f"{watched}&after={cursor}").status == 200
        server.call("POST", "/v1/watches", {**body, "devices": ["H200"]})
        assert "other filters" in server.call("GET", f"{watched}&after={cursor}").problem(422)


def test_rows_are_found_and_sorted(found):
    assert devices_of(found.rows()) == ["NVIDIA_H200", "NVIDIA_L40S"]
    assert counts_of(found.rows())["measured"] == 3

    def problems(**wanted: object) -> list[str]:
        return [row.problem for row in found.find(RowFilter(**wanted))]

    named, unnamed = PROBLEM.spec(), OTHER.spec()
    assert problems() == [named, unnamed]  # what has a model's name comes first
    assert problems(order=MatrixOrder.SPEEDUP) == [unnamed, named]
    assert problems(text="DeepSeek tp 32") == [named]
    assert problems(text="E=8") == [unnamed]
    assert problems(devices=frozenset({"NVIDIA_H200"})) == [named]
    assert problems(family="attention") == problems(state=CellState.STALE) == []


@both_databases
def test_what_another_server_withdraws_is_gone(store, monkeypatch):
    monkeypatch.setattr(matrix, "WATCHED_S", 0.0)
    publish(store, OLD, entry(0, 10.0, 20.0), entry(1, 10.0, 20.0))
    publish(store, replace(OLD, device="NVIDIA_H200"), entry(0, 20.0, 20.0))
    found = Matrix(Lookups(store), list, list)
    assert devices_of(found.rows()) == ["NVIDIA_H200", "NVIDIA_L40S"]
    results = ResultStore(store)
    assert results.withdraw(PROBLEM, "NVIDIA_L40S", "vllm") == 0
    assert results.withdraw(PROBLEM, "NVIDIA_L40S", "sglang") == 2
    assert devices_of(found.rows()) == ["NVIDIA_H200"]
    assert results.winners_at(PROBLEM, "NVIDIA_L40S", "sglang") == []
    publish(store, OLD, entry(0, 10.0, 20.0), seed=3)
    assert devices_of(found.rows()) == ["NVIDIA_H200", "NVIDIA_L40S"]


def test_rows_with_nothing_on_a_device_are_found(found):
    assert counts_of(found.rows())["nothing"] == 1

    def lacking(*devices: str) -> list[str]:
        wanted = RowFilter(state=CellState.NOTHING, devices=frozenset(devices))
        return [row.problem for row in found.find(wanted)]

    assert lacking() == lacking("NVIDIA_H200") == [OTHER.spec()]
    assert lacking("NVIDIA_L40S") == []
    assert lacking("NVIDIA_A100_80GB_PCIe") == [PROBLEM.spec(), OTHER.spec()]


def test_what_a_run_tried_is_counted(store):
    run = ResultStore(store).begin_run(KEY)
    ResultStore(store).add_trials(run, batch(0))
    results = ResultStore(store)
    assert results.trial_counts(run.id) == {Status.OK: 100}
    assert results.best_trials(run.id) == {POINTS[0]: 0.5, POINTS[1]: 1.5}
    assert results.trial_counts(99) == {} and results.best_trials(99) == {}
    assert results.winners_at(PROBLEM, "NVIDIA_L40S", "sglang") == []
    ResultStore(store).finish_run(run, [ENTRY], Totals())
    (winner,) = results.winners_at(PROBLEM, "NVIDIA_L40S", "sglang")
    assert winner.run_id == run.id


def test_an_unexpected_error_before_somebody_asks_does_not_end_the_server(store, caplog):
    def fail() -> Sequence[Watch]:
        raise RuntimeError("nobody expects it")

    asyncio.run(Matrix(Lookups(store), fail, list).warm())
    assert "nobody expects it" in caplog.text
