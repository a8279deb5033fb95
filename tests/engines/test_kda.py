"""Kimi delta attention (KDA), beyond what test_chunk_scan.py has of any scan."""

from __future__ import annotations

import json
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest
import torch
from interpret_scans import CASES
from interpreter import interpreted
from tiers import only
from torch.nn.functional import softplus

from tuner.devices.table import find_device
from tuner.engines.dispatch import what_runs
from tuner.engines.engine import find_engine
from tuner.engines.vllm.scan_sources import scan_here
from tuner.errors import (
    BadProblem,
    IndivisibleShape,
    LacksLayers,
    MalformedCheckpoint,
    UnsupportedKernel,
)
from tuner.families.kda import inputs
from tuner.families.kda.models import resolve, resolve_config
from tuner.families.kda.problem import KdaKernel, parse_kda
from tuner.families.kda.stages import SCAN
from tuner.families.scans.engine import scan_engine
from tuner.families.scans.scan import scan_named
from tuner.families.scans.space import scan_space
from tuner.models.serving import Serving
from tuner.problems.points import Point

H100 = find_device("H100")
LINEAR = parse_kda("kda:heads=32,head_dim=128")
ENGINES = ["sglang==0.5.12", "sglang==0.5.16", "sglang==0.5.23", "vllm==0.33.0"]
KERNELS = {
    engine: scan_engine(find_engine(engine), "kda").lift()
    for engine in ("sglang==0.5.16", "sglang==0.5.23", "vllm==0.33.0")
}


@pytest.mark.parametrize("engine", only(["sglang==0.5.16"], ENGINES))
def test_the_kernels_scan_as_the_reference_does(engine, tmp_path):
    errors = interpreted("interpret_scans.py", engine, "kda", tmp_path)
    assert errors.keys() == CASES["kda"].keys()
    for case, found in errors.items():
        assert found.keys() == {*(part.value for part in KdaKernel), "chain"}
        assert max(found.values()) < 5e-3, case  # the rounding of float16


@pytest.mark.parametrize(("sequences", "tokens"), [(1, 150), (3, 128)])
def test_the_reference_is_the_recurrence(sequences, tokens):
    problem = parse_kda("kda:heads=4,head_dim=16")
    point = Point(sequences, KdaKernel.OUT, tokens)
    prompt = inputs.make_prompt(problem, point, device="cpu", seed=3)
    found = inputs.reference(problem, point, prompt)
    q, k, v = (x.double() for x in (found["q_normal"], found["k_normal"], prompt.v))
    gates = softplus(prompt.raw_g.double() + prompt.bias.double().view(4, 16))
    gates = gates * -prompt.A_log.double().exp()[:, None]
    for sequence in range(sequences):
        state = torch.zeros(4, 16, 16, dtype=torch.double)
        for at in range(sequence * tokens, (sequence + 1) * tokens):
            state = state * gates[at].exp()[:, None]
            new = v[at] - torch.einsum("hvk,hk->hv", state, k[at])
            rate = prompt.raw_beta[at].double().sigmoid()[:, None]
            state = state + (new * rate)[:, :, None] * k[at][:, None]
            out = torch.einsum("hvk,hk->hv", state, q[at]) / 4.0
            assert torch.allclose(found["out"][at].double(), out, atol=1e-5)
        assert torch.allclose(found["final"][sequence].double(), state, atol=1e-5)
    made = inputs.outputs(problem, point, "meta")
    assert {name: tensor.shape for name, tensor in found.items()} == {
        name: tensor.shape for name, tensor in made.items()
    }


def test_older_sglang_takes_powers_of_two_of_natural_logarithms():
    """Its outputs are no KDA; a reference that did not follow it would call all kernels wrong."""
    assert [kernels.differs["base_two"] for kernels in KERNELS.values()] == [False, True, True]
    problem, point = parse_kda("kda:heads=2,head_dim=16"), Point(1, KdaKernel.OUT, 64)
    prompt = inputs.make_prompt(problem, point, device="cpu", seed=3)
    right, older = (inputs.reference(problem, point, prompt, base_two=two) for two in (True, False))
    assert not torch.allclose(right["P"], older["P"], atol=1e-2)
    assert torch.allclose(right["g_sum"] * 0.6931472, older["g_sum"], atol=1e-4)
    assert torch.equal(right["kg"], older["kg"])


def test_what_the_engines_run_is_read_from_their_launchers():
    chosen = {
        "sglang==0.5.16": {KdaKernel.STATES: "BV=32,num_stages=2,num_warps=4"},
        "sglang==0.5.23": {
            KdaKernel.WEIGHTS: "BK=128,BV=128,num_stages=2,num_warps=8",  # on sm_90
            KdaKernel.STATES: "BV=32,num_stages=2,num_warps=4",
        },
        "vllm==0.33.0": {},
    }
    listed = {
        "sglang==0.5.16": (6, 16, 6, 36, 1, 9),
        "sglang==0.5.23": (6, 16, 6, 0, 1, 36),
        "vllm==0.33.0": (6, 16, 6, 9, 12, 36),
    }
    for engine, kernels in KERNELS.items():
        own = {part: kernels.constants(LINEAR, part, H100.target) for part in KdaKernel}
        assert {part: config.key for part, config in own.items() if config} == chosen[engine]
        found = [kernels.listed(LINEAR, part, H100.target) for part in KdaKernel]
        assert tuple(map(len, found)) == listed[engine]
        for part, configs in zip(KdaKernel, found, strict=True):
            space = scan_space(LINEAR, part, H100)
            assert all(map(space.legal, configs))
            for config in [*space.configs()][::9]:
                (launch,) = kernels.launches(LINEAR, Point(8, part, 2048), config, H100.target)
                variant = launch.binding.variant()
                assert {**variant.constants, **variant.options}.items() >= config.items()
    ada = find_device("L40S").target
    assert len(KERNELS["sglang==0.5.23"].listed(LINEAR, KdaKernel.WEIGHTS, ada)) == 36
    assert KERNELS["sglang==0.5.23"].first_tokens(LINEAR) == 9 * 64  # after its small grids
    assert KERNELS["vllm==0.33.0"].first_tokens(LINEAR) == 64


