"""What has nothing is found, queued and watched; what nobody wants is withdrawn."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape

import pytest
from api_server import ENTRY, Server
from store_writer import ENVIRONMENT, KEY, PROBLEM
from test_pages import RESULT, filled_server
from visitor import Visitor

from tuner.jobs.job import JobFilter
from tuner.problems.results import Totals
from tuner.store.leases import Leases


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    url = f"sqlite:///{tmp_path_factory.mktemp('gaps') / 'tuner.db'}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("api.matrix.FRESH_S", 0.0)
        yield from filled_server(url)


def test_gaps_are_queued_together_and_each_has_an_answer(server: Server, visitor: Visitor) -> None:
    html = visitor.open("/?device=H20&state=nothing&tick=true")
    boxes = re.findall(r'type="checkbox" name="([^"]+)" value="true" [^>]* checked', html)
    assert boxes == [f"NVIDIA_H20 sglang {PROBLEM.spec()}"] and "Queue 1 jobs" not in html
    wrong = f"NVIDIA_H20 sglang {PROBLEM.spec().replace('K=7168', 'K=7')}"
    back = "device=H20&state=nothing"
    fields = dict.fromkeys((*boxes, wrong.replace("NVIDIA_H20", "H21")), "true")
    answer = visitor.post("/jobs/several", {**fields, "measure": "predict", "back": back})
    page = unescape(answer.body.decode())
    assert answer.status == 200, page
    assert "1 job is queued" in page and "1 of 2 could not be queued" in page
    assert "unknown device 'H21'" in page and f"?{back}" in page
    job = server.call("GET", "/v1/jobs?limit=1").json["jobs"][0]
    assert (job["request"]["device"], job["request"]["measure"]) == ("NVIDIA_H20", "predict")
    assert job["request"]["model"] == "deepseek-r1 int8_w8a8 TP 32"
    again = unescape(visitor.post("/jobs/several", {**fields, "measure": "predict"}).body.decode())
    assert "was there already, queued" in again
    assert server.call("POST", f"/v1/jobs/{job['id']}/cancel").status == 200


def test_boxes_that_cannot_be_queued_are_refused_in_words(visitor: Visitor) -> None:
    many = {f"L40S sglang fused_moe:E={number}": "true" for number in range(101)}
    for fields, said in (
        ({}, "no box is ticked"),
        ({"L40S sglang fused_moe:E=": "true"}, "E"),
        ({"L40S sglang no-problem-at-all": "true"}, "no-problem-at-all"),
        (many, "101 boxes are ticked: at most 100"),
        ({f"L40S sglang {PROBLEM.spec()}": "true", "measure": "magic"}, "unknown way"),
    ):
        answer = visitor.post("/jobs/several", fields)
        assert (answer.status, said in unescape(answer.body.decode())) == (422, True), fields
    assert visitor.post("/watches/several", {}).status == 422


def test_gaps_are_watched_together(server: Server, visitor: Visitor) -> None:
    fields = {f"NVIDIA_H20 sglang {PROBLEM.spec()}": "true", "measure": "predict"}
    assert visitor.post("/watches/several", fields).status == 303
    watch = server.call("GET", "/v1/watches").json["watches"][-1]
    assert watch["watch"]["models"] == [PROBLEM.spec()]
    assert (watch["watch"]["devices"], watch["watch"]["measure"]) == (["NVIDIA_H20"], "predict")
    assert visitor.post(f"/watches/{watch['id']}/remove").status == 303


def test_a_withdrawn_result_is_gone_and_the_log_says_who_did_it(
    server: Server, visitor: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    url = server.app.state.api.settings.service.database_url
    key = replace(KEY, environment=replace(ENVIRONMENT, device="NVIDIA_A10"))
    with Leases.open(url) as leases:
        job = server.submit(device="A10")["id"]
        lease = leases.claim([JobFilter(needs_gpu=True, devices=("NVIDIA_A10",))], "test")
        assert lease and lease.job_id == job
        store = leases.store(lease)
        store.finish_run(store.begin_run(key), [ENTRY], Totals())
    path = f"/v1{RESULT.replace('L40S', 'A10')}"
    other = server.call("POST", "/v1/keys", {"name": "posts", "scope": "submit"}).json["key"]
    server.call("DELETE", path, key=other).problem(403)
    assert server.call("GET", path).status == 200
    with caplog.at_level("INFO", "tuner.api.audit"):
        assert server.call("DELETE", path).status == 204
    (line,) = [one for one in caplog.records if one.name == "tuner.api.audit"]
    assert (line.client, line.problem, line.device) == ("me", PROBLEM.spec(), "NVIDIA_A10")
    server.call("DELETE", path).problem(404)
    assert "NVIDIA_A10" not in server.call("GET", "/v1/coverage/matrix").json["devices"]
    assert "done" in visitor.open(f"/jobs/{job}")  # the job stays, and so does what it tried
    server.call("DELETE", "/v1/keys/posts")


def test_a_job_that_ended_is_deleted_and_the_log_says_who_did_it(
    server: Server, visitor: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    job_id = server.submit(seed=5)["id"]
    path = f"/v1/jobs/{job_id}"
    assert "cancel it first" in server.call("DELETE", path).problem(409)
    assert 'action="../jobs/' + job_id + '/delete"' not in visitor.open(f"/jobs/{job_id}")
    server.call("POST", f"{path}/cancel")
    other = server.call("POST", "/v1/keys", {"name": "mine", "scope": "submit"}).json["key"]
    server.call("DELETE", path, key=other).problem(403)
    assert 'action="../jobs/' + job_id + '/delete"' in visitor.open(f"/jobs/{job_id}")
    asked = visitor.post(f"/jobs/{job_id}/delete", {"ask": "Delete this job and its steps"})
    assert asked.status == 200 and b"Delete this job and its steps?" in asked.body
    assert server.call("GET", path).status == 200
    with caplog.at_level("INFO", "tuner.api.audit"):
        assert visitor.post(f"/jobs/{job_id}/delete").status == 303
    (line,) = [one for one in caplog.records if one.name == "tuner.api.audit"]
    assert (line.client, line.job_id, line.device) == ("me", job_id, "NVIDIA_L40S")
    for method in ("GET", "DELETE"):
        server.call(method, path).problem(404)
    server.call("DELETE", "/v1/keys/mine")


def test_without_scripts_a_page_asks_before_it_ends_several_jobs_or_begins_a_night(
    server: Server, visitor: Visitor
) -> None:
    job_id = server.submit(seed=6)["id"]
    form = {"job": job_id, "do": "cancel", "ask": "Cancel the chosen jobs"}
    assert form["ask"] in visitor.open("/jobs")
    answer = visitor.post("/jobs/chosen?state=queued", form)
    assert answer.status == 200 and b"Cancel the chosen jobs?" in answer.body
    assert b'action="../jobs/chosen?state=queued"' in answer.body
    assert b'name="ask"' not in answer.body
    path = f"/v1/jobs/{job_id}"
    assert server.call("GET", path).json["state"] == "queued"
    done = visitor.post("/jobs/chosen?state=queued", {"job": job_id, "do": "cancel"})
    assert (done.status, server.call("GET", path).json["state"]) == (303, "cancelled")
    assert done.headers["location"].endswith("jobs?state=queued&came=1%2C0%2C0%2C0%2C0")
    again = visitor.post("/jobs/chosen", {**form, "do": "retry"})  # which ends nothing
    assert (again.status, server.call("GET", path).json["state"]) == (303, "queued")
    server.call("POST", f"{path}/cancel")

    before = server.call("GET", "/v1/nights").json
    (what,) = re.findall(r'name="ask" value="([^"]+)"', visitor.open("/nights"))
    answer = visitor.post("/nights", {"force": "true", "ask": what})
    assert answer.status == 200 and f"{what}?".encode() in answer.body
    assert b'name="force" value="true"' in answer.body
    assert server.call("GET", "/v1/nights").json == before
    assert visitor.post("/nights", {"force": "true"}).status == 303
    assert server.call("GET", "/v1/nights").json != before


def test_a_page_says_how_many_of_the_chosen_jobs_were_cancelled(
    server: Server, visitor: Visitor
) -> None:
    """One of three was over, and one was deleted meanwhile."""
    ids = [server.submit(seed=seed)["id"] for seed in (21, 22, 23)]
    for job_id in ids[1:]:
        server.call("POST", f"/v1/jobs/{job_id}/cancel")
    server.call("DELETE", f"/v1/jobs/{ids[2]}")
    done = visitor.post("/jobs/chosen?state=cancelled", {"job": ",".join(ids), "do": "cancel"})
    html = visitor.open("/jobs" + done.headers["location"].partition("jobs")[2])
    assert "Of the chosen jobs: 1 cancelled, 1 already over, 1 deleted or not yours." in html
    assert "came=" not in html  # of no link: the next page has its own


def test_an_empty_list_leads_on(visitor: Visitor) -> None:
    html = visitor.open("/?device=NVIDIA_A100-SXM4-80GB")
    assert "Nothing is stored on A100-SXM4-80GB" in html
    assert "/jobs/new?device=NVIDIA_A100" in html and "state=nothing" in html
    known = visitor.open("/?q=glm-4.5")
    assert "Nothing is stored for glm-4.5" in known and "jobs/new?model=glm-4.5" in known
    filled_in = visitor.open("/watches?models=glm-4.5&devices=L40S")
    assert ">glm-4.5</textarea>" in filled_in and 'value="L40S"' in filled_in
