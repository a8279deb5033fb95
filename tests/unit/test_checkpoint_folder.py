"""What a checkpoint's folder says beside its config.json, and what engines make of its blocks."""

import json
from pathlib import Path
from typing import Any

import pytest
from cases import problems_of, read_experts
from checkpoints import config_json

from tuner.bindings.vllm import fused_moe as vllm
from tuner.devices.table import find_device
from tuner.devices.target import cuda_target
from tuner.errors import BadProblem, IndivisibleShape, MalformedCheckpoint
from tuner.families.dense_gemm import models as gemm_models
from tuner.families.fused_moe import models as moe_models
from tuner.families.fused_moe.models import Cut, fitted_block
from tuner.models.serving import Serving
from tuner.problems.dtypes import Dtype
from tuner.targets import resolve_all

SM90 = cuda_target(9, 0)

FP8 = Dtype.FP8_W8A8
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
EXPERT, OTHER = "model.layers.0.mlp.experts.0.up_proj", "model.layers.0.self_attn.o_proj"


def checkpoint(folder: Path, beside: dict[str, Any] | None = None, **fields: Any) -> Path:
    """A folder with a config.json of a small mixture-of-experts model, and other files."""
    heads = {"num_attention_heads": 32, "num_key_value_heads": 4, "num_hidden_layers": 4}
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {"hidden_size": 2560, "moe_intermediate_size": 640}
    (folder / "config.json").write_bytes(config_json(**{**sizes, **heads, **fields}))
    for name, value in (beside or {}).items():
        (folder / name).write_text(json.dumps(value))
    return folder


def modelopt(**fields: Any) -> dict[str, Any]:
    return {"hf_quant_config.json": {"producer": {"name": "modelopt"}, "quantization": fields}}


def mixed(experts: str, others: str) -> dict[str, Any]:
    layers = {EXPERT: {"quant_algo": experts}, OTHER: {"quant_algo": others}}
    return modelopt(quant_algo="MIXED_PRECISION", quantized_layers=layers)


def test_modelopt_s_file_alone_is_no_model(tmp_path):
    folder = checkpoint(tmp_path / "x", modelopt(quant_algo="NVFP4"))
    with pytest.raises(MalformedCheckpoint, match="give the folder, or the config.json"):
        read_experts(folder / "hf_quant_config.json")


def test_modelopt_s_file_is_read(tmp_path, subtests):
    for beside, expected in [
        (modelopt(quant_algo="FP8"), (FP8, None, False)),
        ({"hf_quant_config.json": {"quant_algo": "FP8"}}, (FP8, None, False)),  # not nested
        (modelopt(quant_algo="FP8_PB_WO"), (FP8, (128, 128), False)),
        (modelopt(quant_algo="FP8_PER_CHANNEL_PER_TOKEN"), (FP8, None, True)),
        (modelopt(quant_algo="NVFP4"), (None, None, False)),
        (mixed("FP8", "NVFP4"), (FP8, None, False)),
        (mixed("NVFP4", "FP8"), (None, None, False)),
    ]:
        with subtests.test(str(beside)):
            model = read_experts(checkpoint(tmp_path, beside))
            assert (model.dtype, model.block_shape, model.per_channel_quant) == expected
            assert model.doubt == ""


def test_the_quantisation_of_config_json_goes_first(tmp_path):
    folder = checkpoint(tmp_path, modelopt(quant_algo="NVFP4"), quantization_config=BLOCKS)
    assert read_experts(folder).block_shape == (128, 128)
    # The list of layers of a mixed precision may lie beside it alone.
    quant = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    folder = checkpoint(tmp_path, mixed("FP8", "NVFP4"), quantization_config=quant)
    assert read_experts(folder).dtype is FP8


def test_linear_layers_are_read_with_it(tmp_path):
    folder = checkpoint(tmp_path, modelopt(quant_algo="FP8"))
    with pytest.raises(BadProblem, match="stored as modelopt fp8 with one scale for a tensor"):
        problems_of(gemm_models, str(folder), Serving())


def test_a_malformed_file_is_named(tmp_path):
    folder = checkpoint(tmp_path)
    (folder / "hf_quant_config.json").write_text("[1]")
    with pytest.raises(MalformedCheckpoint, match=r"hf_quant_config\.json beside it: not a JSON"):
        read_experts(folder)