def test_constants_that_a_list_shares_are_part_of_a_launch():
    kernels = KERNELS["sglang==0.5.23"]
    config = kernels.listed(LINEAR, KdaKernel.SOLVE, H100.target)[0]
    assert config.key == "BK=32,num_stages=3,num_warps=1"
    (launch,) = kernels.launches(LINEAR, Point(1, KdaKernel.SOLVE, 8192), config, H100.target)
    assert launch.binding.variant().constants["BV"] == 64


def test_launches_of_other_chains_are_told_apart():
    rows = SimpleNamespace(dtype="torch.bfloat16", shape=(1, 8192, 32, 128))
    states = SimpleNamespace(dtype="torch.float32", shape=(1, 128, 32, 128, 128))
    sizes = {"BT": 64, "H": 32, "K": 128, "V": 128, "S": 128, "T": 8192, "Hg": 32}
    named = {**sizes, "q": rows, "k": rows, "s": rows, "h": states, "lower_bound": None}
    named |= {"chunk_indices": SimpleNamespace(shape=(128, 2)), "initial_state": states}
    named |= {"gk": rows, "g": None, "USE_SAFE_GATE": False}
    for part, stage in SCAN.stages.items():
        length = 8192 if part is KdaKernel.DIAGONAL else 128
        assert stage.seen(named) == (stage.shows(LINEAR), length), part
    for part, other in (
        (KdaKernel.GATES, {"lower_bound": -5.0}),
        (KdaKernel.SOLVE, {"USE_SAFE_GATE": True}),
        (KdaKernel.SOLVE, {"FUSE_DIAGONAL": True}),
        (KdaKernel.STATES, {"gk": None}),
    ):
        assert SCAN.stages[part].seen({**named, **other}) is None
    delta = scan_named("gated_delta")
    state = next(stage for part, stage in delta.stages.items() if part.value == "delta_states")
    assert state.seen(named) is None
    assert state.seen({**named, "gk": None, "g": rows}) is not None


def test_vllms_kernels_lie_in_two_folders():
    files = {stage.file for stage in scan_here("kda").stages.values()}
    folders = {file.rpartition("/")[0] for file in files}
    assert folders == {
        "models/kimi_k3/nvidia/ops/third_party/kda",
        "third_party/flash_linear_attention/ops",
    }
    with pytest.raises(UnsupportedKernel, match="has other kernels for KDA on AMD's cards"):
        scan_engine(find_engine("vllm==0.33.0"), "kda").lift("hip")
    with pytest.raises(UnsupportedKernel, match=r"vllm 0\.24\.0 has no kernels for KDA"):
        scan_engine(find_engine("vllm==0.24.0"), "kda").lift()


def test_a_models_config_gives_the_heads_of_a_rank():
    found = resolve("kimi-linear", Serving(tp=2))
    (problem,) = found.problems
    assert problem.spec() == "kda:heads=16,head_dim=128,dtype=bfloat16,state_dtype=float32"
    assert found.notes == ("20 layers of Kimi delta attention of 32 heads",)
    assert resolve("kimi-linear", Serving(engine="vllm", tp=2)) == found
    layers = {"kda_layers": [1, 2, 3, 5], "num_heads": 32, "head_dim": 128}
    config = {
        **{"architectures": ["KimiLinearForCausalLM"], "num_hidden_layers": 5},
        **{"num_attention_heads": 32, "hidden_size": 2304, "linear_attn_config": layers},
    }
    read = resolve_config(json.dumps(config).encode(), "mine", Serving(tp=2))
    assert read.problems == found.problems
    with pytest.raises(IndivisibleShape, match="nearest that works is tp=2"):
        resolve("kimi-linear", Serving(tp=3))
    with pytest.raises(LacksLayers, match="no layers of Kimi delta attention are known of qwen3"):
        resolve("qwen3-next-80b-a3b", Serving())
    with pytest.raises(LacksLayers, match="no gated delta nets are known of kimi-linear"):
        scan_models("gated_delta").resolve("kimi-linear", Serving())
    for change, message in (
        ({"gate_lower_bound": -5.0}, "lower bound"),
        ({"num_heads": None}, "lacks num_heads"),
    ):
        other = {**config, "linear_attn_config": {**layers, **change}}
        with pytest.raises(MalformedCheckpoint, match=message):
            resolve_config(json.dumps(other).encode(), "mine", Serving())
    with pytest.raises(BadProblem, match="head_dim must be from 1 to 256"):
        replace(LINEAR, head_dim=512)


def scan_models(family: str) -> ModuleType:
    return __import__(f"tuner.families.{family}.models", fromlist=["resolve"])


def test_another_back_end_of_sglang_is_told():
    flag, both = "--linear-attn-prefill-backend", "--linear-attn-backend"
    for flags, kernel in (
        ({}, "Triton"),
        ({flag: "flashkda"}, "the flashkda back end"),
        ({both: "helion"}, "the helion back end"),
        ({both: "helion", flag: "triton"}, "Triton"),
    ):
        found = what_runs("sglang", "0.5.23", LINEAR, H100, flags)
        assert found
        assert [one.name for one in found.kernels] == [kernel]
        advised = "only with --linear-attn-prefill-backend triton" in found.line()
        assert advised == (kernel != "Triton")
