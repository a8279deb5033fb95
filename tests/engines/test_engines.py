"""Finding engines on disk, and what lies in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from cases import L40S
from real_sglang import RELEASES, kernel_source, package

from tuner.engines.engine import Engine, engine_module, find_engine, release_of, version_order
from tuner.engines.sglang.package import DEFAULT_VERSION, SGLang
from tuner.errors import BadProblem, UnknownEngine, UnsupportedFamily, UnsupportedKernel
from tuner.families.fused_moe.engine import format_file_name, moe_engine
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.problems.dtypes import Dtype

MOE = "srt/layers/moe/moe_runner/triton_utils"


def make_package(parent: Path, version: str, *, told_by: str = "_version.py") -> Path:
    """A package of a few bytes that says its version in one way."""
    root = parent / "sglang"
    root.mkdir(parents=True)
    (root / "__init__.py").write_text("raise RuntimeError('engines are never imported')\n")
    if told_by == "dist-info":
        info = parent / f"sglang-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    elif told_by != "folder":
        (root / told_by).write_text(f"x = 1\n__version__ = version = {version!r}\n")
    return root


@pytest.fixture
def bare(monkeypatch, tmp_path) -> Path:
    """No engine installed or unpacked; the folder stands for sys.prefix."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not Path(p, "sglang").exists()])
    return tmp_path


def unpacked(prefix: Path, version: str) -> Path:
    return make_package(prefix / "share/tuner/engines" / f"sglang-{version}", version)


# Finding


@pytest.mark.parametrize("version", RELEASES)
def test_an_exact_version_is_that_one(version):
    engine = find_engine(f"sglang=={version}")
    assert (engine.name, engine.version, engine.root) == ("sglang", version, package(version))


def test_without_a_version_what_tests_unpack_changes_nothing(bare):
    unpacked(bare, "0.5.9")
    unpacked(bare, "0.5.10rc1")
    assert find_engine("sglang", {}).version == "0.5.10rc1"
    unpacked(bare, DEFAULT_VERSION)
    unpacked(bare, "9.0.0")
    assert find_engine("sglang", {}).version == DEFAULT_VERSION


def test_a_folder_that_make_has_not_finished_is_passed_over(bare):
    make_package(bare / "share/tuner/engines/sglang-0.5.16.part", "0.5.16")
    with pytest.raises(UnknownEngine, match="no sglang on this machine"):
        find_engine("sglang", {})


def test_engine_path_goes_before_unpacked_ones(bare, tmp_path):
    unpacked(bare, DEFAULT_VERSION)
    plain = make_package(tmp_path / "plain", "0.5.1")
    newer = make_package(tmp_path / "many" / "sglang-0.5.3", "0.5.3")
    make_package(tmp_path / "many" / "sglang-0.5.2", "0.5.2")
    environ = {"TUNER_ENGINE_PATH": os.pathsep.join([str(plain.parent), str(tmp_path / "many")])}
    assert find_engine("sglang", environ).root == newer
    assert find_engine("sglang==0.5.1", environ).root == plain
    assert find_engine(f"sglang=={DEFAULT_VERSION}", environ).version == DEFAULT_VERSION


def test_the_installed_one_goes_first(bare, monkeypatch, tmp_path):
    installed = make_package(tmp_path / "site", "0.5.7", told_by="dist-info")
    unpacked(bare, DEFAULT_VERSION)
    newer = make_package(tmp_path / "other", "0.5.20")
    monkeypatch.syspath_prepend(str(installed.parent))
    environ = {"TUNER_ENGINE_PATH": str(newer.parent)}
    engine = find_engine("sglang", environ)
    assert (engine.version, engine.root) == ("0.5.7", installed)
    assert find_engine("sglang==0.5.20", environ).root == newer


@pytest.mark.parametrize("told_by", ["dist-info", "_version.py", "version.py", "folder"])
def test_where_the_version_is_read(bare, tmp_path, told_by):
    make_package(tmp_path / "many" / "sglang-0.5.4", "0.5.4", told_by=told_by)
    environ = {"TUNER_ENGINE_PATH": str(tmp_path / "many")}
    assert find_engine("sglang", environ).version == "0.5.4"