@pytest.mark.parametrize(
    ("name", "beside", "said"),
    [
        ("Qwen9-30B-FP8", {}, "the name says FP8"),
        ("Qwen9-30B-AWQ", {}, "the name says AWQ"),
        ("Qwen9-30B-w4a16", {}, "the name says w4a16"),
        ("models--org--Qwen9-INT8/snapshots/0a1b", {}, "the name says INT8"),
        ("plain", {"quantize_config.json": {"bits": 4}}, "beside config.json lies quantize_config"),
        ("plain", {"recipe.yaml": {}}, "beside config.json lies recipe.yaml"),
    ],
)
def test_what_speaks_of_quantisation_is_not_ignored(tmp_path, name, beside, said):
    folder = checkpoint(tmp_path / name, beside)
    (note,) = [n for n in problems_of(moe_models, str(folder), Serving()).notes if "--dtype" in n]
    assert note.startswith(said) and "is taken as bfloat16" in note
    # Nothing is doubtful if the caller says the type, or config.json does.
    assert not [
        n for n in problems_of(moe_models, str(folder), Serving(dtype=FP8)).notes if "--dtype" in n
    ]
    checkpoint(folder, quantization_config=BLOCKS)
    assert not [n for n in problems_of(moe_models, str(folder), Serving()).notes if "--dtype" in n]


def test_a_plain_name_is_not_doubted(tmp_path):
    for name in ("Qwen9-30B-A3B", "Llama-9-Scout-17B-16E", "fp800-model"):
        assert read_experts(checkpoint(tmp_path / name)).doubt == ""


def test_experts_that_are_left_unquantised(tmp_path):
    def quant(*ignored: str) -> dict[str, Any]:
        return BLOCKS | {"modules_to_not_convert": list(ignored)}

    every = [f"model.layers.{at}.mlp.experts" for at in range(4)]
    model = read_experts(checkpoint(tmp_path, quantization_config=quant(*every)))
    assert (model.dtype, model.block_shape) == (Dtype.BFLOAT16, None)
    model = read_experts(checkpoint(tmp_path, quantization_config=quant(every[0])))
    assert model.dtype is FP8
    assert model.doubt == "the experts of 1 of 4 layers are not quantised"
    gate = quant("model.layers.0.mlp.gate")
    assert read_experts(checkpoint(tmp_path, quantization_config=gate)).doubt == ""
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128}
    for ignored, dtype in (("gate", Dtype.INT4_W4A16), ("mlp.experts", Dtype.BFLOAT16)):
        quantised = awq | {"modules_to_not_convert": [ignored]}
        model = read_experts(checkpoint(tmp_path, quantization_config=quantised))
        assert (model.dtype, model.doubt) == (dtype, "")


def test_settings_of_experts_in_quark(tmp_path):
    def settings(qscheme: str) -> dict[str, Any]:
        part = {"dtype": "fp8_e4m3", "qscheme": qscheme}
        return {"weight": part, "input_tensors": part | {"is_dynamic": True}}

    quant = {
        "quant_method": "quark",
        "global_quant_config": settings("per_tensor"),
        "layer_quant_config": {"*o_proj": {}, "*mlp.experts*": settings("per_channel")},
    }
    model = read_experts(checkpoint(tmp_path, quantization_config=quant))
    assert (model.dtype, model.per_channel_quant) == (FP8, True)


def test_the_group_of_the_experts_counts(tmp_path):
    def group(bits: int, *targets: str) -> dict[str, Any]:
        weights = {"num_bits": bits, "type": "int", "group_size": 32}
        return {"targets": list(targets), "weights": weights}

    groups = {"a": group(8, "re:.*self_attn.*"), "b": group(4, "re:.*mlp\\.experts.*")}
    quant = {"quant_method": "compressed-tensors", "config_groups": groups}
    model = read_experts(checkpoint(tmp_path, quantization_config=quant))
    assert (model.dtype, model.block_shape) == (Dtype.INT4_W4A16, (0, 32))
    # A pattern need not name experts to match them.
    for pattern in ("re:.*mlp.*(gate|up|down)_proj$", "re:.*ffn.*(gate|up|down)_proj$"):
        groups["b"] = group(4, pattern)
        model = read_experts(checkpoint(tmp_path, quantization_config=quant))
        assert (model.dtype, model.block_shape) == (Dtype.INT4_W4A16, (0, 32))


