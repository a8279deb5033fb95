"""A 0 in a field of a config.json means none, or a file that no engine can run."""

import pytest
from checkpoints import config_json

from tuner.errors import LacksLayers, MalformedCheckpoint, MalformedField
from tuner.models.config_json import parse_model, read_model
from tuner.models.fields import count, size
from tuner.models.model import Model
from tuner.models.quantization import read_quantization

ATTENTION = {"num_attention_heads": 32, "num_key_value_heads": 4, "num_hidden_layers": 4}
LATENT = {
    "architectures": ["DeepseekV3ForCausalLM"],
    **{"kv_lora_rank": 512, "q_lora_rank": 768, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64},
    **{"v_head_dim": 128, "intermediate_size": 6144, "first_k_dense_replace": 1},
    "index_head_dim": 128,
}
MIMO = {
    "architectures": ["MiMoV2FlashForCausalLM"],
    **{"head_dim": 192, "sliding_window_size": 128, "hybrid_layer_pattern": [0, 1, 1, 1]},
}
GEMMA = {"architectures": ["Gemma4ForCausalLM"], "sliding_window": 9, "head_dim": 256}
NEXT = {
    "architectures": ["Qwen3NextForCausalLM"],
    **{"linear_num_key_heads": 16, "linear_num_value_heads": 32, "full_attention_interval": 4},
    **{"linear_key_head_dim": 128, "linear_value_head_dim": 128},
}
MAMBA = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    **{"mamba_n_heads": 64, "mamba_d_state": 128, "mamba_n_groups": 1},
    "layer_types": ["mamba", "attention"] * 2,
}


def read(fields: dict[str, object], **changes: object) -> Model:
    return parse_model(config_json(**{**ATTENTION, **fields, **changes}), "x")


@pytest.mark.parametrize(
    ("value", "counted", "sized"),
    [
        (None, None, None),
        (8, 8, 8),
        ([8, 8], 8, 8),
        (0, 0, MalformedCheckpoint),
        ([0, 0], 0, MalformedCheckpoint),
        (-1, MalformedField, MalformedField),
        (True, MalformedField, MalformedField),
        (False, MalformedField, MalformedField),
        ("8", MalformedField, MalformedField),
        (8.0, MalformedField, MalformedField),
        (1e9, MalformedField, MalformedField),
        (float("inf"), MalformedField, MalformedField),
        (1 << 60, MalformedField, MalformedField),
        ([8, 9], MalformedCheckpoint, MalformedCheckpoint),
    ],
)
def test_a_field_is_absent_or_a_number_or_refused_by_name(value, counted, sized):
    for read_field, wanted in ((count, counted), (size, sized)):
        if wanted is None or isinstance(wanted, int):
            assert read_field({"n": value}, ("m", "n")) == wanted
            continue
        with pytest.raises(MalformedCheckpoint, match=r"^n ") as refused:
            read_field({"n": value}, ("m", "n"))
        assert type(refused.value) is wanted


IMPOSSIBLE = [  # (other fields, the field, the part that cannot be read)
    *(({}, name, "attention") for name in ("num_attention_heads", "num_key_value_heads")),
    *(({}, name, "attention") for name in ("head_dim", "num_hidden_layers")),
    *(({}, name, "experts") for name in ("moe_intermediate_size", "num_experts_per_tok")),
    *((LATENT, name, "attention") for name in ("qk_nope_head_dim", "v_head_dim")),
    *((LATENT, name, "linears") for name in ("q_lora_rank", "moe_layer_freq", "index_n_heads")),
    *((MIMO, f"swa_{name}", "attention") for name in ("num_attention_heads", "head_dim")),
    *((MIMO, f"swa_{name}", "attention") for name in ("num_key_value_heads", "v_head_dim")),
    *((GEMMA, name, "attention") for name in ("global_head_dim", "num_global_key_value_heads")),
    *((NEXT, name, "delta") for name in ("linear_num_key_heads", "linear_key_head_dim")),
    (NEXT, "full_attention_interval", "attention"),
    ({}, "attn_layer_period", "attention"),
    *((MAMBA, name, "mamba") for name in ("mamba_n_heads", "mamba_d_head", "mamba_expand")),
    *((MAMBA, name, "mamba") for name in ("mamba_chunk_size", "mamba_n_groups")),
]


