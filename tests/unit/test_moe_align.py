"""The slots of several routings at once, against sorting each by hand as engines do."""

import pytest
import torch

from tuner.families.fused_moe.inputs import Slots, align, random_routing
from tuner.families.fused_moe.problem import FusedMoe, padded_slots
from tuner.problems.registry import parse_problem

EXPERTS = 12


def by_hand(ids: list[int], block_m: int, slots: int) -> Slots:
    """Expert by expert, each padded to whole blocks."""
    sorted_ids: list[int] = []
    expert_ids: list[int] = []
    for expert in range(EXPERTS):
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
    for routing, found in zip(routings, align(routings, EXPERTS, block_m, slots), strict=True):
        expected = by_hand(routing.ids.flatten().tolist(), block_m, slots)
        assert found.sorted_ids is not None and expected.sorted_ids is not None
        assert torch.equal(found.sorted_ids, expected.sorted_ids)
        assert torch.equal(found.expert_ids, expected.expert_ids)
        assert torch.equal(found.used, expected.used)


def test_each_routing_has_tensors_of_its_own():
    """A row of a matrix may begin at an address that is no multiple of 16 bytes."""
    problem = parse_problem(f"fused_moe:E={EXPERTS},N=128,K=128,top_k=3,dtype=bfloat16")
    assert isinstance(problem, FusedMoe)
    routings = [random_routing(problem, 5, device="cpu", seed=seed) for seed in range(3)]
    for found in align(routings, EXPERTS, 48, padded_slots(15, EXPERTS, 48)):
        for tensor in (found.sorted_ids, found.expert_ids, found.used):
            assert not tensor.storage_offset() and tensor.data_ptr() % 16 == 0
