"""Kernels lifted out of real engines, and their parameters bound by name."""

from dataclasses import replace

import pytest
from cases import FP8, INT8, config
from real_sglang import RELEASES, VERSIONS, kernel_source

from tuner.bindings.sglang.fused_moe.binding import FusedMoeKernels, lift_fused_moe
from tuner.devices.target import cuda_target
from tuner.engines.config_files import LAUNCH_OPTIONS, TILES, fields_on
from tuner.engines.engine import find_engine
from tuner.errors import BadProblem, UnsupportedKernel
from tuner.families.fused_moe.problem import BATCH_SIZES, Gemm, padded_slots
from tuner.kernels.binding import ABSENT, Binding, Constant, Descriptor, Integer
from tuner.kernels.lift import Parameter, lift, load_lifted
from tuner.problems.points import Config
from tuner.problems.registry import parse_problem

SM89, SM90 = cuda_target(8, 9), cuda_target(9, 0)

INT4 = parse_problem("fused_moe:E=8,N=256,K=512,top_k=2,dtype=int4_w4a16,block_shape=0x128")
CONFIG = config(32, 64, 128, group=8)


def kernels(version):
    return lift_fused_moe(find_engine(f"sglang=={version}"))


@pytest.mark.parametrize("version", RELEASES)
def test_lifted_text_is_the_engines_own_and_loads_with_triton_alone(version, tmp_path):
    engine = find_engine(f"sglang=={version}")
    lifted = lift_fused_moe(engine).lifted
    source = kernel_source(engine, "fused_moe").read_text()
    pieces = lifted.text.split("\n\n\n")[1:]
    assert len(pieces) >= len(lifted.functions) > 0
    for piece in pieces:
        assert piece in source
    module = load_lifted(lifted.write(tmp_path))
    for function, parameters in lifted.functions.items():
        assert getattr(module, function).arg_names == [p.name for p in parameters]
        constexprs = [p.name for p in getattr(module, function).params if p.is_constexpr]
        assert constexprs == [p.name for p in parameters if p.constexpr]


def test_a_kernel_hash_differs_from_version_to_version_and_is_stable():
    hashes = {version: kernels(version).lifted.hash for version in VERSIONS}
    assert len(set(hashes.values())) == len(VERSIONS)
    assert hashes["0.5.16"] == kernels("0.5.16").lifted.hash


def test_lifting_takes_helpers_constants_and_other_modules_functions(tmp_path):
    root = tmp_path / "engine"
    (root / "ops").mkdir(parents=True)
    (root / "ops" / "helper.py").write_text(
        "import triton\nimport torch\n\nSCALE = 2\n\n\n"
        "@triton.jit\ndef double(x):\n    return x * SCALE\n"
    )
    (root / "ops" / "main.py").write_text(
        "import torch\nimport triton\nimport triton.language as tl\n"
        "from engine.ops.helper import double\nfrom engine.utils import is_hip\n\n"
        "_is_hip = is_hip()\nLIMIT: tl.constexpr = 4 * 4\nUNUSED = torch.zeros(3)\n\n\n"
        "@triton.jit(do_not_specialize=['n'])\n"
        "def kernel(x_ptr, n, m, BLOCK: tl.constexpr = LIMIT, FLAG: tl.constexpr = False):\n"
        "    if not _is_hip:\n        tl.store(x_ptr, double(n) + min(m, LIMIT))\n"
    )
    lifted = lift(root / "ops" / "main.py", ["kernel", "absent"], root, "engine 1")
    assert "torch" not in lifted.text
    assert "_is_hip = False" in lifted.text
    assert list(lifted.functions) == ["kernel"]
    _, n, m, block, flag = lifted.parameters("kernel")
    assert (n.specialize, m.specialize) == (False, True)
    assert not block.required
    assert flag == Parameter("FLAG", constexpr=True, default=False)
    module = load_lifted(lifted.write(tmp_path / "out"))
    assert module.SCALE == 2


