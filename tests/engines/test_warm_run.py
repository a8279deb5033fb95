"""A process of a GPU finds each kernel that the compile processes compiled, and compiles none."""

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

from tuner.compile import CompileJob, Farm
from tuner.engines.engine import TritonRelease, find_engine, triton_for
from tuner.measure.gpu import child_env
from tuner.problems.points import Problem
from tuner.problems.results import Compiled, MeasureKind
from tuner.tuning.request import Known, Request, Source, prepare

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
    for candidate in prepared.plan(Known()).incumbent_candidates():
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
