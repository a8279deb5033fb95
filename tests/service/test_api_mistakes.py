"""How the API answers what is not a request: it points at the mistake and says what to send."""

from pathlib import Path

import pytest
from api_server import JOB, NEVER, serving

from api.settings import ApiSettings
from workers.settings import Settings


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """For requests that must not get as far as the store."""
    file: Path = tmp_path_factory.mktemp("api") / "tuner.db"
    with serving(ApiSettings(Settings(f"sqlite:///{file}"), no_auth=True)) as running:
        yield running


@pytest.mark.parametrize(
    ("change", "pointer", "said"),
    [
        ({"tpp": 8}, "/tpp", "unknown field; did you mean 'tp'?"),
        ({"a/b~c": 8}, "/a~1b~0c", "unknown field"),
        (
            {"workload": [{"batch_size": 1, "new_tokns": 1}]},
            "/workload/0/new_tokns",
            "unknown field; did you mean 'new_tokens'?",
        ),
    ],
)
def test_an_unknown_field_is_pointed_at(server, change, pointer, said):
    answer = server.call("POST", "/v1/jobs", {**JOB, **change})
    assert said in answer.problem(422)
    assert said in {one["pointer"]: one["detail"] for one in answer.json["errors"]}[pointer]


def test_the_mistakes_of_all_fields_are_named_at_once(server):
    wrong = {"model": "deepseek-r11", "tp": "abc", "measure": "predikt", "engine": "sglangg"}
    answer = server.call("POST", "/v1/jobs", {**wrong, "device": "L400S"})
    answer.problem(422)
    found = {one["pointer"]: one["detail"] for one in answer.json["errors"]}
    assert "did you mean 'deepseek-r1'" in found["/model"] and "sglang" in found["/engine"]
    assert "predict" in found["/measure"] and "L40S" in found["/device"] and "/tp" in found
    alone = server.call("POST", "/v1/jobs", {"model": "deepseek-r11", "device": "L40S"})
    assert alone.json["type"] == "urn:engine-tuner:error:unknown-model"
    assert alone.json["errors"] == [{"pointer": "/model", "detail": alone.problem(422)}]
    tp = server.call("POST", "/v1/jobs", {"model": "mixtral-8x7b", "device": "L40S", "tp": 3})
    assert [one["pointer"] for one in tp.json["errors"]] == ["/tp"]


def test_each_job_of_a_batch_has_an_answer_with_all_of_its_mistakes(server):
    wrong = {**JOB, "model": "deepseek-r11", "device": "L400S"}
    sent = [JOB, wrong, {**JOB, "device": "L41S"}, {**JOB, "tp": 7, "seed": 1}]
    answer = server.call("POST", "/v1/jobs:batch", {"jobs": sent})
    assert answer.status == 200, answer.body
    accepted, *refused = answer.json["jobs"]
    assert accepted["job"]["state"] == "queued" and accepted["problem"] is None
    pointers = [{e["pointer"] for e in one["problem"]["errors"]} for one in refused]
    assert pointers == [{"/model", "/device"}, {"/device"}, {"/tp"}]
    alone = server.call("POST", "/v1/jobs", wrong)
    assert refused[0]["problem"]["errors"] == alone.json["errors"]
    assert refused[1]["problem"]["type"] == "urn:engine-tuner:error:unknown-device"
    malformed = {**wrong, "measure": "predikt", "engine": "sglangg"}  # the schema forbids these
    answer = server.call("POST", "/v1/jobs:batch", {"jobs": [JOB, malformed]})
    answer.problem(422)
    assert {"/jobs/1/measure", "/jobs/1/engine"} < {e["pointer"] for e in answer.json["errors"]}


def test_a_name_without_end_is_not_repeated(server):
    answer = server.call("POST", "/v1/jobs", {**JOB, "x" * 50_000: 1})
    assert "unknown field" in answer.problem(422)
    assert len(answer.body) < 1000


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "send a JSON object"),
        (b"null", "send a JSON object"),
        (b"[]", "send a JSON object, not a list"),
        (b'"deepseek-r1"', "send a JSON object, not a string"),
        (b"0.5", "send a JSON object, not a number"),
        (b"true", "send a JSON object, not true or false"),
    ],
)
def test_a_body_is_an_object(server, body, said):
    answer = server.call("POST", "/v1/jobs", body)
    assert answer.problem(422) == said
    assert answer.json["errors"] == [{"pointer": "", "detail": said}]  # RFC 6901's whole document


def test_a_key_stands_once_in_an_object(server):
    for body in (b'{"tp": 8, "tp": 16}', b'{"model": {"a": [{"tp": 1, "b": 2, "tp": 1}]}}'):
        assert "the key 'tp' stands twice" in server.call("POST", "/v1/jobs", body).problem(400)


@pytest.mark.parametrize("name", ["\x1b[31mred", "\u009b31mred", "\u202edlo", "a\u2028b", "\x7f"])
def test_a_name_steers_no_terminal(server, name):
    for change in ({"name": name}, {"model": name}):
        answer = server.call("POST", "/v1/jobs", {**JOB, **change})
        answer.problem(422)
        assert answer.json["errors"][0]["pointer"] == f"/{next(iter(change))}"
    watch = {"models": [f"deepseek-r1{name}"], "devices": ["L40S"]}
    assert "models/0" in server.call("POST", "/v1/watches", watch).problem(422)
    plain = {"model": "naïve 模型", "device": "L40S"}  # not refused as text, but known to nobody
    assert "no preset" in server.call("POST", "/v1/jobs", plain).problem(422)


@pytest.mark.parametrize("name", ["abc", "0" * 27, "%00" * 26, "U" * 26])
@pytest.mark.parametrize(
    ("method", "rest"), [("GET", ""), ("GET", "/events"), ("GET", "/trials"), ("POST", "/cancel")]
)
def test_a_text_that_is_no_id_is_the_id_of_no_job(server, name, method, rest):
    unknown = server.call(method, f"/v1/jobs/{NEVER}{rest}")
    answer = server.call(method, f"/v1/jobs/{name}{rest}")
    assert "there is no job" in answer.problem(404)
    assert "an id has 26 letters and digits" in answer.problem(404)
    assert answer.json["type"] == unknown.json["type"] == "urn:engine-tuner:error:unknown-job"


@pytest.mark.parametrize(
    ("method", "path"), [("DELETE", "/v1/watches/x"), ("GET", "/v1/exports/%2e%2e.tar")]
)
def test_a_path_that_cannot_be_is_not_found(server, method, path):
    assert "there is nothing at" in server.call(method, path).problem(404)
