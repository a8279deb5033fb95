"""The names that presets ask for, against the files that sglang ships.

A preset at a tensor- or expert-parallel size asks for the file that an author tuned for it, or the
difference is explained here."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
from cases import FP8, INT8
from real_sglang import package

from tuner.bindings.sglang.fused_moe.files import file_key
from tuner.devices.table import devices, find_device
from tuner.engines.engine import find_engine
from tuner.engines.sglang.package import SGLang
from tuner.errors import BadProblem, IndivisibleShape
from tuner.families.fused_moe.engine import Fusion, MoeFileKey, moe_engine
from tuner.families.fused_moe.models import moe_problem
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.families.fused_moe.space import seeds_for, space_for, spaces_at
from tuner.models.model import Model
from tuner.models.table import presets
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Point

VERSIONS = ["0.5.16", "0.5.23"]
RANKS = (1, 2, 4, 8, 16, 32, 64)
# What a server runs that was started with --quantization, or an older release's name for it.
SCHEMES = (None, Dtype.FP8_W8A8, Dtype.INT8_W8A8, Dtype.INT8_W8A16, Dtype.BFLOAT16)

# (E, N) of files that no preset asks for, and why.
EXPLAINED = {
    **dict.fromkeys(
        [(264, 128), (264, 256), (272, 64), (272, 128)],
        "DeepSeek V3 before 0.4.7: a copy of the shared expert for each of 8, 16 or 32 ranks",
    ),
    (20, 2048): "160 experts of 2048, 8 expert-parallel ranks: no model of this size is known",
}


@cache
def shipped(version: str) -> tuple[MoeFileKey, ...]:
    files = moe_engine(find_engine(f"sglang=={version}")).shipped()
    return tuple(dict.fromkeys(file.key for file in files if file.key.gemm is Gemm.UP))


def served(model: Model) -> Iterator[FusedMoe]:
    """The problems of a model at all its sizes, with and without the shared experts."""
    for tp in RANKS:
        for ep in (n for n in RANKS if tp % n == 0):
            for shared in sorted({0, model.n_shared_experts}):
                for dtype in SCHEMES:
                    try:
                        yield moe_problem(
                            model, tp, ep, dtype=dtype, fusion=Fusion(shared, shared, "")
                        )
                    except (IndivisibleShape, BadProblem):
                        continue


@cache
def asked() -> dict[tuple[int, int], frozenset[tuple[str | None, tuple[int, int] | None]]]:
    """(E, N) -> the (dtype, block) of the names that presets ask for."""
    found: dict[tuple[int, int], set[tuple[str | None, tuple[int, int] | None]]] = {}
    for model in presets():
        if not model.E:
            continue
        for problem in served(model):
            key = file_key(problem, "", Gemm.UP, per_channel=True)
            size = (key.E, key.N)
            found.setdefault(size, set()).add((key.dtype, key.block_shape))
    return {size: frozenset(names) for size, names in found.items()}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_shipped_size_is_a_preset_s_or_explained(version: str) -> None:
    keys = shipped(version)
    assert len(keys) > 150
    unknown = {(key.E, key.N) for key in keys} - asked().keys() - EXPLAINED.keys()
    assert unknown == set()


def test_nothing_is_explained_that_needs_no_explanation() -> None:
    sizes = {(key.E, key.N) for version in VERSIONS for key in shipped(version)}
    assert {size for size in EXPLAINED if size in asked()} == set()
    assert EXPLAINED.keys() <= sizes


# Names in which a size is a preset's and the type is not: who tuned them, as far as it is known.
OTHER_TYPES = {
    (256, 128, None, (128, 128)): "blocks without a type: no release asks for it",
    (64, 512, "fp8_w8a8", (128, 128)): "64 experts of 1024 in fp8 blocks: no preset has them",
    (64, 1024, "fp8_w8a8", (128, 128)): "64 experts of 1024 in fp8 blocks: no preset has them",
    (256, 640, "fp8_w8a8", (128, 128)): "256 experts in fp8 blocks of 640: no preset has them",
}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_type_in_a_shipped_name_is_a_preset_s_or_explained(version: str) -> None:
    names = {(key.E, key.N, key.dtype, key.block_shape) for key in shipped(version)}
    wrong = {
        name
        for name in names
        if name[:2] in asked()
        and (name[2], name[3]) not in asked()[name[:2]]
        and name not in OTHER_TYPES
    }
    assert wrong == set()


@pytest.mark.parametrize("version", VERSIONS)
def test_every_card_in_a_shipped_name_is_known(version: str) -> None:
    known = {device.name for device in devices()}
    assert {key.device for key in shipped(version)} <= known


# Seeds from all that a release ships


@pytest.mark.parametrize(("problem", "device"), [(FP8, "H200"), (INT8, "L40S")])
def test_a_real_corpus_makes_legal_seeds_for_every_point(problem: FusedMoe, device: str) -> None:
    card = find_device(device)
    there = {gemm: space_for(problem, card, gemm) for gemm in Gemm}
    points = [Point(m, gemm) for m in (1, 64, 4096) for gemm in Gemm]
    shipped = list(moe_engine(SGLang("0.5.16", package("0.5.16"))).shipped())
    at = spaces_at(points, problem, there)
    found = seeds_for(at, problem, card, there, shipped)
    for point in points:
        assert len(set(found[point])) == len(found[point]) == 16
        assert all(at[point].legal(seed) for seed in found[point])
    assert found[points[0]] != found[points[-1]]
    assert found == seeds_for(at, problem, card, there, reversed(shipped))
