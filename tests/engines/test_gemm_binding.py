"""sglang's dense GEMMs: bindings are what the real launchers launch, names and picks what the real
loaders read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch
from cases import H200, L40S
from draws import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log_lines import parse_log
from real_gemm import RealGemm
from real_sglang import RELEASES

from tuner.bindings.sglang.dense_gemm import parse_warning, resolve_warning
from tuner.bindings.sglang.dense_gemm.files import format_file_name
from tuner.deploy.load_proof.proof import LoadOutcome
from tuner.devices.table import find_device
from tuner.devices.target import cuda_target
from tuner.engines.config_files import config_file_text, entry_json, read_config_file
from tuner.engines.engine import find_engine
from tuner.engines.sglang.package import SGLang
from tuner.errors import BadProblem, MalformedConfigFile, UnsupportedKernel
from tuner.families.dense_gemm import models
from tuner.families.dense_gemm.engine import GemmEngine, GemmFileKey, gemm_engine
from tuner.families.dense_gemm.problem import BATCH_SIZES, DenseGemm, DensePart, parse_dense_gemm
from tuner.kernels.binding import Constant, Integer, Pointer, TypeConstant
from tuner.models.serving import Serving
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Candidate, Config, Point

SM89, SM90, SM100 = cuda_target(8, 9), cuda_target(9, 0), cuda_target(10, 0)
FP8 = parse_dense_gemm("block_gemm:N=2112,K=7168,dtype=fp8_w8a8,block=128x128")
UNEVEN = parse_dense_gemm("block_gemm:N=500,K=1000,dtype=fp8_w8a8,block=128x128,out=float16")
FP8_32 = parse_dense_gemm("block_gemm:N=512,K=1024,dtype=fp8_w8a8,block=32x32")
INT8 = parse_dense_gemm("block_gemm:N=512,K=1024,dtype=int8_w8a8,block=128x128")
CHANNEL = parse_dense_gemm("channel_gemm:N=512,K=1024,dtype=fp8_w8a8")
CHANNEL_INT8 = parse_dense_gemm("channel_gemm:N=512,K=1024,dtype=int8_w8a8")
PROBLEMS = (FP8, UNEVEN, FP8_32, INT8, CHANNEL, CHANNEL_INT8)
TILES = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "num_warps": 2}
TILE = Config({**TILES, "GROUP_SIZE_M": 8, "num_stages": 4})
NEWEST = "0.5.23"


@pytest.fixture(scope="module", params=RELEASES)
def real(request) -> RealGemm:
    return RealGemm(request.param)


@pytest.fixture(scope="module")
def engine(real: RealGemm) -> GemmEngine:
    return gemm_engine(find_engine(f"sglang=={real.version}"))


@pytest.fixture(scope="module")
def newest() -> GemmEngine:
    return gemm_engine(find_engine(f"sglang=={NEWEST}"))


def has_kernel(version: str, problem: DenseGemm) -> bool:
    return problem.block is not None or version != "0.4.4"


def same(binding, launched, tensors, scratch) -> None:
    """Every argument of a binding is the real launch's."""
    short = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
    short |= {torch.float8_e4m3fn: "fp8e4nv", torch.int8: "i8"}
    assert binding.function == launched.kernel
    assert {p.name for p in binding.parameters if p.required} <= launched.arguments.keys()
    for name, value in launched.arguments.items():
        bound = binding.arguments[name]
        if isinstance(value, torch.Tensor):
            assert bound == Pointer(short[value.dtype], bound.operand), name
            if bound.operand in scratch:
                assert scratch[bound.operand] == (tuple(value.shape), short[value.dtype])
            else:
                # triton_scaled_mm gets a view of B.
                assert value.data_ptr() == tensors[bound.operand].data_ptr(), name
        elif isinstance(bound, TypeConstant):
            assert bound.dtype == str(value)
        else:
            assert isinstance(bound, Constant | Integer)
            assert (type(bound.value), bound.value) == (type(value), value), name
    assert {**{"num_warps": 4, "num_stages": 3}, **launched.options} == binding.options


