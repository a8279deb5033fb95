"""The reference of a fused-MoE gemm: groups of experts give what each slot alone gives."""

from itertools import product

import pytest
import torch
from tiers import only

from tuner.families.fused_moe import inputs
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.problems.registry import parse_problem

TYPES = (
    "dtype=bfloat16",
    "dtype=fp8_w8a8",
    "dtype=fp8_w8a8,block_shape=128x128",
    "dtype=int8_w8a8,per_channel_quant=true",
    "dtype=int8_w8a16",
    "dtype=int4_w4a16,block_shape=0x32",
)


AT_ONCE = (1, 100_000, inputs.AT_ONCE)


def each_alone(
    weights: inputs.Weights, activations: inputs.Activations, routing: inputs.Routing
) -> torch.Tensor:
    a, top_k = activations.dense(), routing.ids.shape[1]
    dense = [weights.dense(expert).T for expert in range(weights.problem.E)]
    found = []
    for slot, expert in enumerate(routing.ids.flatten().tolist()):
        up = weights.gemm is Gemm.UP
        row = a[slot // top_k if up else slot] @ dense[expert]
        found.append(row if up else row * routing.weights.flatten()[slot])
    return torch.stack(found)


@pytest.mark.parametrize(
    ("dtype", "gemm"),
    only(
        [(dtype, Gemm.UP) for dtype in TYPES[::2]] + [(TYPES[3], Gemm.DOWN)], product(TYPES, Gemm)
    ),
)
def test_groups_of_experts_give_what_each_slot_alone_gives(dtype, gemm, monkeypatch, subtests):
    problem = parse_problem(f"fused_moe:E=16,N=128,K=256,top_k=4,{dtype}")
    assert isinstance(problem, FusedMoe)
    made = {"device": "cpu", "compute": "bf16"}
    weights = inputs.make_weights(problem, gemm, seed=1, **made)
    for batch_size, skew in ((1, 0.0), (5, 0.8), (40, 0.8)):
        activations = inputs.make_activations(problem, gemm, batch_size, seed=2, **made)
        routing = inputs.random_routing(problem, batch_size, device="cpu", seed=3, skew=skew)
        expected = each_alone(weights, activations, routing)
        for at_once in AT_ONCE:
            with subtests.test(batch_size=batch_size, at_once=at_once):
                monkeypatch.setattr(inputs, "AT_ONCE", at_once)
                found = inputs.reference(weights, activations, routing)
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("gemm", Gemm)
def test_several_routings_at_once_give_what_each_alone_gives(gemm):
    problem = parse_problem("fused_moe:E=16,N=128,K=256,top_k=4,dtype=fp8_w8a8,block_shape=128x128")
    assert isinstance(problem, FusedMoe)
    weights = inputs.make_weights(problem, gemm, seed=1, device="cpu")
    activations = inputs.make_activations(problem, gemm, 5, seed=2, device="cpu")
    routings = [
        inputs.random_routing(problem, 5, device="cpu", seed=seed, skew=skew)
        for seed, skew in ((3, 0.0), (4, 0.8))
    ]
    found = inputs.references(weights, activations, routings)
    for part, routing in zip(found, routings, strict=True):
        expected = inputs.reference(weights, activations, routing)
        torch.testing.assert_close(part, expected, rtol=1e-5, atol=1e-5)


def test_a_group_has_experts_with_slots_and_a_bounded_size(monkeypatch):
    counts, shape = [0, 3, 2, 0, 1, 1, 9, 0], (4, 8)
    assert list(inputs._groups(counts, shape)) == [(slice(1, 3), 3), (slice(4, 7), 9)]
    monkeypatch.setattr(inputs, "AT_ONCE", 2 * 4 * 8)
    assert list(inputs._groups(counts, shape)) == [
        (slice(1, 3), 3),
        (slice(4, 6), 1),
        (slice(6, 7), 9),
    ]