def test_a_checkout_that_does_not_say_its_version(bare, tmp_path):
    make_package(tmp_path / "checkout", "", told_by="folder")
    environ = {"TUNER_ENGINE_PATH": str(tmp_path / "checkout")}
    assert find_engine("sglang", environ).version == "0.0.0.dev0"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "sglang==0.5.13",
            r"here, only 0\.4\.4, 0\.5\.12: `tuner list engines --add sglang==0\.5\.13` adds it",
        ),
        ("sglang==", "no sglang== here"),
        ("sglan", "unknown engine 'sglan'; did you mean 'sglang'"),
        ("sglang>=0.5", "unknown engine 'sglang>=0.5'; did you mean 'sglang'"),
        ("tgi", "unknown engine 'tgi'; write sglang or vllm"),
        ("", "unknown engine ''; write sglang"),
    ],
)
def test_unknown_engines(bare, spec, message):
    unpacked(bare, "0.5.12")
    unpacked(bare, "0.4.4")
    with pytest.raises(UnknownEngine, match=message) as raised:
        find_engine(spec, {})
    assert "\n" not in str(raised.value)


def test_versions_are_ordered_as_releases_are():
    ordered = [
        *("unknown", "0.4.3", "0.4.3.post2", "0.4.3.post10", "0.4.10", "0.5.0rc2", "0.5.0rc10"),
        *("0.5.0-patched", "0.5.0", "0.5.0.post1", "0.5.2", "0.5.12", "1.0.0.dev3", "1.0.0"),
    ]
    backwards = ordered[::-1]
    assert sorted(backwards, key=version_order) == ordered


@pytest.mark.parametrize("text", ["0.5.12", "0.5.12rc1", "0.5.12+cu9", "0.5.12-x"])
def test_a_release_is_the_same_whatever_follows_it(text):
    assert release_of(text) == (0, 5, 12)
    assert release_of("0.5") == (0, 5, 0)
    assert (0, 5, 12) < release_of("0.5.12.post2") == (0, 5, 12, 2) < release_of("0.5.13")


@pytest.mark.parametrize("text", ["", "main", "5", "-1.2"])
def test_what_is_no_version_is_refused(text):
    with pytest.raises(BadProblem, match="not an engine version such as"):
        release_of(text)


