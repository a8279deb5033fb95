"""Attention's bound kernels run by Triton's interpreter, against a float32 reference.

Lengths are ragged, some sequences have no new tokens and some no cache, tokens lie scattered over
the cache, and outputs start as NaN: a wrong stride, a wrong pointer, a wrong grid or an element
left unwritten shows."""

import dataclasses
import json
import random
from pathlib import Path

import pytest
from interpret_attention import CASES
from interpreter import interpreted
from strata import of_each_kind
from tiers import only

from tuner.bindings.sglang.attention.binding import lift_attention
from tuner.compile import CompileJob, KernelCompiler
from tuner.devices.table import find_device
from tuner.devices.target import cuda_target
from tuner.engines.engine import find_engine
from tuner.families.attention.problem import (
    Attention,
    AttentionPart,
    AttentionPhase,
    parse_attention,
)
from tuner.families.attention.splits import kv_splits
from tuner.kernels.binding import Constant
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Status

TOLERANCE = 2**-9  # of fp16 outputs: one unit in the last place, as the interpreter cuts
# The newest release runs all cases; the others what differs from it.
SOME = {
    "0.5.23": tuple(CASES),
    "0.5.16": (
        *("extend own blocks", "extend latent", "extend window", "extend sinks"),
        *("prefill", "decode grouped", "decode latent", "decode latent values", "decode alone"),
        *("decode wide group", "decode sinks", "decode splits"),
    ),
    "0.4.4": (
        *("extend own blocks", "extend 192", "extend window", "extend sinks", "prefill"),
        *("decode grouped", "decode latent", "decode wide group"),
        *("decode alone", "decode capped", "decode sinks", "decode splits"),
    ),
}
ABSENT = {"0.4.4": ("extend window", "extend sinks", "decode sinks")}


@pytest.mark.parametrize("version", only(["0.5.23"], SOME))
def test_bound_kernels_compute_attention(version, tmp_path):
    errors = interpreted("interpret_attention.py", version, tmp_path, *SOME[version])
    assert errors.keys() == set(SOME[version])
    for case, error in errors.items():
        if case in ABSENT.get(version, ()):
            assert "this version's kernel has no" in error, case  # refused, by name
        else:
            assert error <= TOLERANCE, case


def splitting_cases():
    rng = random.Random(20261121)  # noqa: S311 (a draw, no secret)
    for heads, kv_heads in ((16, 1), (32, 8), (64, 8), (16, 16), (128, 1), (4, 2)):
        for batch in (1, 3, 32, 200):
            longest = rng.choice((1, 63, 64, 1000, 4096, 32768))
            yield {
                "cached": [rng.randint(1, longest) for _ in range(batch - 1)] + [longest],
                "q_heads": heads,
                "kv_heads": kv_heads,
                "kv_splits": rng.choice((1, 8, 16, 32, 256)),
                "cores": rng.choice((78, 132, 142, 188)),
            }


@pytest.mark.parametrize("version", only(["0.5.23"], ["0.5.2", "0.5.12", "0.5.16", "0.5.23"]))
def test_caches_are_split_as_the_engine_splits_them(version, tmp_path):
    cases = list(splitting_cases())
    found = interpreted("interpret_kv_splits.py", version, tmp_path, given=json.dumps(cases))
    assert len(found) == len(cases) == 24
    for case, engines in zip(cases, found, strict=True):
        problem = Attention(
            AttentionPhase.DECODE,
            case["q_heads"],
            case["kv_heads"],
            Lq=128,
            Lv=128,
            dtype=Dtype.BFLOAT16,
            kv_splits=case["kv_splits"],
        )
        assert kv_splits(case["cached"], problem, case["cores"]) == engines, case
    assert len({tuple(engines) for engines in found}) > 12  # they do differ


# Compiled: what the H200's own JIT made of them, to the byte

SM90 = cuda_target(9, 0)

JIT = json.loads((Path(__file__).parents[1] / "data/attention/h200_jit.json").read_text())
GQA = "q_heads=32,kv_heads=4,Lq=128,Lv=128,dtype=bfloat16"
MLA = "q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16"
PLAIN = "q_heads=16,kv_heads=16,Lq=192,Lv=128,dtype=bfloat16"


@pytest.fixture(scope="module")
def kernels():
    return lift_attention(find_engine(f"sglang=={JIT['engine']}"))