def two_files(root, main_head, helper):
    """An engine of two files, in which `kernel` calls `first` and `second`; lifts `kernel`."""
    head = "import triton\nimport triton.language as tl\n"
    root.mkdir()
    (root / "helper.py").write_text(f"{head}{helper}\n")
    (root / "main.py").write_text(
        f"{head}{main_head}\n\n"
        "@triton.jit\ndef first(x):\n    return twice(x)\n\n\n"
        "@triton.jit\ndef second(x):\n    return twice(x) + other(x)\n\n\n"
        "@triton.jit\ndef kernel(x):\n    tl.store(x, first(1) + second(2))\n"
    )
    return lift(root / "main.py", ["kernel"], root, "engine 1")


TWICE = "@triton.jit\ndef twice(x):\n    return x + x\n\n\n"
OTHER = "@triton.jit\ndef other(x):\n    return twice(x)\n"
IMPORT_OTHER = "from engine.helper import other\n"
EXP_AS_TWICE = "from triton.language import exp as twice\n"


def test_a_name_that_two_functions_import_is_one_thing(tmp_path):
    lifted = two_files(tmp_path / "engine", "from engine.helper import other, twice", TWICE + OTHER)
    assert lifted.text.count("def twice(x):") == 1
    module = load_lifted(lifted.write(tmp_path / "out"))
    assert {"twice", "other", "first", "second", "kernel"} <= vars(module).keys()


@pytest.mark.parametrize(
    ("main_head", "helper", "name"),
    [
        (IMPORT_OTHER + TWICE, TWICE.replace("x + x", "2 * x") + OTHER, "twice"),
        (IMPORT_OTHER + EXP_AS_TWICE, TWICE + OTHER, "twice"),
        (IMPORT_OTHER + TWICE, EXP_AS_TWICE + OTHER, "twice"),
        (
            IMPORT_OTHER + TWICE.replace("x + x", "max(x, x)"),
            (TWICE + OTHER).replace("twice", "max"),
            "max",
        ),
    ],
)
def test_two_meanings_of_one_name_are_refused(tmp_path, main_head, helper, name):
    with pytest.raises(UnsupportedKernel, match=f"engine 1: two kernels use different '{name}'"):
        two_files(tmp_path / "engine", main_head, helper)


@pytest.mark.parametrize(
    ("body", "named"),
    [("tl.store(x, config.width)", "config"), ("tl.store(x, torch.finfo)", "torch")],
)
def test_a_kernel_that_needs_more_than_triton_is_refused_by_name(tmp_path, body, named):
    source = tmp_path / "ops.py"
    source.write_text(
        "import torch\nimport triton\nimport triton.language as tl\nfor config in []:\n    pass\n"
        f"@triton.jit\ndef kernel(x):\n    {body}\n"
    )
    with pytest.raises(UnsupportedKernel, match=f"engine 1.*'{named}'"):
        lift(source, ["kernel"], tmp_path, "engine 1")


@pytest.mark.parametrize("content", [b"def (:\n", b"\xff\xfe", b"x = '\0'\n", None])
def test_a_source_that_cannot_be_read_is_refused_with_its_path(tmp_path, content):
    source = tmp_path / "ops.py"
    if content is not None:
        source.write_bytes(content)
    with pytest.raises(UnsupportedKernel, match=rf"engine 1: cannot read {source}: [^\n]+$"):
        lift(source, ["kernel"], tmp_path, "engine 1")


def test_an_absent_kernel_is_refused_with_the_nearest_name():
    engine = find_engine("sglang==0.5.16")
    source = kernel_source(engine, "fused_moe")
    with pytest.raises(UnsupportedKernel, match="did you mean 'fused_moe_kernel'"):
        lift(source, ["fused_mo_kernel"], engine.root, "sglang 0.5.16")


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("gemm", list(Gemm))
def test_every_parameter_of_every_version_is_bound(version, gemm):
    binding = kernels(version).bind(FP8, gemm, 16, CONFIG, SM90)
    assert list(binding.arguments) == [p.name for p in binding.parameters]
    for parameter in binding.parameters:
        if parameter.constexpr:
            assert parameter.name in binding.variant().constants


