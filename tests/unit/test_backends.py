"""Every backend keeps one contract. Those that torch alone suffices for run here, on the CPU."""

import math
from types import SimpleNamespace

import pytest
import torch

from tuner.backends import cutlass, registry
from tuner.backends.operands import GemmOperands, Unsupported
from tuner.backends.registry import BACKENDS, backends_of, find_backend, no_module
from tuner.families.dense_gemm.gpu import GemmOnGpu
from tuner.families.dense_gemm.problem import DensePart, parse_dense_gemm
from tuner.measure.library_calls import backend_of
from tuner.measure.messages import point_fields
from tuner.problems.points import Point, title_of
from tuner.problems.registry import families
from tuner.problems.results import Status

# torch has them, and runs them on a CPU too; tests/gpu/test_gpu_backends.py runs all.
HERE = {"cublas"}


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
        one = gemm_operands()
        (call,) = find_backend(name).module().gemm([one])
        expected = (one.a.double() @ one.b.double().T) * one.a_scale * one.b_scale.T
        torch.testing.assert_close(call().double(), expected, rtol=1e-4, atol=1e-2)

    @pytest.mark.parametrize("name", sorted(HERE))
    def test_what_it_cannot_run_is_refused_in_words(self, name):
        module = find_backend(name).module()
        with pytest.raises(Unsupported, match="divide by 16"):
            module.gemm([gemm_operands(n=8)])


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


def test_a_gemm_of_a_library_that_is_not_here_is_unsupported():
    """The session says so of the candidate, and goes on with the others."""
    session = object.__new__(GemmOnGpu)  # without a GPU
    session._problem, session._bound = parse_dense_gemm("channel_gemm:N=8,K=8,dtype=fp8_w8a8"), 0.0
    batch = SimpleNamespace(library_error=lambda library: 0.0)
    session._batches = SimpleNamespace(at=lambda size: batch, push_out=None)
    said = session.measure(
        {**point_fields(Point(8, DensePart.DENSE)), "config": {}, "backend": "nobody"}
    )
    assert said["status"] == Status.UNSUPPORTED.value
    assert said["detail"] == no_module("nobody", "channel_gemm")