def test_nothing_of_the_engine_is_imported():
    """Neither the engine nor torch, triton: adapters serve light processes."""
    program = (
        "import sys; from tuner.engines.engine import engine_module, find_engine;"
        "from tuner.devices.table import find_device;"
        "from tuner.families.fused_moe.engine import moe_engine;"
        "from tuner.problems.registry import parse_problem;"
        "p = parse_problem('fused_moe:E=256,N=64,K=7168,top_k=8,dtype=fp8_w8a8');"
        "e = moe_engine(find_engine('sglang==0.5.16')); d = find_device('L40S');"
        "e.incumbents(p, d, 16, '3.6.0'); next(iter(e.shipped())); e.lift();"
        "assert not {'sglang', 'torch', 'triton', 'optuna', 'sqlalchemy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# Layouts


@pytest.fixture(params=RELEASES)
def engine(request) -> Engine:
    return find_engine(f"sglang=={request.param}")


def test_kernels_that_are_not_where_they_were(tmp_path):
    engine = SGLang("7.0.0", tmp_path)
    with pytest.raises(
        UnsupportedKernel, match=r"sglang 7\.0\.0 has no fused_moe_kernel in the files"
    ):
        kernel_source(engine, "fused_moe")
    with pytest.raises(UnsupportedKernel, match=r"sglang 7\.0\.0 does not keep get_moe_configs"):
        _ = moe_engine(engine).package_root
    with pytest.raises(UnsupportedFamily, match="fused_mo is not tuned for sglang"):
        engine_module("sglang", "fused_mo")


# What is shipped


def test_the_corpus(engine):
    """Counted in the wheels by hand: `find -name 'E=*device_name=NVIDIA*.json' | wc -l`."""
    moe = moe_engine(engine)
    files = list(moe.shipped())
    count = {"0.4.4": 94, "0.5.2": 176, "0.5.12": 297, "0.5.16": 326, "0.5.23": 356}
    assert len(files) == count[engine.version]
    assert all(file.key.device.startswith("NVIDIA_") for file in files)
    assert all(file.entries and not file.oddities for file in files)
    assert {file.triton is None for file in files} == {engine.version == "0.4.4"}
    assert any(file.key.gemm is Gemm.DOWN for file in files) is moe.has_down_files()
    for file in files:
        assert file.path.name == format_file_name(file.key)
        folder = moe.config_dir(moe.package_root, file.triton or "any")
        assert file.path.parent == folder


def test_other_vendors_files_are_given_when_asked_for(engine):
    every = list(moe_engine(engine).shipped(vendor=""))
    vendors = Counter(file.key.device.partition("_")[0] for file in every)
    assert vendors["AMD"] > 20
    assert any("waves_per_eu" in entry for file in every for entry in file.entries.values())
    assert not [file.path.name for file in every if file.oddities]


def test_an_unreadable_shipped_file_is_reported_and_not_fatal(tmp_path):
    root = tmp_path / "sglang"
    source = package("0.5.16")
    (root / MOE / "configs" / "triton_3_6_0").mkdir(parents=True)
    shutil.copy(source / MOE / "fused_moe_triton_config.py", root / MOE)
    folder = root / MOE / "configs" / "triton_3_6_0"
    (folder / "E=1,N=2,device_name=NVIDIA_L40S.json").write_text("{")
    (folder / "E=1,N=3,device_name=NVIDIA_L40S,later=1.json").write_text("{}")
    (file,) = moe_engine(SGLang("0.5.16", root)).shipped()
    assert not file.entries
    assert "not JSON" in file.oddities[0]


# What the engine would run


def copy_loader(tmp_path: Path, version: str, *edits: tuple[str, str]) -> SGLang:
    """A release's loader with its text edited, as a later release might."""
    real = moe_engine(find_engine(f"sglang=={version}"))
    source = real.package_root / "fused_moe_triton_config.py"
    text = source.read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    root = tmp_path / "sglang"
    (root / MOE).mkdir(parents=True)
    (root / MOE / source.name).write_text(text)
    return SGLang("9.9.9", root)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "if _use_low_smem_fp8_default()",
            "if _is_lovelace()",
            "has no '_is_lovelace', which get_default",
        ),
        ("is_marlin: bool,", "is_marlin: bool,\n    sms: int,", "unknown parameter 'sms'"),
        (
            "get_server_args().enable_deterministic_inference",
            "get_server_args().moe.deterministic",
            "cannot be followed .*moe",
        ),
        ("def get_default_config(", "def get_other_config(", "has no 'get_default_config'"),
    ],
)
def test_a_heuristic_that_uses_something_new_is_refused_by_name(tmp_path, old, new, message):
    engine = copy_loader(tmp_path, "0.5.16", (old, new))
    with pytest.raises(UnsupportedKernel, match=r"sglang 9\.9\.9's .*" + message):
        moe_engine(engine).default_config(FusedMoe(8, 64, 128, 2, Dtype.FP8_W8A8), L40S, 1)


def test_the_heuristic_follows_the_releases_own_constants(tmp_path):
    """The cut-off between large and small shared memory is lifted too, not ours."""
    problem = FusedMoe(8, 64, 128, 2, Dtype.FP8_W8A8)
    now = moe_engine(find_engine("sglang==0.5.16")).default_config(problem, L40S, 1)
    cut_off = "_LOW_SMEM_FP8_DEFAULT_CUTOFF_BYTES = "
    edited = copy_loader(tmp_path, "0.5.16", (f"{cut_off}128 * 1024", f"{cut_off}9"))
    later = moe_engine(edited).default_config(problem, L40S, 1)
    assert (now["BLOCK_SIZE_K"], later["BLOCK_SIZE_K"]) == (256, 128)
