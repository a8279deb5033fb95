"""A run whose kernels another host has compiled: it compiles nothing, and launches the same."""

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
from tuner.compile.environment import TritonRelease, triton_for
from tuner.compile.shared import SharedCache
from tuner.compile.shared_results import triton_build
from tuner.engines.engine import find_engine
from tuner.measure.gpu import child_env
from tuner.problems.points import Problem
from tuner.problems.results import Compiled, MeasureKind
from tuner.tuning.request import Source
from tuner.tuning.run import open_run
from tuner.tuning.run_request import Request

KEY = "k" * 32
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
    with open_run(request) as run:
        bind, further = run._binder(), run._companions()
        for candidate in run._plan().incumbent_candidates():
            for lifted, binding in [bind(candidate), *(further(candidate) if further else ())]:
                name = binding.function, candidate.point.part
                found.setdefault(name, CompileJob(lifted, binding.variant(), H200.target))
    return list(found.values())


def compile_all(farm: Farm, jobs: Sequence[CompileJob]) -> list[Compiled]:
    farm.submit(jobs)
    results = dict(farm.completed())
    return [results[job] for job in jobs]


def loaded(farm: Farm, jobs: Sequence[CompileJob], how: str, sources: Farm) -> list[dict[str, Any]]:
    """What a process of a GPU makes of the kernels, with the cache of a farm."""
    asked = [
        {
            "source": str(job.lifted.write(sources.lifted_dir)),
            "variant": job.variant.as_json(),
            "target": asdict(job.target),
        }
        for job in jobs
    ]
    done = subprocess.run(
        [sys.executable, str(LOADER), how],
        input=json.dumps(asked),
        env=child_env(farm, ""),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.fixture
def cache(tmp_path: Path) -> SharedCache:
    return SharedCache(str(tmp_path / "shared"), KEY)


@pytest.mark.parametrize(("engine", "problems"), only([SOME, OLDER], ENGINES))
def test_a_gpus_process_loads_every_familys_kernels(
    engine: str, problems: Sequence[Problem], cache: SharedCache, tmp_path: Path
) -> None:
    triton = release(engine)
    jobs = [job for problem in problems for job in jobs_of(problem, engine)]
    assert jobs
    if EXTEND in problems:  # Triton names files by kernels: some names begin with "_"
        assert {job.variant.function[0] == "_" for job in jobs} == {True, False}
    with Farm(2, 240, tmp_path / "cpu", triton=triton, shared=cache) as cpu:
        made = compile_all(cpu, jobs)
        assert all(result.ok for result in made), [result.detail for result in made]
    with Farm(2, 240, tmp_path / "gpu", triton=triton, shared=cache) as gpu:
        found = compile_all(gpu, jobs)
        assert gpu.compiled == 0
        assert gpu.cached == len(jobs)
        assert gpu.compile_s == 0
        here = loaded(gpu, jobs, "load", gpu)
    with Farm(1, 240, tmp_path / "own", triton=triton) as own:
        tritons = loaded(own, jobs, "compile", cpu)  # binaries name the source's folder
    for job, one, by_cpu, mine, its in zip(jobs, found, made, here, tritons, strict=True):
        name = job.variant.function
        assert one == Compiled(**{**asdict(by_cpu), "cached": True}), name
        assert mine == its, name
        order = [parameter.name for parameter in job.lifted.parameters(name)]
        signature = [parameter for parameter, _ in mine["signature"]]
        assert signature == [parameter for parameter in order if parameter in signature], name


def test_a_flipped_byte_means_one_more_compile_and_a_good_object(
    cache: SharedCache, tmp_path: Path
) -> None:
    (job,) = jobs_of(BLOCKS, "sglang==0.5.16")[:1]
    with Farm(1, 240, tmp_path / "cpu", shared=cache) as cpu:
        (made,) = compile_all(cpu, [job])
    (path,) = (path for path in (tmp_path / "shared").rglob("*") if path.is_file())
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with Farm(1, 240, tmp_path / "gpu", shared=cache) as gpu:
        (found,) = compile_all(gpu, [job])
        assert (gpu.compiled, gpu.cached) == (1, 0)
        assert found == made
    with Farm(1, 240, tmp_path / "next", shared=cache) as other:
        compile_all(other, [job])
        assert (other.compiled, other.cached) == (0, 1)


def test_a_host_that_knows_its_results_still_publishes_them(
    cache: SharedCache, tmp_path: Path
) -> None:
    jobs = jobs_of(BLOCKS, "sglang==0.5.16")
    with Farm(1, 240, tmp_path / "cpu") as alone:
        compile_all(alone, jobs)
    with Farm(1, 240, tmp_path / "cpu", shared=cache, publish=True) as cpu:
        compile_all(cpu, jobs)
    with Farm(1, 240, tmp_path / "gpu", shared=cache) as gpu:
        compile_all(gpu, jobs)
        assert gpu.compiled == 0


def test_failed_compiles_are_shared_too(cache: SharedCache, tmp_path: Path) -> None:
    (job, *_) = jobs_of(BLOCKS, "sglang==0.5.16")
    broken = CompileJob(job.lifted, job.variant, type(job.target)("cuda", 1, 32))
    with Farm(1, 240, tmp_path / "cpu", shared=cache) as cpu:
        (made,) = compile_all(cpu, [broken])
        assert not made.ok
    with Farm(1, 240, tmp_path / "gpu", shared=cache) as gpu:
        (found,) = compile_all(gpu, [broken])
        assert gpu.compiled == 0
        assert found.detail == made.detail


def test_each_triton_and_each_ptxas_has_its_own_results(tmp_path: Path) -> None:
    installed, other = release("sglang==0.5.16"), release("sglang==0.4.4")
    assert triton_build(installed)
    assert triton_build(other)
    assert triton_build(installed) != triton_build(other)
    unlisted = tmp_path / "triton-3.6.0"
    (unlisted / "triton").mkdir(parents=True)
    assert triton_build(TritonRelease("3.6.0", unlisted)) == ""


def test_compile_processes_do_not_see_the_caches_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_SHARED_CACHE_KEY", KEY)
    monkeypatch.setenv("TUNER_API_KEY", KEY)
    with Farm(1, cache_dir=tmp_path) as farm:
        assert KEY not in child_env(farm, "0").values()
