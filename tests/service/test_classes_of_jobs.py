"""A job has what is known of its servers, so that its worker knows their own choice of kernels."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from urllib.parse import urlencode

import pytest
from api_server import ENTRY, MIXTRAL, serving
from cases import new_request
from store_writer import KEY
from tiers import only
from typer.testing import CliRunner

from api.asked import job_request
from api.requests import SubmitJob
from api.settings import ApiSettings
from tuner.cli.commands import app
from tuner.cli.family_options import FamilyChoice
from tuner.cli.problems import TargetOptions, targets_and_settings
from tuner.cli.targets import read_command_target
from tuner.devices.table import find_device
from tuner.engines.dispatch import what_runs
from tuner.engines.settings import of_model, server_settings, settings_kept, settings_to_keep
from tuner.errors import BadInput
from tuner.jobs.job import JobRequest, read_request
from tuner.models.table import find_preset, presets
from tuner.problems.points import Problem, ServerSettings, read_server
from tuner.problems.results import Totals
from tuner.tuning.run import runs_without_us
from workers import run_job
from workers.settings import Settings
from workers.watches import Unresolved, Watch, named, read_watch

NANO = find_preset("nemotron-3-nano-30b-a3b")
ENGINE = "sglang==0.5.16"


def without_us(request: JobRequest) -> tuple[str, ...]:
    """The kernels that a worker's run of a job expects of servers."""
    runs = runs_without_us(run_job._resolved(request, Settings("sqlite://")))
    assert runs is not None
    return tuple(kernel.name for kernel in runs.kernels)


def of_cli(request: JobRequest) -> tuple[str, ...]:
    """The kernels that the command line names for the model."""
    flags = of_model({}, NANO.name)
    card = find_device(request.device)
    runs = what_runs("sglang", "0.5.16", request.problem, card, flags)
    return tuple(kernel.name for kernel in runs.kernels)


def test_a_watch_s_job_knows_what_runs_without_us():
    watch = Watch(
        (NANO.name,), ("H100",), engine=ENGINE, measure="predict", families=("fused_moe",)
    )
    (request,) = watch.requests([])
    assert isinstance(request, JobRequest)
    assert request.server.architecture == NANO.architecture
    assert without_us(request) == of_cli(request)
    bare = new_request(request.problem, "H100", ENGINE, "predict")
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
    words = [
        "jobs",
        "submit",
        NANO.name,
        "--device",
        "H100",
        "--engine",
        ENGINE,
        "--measure",
        "predict",
    ]
    words += ["--family", "fused_moe"]
    here = CliRunner().invoke(app, [*words, "--json"])
    there = CliRunner().invoke(app, [*words, "--json", "--server", server.url])
    for done in (here, there):
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["request"]["architecture"] == NANO.architecture
    assert json.loads(there.stdout)["created"] is False  # the same job


CT_INT8 = {
    **MIXTRAL,
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "config_groups": {
            "group_0": {
                "weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
                "input_activations": {"num_bits": 8, "type": "int", "dynamic": True},
            }
        },
    },
}


def test_a_posted_job_has_the_checkpoint_and_the_flags_that_choose_kernels(server, subtests):
    problem = "fused_moe:E=8,N=64,K=128,top_k=2,dtype=int8_w8a8,per_channel_quant"
    stored = "int8_w8a8 compressed-tensors int8"
    flags = "SGL_USE_AITER=1 --api-key s3cret --tp 8 --moe-runner-backend=triton --port 1"
    kept = "SGLANG_USE_AITER=1 --moe-runner-backend triton"
    for what, body in {
        "a model": {"model": CT_INT8, "tp": 8},
        "a problem": {"model": problem, "checkpoint": stored},
    }.items():
        with subtests.test(what):
            posted = {"device": "L40S", "engine": ENGINE, "measure": "predict", **body}
            answer = server.call("POST", "/v1/jobs", {**posted, "server_args": flags})
            assert answer.status == 202, answer.body
            request = answer.json["request"]
            assert (request["checkpoint"], request["server_args"]) == (stored, kept)
            refused = server.call("POST", "/v1/jobs", {**posted, "server_args": "--a 'b"})
            assert "cannot read the server's flags" in refused.problem(422)


