"""The slots of several routings at once, against sorting each by hand as engines do."""

import pytest
import torch

from tuner.families.fused_moe.inputs import (
    Slots,
    align,
    make_activations,
    random_routing,
    sort_activations,
)
from tuner.families.fused_moe.problem import FusedMoe, Gemm, padded_slots
from tuner.problems.registry import parse_problem

EXPERTS = 12


def by_hand(ids: list[int], block_m: int, slots: int, *, foreign_blocks: bool = True) -> Slots:
    """Expert by expert, each padded to whole blocks; at first those of other ranks, if asked."""
    sorted_ids: list[int] = []
    expert_ids: list[int] = []
    for expert in range(-1 if foreign_blocks else 0, EXPERTS):
        own = [slot for slot, of in enumerate(ids) if of == expert]
        blocks = -(-len(own) // block_m)
        sorted_ids += own + [len(ids)] * (blocks * block_m - len(own))
        expert_ids += [expert] * blocks
    used = len(sorted_ids)
    sorted_ids += [len(ids)] * (slots - used)
    expert_ids += [0] * (-(-slots // block_m) - len(expert_ids))
    return Slots(*(torch.tensor(x, dtype=torch.int32) for x in (sorted_ids, expert_ids, [used])))


@pytest.mark.parametrize("batch_size", [1, 7, 64])
@pytest.mark.parametrize("block_m", [16, 48, 128])
def test_slots_are_sorted_by_expert_in_whole_blocks(batch_size, block_m):
    problem = parse_problem(f"fused_moe:E={EXPERTS},N=128,K=128,top_k=3,dtype=bfloat16")
    assert isinstance(problem, FusedMoe)
    routings = [
        random_routing(problem, batch_size, device="cpu", seed=seed, skew=skew)
        for seed, skew in ((1, 0.0), (2, 0.8), (3, 3.0))
    ]
    slots = padded_slots(batch_size * 3, EXPERTS, block_m)
    for routing, found in zip(
        routings, align(routings, EXPERTS, block_m, slots, foreign_blocks=True), strict=True
    ):
        expected = by_hand(routing.ids.flatten().tolist(), block_m, slots)
        assert found.sorted_ids is not None and expected.sorted_ids is not None
        assert torch.equal(found.sorted_ids, expected.sorted_ids)
        assert torch.equal(found.expert_ids, expected.expert_ids)
        assert torch.equal(found.used, expected.used)


@pytest.mark.parametrize("foreign_blocks", [True, False])
@pytest.mark.parametrize("batch_size", [1, 64])
def test_slots_of_other_ranks_come_first_or_in_no_block(batch_size, foreign_blocks):
    problem = parse_problem(f"fused_moe:E={EXPERTS},N=128,K=128,top_k=3,dtype=bfloat16,ep=8")
    routings = [random_routing(problem, batch_size, device="cpu", seed=seed) for seed in (1, 2)]
    slots = padded_slots(batch_size * 3, EXPERTS, 16)
    found = align(routings, EXPERTS, 16, slots, foreign_blocks=foreign_blocks)
    for routing, one in zip(routings, found, strict=True):
        ids = routing.ids.flatten().tolist()
        assert -1 in ids and {*ids} <= {*range(-1, EXPERTS)}
        expected = by_hand(ids, 16, slots, foreign_blocks=foreign_blocks)
        assert torch.equal(one.sorted_ids, expected.sorted_ids)
        assert torch.equal(one.expert_ids, expected.expert_ids)
        assert torch.equal(one.used, expected.used)


def test_a_rank_gets_its_part_of_the_slots_and_shared_experts_get_all_tokens():
    problem = parse_problem(
        "fused_moe:E=33,N=128,K=128,top_k=9,dtype=bfloat16,ep=8,shared_experts=1"
    )
    ids = random_routing(problem, 2048, device="cpu", seed=1).ids
    assert (ids[:, -1] == 32).all()
    own = (ids >= 0).sum().item() / len(ids)
    assert own == pytest.approx(problem.local_top_k, rel=0.05) == 2
    assert all(len({*row}) == len(row) for row in ([i for i in r if i >= 0] for r in ids.tolist()))


def test_each_routing_has_tensors_of_its_own():
    """A row of a matrix may begin at an address that is no multiple of 16 bytes."""
    problem = parse_problem(f"fused_moe:E={EXPERTS},N=128,K=128,top_k=3,dtype=bfloat16")
    assert isinstance(problem, FusedMoe)
    routings = [random_routing(problem, 5, device="cpu", seed=seed) for seed in range(3)]
    for found in align(routings, EXPERTS, 48, padded_slots(15, EXPERTS, 48), foreign_blocks=True):
        for tensor in (found.sorted_ids, found.expert_ids, found.used):
            assert not tensor.storage_offset() and tensor.data_ptr() % 16 == 0


@pytest.mark.parametrize("scheme", ["fp8_w8a8", "fp8_w8a8,block_shape=64x64"])
def test_sorted_activations_keep_what_has_no_row(scheme):
    problem = parse_problem(f"fused_moe:E={EXPERTS},N=128,K=128,top_k=3,dtype={scheme}")
    routing = random_routing(problem, 5, device="cpu", seed=1)
    activations = make_activations(problem, Gemm.DOWN, 5, device="cpu", seed=2)
    rows = padded_slots(15, EXPERTS, 16)
    (slots,) = align([routing], EXPERTS, 16, rows, foreign_blocks=True)
    found = sort_activations(activations, slots, rows)
    valid = (slots.sorted_ids < 15).nonzero().view(-1)
    source = slots.sorted_ids[valid].long()
    assert torch.equal(found.a.float()[valid], activations.a.float()[source])
    by_row = activations.scale.dim() == 2
    assert by_row is ("block_shape" in scheme)
    expected = activations.scale[source] if by_row else activations.scale
    assert torch.equal(found.scale[valid] if by_row else found.scale, expected)