@pytest.mark.parametrize("target", [SM89, SM90], ids=lambda target: target.name)
@pytest.mark.parametrize("problem", PROBLEMS, ids=DenseGemm.spec)
def test_bindings_are_what_the_launcher_launches(real, engine, problem, target):
    kernels = engine.lift()
    if not has_kernel(real.version, problem):
        with pytest.raises(UnsupportedKernel, match="0.4.4 has no Triton kernel for channel_gemm"):
            kernels.default_config(problem, 8, target)
        return
    for M in (1, 7, 48, 200):
        default = kernels.default_config(problem, M, target)
        cases = [(None, default)]
        if real.reads(problem):
            tile = TILE if problem.block else Config({**TILES, "num_stages": 4})
            cases += [(tile, tile), (default, default)]
        extra = kernels.choices(problem, target)
        for more in ({"SWAP_AB": 1}, {"SPLIT_K": 4}, {"SWAP_AB": 1, "SPLIT_K": 2}):
            if more.keys() <= extra.keys():
                cases.append((TILE.replace(**more), TILE.replace(**more)))
        for entry, config in cases:
            loaded = entry and engine.effective(problem, entry, target)
            launched, tensors = real.run(problem, M, loaded, target)
            found = kernels.launches(problem, M, config, target)
            assert len(found) == len(launched) == (2 if config.get("SPLIT_K", 1) > 1 else 1)
            for ours, theirs in zip(found, launched, strict=True):
                assert ours.grid == theirs.grid
                same(ours.binding, theirs, tensors, ours.scratch)


def test_only_the_newest_takes_swaps_and_splits_and_only_on_sm_90(engine, real):
    kernels = engine.lift()
    for problem in (FP8, FP8_32, INT8):
        for target in (SM89, SM90, SM100):
            hopper = real.version == NEWEST and target == SM90 and problem is not INT8
            expected = {"SWAP_AB", "SPLIT_K"} if hopper else set()
            assert set(kernels.choices(problem, target)) == expected
            if not hopper:
                with pytest.raises(UnsupportedKernel, match=f"{target.name} takes no config key"):
                    kernels.launches(problem, 1, TILE.replace(SWAP_AB=1), target)


def test_splits_are_no_more_than_the_blocks_of_k(newest):
    small = parse_dense_gemm("block_gemm:N=512,K=512,dtype=fp8_w8a8,block=128x128")
    assert newest.lift().choices(small, SM90)["SPLIT_K"] == (1, 2, 4)
    assert newest.lift().choices(FP8, SM90)["SPLIT_K"] == (1, 2, 4, 8, 16, 32)


def test_keys_that_do_nothing_do_not_reach_the_kernel(newest):
    """The plain kernel has no SWAP_AB: an entry with a false one would stop the server."""
    neutral = TILE.replace(SWAP_AB=0, SPLIT_K=1)
    assert newest.effective(FP8, neutral, SM90) == TILE
    swapped = TILE.replace(SWAP_AB=1)
    assert newest.effective(FP8, swapped.replace(SPLIT_K=1), SM90) == swapped
    kernels = newest.lift()
    assert kernels.launches(FP8, 1, neutral, SM90) == kernels.launches(FP8, 1, TILE, SM90)
    [launch] = kernels.launches(FP8, 1, neutral, SM90)
    assert launch.binding.function == "_w8a8_block_fp8_matmul"


def test_both_kernels_of_a_split_share_its_scratch(newest):
    first, second = newest.lift().launches(FP8, 5, TILE.replace(SPLIT_K=4), SM90)
    assert first.scratch == second.scratch == {"scratch1": ((4, 5, 2112), "fp32")}
    assert first.binding.arguments["C"] == Pointer("fp32", "scratch1")
    assert second.binding.arguments["Parts"] == Pointer("fp32", "scratch1")
    assert second.binding.arguments["Out"] == Pointer("bf16", "c")
    bound = newest.lift().binder(FP8, SM90)
    lifted, binding = bound(Candidate(Point(5, DensePart.DENSE), TILE.replace(SPLIT_K=4)))
    assert binding == first.binding
    assert {first.binding.function, second.binding.function} <= lifted.functions.keys()