def job(kernels, recorded):
    """The kernel that was recorded, at any point: neither batch nor lengths reach it."""
    problem = parse_attention(recorded["problem"])
    point = Point(6, AttentionPart(recorded["part"]), 129, 257)
    assert recorded["default"].items() <= kernels.default_config(problem, point, SM90).items()
    binding = kernels.bind(problem, point, Config(recorded["config"]), SM90)
    if problem.phase is AttentionPhase.PREFILL:  # the recording's were launched as for text
        causal = {**binding.arguments, "IS_CAUSAL": Constant(True)}
        binding = dataclasses.replace(binding, arguments=causal)
    return CompileJob(kernels.lifted(problem.phase), binding.variant(), SM90)


def kind(recorded):
    columns = parse_attention(recorded["problem"]).Lq
    of_one_block = columns in (64, 128)  # others are two blocks, of 128 and 64 or of 512 and 64
    return recorded["part"], of_one_block or columns, "refused" in recorded


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("count", only([9], [9, 60]))
def test_kernels_compile_to_what_the_h200s_own_jit_reports(farm, kernels, count):
    chosen = of_each_kind(JIT["kernels"], kind, count)
    jobs = {job(kernels, recorded): recorded for recorded in chosen}
    farm.submit(jobs)
    found = dict(farm.completed())
    assert len(found) == count
    for done, recorded in jobs.items():
        compiled = found[done]
        assert compiled.shared_bytes == recorded["shared_bytes"], recorded
        if "refused" in recorded:  # the driver has no other figure of what it did not load
            assert f"Required: {compiled.shared_bytes}," in recorded["refused"]
            continue
        # Triton reports the driver's local memory in words of four bytes.
        figures = (recorded["n_regs"], 4 * recorded["n_spills"])
        assert (compiled.n_regs, compiled.n_spills) == figures, recorded


OWN = [
    ("0.4.4", "L40S", f"extend_attention:{MLA}", 106_496, 255),
    ("0.5.16", "L40S", f"extend_attention:{MLA}", 71_680, 255),
    ("0.5.16", "L40S", f"extend_attention:{PLAIN}", 49_152, 255),
    ("0.5.16", "L40S", f"extend_attention:{GQA}", 65_536, 255),
    ("0.5.16", "L40S", f"decode_attention:{MLA}", 63_488, 181),
    ("0.4.4", "L40S", f"decode_attention:{MLA}", 89_088, 198),
    ("0.5.16", "L40S", f"decode_attention:{GQA}", 21_504, 72),
    ("0.5.2", "RTX PRO 6000", f"extend_attention:{MLA}", 106_496, None),
    ("0.5.12", "B200", f"extend_attention:{MLA}", 86_016, None),
]
KEPT = [OWN[3], OWN[6], OWN[8]]  # one of each phase, and one with tensor memory


@pytest.mark.parametrize(("version", "device", "text", "shared_bytes", "n_regs"), only(KEPT, OWN))
def test_the_engines_own_constants_on_other_gpus(farm, version, device, text, shared_bytes, n_regs):
    card, problem = find_device(device), parse_attention(text)
    kernels = lift_attention(find_engine(f"sglang=={version}"))
    point = Point(1, problem.parts[0], 1 if problem.phase is AttentionPhase.DECODE else 128, 1024)
    own = Candidate(point, kernels.default_config(problem, point, card.target))
    compiler = KernelCompiler(farm, kernels.binder(problem, card.target), card)
    compiler.submit([own])
    ((_, compiled),) = compiler.poll(wait=True)
    assert compiled.shared_bytes == shared_bytes
    assert compiled.n_regs == (n_regs or compiled.n_regs)
    fits = shared_bytes <= card.shared_optin_bytes
    assert compiled.status is (Status.OK if fits else Status.OUT_OF_RESOURCES)


def test_neither_batch_nor_lengths_make_another_kernel(kernels):
    for text in (f"extend_attention:{MLA}", f"decode_attention:{GQA}", f"decode_attention:{MLA}"):
        problem = parse_attention(text)
        assert problem.parts
        for part in problem.parts:
            variants = []
            for batch, new, cached in ((1, 17, 33), (7, 512, 4096), (128, 1, 1)):
                point = Point(
                    batch, part, 1 if problem.phase is AttentionPhase.DECODE else new, cached
                )
                own = kernels.default_config(problem, point, SM90)
                variants.append(kernels.bind(problem, point, own, SM90).variant())
            assert variants[0] == variants[1] == variants[2]
