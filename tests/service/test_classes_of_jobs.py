"""A job has the class of its model, so that its worker knows what runs without this program."""

import json

from api_server import MIXTRAL
from typer.testing import CliRunner

from tuner.cli import app
from tuner.devices.table import find_device
from tuner.engines.dispatch import of_class, what_runs
from tuner.jobs.job import JobRequest
from tuner.models.table import find_preset
from tuner.tuning.run import runs_without_us
from workers import run_job
from workers.settings import Settings
from workers.watches import Watch

NANO = find_preset("nemotron-3-nano-30b-a3b")
ENGINE = "sglang==0.5.16"


def without_us(request: JobRequest) -> tuple[str, ...]:
    """The kernels that a worker's run of a job expects of servers."""
    runs = runs_without_us(run_job._resolved(request, Settings("sqlite://")))
    assert runs is not None
    return tuple(kernel.name for kernel in runs.kernels)


def of_cli(request: JobRequest) -> tuple[str, ...]:
    """The kernels that the command line names for the model."""
    flags = of_class({}, NANO.architecture)
    card = find_device(request.device)
    runs = what_runs("sglang", "0.5.16", request.problem, card, flags)
    return tuple(kernel.name for kernel in runs.kernels)


def test_a_watch_s_job_knows_what_runs_without_us():
    watch = Watch((NANO.name,), ("H100",), engine=ENGINE, measure="predict")
    (request,) = watch.requests([])
    assert isinstance(request, JobRequest)
    assert request.architecture == NANO.architecture
    assert without_us(request) == of_cli(request)
    bare = JobRequest(request.problem, "H100", ENGINE, "predict")
    assert without_us(bare) != of_cli(request)  # so the class says something


def test_a_posted_job_has_the_class(server, subtests):
    problem = "fused_moe:E=8,N=64,K=128,top_k=2,dtype=bfloat16"
    for body, wanted in (
        ({"model": NANO.name}, NANO.architecture),
        ({"model": MIXTRAL}, "MixtralForCausalLM"),
        ({"model": problem, "architecture": "A1"}, "A1"),
    ):
        with subtests.test(wanted):
            posted = {"device": "H100", "engine": ENGINE, "measure": "predict", **body}
            answer = server.call("POST", "/v1/jobs", posted)
            assert answer.status == 202, answer.body
            assert answer.json["request"]["architecture"] == wanted
            refused = server.call("POST", "/v1/jobs", {**posted, "architecture": "a b"})
            assert refused.status == 422


def test_a_submitted_job_has_the_class_here_and_on_a_server(server, store_url, monkeypatch):
    monkeypatch.setenv("TUNER_DATABASE_URL", store_url)
    words = ["submit", NANO.name, "--device", "H100", "--engine", ENGINE, "--measure", "predict"]
    here = CliRunner().invoke(app, [*words, "--json"])
    there = CliRunner().invoke(app, [*words, "--json", "--server", server.url])
    for done in (here, there):
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["request"]["architecture"] == NANO.architecture
    assert json.loads(there.stdout)["created"] is False  # the same job
