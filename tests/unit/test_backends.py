"""Every backend keeps one contract. Those that torch alone suffices for run here, on the CPU."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tuner.backends import cutlass, registry
from tuner.backends.operands import AttentionOperands, GemmOperands, Unsupported
from tuner.backends.registry import BACKENDS, backends_of, find_backend, no_module
from tuner.measure.chain_session import backend_of
from tuner.problems.points import title_of
from tuner.problems.registry import families

# torch has them, and runs them on a CPU too; tests/gpu/test_gpu_backends.py runs all.
HERE = {"cublas", "fa2", "cudnn"}


def attention_operands(
    new=(5, 1, 3), cached=(0, 4, 7), heads=(4, 2), columns=(16, 16), **traits
) -> AttentionOperands:
    total = tuple(a + b for a, b in zip(cached, new, strict=True))
    tokens = torch.Generator().manual_seed(1)
    slots = torch.randperm(2 * sum(total), generator=tokens)[: sum(total)].int()

    def some(rows, count, width):
        return torch.randn((rows, count, width), generator=tokens)

    keys = some(2 * sum(total), heads[1], columns[0])
    found = {"window": 0, "sinks": None, "logit_cap": 0.0, "latent": False, **traits}
    return AttentionOperands(
        q=some(sum(new), heads[0], columns[0]),
        k_cache=keys,
        v_cache=keys[..., : columns[1]]
        if found["latent"]
        else some(2 * sum(total), heads[1], columns[1]),
        out=torch.full((sum(new), heads[0], columns[1]), math.nan),
        slots=slots,
        new=new,
        total=total,
        scale=columns[0] ** -0.5,
        **found,
    )


def expected_attention(one: AttentionOperands) -> torch.Tensor:
    """Row by row, in float64."""
    rows = []
    group = one.q_heads // one.kv_heads
    q_parts, slot_parts = one.q.split(list(one.new)), one.slots.split(list(one.total))
    for q, slots in zip(q_parts, slot_parts, strict=True):
        k = one.k_cache[slots.long()].double().repeat_interleave(group, dim=1)
        v = one.v_cache[slots.long()].double().repeat_interleave(group, dim=1)
        before = len(k) - len(q)
        for at, row in enumerate(q.double()):
            seen = before + at + 1
            logits = torch.einsum("hc,khc->hk", row, k[:seen]) * one.scale
            rows.append(torch.einsum("hk,khc->hc", logits.softmax(1), v[:seen]))
    return torch.stack(rows)


def gemm_operands(m=24, n=32, k=48) -> GemmOperands:
    some = torch.Generator().manual_seed(2)

    def whole(rows):
        return torch.randint(-127, 128, (rows, k), generator=some, dtype=torch.int8)

    def scales(rows):
        return torch.rand((rows, 1), generator=some) + 0.5

    out = torch.full((m, n), math.nan, dtype=torch.float32)
    return GemmOperands(whole(m), whole(n), scales(m), scales(n), out, None)


class TestContract:
    """What holds for every backend."""

    @pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
    def backend(self, request):
        return request.param

    def test_names_are_short_and_titles_are_for_people(self, backend):
        assert backend.name == backend.name.lower()
        assert find_backend(backend.name) is backend
        assert title_of(backend.name) == backend.title != backend.name
        known = {kind for family in families() for kind in family.problems}
        assert backend.families
        assert set(backend.families) <= known

    def test_one_that_is_missing_says_so_and_has_no_version(self, backend, monkeypatch):
        monkeypatch.setattr(registry, "_found", lambda package: False)
        assert all(package in backend.missing for package in backend.packages)
        assert backend.version == ""

    @pytest.mark.parametrize("name", sorted(HERE))
    def test_results_are_those_of_a_plain_reference(self, name):
        module = find_backend(name).module()
        if hasattr(module, "gemm"):
            one = gemm_operands()
            (call,) = module.gemm([one])
            expected = (one.a.double() @ one.b.double().T) * one.a_scale * one.b_scale.T
            torch.testing.assert_close(call().double(), expected, rtol=1e-4, atol=1e-2)
            return
        prefill = attention_operands(cached=(0, 0, 0))
        decode = attention_operands(new=(1, 1, 1))
        uniform = attention_operands(new=(1, 1), cached=(6, 6))
        for one in (prefill, decode, uniform):
            first, second = module.attention([one, replace(one, q=-one.q)])
            torch.testing.assert_close(
                first().double(), expected_attention(one), rtol=1e-4, atol=1e-5
            )
            assert first().shape == one.out.shape
            assert not torch.allclose(first(), second())

    @pytest.mark.parametrize("name", sorted(HERE))
    def test_what_it_cannot_run_is_refused_in_words(self, name):
        module = find_backend(name).module()
        if hasattr(module, "gemm"):
            with pytest.raises(Unsupported, match="divide by 16"):
                module.gemm([gemm_operands(n=8)])
            return
        for trait in ({"window": 3}, {"logit_cap": 30.0}, {"sinks": torch.zeros(4)}):
            with pytest.raises(Unsupported, match=r"\w+ \w+"):
                module.attention([attention_operands(cached=(0, 0, 0), **trait)])


def test_fa2_reads_a_cached_prefix_and_cudnn_does_not():
    one = attention_operands()
    (call,) = find_backend("fa2").module().attention([one])
    torch.testing.assert_close(call().double(), expected_attention(one), rtol=1e-4, atol=1e-5)
    with pytest.raises(Unsupported, match="no cached prefix"):
        find_backend("cudnn").module().attention([one])


def test_a_family_has_its_backends():
    assert [b.name for b in backends_of("channel_gemm")] == ["cutlass", "cublas"]
    assert backends_of("fused_moe") == []
    assert find_backend("aiter") is None  # no module here


@pytest.mark.parametrize(("name", "title"), [("flash_mla", "FlashMLA"), ("marlin", "Marlin")])
def test_a_backend_without_a_module_is_said_not_to_be_measured(name, title):
    with pytest.raises(Unsupported, match=f"{title} is not measured for .*no module for it here"):
        backend_of(name, "decode_attention")
    assert no_module("fa3", "decode_attention") == ""


@pytest.mark.parametrize("module", cutlass._COMPILED_AT_FIRST)
def test_sglang_s_cutlass_for_blocks_is_for_its_cards_alone(module, monkeypatch):
    def multiply(a, b, a_scale, b_scale, dtype):
        return "multiplied"

    only = {module: SimpleNamespace(fp8_blockwise_scaled_mm=multiply)}
    monkeypatch.setattr(cutlass, "_imported", only.get)
    scale = torch.ones(1, 1)
    some = torch.zeros(128, 128, dtype=torch.float8_e4m3fn)
    one = GemmOperands(
        some, some, scale, scale, torch.zeros(128, 128, dtype=torch.bfloat16), (128, 128)
    )
    monkeypatch.setattr(cutlass, "this_target", lambda: "sm_120")
    (call,) = cutlass.gemm([one])
    assert call() == "multiplied"
    monkeypatch.setattr(cutlass, "this_target", lambda: "sm_90")
    with pytest.raises(Unsupported, match="for sm_90, and sglang's takes sm_120 and sm_121 alone"):
        cutlass.gemm([one])