class TestBlocks:
    @pytest.mark.parametrize("engine", ["sglang", "vllm"])
    def test_the_engine_is_asked(self, tmp_path, engine):
        folder = str(checkpoint(tmp_path, quantization_config=BLOCKS))
        serving = Serving(engine, tp=2)
        if engine == "vllm":
            found = problems_of(moe_models, folder, serving)
            ending = "N=320,K=2560,top_k=8,dtype=fp8_w8a8,block_shape=64x64"
            assert found.problems[0].spec().endswith(ending)
            note = "vllm makes the quantisation blocks of 128x128 smaller, 64x64: N=320"
            assert f"{note}; vllm 0.28.0 and older stop at this shape" in found.notes
        else:
            with pytest.raises(IndivisibleShape) as refused:
                problems_of(moe_models, folder, serving)
            said = str(refused.value)
            assert "= 320 is not divisible by weight quantization block_n = 128" in said
            assert "the nearest that works is tp=1; with sglang's --ep-size" in said

    @pytest.mark.parametrize(
        ("cut", "version", "expected"),
        [
            (Cut(320, 2560, 2, (128, 128), "fp8"), "0.30.0", (320, 2560, 64)),
            (Cut(320, 2560, 2, (128, 128), "fp8"), "0.29.0", (320, 2560, 64)),
            (Cut(320, 2560, 2, (128, 128), "fp8"), "0.28.0", None),
            (Cut(320, 2560, 2, (128, 128), "compressed-tensors float8"), "0.33.0", None),
            (Cut(336, 2560, 2, (128, 128), "fp8"), "0.33.0", None),  # it would be 16
            (Cut(256, 2560, 2, (128, 128), "fp8"), "0.33.0", (256, 2560, 128)),
            (Cut(320, 2880, 2, (128, 128), "fp8_per_block"), "0.25.0", (384, 2944, 128)),
            (Cut(320, 2560, 2, (128, 128), "fp8_per_block"), "0.24.0", None),
            (Cut(256, 2880, 2, (128, 128), "fp8_per_block"), "0.24.0", None),
            (Cut(256, 2560, 2, (128, 128), "fp8_per_block"), "0.24.0", (256, 2560, 128)),
        ],
    )
    def test_vllm_refines_and_pads_since_a_release(self, cut, version, expected, monkeypatch):
        monkeypatch.setenv("TUNER_ENGINE_PATH", "")  # as its table says, whatever is on disk
        if expected:
            found = vllm.rank_cut(cut, version, SM90)
            assert (found.N, found.K, *found.block) == (*expected, expected[2])
        else:
            refused = "is not divisible by weight quantization|that do not divide N="
            with pytest.raises(BadProblem, match=refused):
                vllm.rank_cut(cut, version, SM90)

    def test_sglang_with_aiter_pads_what_it_refuses_without(self):
        """The plan of a model's other layers goes on there."""
        served = Serving("sglang", "0.5.23", find_device("MI300X"), tp=8)
        found = resolve_all("qwen3-next-80b-a3b-fp8", served)
        assert "fused_moe" not in {target.family.name for target in found}
        assert any("with it, as in sglang's ROCm images, AITER runs" in n for n in found[0].notes)
        for version, card in (("0.5.2", "MI300X"), ("0.5.23", "H100")):
            with pytest.raises(IndivisibleShape, match="N=64, which the engine refuses"):
                resolve_all(
                    "qwen3-next-80b-a3b-fp8", Serving("sglang", version, find_device(card), tp=8)
                )

    def test_groups_are_halved_but_for_compressed_tensors(self):
        assert fitted_block(Cut(192, 2048, 4, (0, 128), "gptq")) == (0, 64)
        assert fitted_block(Cut(96, 2048, 8, (0, 128), "awq")) == (0, 32)
        with pytest.raises(BadProblem, match="no group size from 128 halved down to 32"):
            fitted_block(Cut(48, 2048, 16, (0, 128), "awq"))
        with pytest.raises(BadProblem, match="group_size = 128"):
            fitted_block(Cut(192, 2048, 4, (0, 128), "compressed-tensors int4"))
