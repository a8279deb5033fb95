"""The scan of gated delta nets, beyond what test_chunk_scan.py has of any scan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cases import problems_of
from interpret_scans import CASES
from interpreter import interpreted
from tiers import only

from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.errors import (
    BadProblem,
    IndivisibleShape,
    LacksLayers,
    MalformedCheckpoint,
    UnsupportedKernel,
)
from tuner.families.scans.engine import scan_engine
from tuner.families.scans.gated_delta import inputs, models
from tuner.families.scans.gated_delta.problem import DeltaKernel, GatedDelta
from tuner.families.scans.gpu import ScanOnGpu
from tuner.families.scans.space import scan_space
from tuner.models.serving import Serving
from tuner.models.table import presets
from tuner.problems.points import Point

H100 = find_device("H100")
NEXT = GatedDelta.parse("gated_delta:key_heads=16,value_heads=32,key_dim=128,value_dim=128")
SPLIT = replace(NEXT, chain="split")
ENGINES = ["sglang==0.5.12", "sglang==0.5.16", "sglang==0.5.23"]
VLLM = ["vllm==0.24.0", "vllm==0.33.0"]
MODELS = Path(__file__).parents[1] / "data" / "models"


@pytest.mark.parametrize("engine", only(["sglang==0.5.23", "vllm==0.33.0"], [*ENGINES, *VLLM]))
def test_the_kernels_scan_as_the_reference_does(engine, tmp_path):
    errors = interpreted("interpret_scans.py", engine, "gated_delta", tmp_path)
    assert errors.keys() == CASES["gated_delta"].keys()
    for case, found in errors.items():
        parts = (SPLIT if engine in VLLM else NEXT).parts
        assert found.keys() == {*(part.value for part in parts), "chain"}
        assert max(found.values()) < 5e-3, case  # the rounding of float16


@pytest.mark.parametrize(("sequences", "tokens", "chain"), [(1, 150, "fused"), (3, 128, "split")])
def test_the_reference_is_the_recurrence(sequences, tokens, chain):
    text = "gated_delta:key_heads=2,value_heads=4,key_dim=16,value_dim=8"
    problem = GatedDelta.parse(f"{text},chain={chain}")
    point = Point(sequences, DeltaKernel.OUT, tokens)
    prompt = inputs.make_prompt(problem, point, device="cpu", seed=3)
    found = inputs.reference(problem, point, prompt)
    q, k = (x.double().repeat_interleave(2, 1) for x in (found["q_normal"], found["k_normal"]))
    assert torch.allclose(k.norm(dim=-1), torch.ones(1, dtype=torch.double))
    for sequence in range(sequences):
        state = torch.zeros(4, 8, 16, dtype=torch.double)
        for at in range(sequence * tokens, (sequence + 1) * tokens):
            state = state * prompt.g[at].double().exp()[:, None, None]
            new = prompt.v[at].double() - torch.einsum("hvk,hk->hv", state, k[at])
            state = state + (new * prompt.beta[at][:, None])[:, :, None] * k[at][:, None]
            out = torch.einsum("hvk,hk->hv", state, q[at]) / 4.0
            assert torch.allclose(found["out"][at].double(), out, atol=1e-5)
        assert torch.allclose(found["pool"][sequence].double(), state, atol=1e-5)
    made = inputs.outputs(problem, point, "meta")
    assert {name: tensor.shape for name, tensor in found.items()} == {
        name: tensor.shape for name, tensor in made.items()
    }


@pytest.mark.parametrize("engine", ENGINES)
def test_what_the_engine_runs_is_read_from_its_launchers(engine):
    kernels = scan_engine(find_engine(engine), "gated_delta").lift()
    own = {part: kernels.constants(NEXT, part, H100.target) for part in NEXT.parts}
    assert {part: config and config.key for part, config in own.items()} == {
        DeltaKernel.NORM: "BT=16,num_stages=3,num_warps=8",
        DeltaKernel.GATES: "num_stages=3,num_warps=8",
        DeltaKernel.SOLVE: None,
        DeltaKernel.WEIGHTS: "BK=64,BV=64,num_stages=3,num_warps=4",
        DeltaKernel.STATES: "BV=32,num_stages=2,num_warps=4",
        DeltaKernel.OUT: "BK=128,BV=64,num_stages=2,num_warps=4",
    }
    assert len(kernels.listed(NEXT, DeltaKernel.SOLVE, H100.target)) == 6
    for part, config in own.items():
        space = scan_space(NEXT, part, H100)
        assert all(map(space.legal, kernels.listed(NEXT, part, H100.target)))
        for chosen in {*space.configs()[::9]} - {config}:  # before the launcher's own constants
            launches = kernels.launches(NEXT, Point(8, part, 2048), chosen, H100.target)
            assert len(launches) == (2 if part is DeltaKernel.NORM else 1)
            for launch in launches:
                variant = launch.binding.variant()
                assert {**variant.constants, **variant.options}.items() >= chosen.items()


@pytest.mark.parametrize("engine", only(["vllm==0.33.0"], VLLM))
def test_vllm_chooses_each_kernel_from_its_list(engine):
    kernels = scan_engine(find_engine(engine), "gated_delta").lift()
    sizes = {"H100": (4, 27, 12, 9, 12, 24), "L40S": (4, 27, 12, 9, 12, 36)}
    for card, listed in sizes.items():
        target, found = find_device(card).target, []
        for part in SPLIT.parts:
            assert kernels.constants(SPLIT, part, target) is None
            found.append(kernels.listed(SPLIT, part, target))
            assert all(map(scan_space(SPLIT, part, find_device(card)).legal, found[-1]))
        assert tuple(map(len, found)) == listed
    first = kernels.listed(SPLIT, DeltaKernel.WEIGHTS, H100.target)[0]
    assert first.key == "BK=64,BV=64,num_stages=2,num_warps=2"  # the launcher says the tiles
    for part in SPLIT.parts:
        chosen = kernels.listed(SPLIT, part, H100.target)[-1]
        (launch,) = kernels.launches(SPLIT, Point(8, part, 2048), chosen, H100.target)
        variant = launch.binding.variant()
        assert {**variant.constants, **variant.options}.items() >= chosen.items()


@pytest.mark.parametrize(
    ("engine", "problem", "at", "chain"),
    [("vllm==0.33.0", NEXT, 0, "chain=split"), ("sglang==0.5.23", SPLIT, 1, "chain=fused")],
)
def test_a_problem_of_another_engines_chain_is_refused(engine, problem, at, chain):
    kernels = scan_engine(find_engine(engine), "gated_delta").lift()
    of_other = f"does not run {problem.parts[at].value}: .* another engine's .* give it {chain}"
    with pytest.raises(UnsupportedKernel, match=of_other):
        for part in problem.parts:
            kernels.listed(problem, part, H100.target)
    with pytest.raises(BadProblem, match="chain must be fused or split, not 'torn'"):
        GatedDelta.parse(f"{NEXT.spec()},chain=torn")


def test_a_backend_that_servers_may_run_instead_is_told_and_not_launched():
    session = SimpleNamespace(_problem=NEXT)
    answer = ScanOnGpu.measure(session, {"backend": "flashinfer"})
    assert answer["status"] == "unsupported"
    assert "no module for it" in answer["detail"]


def test_a_release_without_the_kernels_says_so():
    with pytest.raises(UnsupportedKernel, match="no kernels for states of values by keys"):
        scan_engine(find_engine("vllm==0.15.1"), "gated_delta").lift()


def test_a_models_config_gives_the_heads_of_a_rank(tmp_path):
    folder = str(MODELS / "qwen3.5-35b-a3b")
    found = problems_of(models, folder, Serving(tp=2))
    assert [problem.spec() for problem in found.problems] == [
        "gated_delta:key_heads=8,value_heads=16,key_dim=128,value_dim=128,dtype=bfloat16,"
        "state_dtype=float32"
    ]
    assert found.notes == ("30 gated delta nets of 16 key and 32 value heads",)
    kept = problems_of(models, folder, Serving(options={"mamba_state_dtype": "bfloat16"}))
    assert kept.problems[0].state_dtype == "bfloat16"
    for name, kept in (("qwen3.5-35b-a3b", "float32"), ("qwen3-next-80b-a3b", "bfloat16")):
        (problem,) = problems_of(models, name, Serving(engine="vllm", tp=2)).problems
        assert problem.spec().endswith(f"state_dtype={kept},chain=split")
    with pytest.raises(IndivisibleShape, match="nearest that works is tp=2"):
        problems_of(models, folder, Serving(tp=3))
    with pytest.raises(LacksLayers, match="no gated delta nets are known of deepseek-r1: name"):
        problems_of(models, str(MODELS / "deepseek-r1"), Serving())
    assert problems_of(models, "qwen3.5-35b-a3b-fp8", Serving(tp=2)) == found
    with pytest.raises(MalformedCheckpoint, match="give the folder of its config.json") as unknown:
        problems_of(models, "qwen3.8-2.4t-a95b", Serving())
    assert not isinstance(unknown.value, LacksLayers)  # its class has such layers
    with pytest.raises(BadProblem, match="do not divide"):
        GatedDelta.parse("gated_delta:key_heads=3,value_heads=32,key_dim=128,value_dim=128")


def test_presets_have_the_layers_that_their_attention_leaves():
    found = [model for model in presets() if model.delta]
    shapes = {model.name: (model.delta, model.attention) for model in found}
    assert len(shapes) == 17
    for name, (delta, attention) in shapes.items():
        # Every fourth layer is full attention.
        assert delta.layers == 3 * sum(kind.count for kind in attention.layers), name
        assert problems_of(models, name, Serving(tp=4)).problems[0].key_heads == 4
