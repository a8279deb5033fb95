"""Bound kernels run by Triton's interpreter, and compared with a dense reference.

Outputs start as NaN, routings are ragged, scales differ from row to row: a wrong stride, a
wrong pointer or an element left unwritten shows. bf16 operands come out wrong in the
interpreter, so unquantised activations are fp16 here; the outputs of quantised ones are bf16.
"""

import pytest
import real_vllm
from interpret_fused_moe import CASES, prepare
from interpreter import interpreted
from tiers import only
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import create_function_from_signature

from tuner.engines.engine import find_engine
from tuner.families.fused_moe.engine import moe_engine
from tuner.families.fused_moe.problem import Gemm
from tuner.kernels.binding import Integer
from tuner.kernels.lift import load_lifted
from tuner.kernels.values import launch_values

ENGINES = (
    *(f"sglang=={version}" for version in ("0.4.4", "0.5.2", "0.5.12", "0.5.16", "0.5.23")),
    *(f"vllm=={version}" for version in real_vllm.VERSIONS),
)
TOLERANCE = {"bf16": 2**-7, "fp16": 2**-9}  # one unit in the last place, as the interpreter cuts
TMA = ("fp8 block tma", "fp8 block of 4 ranks tma", "fp8 block up tma")
INT4 = ("int4", "int4 zero", "int4 of 2 ranks")
ABSENT = {  # cases that a version's kernels have nothing for
    "sglang==0.4.4": (*("fp8 channel", "int8 groups", "int8 groups zero", *INT4, *TMA),),
    "sglang==0.5.2": TMA,
    # A compiled kernel runs int4 here.
    "vllm==0.10.2": (*TMA, *INT4, "fp16 of 4 ranks"),
    # The launcher of groups sets no SPLIT_K, and its kernel needs one.
    **dict.fromkeys(
        [f"vllm=={version}" for version in real_vllm.VERSIONS[1:]],
        (*TMA, *INT4, "int8 groups", "int8 groups zero"),
    ),
}


# The newest release of each engine runs on each commit: an old release's source never changes.
RELEASES = only(["sglang==0.5.23", f"vllm=={real_vllm.VERSIONS[-1]}"], ENGINES)


@pytest.mark.parametrize("engine", RELEASES)
def test_bound_kernels_compute_the_dense_product(engine, tmp_path):
    errors = interpreted("interpret_fused_moe.py", engine, tmp_path)
    assert errors.keys() == {f"{case} {gemm.value}" for case in CASES for gemm in Gemm}
    for name, error in errors.items():
        case = name.rpartition(" ")[0]
        if case in ABSENT.get(engine, ()):
            assert engine.replace("==", " ") in error, name  # refused, by name
        else:
            assert error <= TOLERANCE[CASES[case][2]], name


CURRENT = [engine for engine in ENGINES if engine not in ("sglang==0.4.4", "sglang==0.5.2")]


@pytest.fixture(scope="module", params=CURRENT)
def made(request, tmp_path_factory):
    """An engine's name, its cases that it does not refuse, ready to launch, and its kernels."""
    kernels = moe_engine(find_engine(request.param)).lift()
    there = [case for case in CASES if case not in ABSENT.get(request.param, ())]
    cases = {(case, gemm): prepare(kernels, case, gemm) for case in there for gemm in Gemm}
    assert len(cases) >= 20
    return (
        request.param,
        cases,
        load_lifted(kernels.lifted.write(tmp_path_factory.mktemp("lifted"))),
    )


def test_a_variant_is_what_tritons_own_jit_makes_of_the_tensors(made):
    _, cases, module = made
    for (case, gemm), prepared in cases.items():
        binding = prepared.binding
        function = getattr(module, binding.function)
        backend = make_backend(GPUTarget("cuda", CASES[case][4], 32))
        binder = create_function_from_signature(function.signature, function.params, backend)
        values = launch_values(binding, prepared.tensors)
        bound, specialised, _ = binder(*values, **binding.options)
        by_name = dict(zip(bound, specialised, strict=True))
        variant = binding.variant()
        kinds = {name: kind for name, (kind, _) in by_name.items()}
        assert kinds == variant.signature, (case, gemm)
        divisible = tuple(name for name, (_, mark) in by_name.items() if mark == "D")
        assert divisible == variant.divisible, (case, gemm)


def test_bound_strides_are_the_tensors_own(made):
    engine, cases, _ = made
    for (case, gemm), prepared in cases.items():
        arguments, tensors = prepared.binding.arguments, prepared.tensors
        bound = {
            name.removeprefix("stride_"): argument.value
            for name, argument in arguments.items()
            if name.startswith("stride_") and isinstance(argument, Integer) and argument.value
        }
        assert bound == strides(engine, arguments, tensors), (case, gemm)


def strides(engine, arguments, tensors):
    """The tensors' own strides, by the engine's names."""
    a, b, c = (tensors[f"{name}_ptr"] for name in "abc")
    found = {"am": a.stride(0), "ak": a.stride(1), "be": b.stride(0)}
    found |= {"bk": b.stride(2), "bn": b.stride(1), "cm": c.stride(0), "cn": c.stride(1)}
    if "a_scale_ptr" in tensors and tensors["a_scale_ptr"].ndim == 2:
        found |= dict(zip(("asm", "ask"), tensors["a_scale_ptr"].stride(), strict=True))
    if "b_scale_ptr" in tensors and tensors["b_scale_ptr"].ndim >= 2:
        scale = tensors["b_scale_ptr"]
        found |= {"bse": scale.stride(0), "bsn": scale.stride(1)}
        found |= {"bsk": scale.stride(2)} if scale.ndim == 3 else {}
    if "b_zp_ptr" in tensors:
        found |= dict(zip(("bze", "bzn", "bzk"), tensors["b_zp_ptr"].stride(), strict=True))
    if "b_scale_ptr" in tensors and tensors["b_scale_ptr"].ndim == 1 and "vllm" in engine:
        found["bse"] = arguments["stride_bse"].value  # 1 in some releases; the kernel skips it
        found = {name: value for name, value in found.items() if value}
    return found
