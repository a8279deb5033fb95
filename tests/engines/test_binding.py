"""Bound kernels run by Triton's interpreter, and compared with a dense reference.

Outputs start as NaN, routings are ragged, scales differ from row to row: a wrong stride, a
wrong pointer or an element left unwritten shows. bf16 operands come out wrong in the
interpreter, so unquantised activations are fp16 here; the outputs of quantised ones are bf16.
"""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import real_vllm
from interpret_fused_moe import CASES, prepare
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import create_function_from_signature

from tuner.engines.engine import find_engine
from tuner.families.fused_moe.engine import moe_engine
from tuner.families.fused_moe.problem import Gemm
from tuner.kernels.binding import Integer
from tuner.kernels.lift import load_lifted
from tuner.kernels.values import launch_values

PROGRAM = Path(__file__).with_name("interpret_fused_moe.py")
ENGINES = (
    *(f"sglang=={version}" for version in ("0.4.4", "0.5.2", "0.5.12", "0.5.16", "0.5.23")),
    *(f"vllm=={version}" for version in real_vllm.VERSIONS),
)
TOLERANCE = {"bf16": 2**-7, "fp16": 2**-9}  # one unit in the last place, as the interpreter cuts
ABSENT = {  # cases that a version's kernels have nothing for
    "sglang==0.4.4": (
        "fp8 channel",
        "int8 groups",
        "int8 groups zero",
        "int4",
        "int4 zero",
        "fp8 block tma",
    ),
    "sglang==0.5.2": ("fp8 block tma",),
    # A compiled kernel runs int4 here.
    "vllm==0.10.2": ("fp8 block tma", "int4", "int4 zero"),
    # The launcher of groups sets no SPLIT_K, and its kernel needs one.
    **dict.fromkeys(
        [f"vllm=={version}" for version in real_vllm.VERSIONS[1:]],
        ("fp8 block tma", "int4", "int4 zero", "int8 groups", "int8 groups zero"),
    ),
}


@cache
def errors(engine, folder):
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, str(PROGRAM), engine, folder]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("gemm", [gemm.value for gemm in Gemm])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_bound_kernel_computes_the_dense_product(engine, case, gemm, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "lifted"
    error = errors(engine, str(folder))[f"{case} {gemm}"]
    if case in ABSENT.get(engine, ()):
        assert engine.replace("==", " ") in error  # refused, by name
    else:
        assert error <= TOLERANCE[CASES[case][2]]


def engine_case(engine, case, gemm, folder):
    kernels = moe_engine(find_engine(engine)).lift()
    return prepare(kernels, case, Gemm(gemm)), load_lifted(kernels.lifted.write(folder))


CURRENT = [
    (engine, case)
    for engine in ENGINES
    if engine not in ("sglang==0.4.4", "sglang==0.5.2")
    for case in CASES
    if case not in ABSENT.get(engine, ())
]


@pytest.mark.parametrize("gemm", [gemm.value for gemm in Gemm])
@pytest.mark.parametrize(("engine", "case"), CURRENT)
def test_a_variant_is_what_tritons_own_jit_makes_of_the_tensors(engine, case, gemm, tmp_path):
    made, module = engine_case(engine, case, gemm, tmp_path)
    function = getattr(module, made.binding.function)
    backend = make_backend(GPUTarget("cuda", CASES[case][4], 32))
    binder = create_function_from_signature(function.signature, function.params, backend)
    values = launch_values(made.binding, made.tensors)
    bound, specialised, _ = binder(*values, **made.binding.options)
    by_name = dict(zip(bound, specialised, strict=True))
    variant = made.binding.variant()
    assert {name: kind for name, (kind, _) in by_name.items()} == variant.signature
    assert tuple(n for n, (_, mark) in by_name.items() if mark == "D") == variant.divisible


@pytest.mark.parametrize("gemm", [gemm.value for gemm in Gemm])
@pytest.mark.parametrize(("engine", "case"), CURRENT)
def test_bound_strides_are_the_tensors_own(engine, case, gemm, tmp_path):
    made, _ = engine_case(engine, case, gemm, tmp_path)
    arguments, tensors = made.binding.arguments, made.tensors
    a, b, c = (tensors[f"{name}_ptr"] for name in "abc")
    expected = {"am": a.stride(0), "ak": a.stride(1), "be": b.stride(0)}
    expected |= {"bk": b.stride(2), "bn": b.stride(1), "cm": c.stride(0), "cn": c.stride(1)}
    # The engine's own words: 0 for a dimension that the scales lack.
    if "a_scale_ptr" in tensors and tensors["a_scale_ptr"].ndim == 2:
        expected |= dict(zip(("asm", "ask"), tensors["a_scale_ptr"].stride(), strict=True))
    if "b_scale_ptr" in tensors and tensors["b_scale_ptr"].ndim >= 2:
        scale = tensors["b_scale_ptr"]
        expected |= {"bse": scale.stride(0), "bsn": scale.stride(1)}
        expected |= {"bsk": scale.stride(2)} if scale.ndim == 3 else {}
    if "b_zp_ptr" in tensors:
        expected |= dict(zip(("bze", "bzn", "bzk"), tensors["b_zp_ptr"].stride(), strict=True))
    if "b_scale_ptr" in tensors and tensors["b_scale_ptr"].ndim == 1 and "vllm" in engine:
        expected["bse"] = arguments["stride_bse"].value  # 1 in some releases; the kernel skips it
        expected = {name: value for name, value in expected.items() if value}
    bound = {
        name.removeprefix("stride_"): argument.value
        for name, argument in arguments.items()
        if name.startswith("stride_") and isinstance(argument, Integer) and argument.value
    }
    assert bound == expected
