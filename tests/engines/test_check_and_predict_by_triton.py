"""`tuner check` and `tuner tune --measure predict` with a release for each Triton that engines pin.

A release that is not on this disk is skipped: `make test-all` adds them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from attention_cases import CHOSEN, DECODE, EXTEND, MLA
from cases import FP8, H200, INT8
from gemm_cases import BLOCKS
from tiers import only
from typer.testing import CliRunner

from tuner.cli.commands import app
from tuner.compile import CompileJob, Farm
from tuner.engines.config_files import read_config_file
from tuner.engines.engine import TritonRelease, engine_triton, find_engine, find_triton, triton_for
from tuner.errors import UnknownEngine
from tuner.measure.gpu import child_env
from tuner.problems.points import Problem
from tuner.problems.results import Compiled, MeasureKind
from tuner.tuning.request import KnownBefore, Request, Source, prepare

# Triton's minor release, and the releases of engines that pin it. vLLM 0.7.3, with 3.1, launches
# the kernel with other arguments; no release that was looked at pins 3.9.
PINNED = [
    ("3.1", "sglang==0.4.4"),
    ("3.2", "sglang==0.4.6.post5"),
    ("3.2", "vllm==0.8.5"),
    ("3.3", "sglang==0.4.7"),
    ("3.3", "vllm==0.10.1.1"),
    ("3.4", "sglang==0.5.2"),
    ("3.4", "vllm==0.10.2"),
    ("3.5", "sglang==0.5.8"),
    ("3.5", "vllm==0.15.1"),
    ("3.6", "sglang==0.5.16"),
    ("3.6", "vllm==0.24.0"),
    ("3.7", "sglang==0.5.19"),
    ("3.7", "vllm==0.29.0"),
    ("3.8", "sglang==0.5.23"),
    ("3.8", "vllm==0.33.0"),
]
DEVICE = "NVIDIA_H200"
PROBLEM = "fused_moe:E=8,N=256,K=512,top_k=2,dtype=fp8_w8a8,block_shape=128x128"


def available(minor: str, spec: str) -> None:
    """Skip the test if a release or the Triton that it pins is not here."""
    try:
        engine = find_engine(spec)
    except UnknownEngine:
        pytest.skip(f"{spec} is not here: `make test-all` adds it")
    triton = engine_triton(engine)
    assert triton is not None and triton.startswith(f"{minor}.")
    if find_triton(triton) is None:
        pytest.skip(f"no triton-{triton} beside the engines: `make test-all` unpacks it")


def shipped_file(spec: str) -> Path:
    """A file for experts that the release ships for the card, the first by its name."""
    named = f"device_name={DEVICE},dtype=fp8_w8a8,block_shape=*.json"
    found = sorted(find_engine(spec).root.rglob(f"E=*,{named}"))
    assert found, f"{spec} ships no file for blocks of fp8 and {DEVICE}"
    return found[0]


def ran(*words: str) -> dict:
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.usefixtures("few_kernels")
@pytest.mark.parametrize(("minor", "pinned"), only([PINNED[-2]], PINNED))
def test_a_shipped_file_can_run_and_a_problem_is_predicted(
    minor: str, pinned: str, tmp_path: Path, monkeypatch, compile_cache
) -> None:
    available(minor, pinned)
    monkeypatch.setenv("TUNER_DATABASE_URL", f"sqlite:///{tmp_path}/tuner.db")
    path = shipped_file(pinned)
    sizes = sorted(read_config_file(path).entries)[:2]
    entries = {m: one for m, one in json.loads(path.read_text()).items() if m in map(str, sizes)}
    (tmp_path / path.name).write_text(json.dumps(entries))
    checked = ran("check", str(tmp_path / path.name), "--device", DEVICE, "--engine", pinned)
    assert {entry["batch_size"] for entry in checked["entries"]} == set(sizes)
    assert all(entry["fits"] for entry in checked["entries"])
    words = ["--device", DEVICE, "--engine", pinned, "--measure", "predict", "--batch-sizes", "8"]
    tuned = ran("tune", PROBLEM, *words, "--effort", "quick")
    assert tuned["environment"]["triton"] == engine_triton(find_engine(pinned))
    at_size = [entry for entry in tuned["entries"] if entry["batch_size"] == 8]
    assert at_size and all(entry["status"] == "predicted" for entry in at_size)


# A process of a GPU finds each kernel that the compile processes compiled

# Engines that run three releases of Triton, with two ways to take a kernel's constants.
SOME, OLDER = ("sglang==0.5.16", (INT8, EXTEND, CHOSEN, BLOCKS)), ("sglang==0.4.4", (BLOCKS,))
ENGINES = [
    SOME,
    OLDER,
    ("sglang==0.5.16", (FP8, DECODE, MLA)),
    ("sglang==0.4.4", (FP8,)),
    ("vllm==0.33.0", (FP8,)),
]
LOADER = Path(__file__).parent / "load_kernels.py"


def release(engine: str) -> TritonRelease:
    return triton_for(find_engine(engine))


def jobs_of(problem: Problem, engine: str) -> list[CompileJob]:
    """Each kernel of a problem as its engine would launch it, one of each name and part."""
    request = Request(problem, H200, find_engine(engine), Source(MeasureKind.GPU))
    found: dict[tuple[str, object], CompileJob] = {}
    prepared = prepare(request)
    bind, further = prepared.kernels.binder(problem, H200.target), prepared.companions
    for candidate in prepared.goal(KnownBefore()).incumbent_candidates():
        for lifted, binding in [bind(candidate), *(further(candidate) if further else ())]:
            name = binding.function, candidate.point.part
            found.setdefault(name, CompileJob(lifted, binding.variant(), H200.target))
    return list(found.values())


def compile_all(farm: Farm, jobs: Sequence[CompileJob]) -> list[Compiled]:
    farm.submit(jobs)
    results = dict(farm.completed())
    return [results[job] for job in jobs]


def loaded(farm: Farm, jobs: Sequence[CompileJob]) -> list[dict[str, Any]]:
    """What a process of a GPU finds of the kernels, with the cache of a farm."""
    asked = [
        {
            "source": str(job.lifted.write(farm.lifted_dir)),
            "variant": job.variant.as_json(),
            "target": asdict(job.target),
        }
        for job in jobs
    ]
    done = subprocess.run(
        [sys.executable, str(LOADER)],
        input=json.dumps(asked),
        env=child_env(farm, ""),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("engine", "problems"), only([SOME, OLDER], ENGINES))
def test_a_gpus_process_loads_every_familys_kernels(
    engine: str, problems: Sequence[Problem], tmp_path: Path
) -> None:
    jobs = [job for problem in problems for job in jobs_of(problem, engine)]
    assert jobs
    if EXTEND in problems:  # Triton names files by kernels: some names begin with "_"
        assert {job.variant.function[0] == "_" for job in jobs} == {True, False}
    with Farm(2, 240, tmp_path, triton=release(engine)) as farm:
        made = compile_all(farm, jobs)
        assert all(result.ok for result in made), [result.detail for result in made]
        found = loaded(farm, jobs)
    for job, one in zip(jobs, found, strict=True):
        name = job.variant.function
        order = [parameter.name for parameter in job.lifted.parameters(name)]
        signature = [parameter for parameter, _ in one["signature"]]
        assert signature == [parameter for parameter in order if parameter in signature], name


def test_compile_processes_do_not_see_a_servers_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_API_KEY", "secret")
    with Farm(1, cache_dir=tmp_path) as farm:
        assert "secret" not in child_env(farm, "0").values()
