"""The linear layers of models beside what real sglang releases ship and refuse."""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from draws import times
from hypothesis import given
from hypothesis import strategies as st
from real_sglang import RELEASES, package
from tiers import only

from tuner.models.config_json import parse_model
from tuner.models.linears import Columns, Group, Linear, Split
from tuner.models.model import Model
from tuner.models.quantization import Quantization
from tuner.models.rank_linears import Ranks, linear_layers, refuses
from tuner.models.table import find_preset
from tuner.problems.dtypes import Dtype

R1 = Path(__file__).parents[1] / "data" / "models" / "deepseek-r1" / "config.json"
BLOCKS = Quantization("fp8", Dtype.FP8_W8A8, (128, 128))
_NAME = re.compile(
    r"N=(\d+),K=(\d+),device_name=(\w[^,]*),dtype=([a-z0-9]+_[a-z0-9]+)(_channelwise)?"
    r"(?:,block_shape=\[(\d+), ?(\d+)\])?\.json"
)
Shape = tuple[int, int]

# sglang's tuning script has these among DeepSeek-V3's shapes: the query projection as if queries
# had no low rank (benchmark/kernels/quantization/tuning_block_wise_kernel.py).
WITHOUT_Q_LORA = {(24576, 7168), (3072, 7168), (1536, 7168)}
# DeepSeek-V4.1-Flash: its layers are not known here.
OF_BLOCKS_OF_32 = {
    *((1152, 5120), (1792, 5120), (25600, 6144), (4096, 1280), (5120, 1024), (5120, 2048)),
    *((5120, 288), (5120, 576), (576, 5120), (8192, 1280)),
}


def shipped(version: str, *, dtype: str, block: Shape | None) -> set[Shape]:
    """The (N, K) of the files for NVIDIA GPUs."""
    found = set()
    for path in package(version).rglob("N=*.json"):
        if match := _NAME.fullmatch(path.name):
            n, k, device, kind, channels, *sizes = match.groups()
            of = (int(sizes[0]), int(sizes[1])) if sizes[0] else None
            if device.startswith("NVIDIA") and (kind, of) == (dtype, block):
                assert (channels is None) == (of is not None)
                found.add((int(n), int(k)))
    return found


def shapes(model: Model, *ranks: Ranks, scheme: Quantization | None = None) -> set[Shape]:
    return {(one.N, one.K) for some in ranks for one in linear_layers(model, some, scheme=scheme)}


def both(*sizes: int) -> list[Ranks]:
    """Old and new engines at these tp."""
    return [Ranks(tp=tp, fuse_qkv_a=fused) for tp in sizes for fused in (True, False)]


@pytest.mark.parametrize("version", RELEASES)
def test_every_shipped_fp8_file_is_for_a_layer_of_a_model(version: str) -> None:
    of_models = (
        shapes(find_preset("deepseek-v3"), *both(1, 8, 16))
        | shapes(find_preset("qwen3-32b-fp8"), Ranks(tp=8))
        | shapes(find_preset("qwen3-30b-a3b-fp8"), Ranks())
    )
    files = shipped(version, dtype="fp8_w8a8", block=(128, 128))
    assert len(files) >= 13
    assert files <= of_models | WITHOUT_Q_LORA
    fields = json.loads(R1.read_text()) | {"q_lora_rank": None}
    plain = parse_model(json.dumps(fields).encode(), "x")
    assert shapes(plain, *both(1, 8, 16)) >= WITHOUT_Q_LORA


@pytest.mark.parametrize("version", RELEASES)
def test_every_shipped_int8_file_is_for_a_layer_of_deepseek(version: str) -> None:
    blocks = Quantization("blockwise_int8", Dtype.INT8_W8A8, (128, 128))
    of_model = shapes(find_preset("deepseek-v3"), *both(1, 8, 16), scheme=blocks)
    files = shipped(version, dtype="int8_w8a8", block=(128, 128))
    assert len(files) >= 13
    assert files <= of_model | WITHOUT_Q_LORA