@pytest.mark.parametrize(
    ("problem", "change", "says"),
    [
        (FP8, {"BLOCK_SIZE_KK": 1}, "takes no config key 'BLOCK_SIZE_KK'; did you mean"),
        (FP8, {"USE_TMA": 1}, "takes no config key 'USE_TMA'"),
        (FP8, {"BLOCK_SIZE_K": 0}, "needs a BLOCK_SIZE_K of at least 1, not 0"),
        (CHANNEL, {}, "takes no config key 'GROUP_SIZE_M'"),
        (CHANNEL_INT8, {}, "takes no config key 'GROUP_SIZE_M'"),
        (FP8, {"SPLIT_K": 3}, "cannot be followed"),  # the launcher asserts a power of two
    ],
)
def test_entries_that_would_stop_a_server_are_refused(newest, problem, change, says):
    with pytest.raises(UnsupportedKernel, match=says):
        newest.lift().launches(problem, 4, TILE.replace(**change), SM90)


def test_an_entry_without_a_tile_is_refused(newest):
    with pytest.raises(UnsupportedKernel, match=r"needs BLOCK_SIZE_M, .*GROUP_SIZE_M"):
        newest.lift().launches(FP8, 4, Config({"num_warps": 4}), SM90)
    with pytest.raises(UnsupportedKernel, match="needs num_stages"):
        newest.lift().launches(CHANNEL, 4, Config(TILES), SM90)
    with pytest.raises(BadProblem, match="at least 1"):
        newest.lift().default_config(FP8, 0, SM90)


@pytest.mark.parametrize(("version", "problem"), [("0.5.16", CHANNEL), (NEWEST, CHANNEL_INT8)])
def test_what_reads_no_file_runs_its_default_alone(version, problem):
    engine = gemm_engine(find_engine(f"sglang=={version}"))
    kernels = engine.lift()
    default = kernels.default_config(problem, 64, SM89)
    assert kernels.launches(problem, 64, default, SM89)
    with pytest.raises(UnsupportedKernel, match="always runs its default"):
        kernels.launches(problem, 64, default.replace(num_warps=8), SM89)
    with pytest.raises(UnsupportedKernel, match="reads no file for channel_gemm"):
        engine.file_name(problem, L40S)
    assert engine.find_file(engine.package_root, problem, L40S) is None
    assert engine.incumbents(problem, L40S, 64) == {"default": default}


# Loaders


def problem_of(key: GemmFileKey) -> DenseGemm:
    return DenseGemm(key.N, key.K, Dtype(key.dtype), key.block)


def telling(entry: dict) -> dict:
    """An entry of the real loader without the keys that do nothing; the launcher uses `get`."""
    return {k: v for k, v in entry.items() if (k, v) not in (("SWAP_AB", False), ("SPLIT_K", 1))}


def every_file(engine) -> Iterator:
    found = [file for file in engine.shipped() if file.entries]
    assert len(found) > 100
    return iter(found)


def test_every_shipped_file_is_read_and_picked_from_as_the_loader_does(real, engine):
    """Sizes, order, BLOCK_SIZE_K and null entries; and the entry that a launcher takes."""
    sizes = sorted({*BATCH_SIZES, 3, 5, 12, 20, 40, 80, 1280, 5000, 9999})
    for file in every_file(engine):
        assert file.oddities == ()
        problem, fields = problem_of(file.key), engine.fields_of(file.key)
        theirs = real.entries(problem, file.key.device)
        assert theirs is not None
        ours = {
            m: entry_json(engine.effective(problem, e, SM89), fields) if e else None
            for m, e in file.entries.items()
        }
        expected = {m: telling(e) if e else None for m, e in theirs.items()}
        assert list(ours.items()) == list(expected.items()), file.path.name
        for M in sizes:
            # The launchers' own words.
            nearest = theirs[min(theirs.keys(), key=lambda x: abs(x - M))]
            picked = engine.effective(problem, engine.pick(file.entries, M), SM89)
            assert dict(picked) == telling(nearest or {})