def with_parameter(found: FusedMoeKernels, parameter: Parameter) -> FusedMoeKernels:
    functions = {name: (*ps, parameter) for name, ps in found.lifted.functions.items()}
    return replace(found, lifted=replace(found.lifted, functions=functions))


def test_an_unknown_required_parameter_is_refused_by_engine_kernel_and_name():
    changed = with_parameter(kernels("0.5.16"), Parameter("NEW_KNOB", constexpr=True))
    with pytest.raises(UnsupportedKernel, match=r"sglang 0\.5\.16: fused_moe_kernel .*'NEW_KNOB'"):
        changed.bind(FP8, Gemm.UP, 16, CONFIG, SM90)


def test_an_unknown_parameter_keeps_its_default():
    changed = with_parameter(kernels("0.5.16"), Parameter("NEW_KNOB", constexpr=True, default=7))
    assert changed.bind(FP8, Gemm.UP, 16, CONFIG, SM90).arguments["NEW_KNOB"] == Constant(7)
    newest = kernels("0.5.23").bind(FP8, Gemm.UP, 16, CONFIG, SM89)
    assert newest.arguments["FUSE_SWIGLU"] == Constant(False)


def test_int4_has_a_kernel_of_its_own_and_counts_packed_bytes():
    binding = kernels("0.5.16").bind(INT4, Gemm.UP, 4, CONFIG.replace(BLOCK_SIZE_K=512), SM89)
    assert binding.function == "fused_moe_kernel_gptq_awq"
    assert binding.arguments["stride_bn"] == Integer(256)
    assert binding.arguments["even_Ks"] == Constant(False)  # the engine divides K / 2


@pytest.mark.parametrize(
    ("arch", "block_m", "block_n", "swapped"),
    [
        (90, 32, 64, True),
        (90, 64, 64, False),
        (90, 32, 32, False),
        (89, 32, 64, False),
        (100, 32, 64, False),
    ],
)
def test_swap_ab_is_on_where_the_engine_turns_it_on(arch, block_m, block_n, swapped):
    config = CONFIG.replace(BLOCK_SIZE_M=block_m, BLOCK_SIZE_N=block_n)
    bound = kernels("0.5.16").bind(FP8, Gemm.UP, 16, config, cuda_target(*divmod(arch, 10)))
    assert bound.arguments["swap_ab"] == Constant(swapped)
    int8 = kernels("0.5.16").bind(INT8, Gemm.UP, 16, config, cuda_target(*divmod(arch, 10)))
    assert int8.arguments["swap_ab"] == Constant(False)


CHANNELS = parse_problem("fused_moe:E=8,N=64,K=512,top_k=2,dtype=fp8_w8a8,per_channel_quant")
PARTIAL = Config({k: v for k, v in CONFIG.items() if k != "BLOCK_SIZE_K"})


@pytest.mark.parametrize(
    ("version", "problem", "gemm", "config", "message"),
    [
        ("0.5.16", INT8, Gemm.DOWN, CONFIG.replace(USE_TMA=1), "USE_TMA does not go with"),
        ("0.5.2", FP8, Gemm.DOWN, CONFIG.replace(USE_TMA=1), r"sglang 0\.5\.2.*'USE_TMA'"),
        ("0.5.2", FP8, Gemm.UP, CONFIG.replace(USE_TMA=1), r"sglang 0\.5\.2.*'USE_TMA'"),
        ("0.5.16", FP8, Gemm.DOWN, CONFIG.replace(num_warp=4), "'num_warp'; did you mean 'num_w"),
        ("0.5.16", FP8, Gemm.UP, PARTIAL, "needs BLOCK_SIZE_K"),
        ("0.4.4", CHANNELS, Gemm.UP, CONFIG, r"sglang 0\.4\.4.*per-channel fp8"),
        ("0.4.4", INT4, Gemm.UP, CONFIG, r"sglang 0\.4\.4 has no kernel .*gptq_awq"),
    ],
)
def test_what_the_kernel_does_not_take_is_refused(version, problem, gemm, config, message):
    with pytest.raises(UnsupportedKernel, match=message):
        kernels(version).bind(problem, gemm, 16, config, SM90)
    with pytest.raises(BadProblem, match="batch size"):
        kernels("0.5.16").bind(FP8, Gemm.UP, 0, CONFIG, SM90)


