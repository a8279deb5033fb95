"""Mamba-2 state updates: problems and their texts, and what config.json says of them."""

from pathlib import Path

import pytest

from tuner.devices.table import find_device
from tuner.errors import (
    BadProblem,
    IndivisibleShape,
    LacksLayers,
    MalformedCheckpoint,
    UnknownModel,
    UnsupportedFamily,
)
from tuner.families.chunk_scan.models import resolve as resolve_scan
from tuner.families.chunk_scan.problem import ChunkScan
from tuner.families.state_update.models import reads, resolve, resolve_config
from tuner.families.state_update.predict import state_space
from tuner.families.state_update.problem import StateUpdate, parse_state_update, same_states
from tuner.models.serving import Serving
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config

MODELS = Path(__file__).parents[1] / "data" / "mamba"
SPEC = "state_update:heads=16,head_dim=64,state_size=128,groups=2,dtype=bfloat16,"


def served(tp: int = 1, dtype: Dtype | None = None, **options: str) -> Serving:
    return Serving(engine="vllm", engine_version="0.33.0", tp=tp, dtype=dtype, options=options)


def problem_of(name: str, serving: Serving) -> StateUpdate:
    (found,) = resolve(str(MODELS / name), serving).problems
    assert isinstance(found, StateUpdate)
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
    assert found.cache_dtype == cache
    assert resolve_config((MODELS / name / "config.json").read_bytes(), name, served()).problems


@pytest.mark.parametrize(
    ("preset", "sizes"),
    [
        ("nemotron-3-nano-30b-a3b", (64, 64, 8, 128, 128)),
        ("granite-4.0-h-small", (128, 64, 1, 128, 256)),
        ("falcon-h1-34b-base", (32, 128, 2, 256, 128)),
    ],
)
def test_presets_have_their_layers(preset, sizes):
    (update,) = resolve(preset, served()).problems
    (scan,) = resolve_scan(preset, served()).problems
    assert isinstance(update, StateUpdate)
    assert isinstance(scan, ChunkScan)
    found = scan.heads, scan.head_dim, scan.groups, scan.state_size, scan.chunk_size
    assert found == sizes
    assert (update.heads, update.head_dim, update.groups, update.state_size) == sizes[:4]
    with pytest.raises(LacksLayers, match="no Mamba-2 layers are known of qwen3-8b"):
        resolve_scan("qwen3-8b", served())


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
    serving = served(mamba_ssm_cache_dtype="float16")
    assert problem_of("nemotron-3-nano", serving).cache_dtype == "float16"
    assert problem_of("granite-4-hybrid", served(dtype=Dtype.FLOAT16)).cache_dtype == "float16"
    with pytest.raises(BadProblem, match="dtype must be bfloat16 or float16, not fp8_w8a8"):
        problem_of("granite-4-hybrid", served(dtype=Dtype.FP8_W8A8))


@pytest.mark.parametrize("name", ["granite-4-dense", "qwen3-next"])
def test_models_without_such_layers_are_refused(name):
    """A dense Granite 4 has the fields of Mamba layers, and a gated delta net is another kernel."""
    with pytest.raises(
        MalformedCheckpoint, match="no Mamba-2 layers that are known here"
    ) as caught:
        problem_of(name, served())
    assert ("state_update:" in str(caught.value)) is (name != "qwen3-next")


def test_what_cannot_be_resolved_says_what_to_do():
    with pytest.raises(LacksLayers, match="no Mamba-2 layers are known of deepseek-r1: give"):
        resolve("deepseek-r1", served())
    for text, said in (("no-such-model", "NAME"), ("some/model-x", "some/model-x")):
        with pytest.raises(UnknownModel) as caught:
            resolve(text, served())
        assert f"hf download {said} config" in caught.value.cli
    with pytest.raises(UnsupportedFamily, match="not tuned for sglang, only for vllm"):
        resolve(str(MODELS / "mamba2"), Serving())


def test_a_warning_line_lacks_the_heads():
    line = (
        "Using default Mamba SSU config. Performance might be sub-optimal! Config file not found "
        "at /x/headdim=64,dstate=128,device_name=NVIDIA_L40S,cache_dtype=float32.json"
    )
    assert reads(line)
    with pytest.raises(BadProblem, match="does not say how many heads a rank has"):
        resolve(line, served())


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
            resolve_config(text.encode(), "model", served())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("heads=15", "groups=2 do not divide heads=15"),
        ("heads=0", "heads must be from 1"),
        ("head_dim=4096", "head_dim must be from 1 to 1024"),
        ("cache_dtype=float8", "not kept in 'float8'"),
        ("dtype=int8_w8a8", "dtype must be"),
    ],
)
def test_impossible_problems_are_refused(change, said):
    name = change.partition("=")[0]
    fields = dict(part.split("=") for part in SPEC.partition(":")[2].strip(",").split(","))
    fields[name] = change.partition("=")[2]
    with pytest.raises(BadProblem, match=said):
        parse_state_update("state_update:" + ",".join(f"{k}={v}" for k, v in fields.items()))


def test_states_of_one_width_are_alike():
    wide, half, other = (
        parse_state_update(f"{SPEC}cache_dtype={cache}")
        for cache in ("float32", "float16", "bfloat16")
    )
    assert same_states(half, other)
    assert not same_states(wide, half)


def test_the_space_has_what_engines_ship_and_stays_small():
    problem = parse_state_update(f"{SPEC}cache_dtype=float32")
    space = state_space(problem, find_device("H100"))
    assert len(space) <= 24
    for rows, warps in [(4, 1), (8, 1), (16, 2), (32, 4), (64, 8), (64, 1)]:
        assert space.legal(Config({"BLOCK_SIZE_M": rows, "num_warps": warps})), (rows, warps)
    assert not space.legal(Config({"BLOCK_SIZE_M": 128, "num_warps": 8}))  # a head has 64 rows
