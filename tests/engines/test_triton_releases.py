"""Kernels are compiled with the Triton that the engine's servers run, and the results say so."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from cases import FP8, config
from gemm_cases import BLOCKS, tile
from tiers import only

from tuner.bindings.sglang.attention.binding import lift_attention
from tuner.bindings.sglang.fused_moe.binding import lift_fused_moe
from tuner.compile import CompileJob, Farm, ptxas
from tuner.devices.target import cuda_target
from tuner.engines.engine import RECORD, TritonRelease, find_engine, find_triton, triton_for
from tuner.engines.sglang.package import SGLang
from tuner.errors import CompilerUnavailable
from tuner.families.attention.problem import AttentionPhase, parse_attention
from tuner.families.dense_gemm.engine import gemm_engine
from tuner.families.fused_moe.engine import moe_engine
from tuner.families.fused_moe.problem import Gemm
from tuner.measure.gpu import child_env
from tuner.problems.points import Point
from tuner.problems.registry import parse_problem
from tuner.problems.results import Status

TILE = config(64, 128, 128, 4, 3)
INSTALLED = "3.6.0"
TARGET = cuda_target(9, 0)
SMALL_MOE = parse_problem("fused_moe:E=8,N=256,K=512,top_k=2,dtype=bfloat16")
SHAPE = "q_heads=32,kv_heads=4,Lq=64,Lv=64,dtype=bfloat16"
ATTENTION = [parse_attention(f"{phase}_attention:{SHAPE}") for phase in ("extend", "decode")]


def release(version):
    if version == INSTALLED:
        return TritonRelease(version)
    folder = find_triton(version)
    if folder is None:
        pytest.skip(f"no triton-{version} beside the engines: `make test-all` unpacks it")
    return TritonRelease(version, folder)


@pytest.fixture
def job():
    kernels = lift_fused_moe(find_engine("sglang==0.5.16"))
    variant = kernels.bind(FP8, Gemm.UP, 64, TILE, TARGET).variant()
    return CompileJob(kernels.lifted, variant, TARGET)


def one_of_each_family(moe, sglang):
    """Jobs of kernels in the order of FAMILIES, from two releases of engines."""
    experts = moe_engine(find_engine(moe)).lift()
    small = config(16, 32, 64, 4, 2)
    bound = [(experts.lifted, experts.bind(SMALL_MOE, Gemm.UP, 64, small, TARGET))]
    attention = lift_attention(find_engine(sglang))
    for problem in ATTENTION:
        at = Point(1, problem.parts[0], 1 if problem.phase is AttentionPhase.DECODE else 128, 1024)
        constants = attention.default_config(problem, at, TARGET)
        binding = attention.bind(problem, at, constants, TARGET)
        bound.append((attention.lifted(problem.phase), binding))
    dense = gemm_engine(find_engine(sglang)).lift()
    (launch,) = dense.launches(BLOCKS, 16, tile(16, 32, 128, 1, 4, 2), TARGET)
    bound.append((dense.lifted, launch.binding))
    return [CompileJob(lifted, binding.variant(), TARGET) for lifted, binding in bound]


OLD = "sglang==0.4.4"
FAMILIES = ("moe", "extend", "decode", "dense")
# A Triton; the engines of experts, and of attention and dense GEMMs, which pin about this Triton if
# an engine on disk does; shared bytes and registers of each family's kernel.
RELEASES = [
    ("3.1.0", (OLD, OLD), ((6_144, 55), (24_578, 236), (13_312, 92), (12_288, 94))),
    ("3.2.0", (OLD, OLD), ((6_144, 54), (24_576, 252), (11_264, 70), (12_288, 56))),
    ("3.3.1", (OLD, OLD), ((6_144, 40), (24_576, 255), (11_264, 72), (6_144, 56))),
    (
        "3.4.0",
        ("vllm==0.10.2", "sglang==0.5.2"),
        ((6_144, 40), (24_576, 230), (11_264, 64), (6_144, 56)),
    ),
    (
        "3.5.1",
        ("vllm==0.15.1", "sglang==0.5.12"),
        ((6_144, 38), (24_576, 255), (11_264, 64), (6_144, 56)),
    ),
    (
        "3.6.0",
        ("sglang==0.5.16", "sglang==0.5.16"),
        ((6_144, 48), (24_576, 255), (11_264, 64), (6_144, 56)),
    ),
    (
        "3.7.0",
        ("sglang==0.5.16", "sglang==0.5.16"),
        ((6_144, 48), (24_576, 255), (11_264, 64), (6_144, 56)),
    ),
    (
        "3.8.0",
        ("sglang==0.5.23", "sglang==0.5.23"),
        ((6_144, 48), (24_576, 253), (11_264, 59), (6_144, 56)),
    ),
    (
        "3.9.0",
        ("sglang==0.5.23", "sglang==0.5.23"),
        ((6_144, 48), (24_576, 254), (11_264, 59), (6_144, 56)),
    ),
]
# This project has other code for each of these, and 3.8.0 is the newest that an engine pins.
OTHER_CODE = ("3.1.0", "3.2.0", "3.3.1", INSTALLED, "3.8.0")


NEWEST = next(one for one in RELEASES if one[0] == "3.8.0")
FEW = "moe", "dense"
ON_EACH_COMMIT = [(*one, FEW) for one in RELEASES if one[0] in OTHER_CODE and one != NEWEST]


@pytest.mark.parametrize(
    ("version", "engines", "figures", "families"),
    only(
        [*ON_EACH_COMMIT, (*NEWEST, FAMILIES)],
        [*ON_EACH_COMMIT, *((*one, FAMILIES) for one in RELEASES)],
    ),
)
def test_a_kernel_of_each_family_compiles_with_each_triton(
    tmp_path, version, engines, figures, families
):
    """In processes of its own; and other processes find the result in the folder."""
    every = dict(zip(FAMILIES, one_of_each_family(*engines), strict=True))
    jobs = {family: every[family] for family in families}
    triton = release(version)
    with Farm(1, 240, tmp_path, triton=triton) as farm:
        farm.submit(jobs.values())
        found = dict(farm.completed())
    results = {family: found[job] for family, job in jobs.items()}
    for family, one in results.items():
        assert (one.status, one.detail) == (Status.OK, ""), family
    numbers = {family: (one.shared_bytes, one.n_regs) for family, one in results.items()}
    known = dict(zip(FAMILIES, figures, strict=True))
    assert numbers == {family: known[family] for family in families}

    with Farm(1, 240, tmp_path, triton=triton) as other:
        other.submit(jobs.values())
        again = dict(other.completed())
        assert (other.compiled, other.cached) == (0, len(jobs))
    assert again == {job: replace(one, cached=True) for job, one in found.items()}


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


def test_a_folder_copied_from_a_machine_with_another_python_is_told(tmp_path, job):
    folder = tmp_path / "triton-3.8.0"
    (folder / "triton").mkdir(parents=True)
    (folder / "triton/__init__.py").write_text("raise ImportError('undefined symbol: PyObject_')")
    wheel = folder / "triton-3.8.0.dist-info/WHEEL"
    wheel.parent.mkdir()
    wheel.write_text("Wheel-Version: 1.0\nTag: cp39-cp39-manylinux_2_28_x86_64\n")
    with Farm(1, 240, tmp_path, triton=TritonRelease("3.8.0", folder)) as farm:
        farm.submit([job])
        with pytest.raises(CompilerUnavailable, match=r"undefined.*added for Python 3\.9"):
            list(farm.completed())
    assert release("3.8.0").for_another_python() == ""


@pytest.mark.parametrize("version", only(["3.8.0"], ["3.1.0", "3.8.0"]))
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
    assert found.note.endswith("tuner list engines --add sglang==0.5.99")


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


def test_a_gpu_that_the_release_s_own_ptxas_does_not_know_gets_another_ptxas(tmp_path):
    """Triton 3.4.0 knows no DGX Spark. Without any other ptxas, that is no verdict on a kernel."""
    spark = cuda_target(12, 1)
    kernels = lift_fused_moe(find_engine("sglang==0.5.2"))
    job = CompileJob(
        kernels.lifted, kernels.bind(SMALL_MOE, Gemm.UP, 16, TILE, spark).variant(), spark
    )
    release("3.8.0")  # its ptxas is of CUDA 12.9, as Triton 3.4.0 takes
    with Farm(1, cache_dir=tmp_path / "with", triton=release("3.4.0")) as farm:
        farm.submit([job])
        (compiled,) = dict(farm.completed()).values()
    assert compiled.status is Status.OK, compiled.detail
    assert not list((tmp_path / "with" / "compiled").rglob("*.json"))  # another ptxas may come
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(CompilerUnavailable, match="does not know sm_121: set TRITON_PTXAS_PATH"),
    ):
        own = release("3.4.0").folder / "triton/backends/nvidia/bin/ptxas"
        patch.setenv("TRITON_PTXAS_PATH", str(own))
        with Farm(1, cache_dir=tmp_path / "without", triton=release("3.4.0")) as farm:
            farm.submit([job])
            list(farm.completed())


def test_another_ptxas_may_lie_in_any_folder_with_a_triton(tmp_path, monkeypatch):
    added, installed = tmp_path / "engines", tmp_path / "site-packages"
    roots = [added / "triton-9.9.0" / "triton", installed / "triton"]
    for root in roots:
        (root / "backends/nvidia/bin").mkdir(parents=True)
        (root / "backends/nvidia/bin/ptxas").touch()
        (root / "__init__.py").write_text("__version__ = '9.9.0'\n")
    monkeypatch.setenv("TUNER_ENGINE_PATH", str(added))
    monkeypatch.syspath_prepend(installed)
    assert {root / "backends/nvidia/bin/ptxas" for root in roots} <= set(ptxas._others())
