"""The OpenAPI document: it is valid and complete, and Schemathesis finds that it is true."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from api_server import serving, work
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from tiers import only

from api import keys as api_keys
from api.app import create_app
from api.settings import ApiSettings
from tuner.problems.results import Environment
from tuner.store.keys import Scope
from tuner.store.leases import Leases
from workers.settings import Settings

HERE = Path(__file__).parent
SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
EXAMPLES = 15  # an operation and phase


@pytest.fixture(scope="module")
def document():
    """As clients read it: through JSON."""
    app = create_app(ApiSettings(Settings("sqlite:///unused.db")))
    return json.loads(json.dumps(app.openapi()))


def operations(document: Any) -> Iterator[tuple[str, Any]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method} {path}", operation


def test_it_is_valid_for_the_version_that_it_names(document):
    assert document["openapi"].startswith("3.1.")
    errors = [error.message for error in OpenAPIV31SpecValidator(document).iter_errors()]
    assert errors == []


def test_operations_have_short_names_summaries_and_described_tags(document):
    ids = [operation["operationId"] for _, operation in operations(document)]
    assert len(set(ids)) == len(ids)
    assert {"submitJob", "listJobs", "getJob", "cancelJob", "followJob"} <= set(ids)
    described = {tag["name"]: tag["description"] for tag in document["tags"]}
    for name, operation in operations(document):
        assert re.fullmatch(r"[a-z]+([A-Z][a-z]+)+", operation["operationId"]), name
        assert 5 < len(operation["summary"]) < 100, name
        assert all(described.get(tag) for tag in operation["tags"]), name


def test_each_operation_says_which_scope_its_key_needs(document):
    found = {}
    for name, operation in operations(document):
        for requirement in operation.get("security", [{"": [""]}]):
            ((scheme, (scope,)),) = requirement.items()
            found[name] = scope
            if scope:
                assert document["components"]["securitySchemes"][scheme]["scheme"] == "bearer"
                assert f"`{scope}`" in operation["description"], name
    assert found["post /v1/jobs"] == "submit"
    assert found["get /v1/jobs"] == found["get /metrics"] == "read"
    assert found["post /v1/watches"] == "admin"
    assert {name for name, scope in found.items() if not scope} == {"get /healthz", "get /readyz"}


def test_examples_are_valid_and_each_body_has_one(document):
    schemas = document["components"]["schemas"]
    for name, schema in schemas.items():
        for example in schema.get("examples", ()):
            whole = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}
            errors = Draft202012Validator(whole).iter_errors(example)
            assert [error.message for error in errors] == [], name
    for name, operation in operations(document):
        if body := operation.get("requestBody", {}).get("content", {}).get("application/json"):
            used = body["schema"]["$ref"].rpartition("/")[2]
            assert schemas[used].get("examples"), (name, used)


def test_a_stream_describes_its_events(document):
    answer = document["paths"]["/v1/jobs/{job_id}/events"]["get"]["responses"]["200"]
    (event,) = answer["content"].values()
    data = event["schema"]["properties"]["data"]["contentSchema"]
    assert data == {"$ref": "#/components/schemas/EventOut"}
    Draft202012Validator(event["schema"]).validate(event["example"])
    whole = {**data, "components": {"schemas": document["components"]["schemas"]}}
    Draft202012Validator(whole).validate(json.loads(event["example"]["data"]))


def test_each_error_is_described_once(document):
    shared = document["components"]["responses"]
    for name, operation in operations(document):
        for status, answer in operation["responses"].items():
            if status >= "400":
                assert answer == {"$ref": f"#/components/responses/Error{status}"}, name
                (content,) = shared[f"Error{status}"]["content"].values()
                assert str(content["example"]["status"]) == status
    assert "Retry-After" in shared["Error429"]["headers"]


def test_no_two_schemas_have_one_title(document):
    """A generator names its classes after titles, and drops what uses the second of two."""
    schemas = document["components"]["schemas"]
    titles = sorted(one["title"].lower() for one in schemas.values() if "title" in one)
    assert titles == sorted(set(titles))
    assert not [name for name in schemas if "__" in name]  # made of two modules with one class name
    described = [
        json.dumps({name: part for name, part in one.items() if name != "title"}, sort_keys=True)
        for one in schemas.values()
    ]
    assert len(described) == len(set(described))


def test_an_environment_has_all_that_a_time_depends_on(document):
    """As the same command says of the store of its own machine."""
    told = document["components"]["schemas"]["EnvironmentOut"]["properties"]
    assert [*told] == [one.name for one in fields(Environment)]


def test_a_get_has_no_errors_of_bodies(document):
    for methods in document["paths"].values():
        assert not {"400", "413", "415"} & set(methods.get("get", {"responses": {}})["responses"])


# On each commit, few cases that are drawn for each operation; at night many, and those that are the
# same in each run.
@pytest.mark.parametrize(
    ("database", "examples"),
    only([("sqlite", 2)], [("sqlite", 2), ("sqlite", EXAMPLES), ("postgresql", EXAMPLES)]),
)
@pytest.mark.timeout(1000)  # a busy machine needs minutes for all cases
def test_schemathesis_finds_nothing(store_url, examples, tmp_path, monkeypatch):
    monkeypatch.setattr(api_keys, "MOST_WRONG", 10_000)  # it sends wrong keys to every route
    settings = ApiSettings(Settings(store_url), rate=(), submit_rate=(), stream_s=1)
    with serving(settings) as server:
        server.key = server.app.state.api.keys.add("fuzz", Scope.ADMIN)
        server.submit()
        with Leases.open(store_url) as leases:
            work(leases)
        command = [
            *(str(SCHEMATHESIS), "--config-file", str(HERE / "schemathesis.toml"), "--no-color"),
            *(
                "run",
                f"{server.url}/openapi.json",
                "--header",
                f"Authorization: Bearer {server.key}",
            ),
            *("--max-examples", str(examples), "--seed", "1", "--continue-on-failure"),
            *(("--phases", "examples,fuzzing") if examples < EXAMPLES else ()),
        ]
        environ = {
            **os.environ,
            "SCHEMATHESIS_HOOKS": "schemathesis_checks",
            "PYTHONPATH": str(HERE),
        }
        run = subprocess.run(
            command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=900
        )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    cases = re.search(r"(\d+) generated, (\d+) passed", run.stdout)
    assert cases and int(cases[1]) > (100 if examples < EXAMPLES else 800), run.stdout[-2000:]
