"""A family and an engine that nothing in the package knows go the whole way by registration."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
TUNER = Path(sys.executable).with_name("tuner")
COMMON = ("--device", "L40S", "--engine", "toyengine")
PROBLEM = "toy_scale:columns=1024"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all tests find the toys' kernels that one of them compiled."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def environment(tmp_path: Path, cache: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TUNER_")}
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
    return {
        **kept,
        "PYTHONPATH": path,
        "TUNER_ENGINE_PATH": str(HERE / "disk"),
        "TUNER_DATABASE_URL": f"sqlite:///{tmp_path / 'tuner.db'}",
        "TUNER_CACHE_DIR": str(cache),
    }


class Tuner:
    """The command line, with the toys registered."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self.environment, self.folder = environment, folder

    def __call__(self, *words: str, code: int = 0) -> Any:
        done = subprocess.run(
            [TUNER, *words, "--json"],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if done.stdout else done.stderr


@pytest.fixture
def tuner(environment: dict[str, str], tmp_path: Path) -> Tuner:
    return Tuner(environment, tmp_path)


def test_a_toy_is_predicted_recorded_replayed_stored_exported_and_checked(
    tuner: Tuner, tmp_path: Path
) -> None:
    predicted = tuner("tune", PROBLEM, *COMMON, "--measure", "predict", "--record", "toys.csv.gz")
    assert predicted["engine"] == "toyengine==1.2.3"
    assert {entry["batch_size"] for entry in predicted["entries"]} == {1, 16, 256}
    assert all(entry["config"]["BLOCK"] == 512 for entry in predicted["entries"])
    assert all(entry["shared_bytes"] == 0 for entry in predicted["entries"])  # it was compiled
    replayed = tuner(
        *("tune", PROBLEM, *COMMON, "--rows", "16", "--measure", "replay:toys.csv.gz"),
        *("--effort", "exhaustive"),
    )
    (entry,) = replayed["entries"]
    assert (entry["part"], entry["batch_size"]) == ("scale", 16)
    refused = tuner("export", *COMMON, "--out", "out", code=1)
    assert "predicted" in refused
    exported = tuner("export", *COMMON, "--out", "out", "--allow-predicted")
    (file,) = exported["files"]
    assert file["problem"] == PROBLEM
    assert exported["environment"] == {"TOY_DIR": str((tmp_path / "out").resolve())}
    assert set(json.loads(Path(tmp_path, file["path"]).read_text())) == {"1", "16", "256"}
    assert json.loads(Path(tmp_path, file["provenance"]).read_text())["entries"]["16"]["config"]
    checked = tuner("check", file["path"], *COMMON)
    assert [one["fits"] for one in checked["entries"]] == [True, True, True]


def test_a_models_toys_are_asked_for_by_their_flag(tuner: Tuner) -> None:
    options = (*("--family", "toy", "--tp", "7"), *COMMON, "--measure", "predict")
    tuned = tuner("tune", "deepseek-r1", *options)
    assert tuned["problem"] == PROBLEM


def test_options_of_other_families_are_refused(tuner: Tuner) -> None:
    said = tuner("tune", PROBLEM, *COMMON, "--prompts", "1x64", "--measure", "predict", code=2)
    assert "--prompts is for" in said
    said = tuner("tune", "deepseek-r1", "--device", "L40S", "--rows", "4", code=2)
    assert "--rows is for a toy" in said
    said = tuner("tune", PROBLEM, "--device", "L40S", "--measure", "predict", code=2)
    assert "toy is not tuned for sglang, only for toyengine" in said


def test_a_check_by_model_is_refused_for_a_family_without_one(tuner: Tuner) -> None:
    said = tuner("check", "deepseek-r1", "--family", "toy", "--tp", "7", *COMMON, code=2)
    assert "a toy cannot be checked by a model: give its config files" in said


@pytest.fixture
def server(environment: dict[str, str], tmp_path: Path) -> Iterator[str]:
    command = [TUNER, "serve", "--port", "0", "--no-auth"]
    with subprocess.Popen(
        command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            said = []
            for line in process.stderr:
                said.append(line)
                if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                    yield found[0]
                    return
            pytest.fail(f"the server did not say where it listens, only {said}")
        finally:
            process.terminate()
            process.stderr.close()


def call(server: str, method: str, path: str, body: object = None) -> Any:
    connection = http.client.HTTPConnection(server.removeprefix("http://"))
    try:
        headers = {"Content-Type": "application/json"}
        connection.request(method, path, json.dumps(body) if body else None, headers)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def test_a_toy_posted_to_the_api_is_tuned_and_covered(server: str, tuner: Tuner) -> None:
    job = {"model": PROBLEM, "device": "L40S", "engine": "toyengine", "measure": "predict"}
    posted = call(server, "POST", "/v1/jobs", {**job, "rows": [16]})
    assert posted["request"]["rows"] == [16]
    done = tuner("jobs", "follow", posted["id"], "--server", server)
    assert done["state"] == "done"
    (row,) = call(server, "GET", "/v1/coverage?device=L40S")["stored"]
    assert (row["problem"], row["standing"]) == (PROBLEM, "tuned")
