"""Seeds from all that a release ships."""

import pytest
from cases import FP8, INT8
from real_sglang import package

from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.engines.sglang.package import SGLang
from tuner.families.fused_moe.engine import moe_engine
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.families.fused_moe.space import seeds_for, space_for, spaces_at
from tuner.problems.points import Point
from tuner.tuning.request import Request, parse_source, prepare


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


@pytest.mark.parametrize(("problem", "device"), [(INT8, "L40S"), (INT8, "H200"), (FP8, "H200")])
def test_a_file_of_older_measurements_for_the_card_is_named(problem: FusedMoe, device: str) -> None:
    source = parse_source("predict")
    request = Request(problem, find_device(device), find_engine("sglang==0.5.16"), source)
    notes = " ".join(prepare(request).notes)
    path = "triton_3_1_0/E=256,N=64,device_name=NVIDIA_L40S,dtype=int8_w8a8.json"
    assert (path in notes) == (device == "L40S")
    assert ("copy it to the name above" in notes) == (device == "L40S")