def test_shipped_counts(engine, real):
    counts = {"0.4.4": 152, "0.5.2": 152, "0.5.12": 158, "0.5.16": 158, "0.5.23": 180}
    assert len(list(engine.shipped(vendor=""))) == counts[real.version]
    devices = {file.key.device for file in engine.shipped()}
    assert all(device.startswith("NVIDIA_") for device in devices)


def test_incumbents_are_the_default_and_the_shipped_entry(newest):
    served = parse_dense_gemm("block_gemm:N=7168,K=2048,dtype=fp8_w8a8,block=128x128")
    found = newest.incumbents(served, H200, 100)
    assert set(found) == {"default", "shipped"}
    assert found["default"]["BLOCK_SIZE_M"] == 64
    assert set(newest.incumbents(served, L40S, 100)) == {"default"}


def test_a_null_entry_is_no_incumbent(newest):
    """There the engine runs CUTLASS."""
    files = [file for file in newest.shipped() if file.key.block is None]
    assert len(files) == 4
    for file in files:
        device = find_device(file.key.device)
        for size, entry in file.entries.items():
            found = newest.incumbents(problem_of(file.key), device, size)
            assert ("shipped" in found) == bool(entry)
    assert any(not entry for file in files for entry in file.entries.values())


gemms = st.builds(
    DenseGemm,
    st.integers(1, 99_999),
    st.integers(1, 99_999),
    st.sampled_from([Dtype.FP8_W8A8, Dtype.INT8_W8A8]),
    st.sampled_from([(128, 128), (32, 32), (64, 128)]),
)
quick = settings(times(0.4), suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(problem=gemms)
def test_names_are_what_the_loader_looks_for(real, engine, problem, tmp_path_factory):
    root = tmp_path_factory.mktemp("named")
    (root / "configs").mkdir()
    assert engine.find_file(root, problem, L40S) is None
    path = root / "configs" / engine.file_name(problem, L40S)
    path.write_text(config_file_text({4: TILE.replace(BLOCK_SIZE_K=problem.block[1])}))
    assert real.entries(problem, L40S.name, root)
    assert engine.find_file(root, problem, L40S) == path
    assert format_file_name(engine.read_file_name(path.name)) == path.name


@pytest.mark.parametrize("problem", [FP8, FP8_32, INT8], ids=DenseGemm.spec)
def test_block_size_k_is_raised_as_each_loader_raises_it(real, engine, problem, tmp_path):
    (tmp_path / "configs").mkdir()
    path = tmp_path / "configs" / engine.file_name(problem, L40S)
    for block_size_k in (16, 32, 48, 64, 96, 128, 256):
        entry = TILE.replace(BLOCK_SIZE_K=block_size_k)
        path.write_text(config_file_text({4: entry}))
        theirs = real.entries(problem, L40S.name, tmp_path)
        assert dict(engine.effective(problem, entry, SM89)) == theirs[4]


def test_flags_are_written_as_the_release_writes_them(newest):
    files = newest.shipped()
    shipped = next(one for one in files if any("SWAP_AB" in e for e in one.entries.values()))
    fields = newest.fields_of(shipped.key)
    read = read_config_file(shipped.path, fields)
    text = json.loads(config_file_text(read.entries, fields))
    assert text == json.loads(shipped.path.read_text())
    assert any(entry.get("SWAP_AB") is True for entry in text.values())


def test_null_entries_are_written_as_null(newest):
    for file in newest.shipped():
        if file.key.block is None:
            text = config_file_text(file.entries, newest.fields_of(file.key))
            assert json.loads(text) == json.loads(file.path.read_text())


def test_a_flag_must_be_true_or_false(newest, tmp_path):
    path = tmp_path / "file.json"
    path.write_text(json.dumps({"1": {**TILE, "SWAP_AB": 1}}))
    key = GemmFileKey(512, 1024, "NVIDIA_L40S", "fp8_w8a8", (128, 128))
    with pytest.raises(MalformedConfigFile, match="'SWAP_AB' must be true or false, not 1"):
        read_config_file(path, newest.fields_of(key))


# Names in text

WARNING = (
    "[2026-11-01 10:00:00 TP0] Using default W8A8 Block FP8 kernel config. Performance might be "
    "sub-optimal! Config file not found at /usr/lib/python3/sglang/kernels/ops/gemm/configs/"
    "N=2112,K=7168,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128, 128].json"
)


def test_the_warning_line_names_the_whole_problem():
    assert parse_warning(WARNING) == GemmFileKey(2112, 7168, "NVIDIA_L40S", "fp8_w8a8", (128, 128))
    found = resolve_warning(WARNING, Serving())
    assert found.problems == (FP8,)
    assert found.device_name == "NVIDIA_L40S"
    int8 = WARNING.replace("fp8_w8a8", "int8_w8a8").replace("FP8", "INT8")
    assert resolve_warning(int8, Serving()).problems[0].dtype is Dtype.INT8_W8A8
    channel = "N=1,K=2,device_name=NVIDIA_L40S,dtype=fp8_w8a8_channelwise.json"
    assert resolve_warning(channel, Serving()).problems == (DenseGemm(1, 2, Dtype.FP8_W8A8),)
    assert resolve_warning("deepseek-r1", Serving()) is None
    assert models.reads(WARNING) and models.of_line(WARNING, Serving()) == found
    line = "at /c/E=256,N=64,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128, 128].json"
    assert parse_warning(line) is None and not models.reads(line)
    with pytest.raises(BadProblem, match="is of fp8_w8a8, not int8_w8a8"):
        resolve_warning(WARNING, Serving(dtype=Dtype.INT8_W8A8))


@pytest.mark.parametrize(
    "name",
    [
        "N=2112,K=7168,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128,128].json",
        "N=02112,K=7168,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128, 128].json",
        "N=2112,K=7168,device_name=NVIDIA_L40S,dtype=fp8_w8a8.json",
        "E=1,N=2112,device_name=NVIDIA_L40S.json",
        "",
    ],
)
def test_a_name_that_no_loader_looks_for_is_refused(newest, name):
    with pytest.raises(MalformedConfigFile, match="not the name of a GEMM's config file"):
        newest.read_file_name(name)


def test_a_copy_without_the_kernels_is_refused_by_name(tmp_path):
    engine = gemm_engine(SGLang("0.5.99", tmp_path))
    with pytest.raises(UnsupportedKernel, match=r"0\.5\.99 has no get_w8a8_block_fp8_configs in"):
        engine.lift().default_config(FP8, 1, SM89)


def test_load_proof_reads_the_real_loaders_lines(real, tmp_path):
    """A file that is read, and one that is missing, of every kind that a release knows."""
    for problem in (FP8, INT8, CHANNEL):
        if not real.reads(problem):
            continue
        lines = real.said(problem, H200.name, tmp_path / "none")
        if problem.block:
            [load] = parse_log(lines).loads
            assert (load.family, load.outcome) == ("dense_gemm", LoadOutcome.DEFAULT)
        else:
            assert lines == []  # it says nothing then
        key = next(
            file.key
            for file in gemm_engine(find_engine(f"sglang=={real.version}")).shipped()
            if file.key.dtype == problem.dtype.value and bool(file.key.block) == bool(problem.block)
        )
        [load] = parse_log(real.said(problem_of(key), key.device)).loads
        assert (load.family, load.outcome) == ("dense_gemm", LoadOutcome.LOADED)
        assert load.used.endswith(f"/{format_file_name(key)}")
