"""Libraries read the same batch as Triton's kernels: one cache that holds the new tokens, too."""

from __future__ import annotations

import pytest

from tuner.backends import fa2
from tuner.backends.operands import Unsupported
from tuner.devices.target import cuda_target
from tuner.engines.engine import find_engine
from tuner.families.attention.batch import operands_of
from tuner.families.attention.engine import attention_engine
from tuner.families.attention.inputs import compared, make_inputs, output_of, reference
from tuner.families.attention.kernels import AttentionKernels
from tuner.families.attention.problem import parse_attention
from tuner.families.attention.splits import Lengths
from tuner.measure.timing import Reference

HEADS = "q_heads=4,kv_heads=2,Lq=16,Lv=16,dtype=bfloat16"
LATENT = "q_heads=4,kv_heads=1,Lq=288,Lv=256,dtype=bfloat16"
CASES = {
    "nothing cached": (f"extend_attention:{HEADS}", Lengths((5, 1, 9), (0, 0, 0))),
    "a cached prefix": (f"extend_attention:{HEADS}", Lengths((5, 1, 9), (7, 0, 33))),
    "decode": (f"decode_attention:{HEADS}", Lengths((1, 1, 1), (7, 1, 33))),
}


@pytest.fixture(scope="module")
def kernels() -> AttentionKernels:
    return attention_engine(find_engine("sglang==0.5.16")).lift(cuda_target(9, 0).backend)


@pytest.mark.parametrize("name", CASES)
def test_a_library_attends_to_what_the_reference_attends_to(name, kernels):
    text, lengths = CASES[name]
    problem = parse_attention(text)
    inputs = make_inputs(kernels, problem, lengths, device="cpu", seed=3, cores=100)
    (call,) = fa2.attention([operands_of(inputs)])
    found = inputs.with_output(call())
    for sequence in compared(inputs):
        expected = Reference(reference(inputs, sequence))
        assert expected.worst_error(output_of(found, sequence)) < 0.03


def test_values_of_latent_attention_are_the_first_columns_of_its_keys(kernels):
    problem = parse_attention(f"extend_attention:{LATENT}")
    lengths = Lengths((5, 2), (7, 0))
    inputs = make_inputs(kernels, problem, lengths, device="cpu", seed=3, cores=100)
    one = operands_of(inputs)
    assert one.latent
    assert one.columns == (288, 256)
    assert one.v_cache.data_ptr() == one.k_cache.data_ptr()
    new = one.slots.split([12, 2])[0][7:].long()  # the first sequence's new tokens
    assert (one.k_cache[new] == inputs.tensors["k_extend"][:5]).all()


def test_an_image_s_tokens_have_no_cache(kernels):
    problem = parse_attention(f"prefill_attention:{HEADS}")
    inputs = make_inputs(kernels, problem, Lengths((5,), (0,)), device="cpu", seed=3, cores=100)
    with pytest.raises(Unsupported, match="with a cache alone"):
        operands_of(inputs)
