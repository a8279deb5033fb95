"""AMD's GPUs without one: kernels compiled for them, files, spaces, checks and predictions."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from cases import FP8, new_request, tuned
from cases import config as tile
from real_sglang import RELEASES
from strata import of_each_kind
from tiers import only
from typer.testing import CliRunner

from tuner.bindings.sglang.attention.binding import lift_attention
from tuner.bindings.sglang.fused_moe.binding import FusedMoeKernels, lift_fused_moe
from tuner.cli.commands import app
from tuner.compile import CompileJob, Farm
from tuner.compile.hsaco import HsacoResources, read_resources
from tuner.compile.kernel import compile_kernel
from tuner.devices.table import find_device
from tuner.engines.config_files import AMD_OPTIONS, TILES, fields_on
from tuner.engines.engine import Engine, find_engine
from tuner.errors import BadInput, UnsupportedKernel
from tuner.families.attention.problem import AttentionPhase
from tuner.families.dense_gemm.check import check_files as check_gemm_files
from tuner.families.dense_gemm.engine import gemm_engine
from tuner.families.dense_gemm.family import GemmSelection
from tuner.families.dense_gemm.predict import GemmPredictor
from tuner.families.dense_gemm.problem import DensePart as DenseGemmPart
from tuner.families.dense_gemm.problem import parse_dense_gemm
from tuner.families.dense_gemm.space import gemm_space
from tuner.families.fused_moe.check import check_files
from tuner.families.fused_moe.engine import moe_engine
from tuner.families.fused_moe.family import MoeSelection
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.families.fused_moe.space import space_for
from tuner.jobs.job import refuse_undoable
from tuner.kernels.binding import Pointer
from tuner.measure.workbench import Workbench
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config, Point
from tuner.problems.registry import parse_problem
from tuner.problems.results import MeasureKind, Status
from tuner.store.results import ResultStore
from tuner.tuning.request import Effort, Request, Source, prepare
from tuner.tuning.run import open_source

MI300X, MI355X, R9700 = find_device("MI300X"), find_device("MI355X"), find_device("R9700")
ENGINE, NEWEST = find_engine("sglang==0.5.16"), find_engine("sglang==0.5.23")
BF16 = FusedMoe(8, 4096, 4096, 2, Dtype.BFLOAT16)
GEMM = parse_dense_gemm("block_gemm:N=7168,K=2048,dtype=fp8_w8a8,block=128x128")
NO_FILE = parse_dense_gemm("block_gemm:N=2112,K=7168,dtype=fp8_w8a8,block=128x128")
INT8_GEMM = parse_dense_gemm("block_gemm:N=2112,K=7168,dtype=int8_w8a8,block=128x128")


SMALL, TALL, BIG = tile(16, 128, 128, 4, 2), tile(64, 128, 128, 4, 2), tile(128, 128, 128, 8, 2)
WIDE, DEEP = tile(128, 256, 128, 8, 2), tile(128, 256, 128, 8, 3)
# (LDS, VGPRs, spilled VGPRs), measured on another machine with the same Triton.
FIGURES = {
    "MI300X": {
        SMALL: (18_432, 96, 0),
        TALL: (24_576, 188, 0),
        BIG: (32_768, 152, 0),
        WIDE: (49_152, 256, 29),
        DEEP: (98_304, 256, 97),
    },
    "MI355X": {
        SMALL: (18_432, 84, 0),
        TALL: (24_576, 172, 0),
        BIG: (32_768, 132, 0),
        WIDE: (49_152, 256, 14),
        DEEP: (98_304, 256, 70),
    },
    "R9700": {
        SMALL: (18_432, 175, 0),
        TALL: (24_576, 256, 14),
        BIG: (32_768, 253, 0),
        WIDE: (50_176, 256, 410),
        DEEP: (99_328, 256, 891),
    },
}


@pytest.fixture(scope="module")
def kernels() -> FusedMoeKernels:
    return lift_fused_moe(ENGINE, "hip")


# Machine code


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", only([6], [6, 15]))
def test_kernels_compile_to_the_known_figures(
    count: int, kernels: FusedMoeKernels, farm: Farm
) -> None:
    """The farm's figures: LDS is Triton's, the others are read from the hsaco."""
    rows = [(card, *row) for card, figures in FIGURES.items() for row in figures.items()]
    jobs = {}
    for card, config, wanted in of_each_kind(rows, lambda row: (row[0], row[2][2] > 0), count):
        target = find_device(card).target
        sixteen = config.replace(matrix_instr_nonkdim=16)
        variant = kernels.bind(FP8, Gemm.UP, 64, sixteen, target).variant()
        jobs[CompileJob(kernels.lifted, variant, target)] = card, config, wanted
    farm.submit(jobs)
    for job, found in farm.completed():
        card, config, (lds, vgprs, spilled) = jobs[job]
        figures = (found.status, found.shared_bytes, found.n_regs)
        assert figures == (Status.OK, lds, vgprs), (card, config)
        assert found.n_spills is not None
        assert bool(found.n_spills) == bool(spilled), (card, config)  # scratch, in bytes


@pytest.mark.timeout(600)
def test_a_compiled_hsaco_says_registers_agprs_spills_and_scratch(
    kernels: FusedMoeKernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    source = kernels.lifted.write(tmp_path)

    def compiled(config: Config) -> HsacoResources:
        sixteen = config.replace(matrix_instr_nonkdim=16)
        variant = kernels.bind(FP8, Gemm.UP, 64, sixteen, MI300X.target).variant()
        return read_resources(compile_kernel(source, variant.as_json(), MI300X.target).asm["hsaco"])

    # LDS is given at launch, so the file needs none. The 188 registers include the 32 AGPRs.
    assert compiled(TALL) == HsacoResources(188, 32, 0, 0, 0)
    assert compiled(WIDE) == HsacoResources(256, 0, 29, 120, 0)


def test_an_hsaco_without_its_note_is_refused() -> None:
    header = bytearray(64)  # an ELF file with one section, which has no name
    header[0x28:0x30] = (64).to_bytes(8, "little")
    header[0x3A:0x40] = (64).to_bytes(2, "little") + (1).to_bytes(2, "little") + b"\0\0"
    with pytest.raises(ValueError, match="no note of type NT_AMDGPU_METADATA"):
        read_resources(bytes(header) + bytes(64))


# Launches


@pytest.mark.parametrize("engine", [ENGINE, NEWEST])  # the newest one asks a variable
@pytest.mark.parametrize("text", ["extend_attention:q_heads=8", "decode_attention:q_heads=8"])
def test_attention_is_launched_as_the_engine_launches_on_hip(text: str, engine: Engine) -> None:
    problem = parse_problem(f"{text},kv_heads=1,Lq=128,Lv=128,dtype=bfloat16")
    kernels = lift_attention(engine, "hip")
    new = 128 if problem.phase is AttentionPhase.EXTEND else 1  # type: ignore[attr-defined]
    launches = [
        kernels.launch(problem, Point(4, stage, new, 1024), MI300X.target)  # type: ignore[arg-type]
        for stage in problem.parts
    ]
    assert launches
    for launch in launches:  # options of AMD's compiler, which the engine gives on HIP alone
        assert launch.options["matrix_instr_nonkdim"] == 16


@pytest.mark.parametrize(
    ("card", "fp8"), [("MI300X", "fp8e4b8"), ("MI355X", "fp8e4nv"), ("R9700", "fp8e4nv")]
)
def test_kernels_multiply_the_cards_own_8_bit_float(
    card: str, fp8: str, kernels: FusedMoeKernels
) -> None:
    target = find_device(card).target
    moe = kernels.bind(FP8, Gemm.UP, 64, SMALL, target)
    assert moe.arguments["a_ptr"] == moe.arguments["b_ptr"] == Pointer(fp8)
    dense = gemm_engine(NEWEST).lift("hip").launches(GEMM, 64, TALL, target)[0].binding
    assert [a.dtype for a in dense.arguments.values() if isinstance(a, Pointer)][:2] == [fp8, fp8]


def test_8_bit_floats_are_refused_where_they_would_be_emulated(kernels: FusedMoeKernels) -> None:
    old = find_device("RX 7900 XTX").target
    for bind in (
        lambda: kernels.bind(FP8, Gemm.UP, 64, SMALL, old),
        lambda: gemm_engine(NEWEST).lift("hip").launches(GEMM, 64, TALL, old),
    ):
        with pytest.raises(UnsupportedKernel, match="gfx1100 has no 8-bit floats"):
            bind()
    assert kernels.bind(BF16, Gemm.UP, 64, SMALL, old).arguments["a_ptr"] == Pointer("bf16")


def test_options_of_amds_compiler_are_for_amd_alone(kernels: FusedMoeKernels) -> None:
    amd = SMALL.replace(waves_per_eu=2, matrix_instr_nonkdim=16, kpack=2)
    options = {"waves_per_eu": 2, "matrix_instr_nonkdim": 16, "kpack": 2}
    launch = {"num_warps": 4, "num_stages": 2, **options}
    assert kernels.bind(FP8, Gemm.UP, 64, amd, MI300X.target).options == launch
    [dense] = gemm_engine(NEWEST).lift("hip").launches(GEMM, 64, amd, MI300X.target)
    assert dense.binding.options == launch
    sm90, cuda = find_device("H200").target, lift_fused_moe(ENGINE)
    with pytest.raises(UnsupportedKernel, match="no config key 'waves_per_eu' on sm_90"):
        cuda.bind(FP8, Gemm.UP, 64, SMALL.replace(waves_per_eu=2), sm90)
    # A strict reading refuses them too, before anything is compiled.
    taken = {name: set(fields_on(TILES, name).names) for name in ("cuda", "hip")}
    assert taken["hip"] - taken["cuda"] == {*AMD_OPTIONS}
    assert taken["cuda"] - taken["hip"] == {"maxnreg"}
    with pytest.raises(UnsupportedKernel, match="no config key 'maxnreg'"):
        kernels.bind(FP8, Gemm.UP, 64, SMALL.replace(maxnreg=128), MI300X.target)


@pytest.mark.parametrize("version", RELEASES)
def test_defaults_are_the_engines_on_hip(version: str) -> None:
    moe = moe_engine(find_engine(f"sglang=={version}"))
    for device in (MI300X, MI355X, R9700):  # two stages; H200's have three and four
        assert moe.default_config(FP8, device, 64) == TALL.replace(GROUP_SIZE_M=32)
        plain = FusedMoe(8, 4096, 4096, 2, Dtype.FP8_W8A8)
        # 65,536 bytes of LDS do not make it the default for CUDA cards with little memory.
        assert moe.default_config(plain, device, 64) == WIDE.replace(GROUP_SIZE_M=32)
        shipped = moe.incumbents(BF16, device, 64, "3.6.0")["default"][Gemm.UP]
        assert "num_stages" not in shipped  # Triton's own default: two on HIP
    assert moe.default_config(FP8, find_device("H200"), 64)["num_stages"] == 3


def test_an_entry_without_stages_has_two_on_hip(kernels: FusedMoeKernels) -> None:
    bare = Config({k: v for k, v in SMALL.items() if not k.startswith("num_")})
    options = {"num_warps": 4, "num_stages": 2}
    assert kernels.bind(BF16, Gemm.UP, 64, bare, MI300X.target).options == options


def test_a_launch_that_depends_on_the_cards_size_is_refused() -> None:
    """sglang 0.4.4 compares the grid with the number of CUs, later releases ignore the answer."""
    old = gemm_engine(find_engine("sglang==0.4.4")).lift("hip")
    with pytest.raises(UnsupportedKernel, match="number of compute units"):
        old.default_config(GEMM, 64, MI300X.target)
    for version in ("0.5.2", "0.5.12", "0.5.16", "0.5.23"):
        found = gemm_engine(find_engine(f"sglang=={version}")).lift("hip")
        assert found.default_config(GEMM, 64, MI300X.target)["num_stages"] == 3


# Files


@pytest.mark.timeout(600)
def test_check_tells_what_fits_on_the_card(tmp_path: Path) -> None:
    name = "E=256,N=256,device_name=AMD_Instinct_MI300X,dtype=fp8_w8a8,block_shape=[128, 128].json"
    entries = {"1": {**SMALL, "waves_per_eu": 0, "matrix_instr_nonkdim": 16}, "64": dict(DEEP)}
    path = tmp_path / name
    path.write_text(json.dumps(entries))
    found = check_files([path], MI300X, ENGINE, {})
    fits = {(e.part, e.size): e.fits for e in found.entries}
    assert fits == {(gemm, size): size == 1 for gemm in Gemm for size in (1, 64)}
    assert "needs 98,304 bytes of shared memory, limit 65,536" in found.as_text()


@pytest.mark.timeout(600)
def test_check_of_dense_gemms_takes_amds_keys(tmp_path: Path) -> None:
    shape = "dtype=fp8_w8a8,block_shape=[128, 128]"
    path = tmp_path / f"N=7168,K=2048,device_name=AMD_Instinct_MI300X,{shape}.json"
    path.write_text(json.dumps({"1": {**SMALL, "waves_per_eu": 2}, "64": {**TALL, "maxnreg": 64}}))
    found = check_gemm_files([path], MI300X, NEWEST, {})
    assert [entry.fits for entry in found.entries] == [True, False]
    assert "takes no config key 'maxnreg'" in found.entries[1].why
    # Nothing is known of the entries of a release whose launch cannot be followed.
    with pytest.raises(UnsupportedKernel, match="number of compute units"):
        check_gemm_files([path], MI300X, find_engine("sglang==0.4.4"), {})


# Spaces and predictions


def test_measured_searches_try_the_options_of_amds_compiler() -> None:
    grid, wide = (space_for(FP8, MI300X, Gemm.UP, wide=wide) for wide in (False, True))
    assert not {"waves_per_eu", "kpack"} & grid.axes.keys() and grid.axes["num_stages"] == (2,)
    assert set(grid.configs()) < set(wide.configs())
    assert wide.legal(SMALL.replace(waves_per_eu=2, kpack=2))
    assert not wide.legal(SMALL.replace(kpack=1))  # unsaid: what the compiler takes by itself
    assert wide.nearest(SMALL.replace(kpack=1, waves_per_eu=0)) == SMALL
    assert "kpack" not in space_for(FP8, MI355X, Gemm.UP, wide=True).axes
    tiles = {(c["BLOCK_SIZE_M"], c["BLOCK_SIZE_N"], c["num_warps"]) for c in grid.configs()}
    assert (256, 256, 8) in tiles and (256, 256, 4) not in tiles and (64, 64, 1) not in tiles


@pytest.mark.parametrize("card", ["MI300X", "MI355X", "R9700"])
def test_a_prediction_leaves_the_options_to_the_compiler(card: str) -> None:
    """The model knows nothing of them."""
    device, engine = find_device(card), gemm_engine(NEWEST)
    choices = engine.lift("hip").choices(GEMM, device.target)
    assert dict(device.architecture.launch_options) == choices
    effective = partial(engine.effective, GEMM, target=device.target)
    space = gemm_space(GEMM, device, choices, effective)
    assert any("waves_per_eu" in config for config in space.configs())
    point = Point(64, DenseGemmPart.DENSE)
    listed = GemmPredictor(device, GEMM).shortlist(point, space.configs(), 40)
    assert len(listed) == 40
    assert not any("waves_per_eu" in config for config in listed)


def test_measuring_is_refused_with_the_way_to_go_on() -> None:
    for words in (FP8.spec(), "deepseek-r1"):
        done = CliRunner().invoke(app, ["tune", words, "--device", "MI300X"])
        assert done.exit_code == 2
        assert "not on AMD_Instinct_MI300X: predict the times, with the same" in done.output
    job = new_request(FP8, "MI300X", "sglang==0.5.16")
    with pytest.raises(BadInput, match="NVIDIA's GPUs alone"):
        refuse_undoable(job)
    refuse_undoable(replace(job, measure="predict"))
    asked = Request(FP8, MI300X, NEWEST, Source(MeasureKind.GPU))
    with Workbench() as workbench, pytest.raises(BadInput, match="NVIDIA's GPUs alone"):
        open_source(asked, workbench)
    assert prepare(asked)  # what the engine launches can be compiled


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("problem", "selection"),
    [
        pytest.param(FP8, MoeSelection((16,), (Gemm.UP,)), marks=pytest.mark.slow),
        (NO_FILE, GemmSelection((16,))),
        pytest.param(INT8_GEMM, GemmSelection((16,)), marks=pytest.mark.slow),
    ],
    ids=["fused_moe", "fp8", "int8"],
)
def test_a_prediction_says_that_the_model_never_saw_such_a_card(  # type: ignore[no-untyped-def]
    problem, selection, few_kernels
):
    source = Source(MeasureKind.PREDICT)
    asked = Request(problem, MI300X, NEWEST, source, selection, Effort.QUICK)
    with ResultStore.open("sqlite://") as store:
        report = tuned(asked, store)
        stored = store.winners(device=MI300X.name, engine="sglang", problem=problem)
    caveat = "The model that predicted these times was never compared with a card of AMD's."
    assert report.as_text().endswith(caveat)
    assert report.as_json()["caveat"] == caveat
    predicted = [winner.entry for winner in stored if winner.entry.status is Status.PREDICTED]
    assert predicted
    assert all(entry.reason.endswith("; model untested on AMD") for entry in predicted)
    assert all("AMD_Instinct_MI300X" in name for name in report.file_names.values())