def test_a_result_says_which_servers_it_is_of(tmp_path):
    service = Settings(f"sqlite:///{tmp_path / 'tuner.db'}")
    servers = ServerSettings("MixtralForCausalLM", "", "--quantization w8a8_int8")
    with serving(ApiSettings(service, no_auth=True)) as server:
        results = server.app.state.api.results
        run = results.begin_run(KEY)
        results.finish_run(run, [replace(ENTRY, server=servers)], Totals())
        path = f"/results?{urlencode({'problem': KEY.problem.spec(), 'device': 'L40S'})}"
        (place,) = server.call("GET", f"/v1{path}").json["environments"]
        assert read_server(place["winners"][0]) == servers
        page = server.call("GET", path, headers={"Accept": "text/html"}).body.decode()
        assert "<code>--quantization w8a8_int8</code>" in page
        assert "architecture=MixtralForCausalLM" in page  # of "Tune again"


def test_flags_that_contradict_a_posted_job_are_refused(server):
    posted = {"model": "deepseek-r1", "tp": 8, "device": "H100", "server_args": "--tp-size 4"}
    said = server.call("POST", "/v1/jobs", posted).problem(422)
    assert "tp is 8, and the server's flags say 4: leave one of them out" in said


def commanded(
    model: str, device: str, engine: str, server_args: str = ""
) -> Iterator[tuple[Problem, Mapping[str, str]]]:
    """The problems of a model at TP 8, with the settings that `tuner tune` asks the rules with."""
    name, version = engine.split("==")
    named = read_command_target(model)
    flags = named.settings(server_args)
    asked = TargetOptions(named, find_device(device), name, version, 8, flags=flags)
    targets, found = targets_and_settings(asked, FamilyChoice((), {}), every=True)
    return ((problem, found) for target in targets for problem in target.problems)


def jobs_of(model: str, device: str, engine: str, server_args: str = "") -> Iterator[JobRequest]:
    """The jobs of a model at TP 8: a posted one, and one of a watch that was added."""
    served = {"tp": 8, "device": device, "engine": engine, "server_args": server_args}
    body = SubmitJob.model_validate({"model": model, **served})
    yield job_request(body, Settings("sqlite://"), ())[0]
    watch = named(Watch((model,), (device,), tp=(8,), engine=engine, server_args=server_args))
    yield from (one for one in stored(watch).requests() if isinstance(one, JobRequest))


def stored(watch: Watch) -> Watch:
    """The watch as it comes back from a store."""
    return read_watch(json.loads(json.dumps(watch.as_json())))


ENGINES = ("sglang==0.5.16", "sglang==0.5.23", "vllm==0.33.0")


@pytest.mark.parametrize("device", only(["H200"], ["H200", "H100", "L40S", "B200"]))
def test_a_job_and_a_command_expect_the_same_of_servers(device):
    """Of each preset, which has kernels that its class and its checkpoint choose."""
    card, compared, differ = find_device(device), 0, []
    for engine in ENGINES:
        name, version = engine.split("==")
        for model in presets():
            try:
                by_command = dict(commanded(model.name, device, engine))
            except BadInput:
                continue
            jobs = [
                new_request(p, device, engine, server=settings_to_keep(name, p, flags))
                for p, flags in by_command.items()
            ]  # as `tuner jobs submit --all` makes them
            with suppress(BadInput):  # without experts, or with several kinds, or too many
                jobs += jobs_of(model.name, device, engine)
            for job in jobs:
                kept = settings_kept(read_request(job.as_json()).server)
                told = what_runs(name, version, job.problem, card, kept)
                wanted = what_runs(name, version, job.problem, card, by_command[job.problem])
                compared += 1
                differ += [(engine, model.name, job.problem.spec())] if told != wanted else []
    assert compared > 500
    assert differ == []


