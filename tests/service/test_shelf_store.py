"""The store's own results count before the shelf's, and the shelf's where the store has none."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
from api_server import serving
from cases import FP8_RECORDING, new_request, tuned

from api.matrix import Matrix
from api.settings import ApiSettings
from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.families.fused_moe.family import MoeSelection
from tuner.measure.workbench import Workbench
from tuner.problems.registry import parse_problem
from tuner.problems.results import MeasureKind, Status, Totals
from tuner.store.lookups import Lookups
from tuner.store.result_files import read_results
from tuner.store.results import ResultStore
from tuner.store.shelf import SHIPPED
from tuner.tuning.claims import measured_again
from tuner.tuning.gains import gains
from tuner.tuning.request import Request, Source, prepare
from tuner.tuning.run import execute, open_source
from workers.coverage import WatchState, watch_statuses
from workers.settings import Settings
from workers.watches import Watch

H200 = "NVIDIA_H200"
PROBLEM = parse_problem("fused_moe:E=8,N=1792,K=4096,top_k=2,dtype=bfloat16")
ENGINE = {"device": H200, "engine": "sglang", "engine_version": "0.5.16"}


@cache
def shelved():
    """The result of PROBLEM that the shelf has."""
    results = read_results(SHIPPED / H200 / "sglang-0.5.16-triton-3.6.0.jsonl.gz")
    (found,) = [one for one in results if one.key.problem == PROBLEM]
    return found


@pytest.fixture(autouse=True)
def shelf(monkeypatch):
    monkeypatch.setenv("TUNER_SHELF", str(SHIPPED))


@pytest.fixture
def results(tmp_path):
    with ResultStore.open(f"sqlite:///{tmp_path}/tuner.db") as opened:
        yield opened


def publish(results, sizes, status=Status.OK, **environment):
    """Store entries of these sizes, a thousand times as slow as the shelf's."""
    key = replace(shelved().key, environment=replace(shelved().key.environment, **environment))
    entries = [
        replace(one, status=status, median_us=1e3 * one.median_us)
        for one in shelved().entries
        if one.point.batch_size in sizes
    ]
    results.finish_run(results.begin_run(key), entries, Totals())


def sources(results):
    """By size, whether the current winners are of the shelf."""
    found = results.winners(**ENGINE, problem=PROBLEM)
    by_size = {}
    for winner in found:
        by_size.setdefault(winner.entry.point.batch_size, set()).add(winner.from_shelf)
    assert [one.entry.point for one in found] == [one.point for one in shelved().entries]
    return by_size


def test_a_store_with_nothing_has_the_shelf_s_winners(results):
    assert set(map(frozenset, sources(results).values())) == {frozenset({True})}
    everything = results.winners(**ENGINE)
    problems = [winner.problem for winner in everything]
    assert problems == sorted(problems, key=list(dict.fromkeys(problems)).index)  # in order
    assert len(set(problems)) > 50


@pytest.mark.parametrize("environment", [{}, {"driver": "570.1"}])
def test_own_measurements_come_first_at_their_sizes(results, environment):
    publish(results, (8, 64), **environment)
    found = sources(results)
    assert {size for size, of in found.items() if of == {False}} == {8, 64}
    assert {size for size, of in found.items() if of == {True}} == found.keys() - {8, 64}


def test_a_prediction_does_not_replace_what_was_measured_elsewhere(results):
    publish(results, (8, 64), Status.PREDICTED, driver="", torch="", cuda="")
    assert set(map(frozenset, sources(results).values())) == {frozenset({True})}


def test_other_releases_and_cards_have_none_of_it(results):
    assert results.winners(device=H200, engine="sglang", engine_version="0.5.2") == []
    assert results.winners(device="NVIDIA_L40S", engine="sglang", engine_version="0.5.16") == []
    assert results.winners(device=H200, engine="sglang") == []


