"""Mamba-2 layers: what config.json says of them, and the scans that they run."""

from pathlib import Path

import pytest
from cases import problems_of

from tuner.errors import (
    BadProblem,
    IndivisibleShape,
    LacksLayers,
    MalformedCheckpoint,
    UnknownModel,
)
from tuner.families.scans.chunk_scan import models
from tuner.families.scans.chunk_scan.problem import ChunkScan
from tuner.models.serving import Serving
from tuner.problems.dtypes import Dtype

MODELS = Path(__file__).parents[1] / "data" / "mamba"
SPEC = (
    "heads=16,head_dim=64,state_size=128,groups=2,chunk_size=64,dtype=bfloat16,state_dtype=float32"
)


def served(tp: int = 1, dtype: Dtype | None = None, **options: str) -> Serving:
    return Serving(engine="vllm", engine_version="0.33.0", tp=tp, dtype=dtype, options=options)


def problem_of(name: str, serving: Serving) -> ChunkScan:
    (found,) = problems_of(models, str(MODELS / name), serving).problems
    assert isinstance(found, ChunkScan)
    return found


@pytest.mark.parametrize(
    ("name", "sizes", "cache"),
    [
        ("nemotron-3-nano", (64, 64, 128, 8), "float32"),
        ("granite-4-hybrid", (128, 64, 128, 1), "bfloat16"),
        ("zamba2", (64, 64, 64, 1), "bfloat16"),
        ("falcon-h1", (24, 64, 128, 1), "bfloat16"),
        ("mamba2", (128, 64, 128, 8), "float16"),
    ],
)
def test_each_class_names_its_sizes(name, sizes, cache):
    found = problem_of(name, served())
    assert (found.heads, found.head_dim, found.state_size, found.groups) == sizes
    assert found.state_dtype == cache
    assert problems_of(models, (MODELS / name / "config.json").read_bytes(), served()).problems


@pytest.mark.parametrize(
    ("preset", "sizes"),
    [
        ("nemotron-3-nano-30b-a3b", (64, 64, 8, 128, 128)),
        ("granite-4.0-h-small", (128, 64, 1, 128, 256)),
        ("falcon-h1-34b-base", (32, 128, 2, 256, 128)),
    ],
)
def test_presets_have_their_layers(preset, sizes):
    (scan,) = problems_of(models, preset, served()).problems
    assert isinstance(scan, ChunkScan)
    found = scan.heads, scan.head_dim, scan.groups, scan.state_size, scan.chunk_size
    assert found == sizes
    with pytest.raises(LacksLayers, match="no Mamba-2 layers are known of qwen3-8b"):
        problems_of(models, "qwen3-8b", served())


def test_ranks_share_heads_and_groups():
    found = problem_of("nemotron-3-nano", served(tp=8))
    assert (found.heads, found.groups) == (8, 1)
    found = problem_of("granite-4-hybrid", served(tp=8))  # its only group is copied to each rank
    assert (found.heads, found.groups) == (16, 1)
    with pytest.raises(IndivisibleShape, match=r"64 Mamba heads in 8 groups; .* tp=8"):
        problem_of("nemotron-3-nano", served(tp=16))
    with pytest.raises(BadProblem, match="tensor-parallel sizes start at 1"):
        problem_of("nemotron-3-nano", served(tp=0))


def test_the_type_of_states_can_be_said():
    serving = served(mamba_state_dtype="float16")
    assert problem_of("nemotron-3-nano", serving).state_dtype == "float16"
    assert problem_of("granite-4-hybrid", served(dtype=Dtype.FLOAT16)).state_dtype == "float16"
    with pytest.raises(BadProblem, match="dtype must be bfloat16 or float16, not fp8_w8a8"):
        problem_of("granite-4-hybrid", served(dtype=Dtype.FP8_W8A8))


@pytest.mark.parametrize("name", ["granite-4-dense", "qwen3-next"])
def test_models_without_such_layers_are_refused(name):
    """A dense Granite 4 has the fields of Mamba layers, and a gated delta net is another kernel."""
    with pytest.raises(
        MalformedCheckpoint, match="no Mamba-2 layers that are known here"
    ) as caught:
        problem_of(name, served())
    assert ("chunk_scan:" in str(caught.value)) is (name != "qwen3-next")


def test_what_cannot_be_resolved_says_what_to_do():
    with pytest.raises(LacksLayers, match="no Mamba-2 layers are known of deepseek-r1: give"):
        problems_of(models, "deepseek-r1", served())
    for text, said in (("no-such-model", "NAME"), ("some/model-x", "some/model-x")):
        with pytest.raises(UnknownModel) as caught:
            problems_of(models, text, served())
        assert f"hf download {said} config" in caught.value.cli


def test_missing_and_bad_fields_are_named(tmp_path):
    for text, said in [
        ('{"architectures": ["Mamba2ForCausalLM"], "num_heads": 8}', "hidden_size"),
        (
            '{"architectures": ["Mamba2ForCausalLM"], "num_heads": 7, "hidden_size": 64}',
            "7 Mamba heads do not divide their width 128",
        ),
        ('{"architectures": ["Mamba2ForCausalLM"], "num_heads": "8"}', "whole number"),
        (
            '{"architectures": ["Mamba2ForCausalLM"], "num_heads": 8, "head_dim": 64}',
            "no state_size",
        ),
    ]:
        with pytest.raises(MalformedCheckpoint, match=said):
            problems_of(models, text.encode(), served())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("heads=15", "groups=2 do not divide heads=15"),
        ("heads=0", "heads must be from 1"),
        ("head_dim=4096", "head_dim must be from 1 to 1024"),
        ("state_dtype=float8", "not kept in 'float8'"),
        ("dtype=int8_w8a8", "dtype must be"),
    ],
)
def test_impossible_problems_are_refused(change, said):
    name = change.partition("=")[0]
    fields = dict(part.split("=") for part in SPEC.split(","))
    fields[name] = change.partition("=")[2]
    with pytest.raises(BadProblem, match=said):
        ChunkScan.parse("chunk_scan:" + ",".join(f"{k}={v}" for k, v in fields.items()))
