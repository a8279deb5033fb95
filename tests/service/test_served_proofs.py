"""Proofs in a live engine: stored, and listed by the API."""

import pytest
from api_server import serving

from api.settings import ApiSettings
from tuner.store.served_proofs import ServedProofStore
from workers.settings import Settings

REPORT = {
    **{"model": "Qwen/Qwen3-30B-A3B", "device": "NVIDIA_L40S", "engine": "sglang"},
    **{"engine_version": "0.5.16", "files": "0" * 64, "proven": True, "gains": [{"gain": 1.7}]},
}


@pytest.fixture
def server(store_url):
    with ServedProofStore.open(store_url) as store:
        store.add(REPORT)
        store.add({**REPORT, "device": "NVIDIA_H200", "proven": False})
        store.add({**REPORT, "model": "other"})
    with serving(ApiSettings(Settings(store_url), no_auth=True)) as running:
        yield running


def test_the_newest_are_first_a_page_at_a_time(server):
    first = server.call("GET", "/v1/served-proofs?limit=2").json
    assert [proof["model"] for proof in first["proofs"]] == ["other", "Qwen/Qwen3-30B-A3B"]
    second = server.call("GET", f"/v1/served-proofs?limit=2&after={first['next']}").json
    (last,) = second["proofs"]
    assert second["next"] is None
    assert last["report"] == REPORT and last["proven"] is True


def test_they_are_found_by_device_and_model(server):
    (proof,) = server.call("GET", "/v1/served-proofs?device=H200").json["proofs"]
    assert (proof["device"], proof["proven"]) == ("NVIDIA_H200", False)
    (proof,) = server.call("GET", "/v1/served-proofs?model=other").json["proofs"]
    assert proof["model"] == "other"
    server.call("GET", "/v1/served-proofs?device=H2000").problem(422)
    server.call("GET", "/v1/served-proofs?after=x").problem(422)