def test_the_other_shipped_files_of_the_newest_release() -> None:
    channels = Quantization("w8a8_fp8", Dtype.FP8_W8A8, per_channel_quant=True)
    files = shipped("0.5.23", dtype="fp8_w8a8", block=None)
    assert files == shapes(find_preset("qwen3-8b"), Ranks(), scheme=channels)
    assert shipped("0.5.23", dtype="fp8_w8a8", block=(32, 32)) == OF_BLOCKS_OF_32


def test_every_layer_of_deepseek_at_tp_8_has_a_file() -> None:
    files = shipped("0.5.16", dtype="fp8_w8a8", block=(128, 128))
    # Files were made before the first two layers became one.
    assert shapes(find_preset("deepseek-v3"), Ranks(tp=8)) - files == {(2112, 7168)}


Validate = Callable[[Linear, int], bool]


def engine_check(version: str) -> Validate:
    """The release's own validate_block_quant_shapes: whether it accepts a layer on `tp` ranks."""
    source = package(version) / "srt" / "layers" / "quantization" / "fp8.py"
    text = source.read_text()
    (found,) = (
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name == "validate_block_quant_shapes"
    )
    names: dict[str, object] = {"List": list, "LinearBase": object}
    exec(textwrap.dedent(ast.unparse(found)), names)  # noqa: S102
    run = names["validate_block_quant_shapes"]
    assert callable(run)

    def accepts(layer: Linear, tp: int) -> bool:
        config = SimpleNamespace(weight_block_size=layer.scheme.block_shape)
        names["get_tensor_model_parallel_world_size"] = lambda: tp
        names["get_parallel"] = lambda: SimpleNamespace(tp_size=tp)
        columns = [one.size // (tp if layer.split is Split.COLUMN else 1) for one in layer.columns]
        K = layer.K // (tp if layer.split is Split.ROW else 1)
        whole = sum(one.size for one in layer.columns)
        if layer.split is Split.NONE:  # ReplicatedLinear has one part, whatever was merged into it
            columns = [whole]
        sizes = (layer.K, K, whole, sum(columns), columns)
        first = found.args.args[0].arg
        group = SimpleNamespace(world_size=tp if layer.split is not Split.NONE else 1)
        holder = SimpleNamespace(quant_config=config, tp_group=group)
        try:
            run(holder, *sizes) if first == "self" else run(holder, config, *sizes)
        except ValueError:
            return False
        return True

    return accepts


def layers() -> Iterator[st.SearchStrategy[Linear]]:
    sizes = st.integers(1, 64).map(lambda n: n * 64)
    for split, columns in (
        (Split.COLUMN, st.lists(sizes, min_size=1, max_size=3)),
        (Split.ROW, st.lists(sizes, min_size=1, max_size=1)),
        (Split.NONE, st.lists(sizes, min_size=1, max_size=1)),
    ):
        yield st.builds(
            lambda made, K, split=split: Linear(
                "x", tuple(map(Columns, made)), K, split, Group.DENSE, BLOCKS
            ),
            columns,
            sizes,
        )


@pytest.mark.parametrize("version", only(["0.5.23"], ["0.5.12", "0.5.16", "0.5.23"]))
def test_the_engine_refuses_the_same_layers(version: str) -> None:
    accepts = engine_check(version)
    seen: set[bool] = set()

    @times(4)
    @given(layer=st.one_of(*layers()), tp=st.sampled_from([1, 2, 4, 8]))
    def compare(layer: Linear, tp: int) -> None:
        why = refuses(layer, Ranks(tp=tp))
        if "does not divide" in why and "block" not in why:
            return  # the engine's divide() and its assertions refuse that earlier
        assert accepts(layer, tp) == (not why)
        seen.add(not why)

    compare()
    assert seen == {True, False}
