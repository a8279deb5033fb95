"""Kernels are compiled with the Triton that the engine's servers run, and the results say so."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from cases import FP8, config

from tuner.compile import CompileJob, Farm
from tuner.compile.environment import TritonRelease, triton_for
from tuner.devices.target import cuda_target
from tuner.engines.engine import find_engine
from tuner.engines.sglang.fused_moe.binding import lift_fused_moe
from tuner.engines.sglang.package import SGLang
from tuner.engines.triton_release import RECORD, find_triton
from tuner.errors import CompilerUnavailable
from tuner.families.fused_moe.problem import Gemm
from tuner.measure.gpu import child_env

TILE = config(64, 128, 128, 4, 3)
INSTALLED = "3.6.0"


def release(version):
    if version == INSTALLED:
        return TritonRelease(version)
    folder = find_triton(version)
    if folder is None:
        pytest.skip(f"no triton-{version} beside the engines: `make test` unpacks it")
    return TritonRelease(version, folder)


@pytest.fixture
def job():
    kernels = lift_fused_moe(find_engine("sglang==0.5.16"))
    target = cuda_target(9, 0)
    variant = kernels.bind(FP8, Gemm.UP, 64, TILE, target).variant()
    return CompileJob(kernels.lifted, variant, target)


@pytest.mark.parametrize(
    ("version", "shared_bytes", "n_regs"),
    [("3.1.0", 107_520, 255), ("3.6.0", 73_728, 196), ("3.8.0", 73_728, 196)],
)
def test_each_triton_compiles_in_processes_of_its_own(tmp_path, job, version, shared_bytes, n_regs):
    with Farm(1, 240, tmp_path, triton=release(version)) as farm:
        farm.submit([job])
        [(_, found)] = farm.completed()
    assert (found.status.value, found.shared_bytes, found.n_regs) == ("ok", shared_bytes, n_regs)
    assert (tmp_path / f"triton_{version.replace('.', '_')}").is_dir()


def test_the_hash_of_machine_code_tells_code_from_lines_of_the_source(tmp_path, job):
    """A line more in the source changes debug information alone; an option changes the code."""
    moved = replace(job, lifted=replace(job.lifted, text="\n" + job.lifted.text))
    options = {**job.variant.options, "num_stages": 2}
    other = replace(job, variant=replace(job.variant, options=options))
    with Farm(2, 240, tmp_path) as farm:
        farm.submit([job, moved, other])
        found = dict(farm.completed())
    assert job.lifted.hash != moved.lifted.hash
    assert found[job].code == found[moved].code != found[other].code


def test_results_of_two_tritons_have_two_keys_in_the_cache(tmp_path, job):
    with (
        Farm(1, cache_dir=tmp_path) as installed,
        Farm(1, cache_dir=tmp_path, triton=TritonRelease("3.8.0", tmp_path)) as newer,
    ):
        assert installed.key(job) != newer.key(job)


def test_a_process_that_imports_another_triton_is_refused(tmp_path, job):
    with Farm(1, 240, tmp_path, triton=TritonRelease("3.5.9")) as farm:
        farm.submit([job])
        with pytest.raises(CompilerUnavailable, match=r"has Triton 3\.6\.0 instead of 3\.5\.9"):
            list(farm.completed())


@pytest.mark.parametrize("version", ["3.1.0", "3.8.0"])
def test_the_measuring_child_imports_torch_beside_the_same_triton(tmp_path, version):
    program = "import torch, triton, tuner.measure.gpu_child; print(triton.__version__)"
    with Farm(1, cache_dir=tmp_path, triton=release(version)) as farm:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=child_env(farm, "0"),
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.strip() == version


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """A function that makes an sglang 0.5.99 whose servers run a Triton."""

    def make(triton):
        root = tmp_path / "sglang-0.5.99" / "sglang"
        root.mkdir(parents=True)
        (root / "__init__.py").touch()
        (root.parent / RECORD).write_text(json.dumps({"triton": triton}))
        monkeypatch.setenv("TUNER_ENGINE_PATH", str(tmp_path))
        return SGLang("0.5.99", root)

    return make


def test_where_the_engine_s_triton_is_missing_the_note_says_how_to_get_it(engine):
    found = triton_for(engine("3.99.0"))
    assert (found.version, found.folder) == (INSTALLED, None)
    assert "runs Triton 3.99.0, which is not here" in found.note
    assert found.note.endswith("tuner engines add sglang==0.5.99")


def test_an_engine_s_unpacked_triton_is_taken(engine, tmp_path):
    sglang = engine("3.99.0")
    package = tmp_path / "triton-3.99.0" / "triton"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "3.99.0"\n')
    assert triton_for(sglang) == TritonRelease("3.99.0", package.parent)


def test_the_installed_triton_serves_engines_that_run_it_and_engines_without_a_record(engine):
    sglang = engine(INSTALLED)
    assert triton_for(sglang) == TritonRelease(INSTALLED)
    (sglang.root.parent / RECORD).unlink()
    assert triton_for(replace(sglang)) == TritonRelease(INSTALLED)
