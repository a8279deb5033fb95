"""Our reading of sglang's rules, held against the loaders of real releases."""

from __future__ import annotations

import json
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from cases import H200, L40S
from hypothesis import given
from hypothesis import strategies as st
from moe_loader_cases import INT8_KINDS, KINDS, problem, quick, random_entry
from moe_loader_cases import problems as all_problems
from real_sglang import VERSIONS, RealSGLang
from tiers import only

from tuner.engines.config_files import read_lenient
from tuner.engines.engine import find_engine
from tuner.errors import BadProblem, MalformedConfigFile, UnsupportedKernel
from tuner.families.fused_moe.engine import (
    MoeEngine,
    ShippedFile,
    format_file_name,
    moe_engine,
    parse_file_name,
)
from tuner.families.fused_moe.problem import Gemm
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config

TRITONS = ("3.1.0", "3.2.0", "3.3.1", "3.4.0", "3.5.1", "3.6.0", "3.10.0")


@pytest.fixture(scope="module", params=only(("0.4.4", "0.5.2", "0.5.12", "0.5.23"), VERSIONS))
def real(request) -> RealSGLang:
    return RealSGLang(request.param)


@pytest.fixture(scope="module")
def engine(real: RealSGLang) -> MoeEngine:
    return moe_engine(find_engine(f"sglang=={real.version}"))


SGLANG_KINDS = [*KINDS, *INT8_KINDS]
problems = all_problems(SGLANG_KINDS)


def expected(entries: dict[int, dict] | None) -> list[tuple[int, Config]] | None:
    return None if entries is None else [(size, Config(c)) for size, c in entries.items()]


def ours(engine, root, problem, device, gemm, triton) -> list[tuple[int, Config]] | None:
    path = engine.find_file(root, problem, device, gemm, triton)
    return None if path is None else list(read_lenient(path).entries.items())


@quick
@given(problem=problems)
def test_names(real, engine, problem):
    for gemm in Gemm if engine.has_down_files() else [Gemm.UP]:
        name = engine.file_name(problem, L40S, gemm)
        assert name == real.file_name(problem, L40S.name, gemm)
        key = parse_file_name(name)
        assert format_file_name(key) == name
        assert (key.E, key.intermediate_size, key.gemm) == (problem.E, problem.N, gemm)


@pytest.fixture(scope="module")
def corpus(engine: MoeEngine) -> list[ShippedFile]:
    return list(engine.shipped())


@pytest.mark.parametrize("triton", only(["3.6.0"], ["3.2.0", "3.6.0", "9.9.9"]))
def test_shipped_files_are_found_as_the_loader_finds_them(real, engine, corpus, triton):
    """Every file in the package, asked for through the problem that its name stands for."""
    asked = 0
    for file in corpus:
        dtype = Dtype(file.key.dtype) if file.key.dtype else Dtype.BFLOAT16
        channel = file.key.per_channel_quant or (
            dtype is Dtype.INT8_W8A8 and not file.key.block_shape
        )
        block = (0, 1) if dtype is Dtype.INT4_W4A16 else file.key.block_shape
        try:
            wanted = problem(file.key.E, file.key.intermediate_size, dtype, block, channel)
        except BadProblem:  # a few shipped names have an N that is no multiple of the block
            continue
        device = replace_name(L40S, file.key.device)
        for gemm in Gemm:
            if gemm is Gemm.UP or engine.has_down_files():
                theirs = expected(real.configs(wanted, device.name, gemm, triton))
                root = engine.package_root
                assert ours(engine, root, wanted, device, gemm, triton) == theirs
                asked += 1
    assert asked > 90


def replace_name(device, name):
    return type(device)(**{**vars(device), "name": name})


@st.composite
def trees(draw):
    """Folders of Triton versions, each with some of the up and down files of a few problems."""
    versions = draw(st.lists(st.sampled_from(TRITONS), min_size=1, max_size=4, unique=True))
    asked = draw(st.lists(problems, min_size=1, max_size=2))
    files = draw(
        st.lists(
            st.tuples(
                st.sampled_from(versions),
                st.sampled_from(asked),
                st.sampled_from(Gemm),
                st.lists(st.integers(1, 600), min_size=1, max_size=6, unique=True),
            ),
            max_size=6,
        )
    )
    return versions, asked, files, draw(st.integers(0, 2**16))


def write_tree(engine: MoeEngine, root: Path, versions, files, seed) -> None:
    rng = random.Random(seed)  # noqa: S311
    for version in versions:
        engine.config_dir(root, version).mkdir(parents=True, exist_ok=True)
    for version, wanted, gemm, sizes in files:
        if gemm is Gemm.DOWN and not engine.has_down_files():
            continue
        entries = {size: random_entry(rng) for size in sizes}
        path = engine.config_dir(root, version) / engine.file_name(wanted, L40S, gemm)
        path.write_text(json.dumps(entries))


