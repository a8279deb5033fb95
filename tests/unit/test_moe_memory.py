"""A fused-MoE layer keeps the tensors of as many points as its memory holds."""

import pytest
import torch
from cases import INT8

from tuner.families.fused_moe.layer import Layer, PointInputs
from tuner.families.fused_moe.problem import Gemm
from tuner.problems.points import Point

SMALL = type(INT8)(E=8, N=64, K=256, top_k=2, dtype=INT8.dtype, per_channel_quant=True)
POINTS = [Point(size, gemm) for size in (1, 64, 128, 256) for gemm in Gemm]
LOTS = 1 << 33


def layer(free_bytes: int, l2_bytes: int = 0) -> Layer:
    return Layer(SMALL, 20, l2_bytes, foreign_blocks=True, free_bytes=free_bytes, device="cpu")


def kept(made: Layer) -> list[Point]:
    return [*made._inputs]


def held_bytes(inputs: PointInputs) -> int:
    """Bytes of a point's own tensors that are there now."""
    tensors = [inputs.activations.a, inputs.output, *(r._expected for r in inputs.references)]
    return sum(tensor.nbytes for tensor in tensors)


def test_all_points_are_kept_if_there_is_room():
    made = layer(LOTS)
    made.reserve(POINTS)
    first = [made.inputs(point) for point in POINTS]
    assert [made.inputs(point) for point in POINTS] == first
    assert all(a.weights[0] is first[0].weights[0] for a in first if a.point.part is Gemm.UP)


def test_the_least_recently_used_points_go_and_the_need_is_true():
    need = layer(LOTS).reserve(POINTS)
    made = layer(need)
    assert made.reserve(POINTS) == need
    most = max(made._held([point]) for point in POINTS)
    assert made._most_bytes == most
    for point in [*POINTS, *POINTS[::-1]]:
        made.inputs(point)
        assert kept(made)[-1] == point
        assert sum(held_bytes(made.inputs(one)) for one in kept(made)) <= most
    assert 1 <= len(kept(made)) < len(POINTS)
    weights = made.inputs(POINTS[0]).weights[0]
    made.inputs(POINTS[-2])
    assert made.inputs(POINTS[0]).weights[0] is weights


def test_the_last_point_that_was_used_stays():
    sizes = [Point(size, Gemm.UP) for size in (1, 2, 3)]
    made = layer(LOTS)
    made.reserve(sizes)
    made._most_bytes = made._held(sizes[1:])
    for at in (0, 1, 0, 2):
        made.inputs(sizes[at])
    assert kept(made) == [sizes[0], sizes[2]]


@pytest.mark.parametrize("l2_bytes", [0, 1 << 30])
def test_copies_of_weights_are_shared_and_counted(l2_bytes):
    made = layer(LOTS, l2_bytes)
    ups = [point for point in POINTS if point.part is Gemm.UP]
    need = made.reserve(ups)
    found = [made.inputs(point).weights for point in ups]
    assert len(found[0]) == (10 if l2_bytes else 1)
    own = {one.b.data_ptr(): one.b.nbytes for weights in found for one in weights}
    assert len(own) == len(found[0])
    assert sum(own.values()) < need
    assert all(torch.equal(one.b, found[0][0].b) for one in found[0])