@pytest.mark.parametrize(
    ("model", "engine", "server_args"),
    [
        ("deepseek-r1", "sglang==0.5.23", "--moe-runner-backend triton --ep-size 8 --tp-size 8"),
        ("deepseek-r1", "sglang==0.5.16", "SGL_USE_AITER=1 --moe-a2a-backend deepep"),
        ("mixtral-8x7b", "sglang==0.5.16", "--port 1 --quantization=fp8 --api-key 's 3'"),
        ("qwen3-30b-a3b", "vllm==0.33.0", "VLLM_USE_DEEP_GEMM=0 --enable-expert-parallel"),
    ],
)
def test_a_command_a_posted_job_and_a_watch_read_the_same_of_the_server_s_flags(
    model, engine, server_args
):
    name = engine.partition("==")[0]
    by_command = {
        new_request(p, "H100", engine, server=settings_to_keep(name, p, flags)).key
        for p, flags in commanded(model, "H100", engine, server_args)
    }
    jobs = [*jobs_of(model, "H100", engine, server_args)]
    assert {job.key for job in jobs} <= by_command
    layers = [job.key for job in jobs if job.spec.startswith("fused_moe:")]
    assert len(layers) == 2
    assert set(layers).isdisjoint(job.key for job in jobs_of(model, "H100", engine))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("--api-key s3cret --tp 8 HF_TOKEN=t --port=1", "--tp 8"),
        ("--tp-size 8 --tensor-parallel-size 8", "--tp-size 8"),
        ("--enable-dp-attention --dp-size 4 --log-level info", "--dp-size 4 --enable-dp-attention"),
        ("--dp-size 4", ""),
        ("SGL_USE_AITER=1", "SGLANG_USE_AITER=1"),
        ("", ""),
    ],
)
def test_a_watch_keeps_of_the_server_s_flags_what_counts(given, kept):
    watch = named(Watch(("deepseek-r1",), ("H100",), server_args=given))
    assert server_settings(watch.server_args).keys() == server_settings(kept).keys()
    assert "s3cret" not in str(stored(watch).as_json())


def test_flags_that_contradict_a_watch_are_its_night_s_error():
    watch = Watch(("deepseek-r1",), ("H100",), tp=(4, 8), engine=ENGINE, server_args="--tp 8")
    refused, job, *others = watch.requests()
    assert isinstance(job, JobRequest)
    assert not [one for one in others if isinstance(one, Unresolved)]
    assert "--tp is 4, and the server's flags say 8" in str(refused.error)


def test_a_posted_watch_has_the_flags_and_a_problem_s_checkpoint(server):
    problem = "fused_moe:E=8,N=64,K=128,top_k=2,dtype=int8_w8a8,per_channel_quant"
    model = {
        "architecture": "MixtralForCausalLM",
        "checkpoint": "int8_w8a8 compressed-tensors int8",
    }
    flags = "--api-key s3cret --quantization w8a8_int8"
    posted = {"engine": ENGINE, **model, "server_args": flags}
    added = server.call("POST", "/v1/watches", {"models": [problem], "devices": ["L40S"], **posted})
    assert added.status == 201, added.body
    kept = {**model, "server_args": "--quantization w8a8_int8"}
    assert {name: added.json["watch"][name] for name in kept} == kept
    job = server.call("POST", "/v1/jobs", {"model": problem, "device": "L40S", **posted})
    (request,) = read_watch(added.json["watch"]).requests()
    assert isinstance(request, JobRequest)
    assert read_request(job.json["request"]).key == request.key
    page = server.call("GET", "/watches", headers={"Accept": "text/html"}).body.decode()
    assert "<code>--quantization w8a8_int8</code>" in page
    for wrong, why in (
        ("--a 'b", "cannot read the server's flags"),
        ("--tp 'a\nb'", "server_args cannot be"),
    ):
        refused = {"models": [problem], "devices": ["L40S"], "server_args": wrong}
        assert why in server.call("POST", "/v1/watches", refused).problem(422)