@pytest.mark.parametrize(("version", "reads"), [("0.5.16", False), ("0.5.23", True)])
def test_a_release_that_reads_use_tma_of_up_loads_weights_through_it(version, reads):
    found = kernels(version)
    with_tma = found.bind(FP8, Gemm.UP, 16, CONFIG.replace(USE_TMA=1), SM90)
    assert with_tma.arguments["a_desc"] == ABSENT
    assert isinstance(with_tma.arguments["b_desc"], Descriptor) is reads
    assert (with_tma == found.bind(FP8, Gemm.UP, 16, CONFIG, SM90)) is not reads


@pytest.mark.parametrize("problem", [FP8, INT4])
def test_what_a_strict_reading_takes_can_be_launched(problem):
    entry = CONFIG.replace(**dict.fromkeys(LAUNCH_OPTIONS, 2))
    assert set(entry) == {*fields_on(TILES, "cuda").names} - {
        "USE_TMA"
    }  # which needs a kernel with descriptors
    bound = kernels("0.5.16").bind(problem, Gemm.DOWN, 16, entry, SM90)
    assert {name: bound.options[name] for name in LAUNCH_OPTIONS} == dict.fromkeys(
        LAUNCH_OPTIONS, 2
    )
    assert not {*LAUNCH_OPTIONS} & {*bound.arguments}


def test_a_config_without_launch_options_is_launched_with_tritons_defaults():
    bare = Config({k: v for k, v in CONFIG.items() if k not in LAUNCH_OPTIONS})
    bound = kernels("0.5.16").bind(FP8, Gemm.UP, 16, bare, SM89)
    assert bound.options == {"num_warps": 4, "num_stages": 3}


@pytest.mark.parametrize("gemm", list(Gemm))
def test_one_variant_serves_every_batch_size_that_specialisation_allows(gemm):
    found = kernels("0.5.16")
    variants = {m: found.bind(FP8, gemm, m, CONFIG, SM90).variant() for m in BATCH_SIZES}
    assert len(set(variants.values())) == 2
    assert [m for m in BATCH_SIZES if variants[m] != variants[4096]] == [1]  # 1 * top_k = 8


@pytest.mark.parametrize("value", [1, 2, 16])
def test_what_a_kernel_is_not_specialised_on_stays_an_argument_of_any_value(value):
    parameters = (Parameter("n"), Parameter("kept", specialize=False))
    arguments = dict.fromkeys(("n", "kept"), Integer(value))
    variant = Binding("kernel", parameters, arguments, {}).variant()
    assert variant.signature["kept"] == "i32"
    assert "kept" not in (*variant.constants, *variant.divisible)
    assert variant.signature["n"] == ("constexpr" if value == 1 else "i32")
    assert variant.divisible == (("n",) if value == 16 else ())


@pytest.mark.parametrize(
    ("value", "type_"),
    [(2**31 - 1, "i32"), (2**31, "i64"), (-(2**31), "i32"), (-(2**31) - 1, "i64")],
)
def test_an_integer_has_the_type_that_holds_it(value, type_):
    binding = Binding("kernel", (Parameter("n"),), {"n": Integer(value)}, {})
    assert binding.variant().signature == {"n": type_}


def test_slots_are_at_least_what_the_engine_allocates_and_divide_by_16():
    for count, experts, block in ((8, 256, 16), (4096, 256, 64), (33, 8, 128)):
        slots = padded_slots(count, experts, block)
        need = count * block if count < experts + 1 else count + (experts + 1) * (block - 1)
        assert need <= slots < need + 16
        assert slots % 16 == 0
