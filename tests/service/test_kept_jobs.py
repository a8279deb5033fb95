"""A predicted job of a layer for which the engine ships a file is done at once."""

import pytest
from api_server import serving
from visitor import Visitor

from api.settings import ApiSettings
from tuner.compile.farm import Farm
from tuner.jobs.attempts import AttemptOutcome
from tuner.jobs.job import JobFilter
from tuner.store.database import Database
from tuner.store.leases import Leases
from tuner.tuning.seeds import KEPT
from workers.coverage import WatchState
from workers.nightly import work_of
from workers.run_job import do_job
from workers.settings import Settings
from workers.watches import Watch, WatchList

ENGINE = "sglang==0.5.16"
SPEC = "fused_moe:E=256,N=384,K=3072,top_k=8,dtype=fp8_w8a8,block_shape=128x128"
JOB = {"model": SPEC, "device": "H100", "engine": ENGINE, "measure": "predict"}


@pytest.fixture
def settings(store_url):
    return Settings(store_url)


@pytest.fixture
def server(settings):
    with serving(ApiSettings(settings, no_auth=True)) as running:
        yield running


def test_it_is_done_with_the_engine_s_entries_and_the_night_leaves_it(
    server, settings, monkeypatch
):
    monkeypatch.setattr(Farm, "_serve", None)  # nothing is compiled
    posted = server.submit(**{**JOB, "tp": 1, "dtype": None})
    with Leases.open(settings.database_url) as leases:
        lease = leases.claim([JobFilter(needs_gpu=False)], "test")
        assert lease is not None
        result = do_job(lease, leases, settings)
    assert result.outcome is AttemptOutcome.DONE, result.reason
    at = f"/v1/jobs/{posted['id']}"
    assert server.call("GET", at).json["state"] == "done"
    winners = server.call("GET", f"{at}/winners").json["winners"]
    assert {(one["status"], one["median_us"]) for one in winners} == {("incumbent", None)}
    assert len(winners) == 36
    assert all(one["config"] == one["incumbents"]["shipped"]["config"] for one in winners)
    progress = server.call("GET", f"{at}/progress").json
    assert progress["to_try"] == 0 and not any(progress["trials"].values())
    assert server.call("GET", f"{at}/trials").json["trials"] == []
    page = Visitor(server).send("GET", f"/jobs/{posted['id']}")
    assert b"Nothing was tried: the engine ships entries" in page.body
    refused = server.call("GET", "/v1/exports/H100.tar?engine=sglang==0.5.16").problem(409)
    assert f"leave it: {KEPT}" in refused
    with Database.open(settings.database_url) as store:
        watch = Watch((SPEC,), ("H100",), engine=ENGINE, measure="predict")
        (judged,) = work_of(WatchList((watch,)), store).watched
    assert judged.standing is WatchState.TUNED