def test_a_0_that_no_engine_can_run_is_refused(tmp_path, subtests):
    for fields, name, part in IMPOSSIBLE:
        with subtests.test(name):
            assert part not in read(fields, **{name: 8}).unread
            refused = read(fields, **{name: 0}).unread[part]
            assert str(refused) == f"{name} should be at least 1, not 0"
    file = tmp_path / "config.json"
    file.write_bytes(config_json(**ATTENTION, head_dim=0))
    assert str(file) in str(read_model(file).unread["attention"])


NONE = [  # (other fields, the field with 0, the value that is read)
    ({}, "v_head_dim", None),  # DeepSeek OCR
    ({}, "kv_lora_rank", None),
    ({}, "n_shared_experts", None),
    ({}, "shared_expert_intermediate_size", None),  # Qwen3 Coder 480B
    ({}, "sliding_window_pattern", None),  # EXAONE 4 without a window
    ({"n_shared_experts": None, "shared_expert_intermediate_size": 512}, "num_shared_experts", 0),
    (LATENT, "n_shared_experts", None),
    ({"attn_layer_period": 2}, "attn_layer_offset", None),  # Jamba
]


def test_a_0_may_mean_none(subtests):
    for fields, name, same in NONE:
        with subtests.test(name):
            found = read(fields, **{name: 0})
            assert found == read(fields, **{name: same}) and not {"experts", "attention"} & {
                *found.unread
            }


def test_no_shared_experts_have_no_columns():
    found = read({}, num_shared_experts=0, moe_shared_expert_intermediate_size=512)
    assert (found.n_shared_experts, found.shared_intermediate) == (0, 0)
    found = read({}, num_shared_experts=2, moe_shared_expert_intermediate_size=512)
    assert (found.n_shared_experts, found.shared_intermediate) == (2, 1024)  # bailing_moe.py
    found = read({}, num_shared_experts=2, shared_intermediate_size=512)
    assert (found.n_shared_experts, found.shared_intermediate) == (2, 512)


def test_models_without_experts_or_dense_layers_say_so_with_0():
    for experts in (0, 1):
        assert type(read({}, num_experts=experts).unread["experts"]) is LacksLayers
        dense = read(LATENT, num_experts=experts).linears.layers
        assert {layer.count for layer in dense if layer.name.startswith("mlp.")} == {4}
    whole = read(LATENT, first_k_dense_replace=0)
    names = {layer.name for layer in whole.linears.layers}
    assert not any(name.startswith("mlp.") for name in names)
    assert "mlp.down_proj" in {layer.name for layer in read(LATENT).linears.layers}


def test_latent_attention_may_have_no_rotary_columns():
    shape = read(LATENT, qk_rope_head_dim=0).attention
    assert (shape.layers[0].head_dim, shape.qk_rope_head_dim) == (128, 0)


@pytest.mark.parametrize("group", [0, "128", -2, True, 64.0])
def test_a_group_of_weights_is_a_size_or_the_whole_of_k(group):
    packed = {"quant_method": "gptq", "bits": 8}
    assert (
        read_quantization({"quantization_config": {**packed, "group_size": -1}}, None).block_shape
        is None
    )
    for quant in ({**packed, "group_size": group}, {"quant_method": "fp8", "weight_block_size": 0}):
        with pytest.raises(MalformedCheckpoint):
            read_quantization({"quantization_config": quant}, None)


def test_blocks_of_weights_are_no_groups_along_k():
    quant = {"quant_method": "auto-round", "bits": 8, "group_size": [128, 128]}
    assert read_quantization({"quantization_config": quant}, None).dtype is None