def test_a_run_tries_the_shelf_s_entries(results):
    here = replace(shelved().key.environment, driver="570.1")
    publish(results, (8,), driver="570.1")
    found = {one.entry.point: one for one in results.winners_in(PROBLEM, here)}
    assert len(found) == len(shelved().entries)  # the last one of a point counts
    assert {p.batch_size for p, one in found.items() if not one.from_shelf} == {8}
    replayed = replace(shelved().key.environment, driver="recording 1", torch="", cuda="")
    assert results.winners_in(PROBLEM, replayed) == []
    assert results.winners_in(PROBLEM, replace(here, kernel_hash="ab" * 32)) == []


def standing(results, engine="sglang==0.5.16", problem=PROBLEM):
    request = new_request(problem, "H200", engine=engine)
    (found,) = watch_statuses([request], Lookups(results.database), [])
    return found.standing, found.why


def test_coverage_counts_the_shelf(results):
    assert standing(results) == (WatchState.TUNED, "from the shelf")
    assert standing(results, "sglang==0.5.2")[0] is WatchState.MISSING
    assert standing(results, problem=replace(PROBLEM, K=4160))[0] is WatchState.MISSING


def test_the_page_of_coverage_counts_it_too(results):
    watches = [Watch((PROBLEM.spec(), replace(PROBLEM, K=4160).spec()), ("H200",))]
    rows = Matrix(Lookups(results.database), lambda: watches, list).rows()
    cells = {row.problem: row.cells[H200] for row in rows}
    told = {one: (cell["state"].value, cell["why"]) for one, cell in cells.items()}
    assert told == {
        PROBLEM.spec(): ("measured", "from the shelf"),
        replace(PROBLEM, K=4160).spec(): ("missing", "it is watched, and nothing is stored"),
    }


def test_pages_link_to_no_result_that_only_the_shelf_has(tmp_path, monkeypatch):
    monkeypatch.setattr("api.matrix.FRESH_S", 0.0)
    with serving(ApiSettings(Settings(f"sqlite:///{tmp_path}/tuner.db"), no_auth=True)) as server:
        watch = {"models": [PROBLEM.spec()], "devices": ["H200"], "engine": "sglang==0.5.16"}
        assert server.call("POST", "/v1/watches", watch).status == 201
        html = server.call("GET", "/", headers={"Accept": "text/html"}).body.decode()
        assert 'class="cell measured" href="./jobs/new?' in html and "./results?" not in html
        exports = server.call("GET", "/exports", headers={"Accept": "text/html"}).body.decode()
        assert "Nothing is stored yet" in exports


def test_another_driver_makes_neither_stale(results):
    sizes = {one.point.batch_size for one in shelved().entries}
    publish(results, sizes - {8}, driver="570.1")
    assert standing(results) == (WatchState.TUNED, "from the shelf")
    publish(results, {8}, driver="570.1")
    assert standing(results) == (WatchState.TUNED, "")


def test_other_kernels_make_the_shelf_s_results_stale(results, monkeypatch):
    later = SimpleNamespace(monotonic=lambda: 1e9)  # what is known of kernels is a minute old
    monkeypatch.setattr("workers.coverage.time", later)
    monkeypatch.setattr("workers.coverage.kernel_hash", lambda *_: "ab" * 32)
    assert standing(results)[0] is WatchState.STALE


def test_what_is_measured_again_is_no_search(results):
    """The claimed entries are timed beside the engine's, and nothing else is."""
    problem = "fused_moe:E=256,N=256,K=7168,top_k=8,dtype=fp8_w8a8,block_shape=128x128"
    request = Request(
        problem=parse_problem(problem),
        device=find_device("H200"),
        engine=find_engine("sglang==0.5.16"),
        source=Source(MeasureKind.REPLAY, FP8_RECORDING),
        selection=MoeSelection((16, 128)),
    )
    best = tuned(request, results)
    with Workbench() as workbench:
        prepared = measured_again(prepare(request), best.entries)
        again = execute(prepared, open_source(request, workbench), results)
    assert [one.config for one in again.entries] == [one.config for one in best.entries]
    assert gains(again.entries) == gains(best.entries)
    assert again.totals.measurements < best.totals.measurements / 4
