"""A job has the class of its model, so that its worker knows what runs without this program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from api_server import serving
from typer.testing import CliRunner

from api.settings import ApiSettings
from tuner.cli import app
from tuner.devices.table import find_device
from tuner.engines.dispatch import of_class, what_runs
from tuner.jobs.job import JobRequest
from tuner.models.table import find_preset
from workers import run_job
from workers.settings import Settings
from workers.watches import Watch

NANO = find_preset("nemotron-3-nano-30b-a3b")
ENGINE = "sglang==0.5.16"


def without_us(request: JobRequest) -> tuple[str, ...]:
    """The kernels that a worker's run of a job expects of servers."""
    with run_job.open_run(run_job._session_request(request, Settings("sqlite://"))) as run:
        assert run._runs is not None
        return tuple(kernel.name for kernel in run._runs.kernels)


def of_cli(request: JobRequest) -> tuple[str, ...]:
    """The kernels that the command line names for the model."""
    flags = of_class({}, NANO.architecture)
    card = find_device(request.device)
    runs = what_runs("sglang", "0.5.16", request.problem, card, flags)
    assert runs is not None
    return tuple(kernel.name for kernel in runs.kernels)


def test_a_watch_s_job_knows_what_runs_without_us() -> None:
    watch = Watch((NANO.name,), ("H100",), engine=ENGINE, measure="predict")
    (request,) = watch.requests([])
    assert isinstance(request, JobRequest)
    assert request.architecture == NANO.architecture
    assert without_us(request) == of_cli(request)
    bare = JobRequest(request.problem, "H100", ENGINE, "predict")
    assert without_us(bare) != of_cli(request)  # so the class says something


@pytest.mark.parametrize("way", ["a name", "a config.json", "a problem with a class"])
def test_a_posted_job_has_the_class(way: str, tmp_path: Path) -> None:
    settings = Settings(f"sqlite:///{tmp_path}/tuner.db")
    config = {
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 8,
        "intermediate_size": 512,
        "hidden_size": 64,
        "num_experts_per_tok": 2,
        "torch_dtype": "bfloat16",
    }
    problem = "fused_moe:E=8,N=64,K=128,top_k=2,dtype=bfloat16"
    body, wanted = {
        "a name": ({"model": NANO.name}, NANO.architecture),
        "a config.json": ({"model": config}, "MixtralForCausalLM"),
        "a problem with a class": ({"model": problem, "architecture": "A1"}, "A1"),
    }[way]
    with serving(ApiSettings(settings, no_auth=True)) as server:
        posted = {"device": "H100", "engine": ENGINE, "measure": "predict", **body}
        answer = server.call("POST", "/v1/jobs", posted)
        assert answer.status == 202, answer.body
        assert answer.json["request"]["architecture"] == wanted
        refused = server.call("POST", "/v1/jobs", {**posted, "architecture": "a b"})
        assert refused.status == 422


def test_a_submitted_job_has_the_class_here_and_on_a_server(tmp_path: Path, monkeypatch) -> None:
    url = f"sqlite:///{tmp_path}/tuner.db"
    monkeypatch.setenv("TUNER_DATABASE_URL", url)
    words = ["submit", NANO.name, "--device", "H100", "--engine", ENGINE, "--measure", "predict"]
    with serving(ApiSettings(Settings(url), no_auth=True)) as server:
        here = CliRunner().invoke(app, [*words, "--json"])
        there = CliRunner().invoke(app, [*words, "--json", "--server", server.url])
    for done in (here, there):
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["request"]["architecture"] == NANO.architecture
    assert json.loads(there.stdout)["created"] is False  # the same job
