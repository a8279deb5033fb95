"""Our reading of vLLM's rules, held against the loaders of real releases."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from cases import H200, L40S
from hypothesis import given
from hypothesis import strategies as st
from moe_loader_cases import KINDS, problem, quick, random_entry
from moe_loader_cases import problems as all_problems
from real_vllm import RELEASES, RealVLLM

from tuner.bindings.vllm.fused_moe.files import VLLMFusedMoe, parse_file_name
from tuner.devices.table import find_device
from tuner.engines.config_files import read_config_file
from tuner.engines.engine import find_engine
from tuner.engines.vllm.package import VLLM
from tuner.errors import BadProblem, MalformedConfigFile, UnsupportedKernel
from tuner.families.fused_moe.engine import MoeEngine, ShippedFile, format_file_name, moe_engine
from tuner.families.fused_moe.problem import BATCH_SIZES, Gemm
from tuner.problems.dtypes import Dtype


@pytest.fixture(scope="module", params=RELEASES)
def real(request) -> RealVLLM:
    return RealVLLM(request.param)


@pytest.fixture(scope="module")
def engine(real: RealVLLM) -> MoeEngine:
    return moe_engine(find_engine(f"vllm=={real.version}"))


@pytest.fixture(scope="module")
def corpus(engine: MoeEngine) -> list[ShippedFile]:
    return list(engine.shipped(vendor=""))


problems = all_problems(KINDS)


@quick
@given(problem=problems, card=st.sampled_from(["L40S", "H100", "H200", "H200 NVL", "RTX 5090"]))
def test_names(real, engine, problem, card):
    device = find_device(card)
    name = engine.file_name(problem, device, Gemm.UP)
    assert name == real.file_name(problem, device.name)
    key = parse_file_name(name)
    assert format_file_name(key, ",") == name
    assert (key.E, key.intermediate_size) == (problem.E, problem.N)


def test_a_slash_in_a_cards_name_is_replaced_since_a_release_does_so(real, engine):
    device = replace(L40S, name="NVIDIA_A/B")
    name = engine.file_name(problem(), device, Gemm.UP)
    assert name == real.file_name(problem(), device.name)
    assert ("A_B" in name) is (real.version == "0.33.0")


def test_int8_activations_have_no_file_and_down_has_none_to_itself(engine):
    with pytest.raises(UnsupportedKernel, match="int8_w8a8"):
        engine.file_name(problem(dtype=Dtype.INT8_W8A8, per_channel=True), L40S, Gemm.UP)
    with pytest.raises(UnsupportedKernel, match="one file serves both"):
        engine.file_name(problem(), L40S, Gemm.DOWN)


@pytest.mark.parametrize(
    "name",
    [
        "E=8,N=64,device_name=NVIDIA_H100,dtype=float8.json",
        "E=8,N=64,device_name=NVIDIA_H100,dtype=bf16.json",
        "E=8,N=64,device_name=NVIDIA_H100,dtype=int8_w8a8.json",
        "E=8,N=64,device_name=NVIDIA_H100,block_shape=[128,128].json",
        "E=8,N=64,device_name=NVIDIA_H100,dtype=fp8_w8a8,block_shape=[128, 128].json",
        "E=8,N=64,device_name=NVIDIA_H100,dtype=fp8_w8a8,per_channel_quant=True.json",
        "E=8,N=64,device_name=NVIDIA_H100_down.json",
        "E=8,N=64,device_name=NVIDIA_H100,dtype=int4_w4a16,backend=flydsl.json",
    ],
)
def test_names_that_vllm_never_looks_for_are_refused(name):
    with pytest.raises(MalformedConfigFile):
        parse_file_name(name)


@pytest.mark.parametrize("word", ["fp8_w8a16", "float32"])
def test_all_words_of_names_are_known(word):
    key = parse_file_name(f"E=8,N=64,device_name=NVIDIA_H100,dtype={word}.json")
    assert (key.dtype, key.intermediate_size) == (word, 64)


def test_shipped_files_are_found_as_the_loader_finds_them(real, engine, corpus):
    """Every file in the package, asked for through the problem that its name stands for."""
    asked = 0
    for file in corpus:
        dtype = Dtype(file.key.dtype) if file.key.dtype else Dtype.BFLOAT16
        block = (0, 1) if dtype is Dtype.INT4_W4A16 else file.key.block_shape
        try:
            wanted = problem(file.key.E, file.key.intermediate_size, dtype, block)
        except BadProblem:  # a few shipped names have an N that is no multiple of the block
            continue
        card = replace(L40S, name=file.key.device)
        found = engine.find_file(engine.package_root, wanted, card, Gemm.UP, "3.6.0")
        if found is None:  # the H200's family has one name, and vLLM renames some cards
            renamed = engine.engine.card_name(file.key.device) != file.key.device
            assert renamed or "H200" in file.key.device
            continue
        for size in (1, 23, 100_000) if file.entries else ():
            theirs = real.optimal(wanted, card.name, size)
            assert dict(engine.pick(file.entries, size)) == theirs
            asked += 1
    assert asked > 400


@quick
@given(
    wanted=problems,
    sizes=st.lists(st.integers(1, 600), min_size=1, max_size=6, unique=True),
    seed=st.integers(0, 2**16),
    batch_size=st.integers(1, 700),
)
def test_selection_in_a_folder(real, engine, wanted, sizes, seed, batch_size):
    rng = random.Random(seed)  # noqa: S311
    entries = {str(size): random_entry(rng) for size in sizes}
    with TemporaryDirectory() as folder:
        root = Path(folder)
        path = engine.config_dir(root, "3.6.0") / engine.file_name(wanted, L40S, Gemm.UP)
        path.write_text(json.dumps(entries))
        theirs = real.optimal(wanted, L40S.name, batch_size, root)
        assert engine.find_file(root, wanted, L40S, Gemm.UP, "3.6.0") == path
        found = read_config_file(path, engine.fields).entries
        assert dict(engine.pick(found, batch_size)) == theirs


@pytest.mark.parametrize("order", [(8, 16), (16, 8)])
def test_ties_go_to_the_entry_that_stands_first(real, engine, tmp_path, order):
    entries = {size: {**random_entry(random.Random(1)), "GROUP_SIZE_M": size} for size in order}  # noqa: S311
    (tmp_path / engine.file_name(problem(), L40S, Gemm.UP)).write_text(json.dumps(entries))
    runs = engine.incumbents(problem(), L40S, 12, "3.6.0", tmp_path)["shipped"]
    assert dict(runs[Gemm.UP]) == real.optimal(problem(), L40S.name, 12, tmp_path)
    assert runs[Gemm.UP] == runs[Gemm.DOWN]
    assert runs[Gemm.UP]["GROUP_SIZE_M"] == order[0]


@pytest.mark.parametrize("device", [L40S, H200], ids=lambda device: device.name)
def test_default_heuristic(real, engine, device):
    for kind in KINDS:
        wanted = problem(63, 1280, *kind)
        for batch_size in BATCH_SIZES:
            theirs = real.optimal(wanted, device.name, batch_size)
            if wanted.grouped:
                with pytest.raises(UnsupportedKernel, match="it is not tuned"):
                    engine.default_config(wanted, device, batch_size)
                continue
            theirs.pop("SPLIT_K", None)
            assert dict(engine.default_config(wanted, device, batch_size)) == theirs


def test_batch_invariance_turns_files_off(real, engine, tmp_path):
    """The reason for the rows of VLLM_BATCH_INVARIANT in dispatch.toml."""
    rows = {"8": random_entry(random.Random(1))}  # noqa: S311
    (tmp_path / engine.file_name(problem(), L40S, Gemm.UP)).write_text(json.dumps(rows))
    real.envs.VLLM_BATCH_INVARIANT = True
    try:
        found = real.optimal(problem(), L40S.name, 8, tmp_path)
    finally:
        real.envs.VLLM_BATCH_INVARIANT = False
    assert (found == rows["8"]) is (real.version == "0.10.2")


def test_a_folder_without_the_file_leads_to_the_packages(real, engine, tmp_path):
    wanted = problem(8, 14336, Dtype.BFLOAT16)
    card = replace(L40S, name="NVIDIA_H200")
    package = engine.find_file(engine.package_root, wanted, card, Gemm.UP, "3.6.0")
    assert package is not None
    assert engine.find_file(tmp_path, wanted, card, Gemm.UP, "3.6.0") == package
    entries = read_config_file(package, engine.fields).entries
    assert real.optimal(wanted, card.name, 1, tmp_path) == dict(engine.pick(entries, 1))


def test_a_folders_file_goes_before_the_packages(real, engine, tmp_path):
    wanted = problem(8, 14336, Dtype.BFLOAT16)
    card = replace(L40S, name="NVIDIA_H200")
    path = tmp_path / engine.file_name(wanted, card, Gemm.UP)
    assert engine.find_file(tmp_path, wanted, card, Gemm.UP, "3.6.0") not in (None, path)
    mine = {**random_entry(random.Random(1)), "num_stages": 7}  # noqa: S311
    path.write_text(json.dumps({"1": mine}))
    assert engine.find_file(tmp_path, wanted, card, Gemm.UP, "3.6.0") == path
    assert real.optimal(wanted, card.name, 1, tmp_path) == mine


def test_a_key_that_names_triton_is_read_as_the_release_reads_it(real, engine, tmp_path):
    path = tmp_path / engine.file_name(problem(), L40S, Gemm.UP)
    path.write_text(json.dumps({"triton_version": "3.5.0", "8": random_entry(random.Random(1))}))  # noqa: S311
    try:
        theirs = real.optimal(problem(), L40S.name, 8, tmp_path)
    except ValueError:
        assert real.version == "0.10.2"
        with pytest.raises(MalformedConfigFile, match="triton_version"):
            read_config_file(path, engine.fields)
    else:
        assert dict(read_config_file(path, engine.fields).entries[8]) == theirs


def test_a_release_without_the_variable_has_none(tmp_path):
    """0.10.0 read its package alone."""
    known = find_engine("vllm==0.33.0")
    layer = VLLMFusedMoe(known)
    source = layer.rules.source.read_text(encoding="utf-8")
    root = tmp_path / "vllm"
    copy = root / layer.rules.source.relative_to(known.root)
    copy.parent.mkdir(parents=True)
    copy.write_text(source.replace("envs.VLLM_TUNED_CONFIG_FOLDER", "None"))
    assert layer.config_dir_variable == "VLLM_TUNED_CONFIG_FOLDER"
    assert VLLMFusedMoe(VLLM("0.10.0", root)).config_dir_variable is None
    copy.write_text(source.replace("def get_moe_configs(", "def get_configs("))
    with pytest.raises(UnsupportedKernel, match=r"vllm 9\.9 does not keep get_moe_configs"):
        VLLMFusedMoe(VLLM("9.9", root)).find_file(root, problem(), L40S, Gemm.UP, "3.6.0")


def test_a_heuristic_that_uses_something_new_is_refused_by_name(tmp_path):
    known = find_engine("vllm==0.33.0")
    layer = VLLMFusedMoe(known)
    source = layer.rules.source.read_text(encoding="utf-8")
    copy = tmp_path / "vllm" / layer.rules.source.relative_to(known.root)
    copy.parent.mkdir(parents=True)
    copy.write_text(source.replace("num_stages_rocm = 2", "num_stages_rocm = fancy.stages"))
    engine = VLLMFusedMoe(VLLM("9.9", tmp_path / "vllm"))
    with pytest.raises(UnsupportedKernel, match=r"no 'fancy', which get_default_config needs"):
        engine.default_config(problem(), L40S, 8)