@quick
@given(tree=trees(), triton=st.sampled_from(TRITONS), batch_size=st.integers(1, 700))
def test_selection_in_any_tree(real, engine, tree, triton, batch_size):
    versions, asked, files, seed = tree
    with TemporaryDirectory() as folder:
        root = Path(folder)
        write_tree(engine, root, versions, files, seed)
        assert asked
        for wanted in asked:
            for gemm in Gemm if engine.has_down_files() else [Gemm.UP]:
                theirs = real.configs(wanted, L40S.name, gemm, triton, root)
                assert ours(engine, root, wanted, L40S, gemm, triton) == expected(theirs)
            check_launch(real, engine, wanted, L40S, batch_size, triton, root)


def check_launch(real, engine, wanted, device, batch_size, triton, root) -> None:
    found = engine.incumbents(wanted, device, batch_size, triton, root)
    smem = device.shared_optin_bytes
    try:
        theirs = real.optimal(wanted, device.name, batch_size, triton, root, smem)
    except AssertionError:  # 0.5.12 stops where BLOCK_SIZE_M of up and down differ
        assert real.version == "0.5.12"
        assert "shipped" not in found
        return
    runs = found.get("shipped", found["default"])
    assert runs == {gemm: Config(config) for gemm, config in theirs.items()}


@pytest.mark.parametrize("device", [L40S, H200], ids=lambda device: device.name)
def test_default_heuristic(real, engine, device):
    for kind in SGLANG_KINDS:
        wanted = problem(64, 512, *kind)
        for batch_size in (1, 32, 64, 65, 4096):
            theirs = real.default(wanted, batch_size, device.shared_optin_bytes)
            assert dict(engine.default_config(wanted, device, batch_size)) == theirs


def test_ties_go_to_the_entry_that_stands_first(real, engine, tmp_path):
    wanted = problem()
    folder = engine.config_dir(tmp_path, "3.6.0")
    folder.mkdir(parents=True)
    block = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1}
    for order in ((8, 16), (16, 8)):
        entries = {size: {**block, "GROUP_SIZE_M": size} for size in order}
        (folder / engine.file_name(wanted, L40S, Gemm.UP)).write_text(json.dumps(entries))
        check_launch(real, engine, wanted, L40S, 12, "3.6.0", tmp_path)
        shipped = engine.incumbents(wanted, L40S, 12, "3.6.0", tmp_path)["shipped"]
        assert shipped[Gemm.UP]["GROUP_SIZE_M"] == order[0]


def test_folders_of_other_tritons_are_searched_from_the_latest_version(real, engine, tmp_path):
    wanted, versions = problem(), ("3.9.0", "3.10.0", "3.2.0")
    files = [(version, wanted, Gemm.UP, [size]) for size, version in enumerate(versions, start=1)]
    write_tree(engine, tmp_path, versions, files, seed=1)
    theirs = real.configs(wanted, L40S.name, Gemm.UP, "3.6.0", tmp_path)
    assert ours(engine, tmp_path, wanted, L40S, Gemm.UP, "3.6.0") == expected(theirs)
    if real.version == VERSIONS[-1]:
        assert list(theirs) == [2]  # of 3.10.0


def test_the_variable_replaces_the_packaged_tree(real, engine, tmp_path):
    """A file that is shipped is not found under an overlay that does not carry it."""
    wanted = problem(8, 3584, Dtype.BFLOAT16)
    (tmp_path / "configs").mkdir()
    honoured = real.version not in ("0.4.4", "0.5.2")
    assert (engine.config_dir_variable is not None) is honoured
    assert real.configs(wanted, L40S.name, Gemm.UP, "3.1.0") is not None
    assert real.configs(wanted, L40S.name, Gemm.UP, "3.1.0", tmp_path) is None
    assert engine.find_file(tmp_path, wanted, L40S, Gemm.UP, "3.1.0") is None


@pytest.mark.parametrize("stray", [None, "triton_main", "triton_3_6_0+git"])
def test_a_root_that_stops_the_engine(real, engine, tmp_path, stray):
    """Versions that list the root's folders fail on a stray one, or on a root without configs."""
    if stray:
        (tmp_path / "configs" / stray).mkdir(parents=True)
    try:
        theirs = real.configs(problem(), L40S.name, Gemm.UP, "3.6.0", tmp_path)
    except (FileNotFoundError, ValueError):
        with pytest.raises(MalformedConfigFile, match=f"sglang {real.version} stops"):
            engine.find_file(tmp_path, problem(), L40S, Gemm.UP, "3.6.0")
    else:
        assert theirs is None
        assert engine.find_file(tmp_path, problem(), L40S, Gemm.UP, "3.6.0") is None


def test_engines_without_down_files_run_up_twice():
    engine = moe_engine(find_engine("sglang==0.4.4"))
    assert not engine.has_down_files()
    with pytest.raises(UnsupportedKernel, match=r"sglang 0\.4\.4 reads no _down files"):
        engine.file_name(problem(), L40S, Gemm.DOWN)
    assert engine.find_file(engine.package_root, problem(), L40S, Gemm.DOWN, "3.6.0") is None
    both = engine.incumbents(problem(8, 3584, Dtype.BFLOAT16), L40S, 64, "3.1.0")["shipped"]
    assert both[Gemm.UP] == both[Gemm.DOWN]
